"""Objects leave memory for the disk tier when room is short, and come back when somebody gets them."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import is_removed, until

import di_store
from di_store import CapacityError, CorruptData, ObjectNotFound, StoreFull, Timeout, _core

SPAWN = mp.get_context("spawn")
SIZES = (3, 900, 5_000, 40_000, 300_000)
"""Bytes of values, in turns: together four times as many as memory has."""
COUNT = 600
OPTIONS: dict[str, Any] = {"memory": "14MiB", "disk_capacity": "256MiB"}


def id_of(number: int) -> str:
    return f"{number:040x}"


def value_of(number: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, SIZES[number % len(SIZES)], np.uint8)


def same(found: Any, number: int) -> bool:
    return bool(np.array_equal(found, value_of(number)))


def opened(folder: Path, name: str | None = None, **more: Any) -> di_store.Store:
    return di_store.open(name, disk=folder, **{**OPTIONS, **more})


def fill(store: di_store.Store, numbers: range, wait: float = 60, **options: Any) -> None:
    for number in numbers:
        store.put(value_of(number), id=id_of(number), timeout=wait, **options)


def disk_of(store: di_store.Store) -> Any:
    return store.stats()["disk"]


def away(store: di_store.Store) -> int:
    return int(disk_of(store)["objects"])


def logs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("objects-*"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[di_store.Store]:
    with opened(tmp_path) as made:
        yield made


def test_more_objects_than_memory_are_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, range(COUNT))
        assert COUNT / 2 < away(store) < COUNT
        for number in np.random.default_rng(0).permutation(COUNT).tolist():
            assert same(store.get(id_of(number)), number)
        disk = disk_of(store)
        assert disk["loaded_objects"] > COUNT / 2
        assert disk["object_bytes"] < disk["written"] < 1.2 * sum(SIZES) * COUNT / len(SIZES)
        assert [ref.id for ref in store.keys(n=COUNT)] == [id_of(number) for number in range(COUNT)]
        assert store.check() == []
    until(partial(is_removed, tmp_path, store.name), "the end of the store")


def test_an_object_already_on_disk_is_not_rewritten(store: di_store.Store) -> None:
    fill(store, range(COUNT))
    for _ in range(8):
        for number in range(COUNT):
            store.get(id_of(number))
    before = disk_of(store)["written"]
    for number in range(COUNT):
        store.get(id_of(number))
    assert disk_of(store)["written"] == before


def test_recently_read_objects_stay_in_memory(store: di_store.Store) -> None:
    """Of what fits ten times over, the part that is read again and again is not read from disk."""
    fill(store, range(COUNT))
    hot = range(1, COUNT, 50)
    loads = []
    for turn in range(20):
        for number in hot:
            assert same(store.get(id_of(number)), number)
        loads.append(disk_of(store)["loaded_objects"])
        for number in range(turn * 30, turn * 30 + 30):
            store.get(id_of(number))
    assert loads[-1] - loads[0] - 20 * 30 < len(hot) * 19 / 4


def loads(store: di_store.Store, number: int) -> int:
    """How often the disk was read for three calls of get()."""
    before = disk_of(store)["loaded_objects"]
    for _ in range(3):
        assert same(store.get(id_of(number)), number)
    return int(disk_of(store)["loaded_objects"]) - before


def test_the_second_read_brings_an_object_into_memory(store: di_store.Store) -> None:
    fill(store, range(COUNT))
    assert [loads(store, number) for number in range(20, 25)] == [2] * 5
    for number in range(100, COUNT):
        store.delete(id_of(number))
    assert [loads(store, number) for number in range(30, 35)] == [1] * 5  # there is room


def test_a_read_of_long_ago_does_not_count(store: di_store.Store) -> None:
    fill(store, range(COUNT))
    store.get(id_of(21))
    for _ in range(8):
        for number in range(100, COUNT):
            store.get(id_of(number))
    assert loads(store, 21) == 2


def test_arrays_keep_their_objects(store: di_store.Store) -> None:
    held = {}
    for number in range(COUNT):
        store.put(value_of(number), id=id_of(number))
        if number % 50 == 4:
            held[number] = store.get(id_of(number))
    assert away(store) > 0
    assert all(same(found, number) for number, found in held.items())
    assert store.delete([id_of(number) for number in held]) == len(held)
    assert all(same(found, number) for number, found in held.items())
    held.clear()
    gc.collect()
    assert store.check() == []


def test_weights_stay_in_memory(store: di_store.Store) -> None:
    store.publish("policy", value_of(4))
    fill(store, range(COUNT))
    before = disk_of(store)["loaded_objects"]
    assert same(store.latest("policy").value, 4)
    assert disk_of(store)["loaded_objects"] == before


def test_durable_objects_need_no_second_copy(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, range(0, COUNT, 2), durability="disk")
        assert away(store) > 0
        assert disk_of(store)["written"] < 1.1 * sum(value_of(number).nbytes for number in range(0, COUNT, 2))  # once
        fill(store, range(1, COUNT, 2))
        for number in range(COUNT):
            assert same(store.get(id_of(number)), number)
    for _ in range(2):
        with opened(tmp_path) as store:
            assert [ref.id for ref in store.keys(n=COUNT)] == [id_of(number) for number in range(0, COUNT, 2)]
            for number in range(0, COUNT, 2):
                assert same(store.get(id_of(number)), number)
            assert store.check() == []


def test_deleted_objects_and_their_files_are_gone(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, range(COUNT))
        assert store.delete([id_of(number) for number in range(COUNT)]) == COUNT
        assert away(store) == 0
        with pytest.raises(ObjectNotFound):
            store.get(id_of(0))
        assert len(logs(tmp_path)) <= 1
        for number in range(COUNT):  # the same ids, other values
            store.put(value_of(number + 1), id=id_of(number))
        for number in range(COUNT):
            assert same(store.get(id_of(number)), number + 1)
        assert store.check() == []


def test_half_empty_files_are_compacted(tmp_path: Path) -> None:
    """Room on disk is what is needed, not what was ever written."""
    with opened(tmp_path, disk_capacity="160MiB") as store:
        rng, there = np.random.default_rng(3), set[int]()
        for number in range(4 * COUNT):
            store.put(value_of(number), id=id_of(number), timeout=60)
            there.add(number)
            if len(there) > COUNT / 2:
                for gone in rng.choice(sorted(there), 60, replace=False).tolist():
                    there.remove(gone)
                    assert store.delete(id_of(gone)) == 1
        for number in there:
            assert same(store.get(id_of(number)), number)
        assert store.check() == []


def test_a_ttl_applies_on_disk(store: di_store.Store) -> None:
    for number in range(COUNT):
        store.put(value_of(number), id=id_of(number), ttl=3_600 if number % 2 else 0.5)
    deadline = time.monotonic() + 30
    while any(store.contains(id_of(number)) for number in range(0, COUNT, 2)):
        assert time.monotonic() < deadline
    fill(store, range(COUNT, COUNT + 100))
    for number in range(1, COUNT, 2):
        assert same(store.get(id_of(number)), number)


def test_objects_are_readable_while_readers_hold_memory(tmp_path: Path) -> None:
    """What is on disk is still read, into memory of the process; what is new finds no room."""
    with opened(tmp_path, memory="12MiB") as store:
        fill(store, range(COUNT))
        held = [store.get(id_of(number)) for number in range(4, COUNT, 5)]
        assert all(same(found, number) for number, found in zip(range(4, COUNT, 5), held, strict=True))
        with pytest.raises(StoreFull, match="pinned"):
            store.put(np.zeros(1 << 20), timeout=0)
        tree = store.get(id_of(4), copy=True)
        tree[:] = 0
        del held, tree
        gc.collect()
        store.put(np.zeros(1 << 20), timeout=60)
        assert store.check() == []


def test_a_full_disk_raises_store_full(tmp_path: Path) -> None:
    with opened(tmp_path, disk_capacity="64MiB") as store:
        put = 0
        with pytest.raises(StoreFull, match="disk_capacity="):
            for put in range(10 * COUNT):
                store.put(value_of(put), id=id_of(put), timeout=0)
        for number in range(put):
            assert same(store.get(id_of(number)), number)
        store.delete([id_of(number) for number in range(0, put, 2)])
        store.delete([id_of(number) for number in range(1, put, 2)])
        fill(store, range(put * 3 // 4))
        assert store.check() == []


def test_a_used_up_write_budget_makes_puts_wait(tmp_path: Path) -> None:
    with opened(tmp_path, write_budget="1GB") as store:
        with pytest.raises(StoreFull, match="write_budget="):
            for number in range(10 * COUNT):
                store.put(value_of(number), id=id_of(number), timeout=0)
        store.resize(write_budget="1TB")
        fill(store, range(10 * COUNT, 11 * COUNT))


def test_objects_and_tables_share_memory(tmp_path: Path) -> None:
    """Rows and objects share memory, and neither loses anything."""
    with opened(tmp_path) as store:
        table = store.create_table("rows", capacity=20_000, lanes=1)
        rows = np.random.default_rng(0).integers(0, 256, (20_000, 2_000), np.uint8)
        with table.writer() as writer:
            for number in range(COUNT):
                store.put(value_of(number), id=id_of(number), timeout=60)
                for row in range(number * 13, number * 13 + 13):
                    writer.append({"x": rows[row]})
        for number in range(COUNT):
            assert same(store.get(id_of(number)), number)
        batch = table.peek(table.keys(n=len(table)))
        assert np.array_equal(batch.data["x"], rows[: COUNT * 13])
        assert store.check() == []


def test_a_table_finds_room_beside_objects(tmp_path: Path) -> None:
    """Also for what it keeps in memory; and so does a smaller limit. What can't fit moves nothing."""
    with opened(tmp_path, memory="32MiB") as store:
        fill(store, range(COUNT))
        before = away(store)
        schema = {"x": di_store.Spec((100,), "u1")}
        with pytest.raises(CapacityError, match="in memory"):
            store.create_table("larger", capacity=2_000_000, lanes=1, schema=schema)
        assert away(store) == before
        table = store.create_table("rows", capacity=100_000, lanes=1, schema=schema)
        assert away(store) > before
        before = away(store)
        store.resize(memory="20MiB")
        assert away(store) > before
        with table.writer() as writer:
            for number in range(1_000):
                writer.append({"x": np.full(100, number % 251, np.uint8)})
        for number in range(COUNT):
            assert same(store.get(id_of(number)), number)
        assert store.check() == []


