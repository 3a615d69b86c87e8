"""A resize that meets another change of the same table: a killed one, the declaration of columns, the way back."""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from di_store.replay import handle as handles

ROW = di_store.Spec((10,), "f4")


def reserve_of(table: Any) -> int:
    return int(table.stats()["reserve_bytes"])


def fresh_reserve(capacity: int, **settings: Any) -> int:
    """What a table of that capacity sets aside that never had another."""
    with di_store.open(memory="512MiB") as store:
        return reserve_of(store.create_table("t", capacity=capacity, schema={"x": ROW}, **settings))


@pytest.mark.parametrize("lanes", [1, 16, 64])
def test_growing_and_shrinking_restores_the_reserve(lanes: int) -> None:
    with di_store.open(memory="512MiB") as store:
        table = store.create_table("t", capacity=100, schema={"x": ROW}, lanes=lanes)
        for capacity in (1_000_000, 100, 50_000, 7, 100):
            table.resize(capacity)
            assert reserve_of(table) == fresh_reserve(capacity, lanes=lanes), capacity


def shrink(table: Any) -> None:
    table.resize(100)


def test_a_resize_after_a_killed_one_completes_it() -> None:
    """The killed one has set the capacity; many items and their reserve are still there."""
    with di_store.open(memory="512MiB") as store:
        table = store.create_table("t", capacity=200_000, schema={"x": ROW})
        for wanted in (1_000, 100, 40_000):
            for _ in range(50):
                table.resize(200_000)
                while len(table) < 150_000:
                    table.extend({"x": np.zeros((10_000, 10), "f4")}, timeout=60)
                child = mp.get_context("fork").Process(target=shrink, args=(table,))
                child.start()
                while table.stats()["capacity"] != 100:
                    pass
                os.kill(child.pid or 0, signal.SIGKILL)
                child.join()
                if len(table) > 10_000:
                    break
            else:
                pytest.fail("no kill came half-way")
            table.resize(wanted)
            assert reserve_of(table) == fresh_reserve(wanted)
            assert len(table) <= wanted
        assert store.check() == []


@pytest.mark.parametrize(("before", "after"), [(1_000, 50_000), (1_000_000, 10)])
def test_a_resize_during_the_first_step_is_consistent(monkeypatch: pytest.MonkeyPatch, before: int, after: int) -> None:
    """The first step has set aside bytes for the old capacity; all items of the new one fit."""
    with di_store.open(memory="512MiB") as store:
        table = store.create_table("t", capacity=before)
        make_room, calls = handles.make_room, []

        def meanwhile(*args: Any) -> None:
            make_room(*args)
            if not calls:
                calls.append(args)
                table.resize(after)

        monkeypatch.setattr(handles, "make_room", meanwhile)
        table.extend({"x": np.zeros((10, 10), "f4")}, timeout=0)
        assert calls
        assert reserve_of(table) == fresh_reserve(after)
        for _ in range(60):
            table.extend({"x": np.zeros((min(1_000, after), 10), "f4")}, timeout=60)
        assert len(table) == after
        assert table.stats()["evicted_for_room"] == 0


def test_descriptors_are_reserved_for_columns_of_the_first_step() -> None:
    """`max_bytes` is set aside before the columns are known: their chunks get descriptors all the same."""
    free = []
    for schema in ({"x": ROW}, None):
        with di_store.open(memory="32MiB") as store:
            settings: dict[str, Any] = {"schema": schema, "lanes": 1, "remover": di_store.Uniform()}
            table = store.create_table("t", capacity=20_000, max_bytes="8MiB", **settings)
            table.extend({"x": np.zeros((8, 10), "f4")}, timeout=0)
            free.append(store._backend.session.arena.available(0, 60.0))
    assert abs(free[0] - free[1]) < 128 << 10


def test_growing_and_shrinking_in_turn_adds_nothing() -> None:
    """What a stream has added is rounded the same way up and down."""
    with di_store.open(memory="1GiB") as store:
        table = store.create_table("t", capacity=100_000, schema={"x": ROW})
        other = store.create_table("u", capacity=1_000, schema={"y": di_store.Spec((100,), "u1")})
        with store.writer([table, other]) as writer:
            writer.append({"x": np.zeros(10, "f4"), "y": np.zeros(100, "u1")}, timeout=0)
        reserves = []
        for _ in range(20):
            table.resize(7)
            table.resize(100_000)
            reserves.append(reserve_of(table))
        assert set(reserves[1:]) == {reserves[1]}


def test_an_opaque_table_that_was_resized_first_is_sized_by_its_first_value() -> None:
    found = []
    for resized in (False, True):
        with di_store.open(memory="256MiB") as store:
            table = store.create_table("t", capacity=50, view=di_store.Opaque())
            if resized:
                table.resize(50)
            table.insert({"blob": bytes(100_000)}, timeout=0)
            found.append({name: table.stats()[name] for name in ("item_bytes", "chunk_block", "reserve_bytes")})
    assert found[0] == found[1]


@pytest.mark.parametrize("ahead", [0, 8])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_smaller_table_keeps_its_newest_items(tmp_path: Path, on_disk: bool, ahead: int) -> None:
    """Its chunks were made for a larger one, and batches ahead hold some of them: no item goes before its time."""
    rng = random.Random(3)
    tier: dict[str, Any] = {"disk": tmp_path, "disk_capacity": "256MiB"} if on_disk else {}
    with di_store.open(memory="64MiB", **tier) as store:
        schema = {"n": di_store.Spec((), "i8"), "x": di_store.Spec((4096,), "u1")}
        table = store.create_table("t", capacity=2_000, schema=schema, lanes=1)
        written = 0

        def write(count: int) -> None:
            nonlocal written
            for _ in range(count):
                writer.append({"n": written, "x": np.full(4096, written % 251, np.uint8)})
                written += 1
                here = table.peek(table.keys()).data["n"].tolist() if written % 50 == 0 else None
                assert len(table) == min(kept + written - since, capacity)
                assert here is None or here == list(range(written - len(table), written))

        with table.writer() as writer, table.loader(32, prefetch=ahead) as loader:
            capacity, kept, since = 2_000, 0, 0
            write(2_000)
            next(loader)
            for capacity in (50, 400, 10, 300, 5):
                kept, since = min(len(table), capacity), written
                table.resize(capacity)
                assert len(table) == kept
                write(rng.randrange(capacity, 3 * capacity))
        assert table.stats()["evicted_for_room"] == 0
        assert store.check() == []
        assert reserve_of(table) < 3 << 20  # 12 MiB were set aside for the largest capacity
