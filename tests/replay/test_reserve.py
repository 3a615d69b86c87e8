"""What a table set aside is there when the rest of the store is full: pages, and the descriptors of its chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store

SMALL = {"obs": di_store.Spec((), "f4"), "action": di_store.Spec((), "f4"), "terminated": di_store.Spec((), "?")}

TABLES: dict[str, dict[str, Any]] = {
    "sequences": {"capacity": 3_000, "lanes": 64, "view": di_store.Sequence(20, 10, 5, bootstrap=("obs",))},
    "random removal": {"capacity": 12_000, "lanes": 8, "remover": di_store.Uniform()},
    "episodes": {"capacity": 200, "lanes": 16, "view": di_store.Episode(30)},
}


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="48MiB") as opened:
        yield opened


def fill(store: Any, size: int) -> None:
    """Objects until none fits any more, the last ones small."""
    while size >= 64:
        try:
            store.put_many([np.zeros(size, np.uint8)] * (1 if size > 4096 else 64), timeout=0)
        except (di_store.StoreFull, di_store.CapacityError):
            size //= 4


def write(table: Any, steps: int, lanes: int = 8) -> None:
    """Episodes of 30 steps."""
    with table.writer(lanes=lanes) as writer:
        for at in range(steps):
            obs = np.full(lanes, at, np.float32)
            step = {"obs": obs, "action": obs, "terminated": np.full(lanes, at % 30 == 29)}
            writer.append(step, next={"obs": obs + 1}, timeout=1)


@pytest.mark.memory_only
@pytest.mark.parametrize("size", [1 << 20, 256])
@pytest.mark.parametrize("kind", TABLES)
def test_a_table_holds_its_capacity_in_a_store_full_of_objects(store: Any, kind: str, size: int) -> None:
    table = store.create_table("t", schema=SMALL, **TABLES[kind])
    fill(store, size)
    write(table, 6_000)
    assert len(table) == TABLES[kind]["capacity"]
    assert table.stats()["evicted_for_room"] == 0
    assert store.check() == []


def test_descriptors_are_set_aside_with_the_first_step_and_given_back(store: Any) -> None:
    late = store.create_table("late", **TABLES["random removal"])
    with late.writer(lanes=8) as writer:
        row = np.zeros(8, np.float32)
        writer.append({"obs": row, "action": row, "terminated": np.zeros(8, bool)})
        fill(store, 256)
    write(late, 3_000)
    assert len(late) == 12_000
    store.drop_table("late")
    before = len(store.keys(n=1_000_000))
    fill(store, 64)
    assert len(store.keys(n=1_000_000)) > before + 3_000, "others may have them now"
    assert store.check() == []


def test_a_table_whose_descriptors_do_not_fit_is_refused(store: Any) -> None:
    """Removal in any order needs many small chunks: the reckoning names what it needs."""
    with pytest.raises(di_store.CapacityError) as caught:
        store.create_table("t", capacity=400_000, schema=SMALL, remover=di_store.Uniform())
    assert "capacity=400,000" in str(caught.value)
    live = store.stats()["live"]
    store.create_table("t", capacity=50_000, schema=SMALL, remover=di_store.Uniform())
    store.drop_table("t")
    assert store.stats()["reserved"] <= live + (4 << 20)
