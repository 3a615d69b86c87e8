"""A table grows as often as it is asked to, by as little as it is asked for, and keeps its items, keys and order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import di_store

SCHEMA = {"x": di_store.Spec((), "i8")}


@pytest.mark.parametrize("sampler", [di_store.Uniform(), di_store.Prioritized(alpha=1.0, beta=0.5)], ids=str)
def test_a_thousand_resizes_keep_every_key(sampler: Any, count: Callable[[int, int], int]) -> None:
    """Up and down by small steps: every key stays what it was, and nothing is lost but what the remover took."""
    rng = np.random.default_rng(3)
    with di_store.open(memory="256MiB") as store:
        table = store.create_table("t", capacity=10, schema=SCHEMA, sampler=sampler)
        expected: dict[int, int] = {}
        capacity, number = 10, 0
        for turn in range(1_000):
            up = turn % 3 != 2
            capacity = max(5, capacity + int(rng.integers(1, count(60, 2_000))) * (1 if up else -1) // (1 if up else 2))
            table.resize(capacity)
            keys = table.extend({"x": np.arange(number, number + 4)})
            expected |= dict(zip(keys.tolist(), range(number, number + 4), strict=True))
            number += 4
            while len(expected) > capacity:
                del expected[next(iter(expected))]
            if turn % 50 == 49:
                assert table.keys().tolist() == list(expected)
                assert table.peek(np.array(list(expected), np.uint64)).data["x"].tolist() == list(expected.values())
                assert table.update_priorities(np.array(list(expected), np.uint64), np.ones(len(expected))) == len(
                    expected
                )
                assert np.isin(table.sample(20, timeout=0).data["x"], list(expected.values())).all()
        assert table.stats()["slots"] > 1_024 * 10, "it has grown many times"
        assert store.check() == []


def test_more_growths_than_segments_keep_every_item() -> None:
    """More growths than the directory has places."""
    with di_store.open(memory="256MiB") as store:
        table = store.create_table("t", capacity=1, schema=SCHEMA)
        slots = {int(table.stats()["slots"])}
        for capacity in range(1, 60_000, 1_000):
            table.resize(capacity)
            table.insert({"x": capacity}, timeout=0)
            slots.add(int(table.stats()["slots"]))
        assert len(slots) > 40
        assert table.peek(table.keys()).data["x"].tolist() == list(range(1, 60_000, 1_000))
        assert store.check() == []


def extend_all(table: Any) -> None:
    """A hundred calls of 3,000 items, that hold the number of their call."""
    for at in range(100):
        table.extend({"x": np.full(3_000, at, np.uint8)}, timeout=60)


def test_a_table_that_has_no_memory_for_more_slots_evicts() -> None:
    """`capacity=None`: as many items as fit, also where their slots are what does not fit."""
    with di_store.open(memory="16MiB") as store:
        table = store.create_table("t", capacity=None, max_bytes="4MiB", schema={"x": di_store.Spec((), "u1")})
        with pytest.warns(RuntimeWarning, match="evicted before capacity"):
            extend_all(table)
        stats = table.stats()
        assert 20_000 < len(table) < 300_000
        assert stats["evicted_for_room"] + len(table) == stats["inserts"] == 300_000
        assert (table.peek(table.keys()[-3_000:]).data["x"] == 99).all()
        assert store.check() == []


def test_a_table_without_capacity_grows_past_33_million_items(full: bool) -> None:
    """Where it once ended; small: as many growths of a table that begins small."""
    items, memory = (36_000_000, "9GiB") if full else (300_000, "256MiB")
    some = 500_000 if full else 3_000
    with di_store.open(memory=memory) as store:
        table = store.create_table(
            "t", capacity=None, max_bytes="512MiB" if full else "8MiB", schema={"x": di_store.Spec((), "u1")}
        )
        for first in range(0, items, some):
            table.extend({"x": (np.arange(first, first + some) % 251).astype(np.uint8)}, timeout=60)
        assert len(table) == items
        for start in (0, items // 2, items - 1_000):
            rows = table.peek(table.keys(start, 1_000)).data["x"]
            assert (rows == np.arange(start, start + 1_000) % 251).all()


def test_a_shrunk_table_frees_its_pages() -> None:
    """Pages of its rows, in the background, and so do those of a dropped one. Those of rows that are replaced stay."""
    with di_store.open(memory="256MiB") as store:
        arena = store._backend.session.arena
        rows = {"x": np.ones((1_000, 4096), np.uint8), "terminated": np.zeros(1_000, bool)}
        for shrink in ("resize", "drop"):
            table = store.create_table("table", capacity=20_000, lanes=1)
            with table.writer() as writer:
                for _ in range(30):
                    writer.extend(rows)
            while arena.chore():
                pass
            assert store.stats()["present"] > 80 << 20
            if shrink == "resize":
                table.resize(1_000)
                assert len(table) == 1_000
            else:
                store.drop_table("table")
            while arena.chore():
                pass
            assert store.stats()["present"] < 60 << 20
            assert not store.check()
            if shrink == "resize":
                store.drop_table("table")
