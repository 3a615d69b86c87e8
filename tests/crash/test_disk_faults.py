"""Calls for files that fail, and processes that hold things up: others go on, and so does the disk tier afterwards."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disk.test_disk import fill, numbers, row
from warm import WARM, stopped_at_its_fault

import di_store
from di_store import _core
from di_store.runtime import chores


@pytest.fixture
def store(tmp_path: Path) -> Iterator[di_store.Store]:
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="128MiB") as opened:
        yield opened
        _core.arm_fault("")


def written(store: di_store.Store) -> int:
    return int(store.stats()["disk"]["written_chunks"])  # type: ignore[index]


def stopped(target: Any, *args: Any) -> Any:
    """A process that runs `target` and has stopped at a fault point."""
    child = WARM.Process(target=target, args=args)
    child.start()
    assert stopped_at_its_fault(child), "the fault point was not reached"
    return child


def end(child: Any) -> None:
    child.kill()
    child.join(60)


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("call", ["file.open:2", "file.preallocate:2", "file.write:1", "file.write:9", "file.sync:1"])
def test_a_failed_call_does_not_affect_later_ones(store: di_store.Store, call: str, error: str) -> None:
    """No row is lost, no claim stays, and chunks are written again."""
    table = store.create_table("replay", capacity=30_000, lanes=1, compress=None)
    fill(table, 0, 15_000)
    _core.arm_fault(f"{call}:{error}")
    fill(table, 15_000, 45_000)
    before = written(store)
    fill(table, 60_000, 20_000)
    arena = store._backend.session.arena
    while arena.chore():  # a chunk counts once its write has ended
        pass
    assert written(store) > before + 10
    batch = table.sample(500)
    assert (numbers(batch.data["obs"]) % 7 == batch.data["action"]).all()
    assert len(table) == 30_000
    assert not store.check()


def test_a_failed_open_raises_once(store: di_store.Store) -> None:
    table = store.create_table("replay", capacity=60_000, lanes=1, compress=None)
    fill(table, 0, 60_000)
    _core.arm_fault("file.open:1:EINVAL+")  # also in the thread that does chores, where it is no error
    with pytest.raises(di_store.StoreError, match="segment"):
        for _ in range(10):
            table.sample(300)
    _core.arm_fault("")
    numbers(table.sample(300).data["obs"])
    assert len(table) == 60_000
    assert store.stats()["pinned"] == 0
    assert not store.check()


def test_a_writer_evicts_when_no_file_can_be_made(store: di_store.Store, tmp_path: Path) -> None:
    """The table has not used all that was set aside for it, most of which lies on the disk."""
    table = store.create_table("replay", capacity=40_000, lanes=1, compress=None)
    shutil.rmtree(tmp_path / "disk")
    fill(table, 0, 40_000)
    assert 8_000 < len(table) < 16_000
    assert numbers(table.sample(300).data["obs"]).min() >= 24_000
    assert not store.check()


def test_background_chores_survive_a_file_error(store: di_store.Store) -> None:
    """The thread that runs them ends with any other StoreError."""
    table = store.create_table("replay", capacity=60_000, lanes=1, compress=None)
    fill(table, 0, 8_000)
    arena = store._backend.session.arena
    while arena.chore():
        pass
    fill(table, 8_000, 3_000)
    _core.arm_fault("file.write:1:EIO")
    for _ in range(20):
        arena.chore()
    assert table.sample(64)


def stop_at(name: str, fault: str) -> None:
    with di_store.attach(name) as store:
        fill(store.table("replay"), 0, 60_000, fault=fault + ":stop")


def test_a_file_counts_before_it_is_created(store: di_store.Store, tmp_path: Path) -> None:
    """Else many processes at once take more than disk_capacity=. Its owner dies, and the next one makes it."""
    table = store.create_table("replay", capacity=60_000, lanes=3, compress=None)
    before = store.stats()["disk"]["files"]  # type: ignore[index]
    child = stopped(stop_at, store.name, "tier.segment_taken:1")
    assert store.stats()["disk"]["files"] >= before + (4 << 20)  # type: ignore[index]
    end(child)
    assert not list((tmp_path / "disk").glob("segment-*"))
    fill(table, 0, 40_000)
    stats = store.stats()["disk"]
    assert stats is not None
    assert stats["written"] > 16 << 20
    assert stats["files"] <= 128 << 20


def test_empty_files_of_another_size_are_removed_for_room(tmp_path: Path) -> None:
    """Files for chunks of 20 MiB fill the disk; when they are empty, those of usual chunks find room."""
    with di_store.open(memory="96MiB", disk=tmp_path / "disk", disk_capacity="80MiB") as store:
        table = store.create_table("large", capacity=5, lanes=1, compress=None)
        for number in range(5):
            table.insert({"x": np.full(20 << 20, number, np.uint8)})
        assert written(store) >= 1
        store.drop_table("large")
        before = written(store)
        table = store.create_table("replay", capacity=110_000, lanes=1, compress=None)
        fill(table, 0, 110_000)
        assert written(store) > before + 20
        assert not store.check()


def write(name: str, first: int, count: int) -> None:
    with di_store.attach(name) as store:
        fill(store.table("replay"), first, count)


def test_writers_wait_for_bodies_being_moved(store: di_store.Store) -> None:
    """All bodies in memory may be claimed at once by others: no item is evicted for that, while the disk has room."""
    table = store.create_table("replay", capacity=40_000, lanes=3)
    children = [WARM.Process(target=write, args=(store.name, 100_000 * i, 13_000)) for i in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
        assert child.exitcode == 0
    assert table.stats()["evicted_for_room"] == 0
    assert len(table) == 39_000
    assert (numbers(table.sample(300).data["obs"]) >= 0).all()


def test_a_stopped_copying_writer_is_bypassed(store: di_store.Store) -> None:
    table = store.create_table("replay", capacity=30_000, lanes=2)
    child = stopped(stop_at, store.name, "tier.written:1")
    fill(table, 500_000, 60_000)
    assert len(table) == 30_000
    end(child)
    assert not store.check()


def hold_a_table(name: str) -> None:
    with di_store.attach(name) as store:
        table = store.table("held")
        table.sample(1)
        _core.arm_fault("table.draw_item:1:stop")
        table.sample(1)


def test_a_blocked_table_keeps_only_its_own_rows(store: di_store.Store) -> None:
    """Bodies of other tables are dropped meanwhile, and none of their items is evicted."""
    held = store.create_table("held", capacity=4_000, lanes=1, compress=None)
    table = store.create_table("replay", capacity=25_000, lanes=1, compress=None)
    fill(held, 0, 4_000)
    child = stopped(hold_a_table, store.name)
    try:
        fill(table, 0, 25_000)
        assert len(table) == 25_000
        assert (numbers(table.sample(300).data["obs"]) >= 0).all()
    finally:
        end(child)
    assert len(held) == 4_000
    store.check(repair=True)
    assert not store.check()


def lose_the_lock(name: str, pipe: Any) -> None:
    """Stops with bodies claimed; when it goes on, somebody else has the heap's lock."""
    with di_store.attach(name) as store:
        with store.table("replay").writer() as writer:
            chores._stop()  # here they are done by this thread alone
            for number in range(7_000):
                writer.append(row(number))
        _core.arm_fault("tier.written:1:stop")
        for _ in range(2):
            try:
                while store._backend.session.arena.chore():
                    pass
                pipe.send("done")
            except di_store.Timeout:
                pipe.send("timeout")
            pipe.recv()


