"""What an insert finds room for: what can never fit is refused at once; values of any size use what memory there is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import di_store

MIB = 1 << 20


def stacked(store: Any, capacity: int, steps: int, side: int) -> tuple[Any, dict[str, Any]]:
    """A table of frame-stacked transitions, full, and all its items as they are read."""
    table = store.create_table("t", capacity=capacity, lanes=1, view=di_store.Transition(frame_stack={"obs": 4}))
    with table.writer() as writer:
        for at in range(steps):
            obs = np.full((side, side), at % 251, np.uint8)
            step = {"obs": obs, "action": 0, "reward": 0.0, "terminated": at % 100 == 99, "truncated": False}
            writer.append(step, next={"obs": obs + 1} if at % 100 == 99 else None)
    return table, table.peek(table.keys()).data


def test_stacked_transitions_that_never_fit_are_refused_at_once(full: bool) -> None:
    """With no limit of time, and before anything is written or evicted."""
    capacity, steps, side = (5_000, 3_000, 84) if full else (500, 300, 84)
    with di_store.open(memory="1GiB" if full else "256MiB") as store:
        table, batch = stacked(store, capacity, steps, side)
        before = table.keys().tolist()
        with pytest.raises(di_store.CapacityError, match=r"share no observations.*fewer rows at once.*capacity="):
            table.extend(batch)
        assert table.keys().tolist() == before
        assert table.stats()["open_bytes"] == 0
        assert store.check() == []
        table.extend({name: column[: steps // 10] for name, column in batch.items()})
        assert len(table) == steps + steps // 10


def insert_all(table: Any, values: Any) -> None:
    """One by one."""
    for value in values:
        table.insert(value, timeout=60)


def test_the_warning_about_eviction_names_inserted_items() -> None:
    with di_store.open(memory="256MiB") as store:
        table, batch = stacked(store, 500, 300, 84)
        rows = ({name: column[at] for name, column in batch.items()} for at in range(300))
        with pytest.warns(RuntimeWarning, match="inserted items cannot share frames"):
            insert_all(table, rows)
        assert table.stats()["evicted_for_room"] > 0


def test_rows_of_one_call_that_never_fit_are_refused_at_once() -> None:
    """In the store's memory, and within what a writer's extend may take."""
    row = {"x": di_store.Spec((1024,), "f4")}
    with di_store.open(memory="16MiB") as store:
        store.create_table("other", capacity=500, schema=row)
        table = store.create_table("t", capacity=2_000, max_bytes="4MiB", schema=row, view=di_store.Step())
        with pytest.raises(di_store.CapacityError, match="rows of one call"):
            table.extend({"x": np.zeros((1_500, 1024), np.float32)})
        assert table.stats()["open_bytes"] == 0
        table.extend({"x": np.zeros((500, 1024), np.float32)}, timeout=60)
        with table.writer() as writer:
            with pytest.raises(di_store.CapacityError, match="rows of one call"):
                writer.extend({"x": np.zeros((1_500, 1024), np.float32)})
            writer.extend({"x": np.zeros((500, 1024), np.float32)}, timeout=60)
        with pytest.raises(ValueError, match="capacity"):
            table.extend({"x": np.zeros((2_001, 1024), np.float32)})
        assert store.check() == []


def test_an_opaque_table_grows_into_free_memory(count: Callable[[int, int], int]) -> None:
    """One small value at first says nothing about those that follow."""
    size = count(20_000, 80_000)
    with di_store.open(memory="1GiB" if size > 50_000 else "128MiB") as store:
        table = store.create_table("t", capacity=1_000, view=di_store.Opaque())
        table.insert(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            for at in range(1_500):
                table.insert(np.full(size, at % 251, np.uint8), timeout=0)
        stats = table.stats()
        assert (len(table), stats["evicted_for_room"]) == (1_000, 0)
        assert stats["reserve_bytes"] >= stats["used_bytes"] // 2
        assert store.check() == []
        table.resize(1_200)
        table.resize(10)
        assert len(table) == 10
        assert table.stats()["reserve_bytes"] < stats["reserve_bytes"] // 2


@pytest.mark.memory_only
def test_an_opaque_table_evicts_instead_of_taking_memory_of_objects() -> None:
    """What is set aside grows by free memory only: in a store full of objects the table keeps what it can."""
    with di_store.open(memory="32MiB") as store:
        table = store.create_table("t", capacity=1_000, view=di_store.Opaque())
        table.insert(1)
        refs = [store.put(np.full(MIB, at, np.uint8)) for at in range(8)]
        with pytest.warns(RuntimeWarning, match="evicted before capacity"):
            insert_all(table, (np.full(80_000, at % 251, np.uint8) for at in range(1_000)))
        assert 100 < len(table) < 300
        assert all((store.get(ref) == at).all() for at, ref in enumerate(refs))
        assert store.stats()["committed"] <= 32 * MIB
        assert (table.peek(table.keys()[-1:]).data[0] == 999 % 251).all()
        assert store.check() == []


def make_tables(store: Any) -> None:
    """Twelve of different sizes: the store's own blocks for them are of many size classes."""
    for number in range(12):
        capacity, schema = 100 * 3 ** (number // 2), {"x": di_store.Spec((), "f4")}
        sampler = di_store.Prioritized(alpha=0.6)
        store.create_table(f"t{number}", capacity=capacity, schema=schema, lanes=1, sampler=sampler)


def test_pages_of_deleted_objects_are_not_charged_to_tables() -> None:
    """A block of the store's own, the first of its size, lies in 2 MiB of which it takes what it needs."""
    with di_store.open(memory="64MiB") as fresh, di_store.open(memory="64MiB") as used:
        store: Any = used
        store.delete([store.put(np.ones(48 << 20, np.uint8))])
        make_tables(fresh)
        make_tables(store)
        assert store.stats()["meta"] <= fresh.stats()["meta"] + (512 << 10)
        objects = [store.put(np.zeros(900_000, np.uint8), timeout=0) for _ in range(45)]
        store.delete(objects)
        assert store.check() == []


def test_dropped_tables_free_all_their_pages() -> None:
    with di_store.open(memory="64MiB") as store:
        store.create_table("stays", capacity=100, schema={"x": di_store.Spec((), "f4")})
        before = store.stats()["meta"]
        for _ in range(3):
            make_tables(store)
            for number in range(12):
                store.drop_table(f"t{number}")
        assert store.stats()["meta"] <= before + (256 << 10)
        assert store.check() == []