def test_objects_do_not_take_disk_room_of_a_table(tmp_path: Path) -> None:
    """Objects take none of what its rows were promised."""
    with opened(tmp_path, memory="24MiB", disk_capacity="96MiB") as store:
        table = store.create_table("rows", capacity=8_000, lanes=1, compress=None)
        rows = np.random.default_rng(0).integers(0, 256, (8_000, 4_000), np.uint8)
        with table.writer() as writer:
            writer.append({"x": rows[0]})  # says what rows take
            with pytest.raises(StoreFull, match="for rows of tables"):
                fill(store, range(3 * COUNT), wait=0)
            for row in rows[1:]:
                writer.append({"x": row})
        assert len(table) == 8_000
        assert store.check() == []


def test_deletes_free_a_full_disk(tmp_path: Path) -> None:
    """Where most objects of each file were deleted, also without a file that nobody needs."""
    with opened(tmp_path, disk_capacity="64MiB") as store:
        put = 0
        with pytest.raises(StoreFull):
            for put in range(10 * COUNT):
                store.put(value_of(put), id=id_of(put), timeout=0)
        gone = [number for number in range(put) if number % 5 > 1]
        assert store.delete([id_of(number) for number in gone]) == len(gone)
        fill(store, range(put + 1, put + 1 + len(gone) // 2))
        for number in set(range(put)) - set(gone):
            assert same(store.get(id_of(number)), number)


def test_a_checkpoint_releases_objects_it_has_written(tmp_path: Path) -> None:
    with opened(tmp_path / "disk") as store:
        fill(store, range(COUNT))
        seen = []
        progress = lambda done, of: seen.append((done, of, store.stats()["pinned"]))  # noqa: E731
        store.checkpoint(tmp_path / "saved", progress=progress)
        assert seen[-1][0] == seen[-1][1]
        assert seen[-1][2] < seen[0][2] / 2


def test_a_damaged_record_loses_only_its_object(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, range(COUNT))
        path = tmp_path / logs(tmp_path)[0]
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
        lost, texts = [], []
        for number in range(COUNT):
            try:
                assert same(store.get(id_of(number)), number)
            except CorruptData as error:
                texts.append(str(error))
                lost.append(number)
        assert len(lost) == 1
        assert path.name in texts[0]
        assert "delete it" in texts[0]
        store.delete([id_of(number) for number in lost])
        fill(store, range(COUNT, COUNT + 300))
        assert store.check() == []


def test_a_failed_read_raises(store: di_store.Store) -> None:
    fill(store, range(COUNT))
    first = next(number for number in range(COUNT) if number % 5 == 4)
    _core.arm_fault("file.read:1:EIO")
    with pytest.raises(di_store.StoreError, match="cannot be read"):
        for number in range(first, COUNT):
            store.get(id_of(number))
    for number in range(COUNT):
        assert same(store.get(id_of(number)), number)
    assert store.check() == []


def test_an_object_stays_in_memory_after_a_failed_write(tmp_path: Path) -> None:
    """An object stays in memory then; the next call finds the drive mended."""
    with opened(tmp_path) as store:
        _core.arm_fault("file.write:9:ENOSPC")
        failed = []
        for number in range(COUNT):
            try:
                store.put(value_of(number), id=id_of(number), timeout=0)
            except StoreFull as error:
                failed.append(str(error))
                store.put(value_of(number), id=id_of(number), timeout=0)
        assert len(failed) <= 1
        assert all("cannot be written" in text for text in failed)
        for number in range(COUNT):
            assert same(store.get(id_of(number)), number)
        assert store.check() == []


def test_a_checkpoint_includes_objects_on_disk(tmp_path: Path) -> None:
    with opened(tmp_path / "disk") as store:
        fill(store, range(COUNT))
        before = away(store)
        store.checkpoint(tmp_path / "saved")
        assert away(store) == before
    with di_store.restore(tmp_path / "saved", disk=tmp_path / "other", **OPTIONS) as store:
        assert away(store) > 0
        for number in range(COUNT):
            assert same(store.get(id_of(number)), number)
        assert store.check() == []


def get_all(name: str, seed: int, problems: Any) -> None:
    try:
        with di_store.attach(name) as store:
            for number in np.random.default_rng(seed).permutation(COUNT).tolist():
                if not same(store.get(id_of(number)), number):
                    problems.put(number)
    except BaseException as error:
        problems.put(repr(error))
        raise


def test_several_processes_share_objects_on_disk(tmp_path: Path) -> None:
    """What one has put leaves when another needs room, and the other way."""
    problems = SPAWN.SimpleQueue()
    with opened(tmp_path) as store:
        fill(store, range(COUNT))
        others = [SPAWN.Process(target=get_all, args=(store.name, seed, problems)) for seed in range(2)]
        for other in others:
            other.start()
        for number in range(COUNT, COUNT + 300):
            store.put(value_of(number), id=id_of(number), timeout=60)
        for other in others:
            other.join(120)
        assert problems.empty()
        assert [other.exitcode for other in others] == [0, 0]
        for number in range(COUNT + 300):
            assert same(store.get(id_of(number)), number)
        assert store.check() == []


def test_threads_put_get_and_delete(tmp_path: Path) -> None:
    """Each has ids of its own, and all read everybody's; a model says what must be there."""
    problems: list[Any] = []

    def work(thread: int, store: di_store.Store) -> None:
        rng, mine = np.random.default_rng(thread), dict[int, int]()
        try:
            for step in range(700):
                slot = int(rng.integers(400)) * 4 + thread
                if slot in mine and rng.random() < 0.6:
                    assert same(store.get(id_of(slot), timeout=60), mine[slot]), slot
                elif slot in mine:
                    assert store.delete(id_of(slot)) == 1
                    del mine[slot]
                else:
                    mine[slot] = step * 4 + thread
                    store.put(value_of(mine[slot]), id=id_of(slot), timeout=60)
                other = int(rng.integers(1_600))
                try:
                    found = store.get(id_of(other))
                except (ObjectNotFound, Timeout):
                    continue
                assert len(found) in SIZES
            for slot, number in mine.items():
                assert same(store.get(id_of(slot), timeout=60), number), slot
        except BaseException as error:
            problems.append((thread, error))
            raise

    with opened(tmp_path, memory="12MiB") as store:
        threads = [threading.Thread(target=work, args=(number, store)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not problems
        assert away(store) > 0
        assert store.check() == []


def test_a_forked_child_reads_objects_on_disk(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, range(COUNT))
        held = store.get(id_of(4))
        child = os.fork()
        if child == 0:
            try:
                right = same(held, 4) and all(same(store.get(id_of(n)), n) for n in range(0, COUNT, 7))
                store.put(value_of(3), id=id_of(COUNT))
                os._exit(0 if right else 1)
            finally:
                os._exit(2)
        for number in range(1, COUNT, 7):
            assert same(store.get(id_of(number)), number)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert same(store.get(id_of(COUNT)), 3)
        assert store.check() == []


def test_a_large_object_goes_to_disk_and_back(tmp_path: Path) -> None:
    """Larger than what is read or written at once."""
    with opened(tmp_path, memory="48MiB") as store:
        large = np.random.default_rng(0).integers(0, 256, 20 << 20, np.uint8)
        refs = [store.put(large + np.uint8(number), timeout=60) for number in range(4)]
        for number, ref in enumerate(refs):
            assert np.array_equal(store.get(ref), large + np.uint8(number))
        assert away(store) >= 2
        before = disk_of(store)["loaded_objects"]
        for _ in range(3):
            assert np.array_equal(store.get(refs[0]), large)
        assert disk_of(store)["loaded_objects"] == before + 1  # it came into memory at once
        assert store.check() == []