def hold_the_heap(name: str) -> None:
    with di_store.attach(name) as store:
        _core.arm_fault("heap.make_after_state:1:stop")
        store.put(np.zeros(1000))


def test_claims_end_though_the_heap_was_locked(store: di_store.Store) -> None:
    """The call that had claimed bodies failed; the next one of its process ends the claims, and the chunks can go."""
    store.create_table("replay", capacity=9_000, lanes=1, compress=None)
    near, far = WARM.Pipe()
    child = stopped(lose_the_lock, store.name, far)
    holder = stopped(hold_the_heap, store.name)
    os.kill(child.pid, signal.SIGCONT)
    assert near.poll(60)
    assert near.recv() == "timeout"
    end(holder)
    near.send(1)
    assert near.poll(60)
    assert near.recv() == "done"
    store.drop_table("replay")
    store.check(repair=True)
    assert store.stats()["chunk_pages"] == 0
    end(child)


@pytest.mark.filterwarnings("error")
def test_a_close_does_not_wait_for_the_heap(store: di_store.Store) -> None:
    """Nothing is durable, so nothing has to be written first: it waited, and warned that this had failed."""
    other = di_store.attach(store.name)
    child = stopped(hold_the_heap, store.name)
    other.close()
    end(child)


def delete_and_sync(name: str) -> None:
    with di_store.attach(name) as store:
        store.delete(store.put(np.zeros(9), durability="disk"))
        _core.arm_fault("log.marks_taken:1:stop")
        store.sync()


def test_a_sync_counts_once_it_is_done(store: di_store.Store) -> None:
    """While one that was stopped, or killed, has a file to sync, another one syncs it as well."""
    child = stopped(delete_and_sync, store.name)
    _core.arm_fault("file.sync:1:EIO")
    with pytest.raises(di_store.StoreError, match="synced"):
        store.sync()
    end(child)
    store.sync()
    _core.arm_fault("file.sync:1:EIO")
    store.sync()  # nothing is left to sync
