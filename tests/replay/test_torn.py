"""Nothing that is handed out is torn or changes: batches and views stay what they were while others write on."""

from __future__ import annotations

import multiprocessing as mp
import os
from typing import Any

import numpy as np
import pytest

import di_store

FULL = os.environ.get("DI_STORE_TEST_SCALE", "small") == "full"
WIDTH = 512


def stamped(numbers: Any) -> Any:
    """`[…, WIDTH]` bytes that only one number has: every byte depends on it."""
    base = np.asarray(numbers, dtype=np.uint64)[..., None] * np.uint64(0x9E3779B97F4A7C15)
    return ((base >> np.uint64(13)) + np.arange(WIDTH, dtype=np.uint64) * (base >> np.uint64(40))).astype(np.uint8)


def write(store: str, writer_number: int, rounds: int, done: Any) -> None:
    """Extend by 16 rows a time, numbers rising; the obs of a row is the stamp of its number."""
    with di_store.attach(store, timeout=60) as attached, attached.table("t").writer(lanes=2) as writer:
        for at in range(rounds):
            first = np.uint64(writer_number << 40) + np.uint64(16 * at)
            numbers = (np.arange(16, dtype=np.uint64) + first)[:, None] + (
                np.arange(2, dtype=np.uint64) << np.uint64(32)
            )
            step = {"number": numbers.astype(np.int64), "obs": stamped(numbers), "reward": np.ones((16, 2), np.float32)}
            writer.extend(step)
    done.send("written")


def check(batch: Any) -> int:
    """Every row is whole, and the next observation is the stamp of the number `steps` ahead; how many were checked."""
    numbers = np.asarray(batch.data["number"]).astype(np.uint64)
    ahead = numbers + np.asarray(batch.data["steps"]).astype(np.uint64)
    assert (np.asarray(batch.data["obs"]) == stamped(numbers)).all()
    assert (np.asarray(batch.data["next_obs"]) == stamped(ahead)).all()
    return len(numbers)


def read(store: str, rows: int, done: Any) -> None:
    """Sample and check; four batches are held and looked at again while the writers lap the table."""
    with di_store.attach(store, timeout=60) as attached:
        table, checked, held = attached.table("t"), 0, []
        while checked < rows:
            batch = table.sample(64, timeout=120)
            checked += check(batch)
            held.append(batch)
            if len(held) > 4:
                assert check(held.pop(0)) == 64
    done.send(checked)


def test_rows_are_whole_while_writers_lap_the_table() -> None:
    """Two writers and two readers; the writers go ten times and more around the table."""
    rows, capacity = (500_000, 4_000) if FULL else (20_000, 1_000)
    with di_store.open(memory="128MiB") as store:
        view = di_store.Transition(n_step=2, gamma=1.0)
        limiter = di_store.SamplesPerInsert(4.0, 500, 1.0)
        table = store.create_table("t", capacity=capacity, view=view, limiter=limiter)
        context = mp.get_context("fork")
        writers, readers = [], []
        for number in (1, 2):
            ours, theirs = context.Pipe()
            # More than the limiter lets through for these readers: whoever is left waiting is ended below.
            writer = context.Process(target=write, args=(store.name, number, 1 << 40, theirs), daemon=True)
            writer.start()
            writers.append(writer)
            ours2, theirs2 = context.Pipe()
            context.Process(target=read, args=(store.name, rows, theirs2), daemon=True).start()
            readers.append(ours2)
            del ours
        for reader in readers:
            assert reader.poll(600)
            assert reader.recv() >= rows
        for writer in writers:
            writer.kill()
            writer.join(60)
        assert table.stats()["inserts"] >= 10 * capacity
        check(table.peek(table.keys()))


def test_a_held_batch_never_changes() -> None:
    """Not even a slice of one column that outlives its batch."""
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=64)
        table.extend({"number": np.arange(64), "obs": stamped(np.arange(64))})
        held = [table.sample(32, timeout=60).data["obs"][3:9] for _ in range(5)]
        copies = [view.copy() for view in held]
        for lap in range(1, 11):
            table.extend({"number": np.arange(64) + 64 * lap, "obs": stamped(np.arange(64) + 64 * lap)})
            table.sample(32, timeout=60)
        for view, copy in zip(held, copies, strict=True):
            np.testing.assert_array_equal(view, copy)


def test_out_overwrites_the_batch_it_is_given() -> None:
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=64)
        table.extend({"number": np.arange(64), "obs": stamped(np.arange(64))})
        first = table.sample(32, timeout=60)
        place = first.data["obs"]
        second = table.sample(32, timeout=60, out=first)
        assert np.shares_memory(second.data["obs"], place)
        np.testing.assert_array_equal(place, stamped(np.asarray(second.data["number"])))


@pytest.mark.parametrize("laps", [10])
def test_views_of_objects_stay_while_the_arena_is_reused(laps: int) -> None:
    with di_store.open(memory="64MiB") as store:
        size = 1 << 20
        ref = store.put(np.full(size, 7, np.uint8))
        view = store.get(ref)
        assert not view.flags.writeable
        tail = view[size // 2 :]
        del view
        assert store.delete([ref]) == 1
        for lap in range(laps * 64):
            other = store.put(np.full(size, lap % 251, np.uint8), timeout=60)
            store.delete([other])
        assert (tail == 7).all()
        with pytest.raises(di_store.ObjectNotFound):
            store.get(ref)
