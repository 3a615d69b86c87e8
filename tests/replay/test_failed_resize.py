"""A resize that fails has changed nothing: not one figure that the store or the table tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store

MIB = 1 << 20
TIMES = 3
"""A failure repeated must not add up either."""


def figures(store: Any, table: Any) -> dict[str, Any]:
    """All that both tell, but for what a clock or the kernel says."""
    told = store.stats()
    kept = (
        "free",
        "live",
        "pinned",
        "pending",
        "committed",
        "object_pages",
        "chunk_pages",
        "meta",
        "fixed",
        "reserved",
    )
    found = {f"store.{name}": told[name] for name in (*kept, "free_pages", "objects")}
    return found | {name: value for name, value in table.stats().items() if "seconds" not in name}


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as made:
        yield made


@pytest.fixture
def table(store: Any) -> Any:
    """With items, and pages that were given back already."""
    sampler = di_store.Prioritized(alpha=0.6)
    limiter = di_store.MinSize(50)
    made = store.create_table(
        "t", capacity=1_000, schema={"x": di_store.Spec((64,), "f4")}, sampler=sampler, limiter=limiter
    )
    made.extend({"x": np.zeros((500, 64), np.float32)}, timeout=60)
    return made


def assert_unchanged(store: Any, table: Any, kind: type[Exception], capacity: int, **numbers: int) -> None:
    """A resize through the table, or with `numbers` of the core's own, that no check in front of it refuses."""
    before = figures(store, table)
    for _ in range(TIMES):
        with pytest.raises(kind):
            if numbers:
                stats = table.stats()
                of = {"slots": stats["slots"], "reserve_bytes": stats["reserve_bytes"], "block": 0} | numbers
                seen = stats["capacity"], stats["reserve_wanted"], stats["reserve_open"]
                reserve = of["reserve_bytes"], stats["reserve_open"], of["block"], 0
                table._backend.handle.native.resize(capacity, of["slots"], reserve, seen, 60.0)
            else:
                table.resize(capacity)
        assert figures(store, table) == before
    assert store.check() == []
    table.resize(2_000)
    assert table.stats()["capacity"] == 2_000


def test_a_resize_without_room_changes_nothing(store: Any, table: Any) -> None:
    assert_unchanged(store, table, di_store.CapacityError, 10_000_000)


def test_a_resize_below_the_limiters_need_changes_nothing(store: Any, table: Any) -> None:
    assert_unchanged(store, table, di_store.CapacityError, 49)


def test_a_resize_that_loses_a_race_for_room_changes_nothing(store: Any, table: Any) -> None:
    """Somebody was faster: what a check saw is gone."""
    assert_unchanged(store, table, di_store.CapacityError, 2_000, reserve_bytes=100 * MIB)


def test_a_resize_without_memory_for_slots_changes_nothing(store: Any, table: Any) -> None:
    """The reserve would fit."""
    before = int(table.stats()["reserve_bytes"])
    assert_unchanged(store, table, di_store.CapacityError, 2_000, slots=1 << 21, reserve_bytes=before + MIB, block=4096)


def test_a_resize_without_descriptors_changes_nothing(store: Any, table: Any) -> None:
    """Reserve and slots would fit, not the descriptors of so many small chunks."""
    before = int(table.stats()["reserve_bytes"])
    more = {"slots": 4_096, "reserve_bytes": before + 40 * MIB, "block": 64}
    assert_unchanged(store, table, di_store.CapacityError, 2_000, **more)


def test_a_resize_beyond_the_most_slots_changes_nothing(store: Any, table: Any) -> None:
    before = int(table.stats()["reserve_bytes"])
    assert_unchanged(store, table, di_store.CapacityError, 2**28, slots=2**28 + 1, reserve_bytes=before + MIB)


@pytest.mark.parametrize("less", [True, False])
def test_a_failed_store_resize_changes_nothing(store: Any, table: Any, less: bool) -> None:
    before, memory = figures(store, table), MIB if less else 2 * store._backend.session.arena.range_bytes
    for _ in range(TIMES):
        with pytest.raises(di_store.CapacityError):
            store.resize(memory)
        assert figures(store, table) == before
