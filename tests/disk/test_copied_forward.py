"""Files of the disk tier of which little is needed any more: what is, is copied forward, and they are used again."""

from __future__ import annotations

import hashlib
import multiprocessing as mp
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import Fifo, Uniform, _core
from di_store.runtime import chores

BYTES, BLOCK, CAPACITY = 28 << 10, 50, 1_000
FLAGS = np.zeros(BLOCK, bool)
SPAWN = mp.get_context("spawn")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[di_store.Store]:
    """Of 16 files of 4 MiB: the table's rows, by two in a chunk, need about 12 of them."""
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="64MiB", seed=3) as opened:
        yield opened


def make(store: di_store.Store, remover: Any = None, capacity: int = CAPACITY) -> di_store.Table:
    return store.create_table("rows", capacity=capacity, lanes=1, remover=remover or Uniform(), compress=None)


def fill(
    table: di_store.Table, first: int, count: int, timeout: float = 60, alone: bool = False, fault: str = ""
) -> None:
    """Rows whose bytes all follow from their numbers.

    `alone`: no thread of this process does chores meanwhile. `fault`: the same, with a point to stop at.
    """
    with table.writer() as writer:
        if alone or fault:
            chores._stop()
        if fault:
            _core.arm_fault(fault)
        for number in range(first, first + count, BLOCK):
            numbers = np.arange(number, number + BLOCK)
            rows = np.repeat((numbers % 251).astype(np.uint8)[:, None], BYTES, 1)
            rows[:, :4] = numbers.astype("<u4")[:, None].view(np.uint8)
            writer.extend({"x": rows, "terminated": FLAGS, "truncated": FLAGS}, timeout=timeout)


def numbers(rows: np.ndarray) -> np.ndarray:
    """The numbers of rows; all of their bytes are checked."""
    found = np.ascontiguousarray(rows[:, :4]).view("<u4")[:, 0]
    assert (rows[:, 4:] == (found % 251)[:, None]).all()
    return found


def disk(store: di_store.Store) -> dict[str, Any]:
    found = store.stats()["disk"]
    assert found is not None
    return dict(found)


def test_rows_evicted_in_random_order_find_room(store: di_store.Store) -> None:
    """Whole files seldom become empty by themselves. No item is evicted for that, and each row is what was written."""
    table = make(store)
    fill(table, 0, 8 * CAPACITY)
    assert len(table) == CAPACITY
    assert table.stats()["evicted_for_room"] == 0
    found = disk(store)
    assert found["moved"] > 0
    assert found["written"] > found["moved"] + (128 << 20)
    assert 1 < found["write_amplification"] < 3
    assert found["files"] <= 64 << 20
    assert len(set(numbers(table.peek(table.keys()).data["x"]).tolist())) == CAPACITY
    assert not store.check()


def own_bytes() -> int:
    """Memory that is this process's alone."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10


def move(folder: Path, pipe: Any) -> None:
    """In this process's own calls; it reads no rows."""
    with di_store.open(memory="16MiB", disk=folder, disk_capacity="64MiB", seed=3) as store:
        table = make(store)
        fill(table, 0, CAPACITY, alone=True)
        moved, before = disk(store)["moved"], own_bytes()
        fill(table, CAPACITY, 7 * CAPACITY, alone=True)
        pipe.send((moved, disk(store)["moved"], own_bytes() - before))


@pytest.mark.memory_only
def test_moving_takes_little_memory(tmp_path: Path) -> None:
    """It makes room when memory is short. The threads that read rows have 6 MiB; they are not needed here."""
    near, far = SPAWN.Pipe()
    child = SPAWN.Process(target=move, args=(tmp_path / "disk", far))
    child.start()
    assert near.poll(120)
    before, moved, more = near.recv()
    child.join(60)
    assert before == 0
    assert moved > 0
    assert more < 4 << 20


@pytest.mark.parametrize("alone", [True, False])
def test_rows_evicted_in_order_are_rarely_moved(store: di_store.Store, alone: bool) -> None:
    """Files become empty by themselves, one after the other: also when the disk is nearly full.

    Where two threads write bodies, their order depends on how the machine runs these: what is needed then lies in more
    files, of which some must be emptied before items would go.
    """
    table = make(store, Fifo(), 2 * CAPACITY)
    fill(table, 0, 8 * CAPACITY, alone=alone)
    assert len(table) == 2 * CAPACITY
    assert table.stats()["evicted_for_room"] == 0
    found = disk(store)
    assert found["live"] > 40 << 20
    assert found["moved"] < found["written"] / (100 if alone else 8)


def test_prefetched_batches_are_read_from_their_old_place(store: di_store.Store) -> None:
    """Rows that were drawn and not read yet stay where they are, while others of their files move."""
    table = make(store)
    fill(table, 0, 2 * CAPACITY)
    with table.loader(8, prefetch=3) as loader:
        for turn in range(25):
            numbers(next(loader).data["x"])
            fill(table, (2 + turn) * CAPACITY, CAPACITY // 4)
    assert disk(store)["moved"] > 0
    assert not store.check()


@pytest.mark.filterwarnings("ignore:store .*rows on disk cannot be read:RuntimeWarning")
def test_a_damaged_body_is_not_copied_as_sound(store: di_store.Store, tmp_path: Path) -> None:
    """It gets no new checksum: each row is what was written, or its item is gone."""
    table = make(store)
    fill(table, 0, 3 * CAPACITY)
    for path in sorted((tmp_path / "disk").glob("segment-*")):
        with open(path, "r+b") as file:
            file.seek((1 << 20) + 100)
            file.write(b"\x55" * (200 << 10))
    before, lost = disk(store)["moved"], 0
    fill(table, 3 * CAPACITY, CAPACITY)
    for key in table.keys().tolist():
        batch = table.peek(np.array([key]))
        if batch.live[0]:
            numbers(batch.data["x"])
        else:
            lost += 1
    assert disk(store)["moved"] > before
    assert lost
    store.check(repair=True)  # pages that no row above lies in
    assert not store.check()


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def test_files_shared_with_a_checkpoint_are_not_rewritten(store: di_store.Store, tmp_path: Path) -> None:
    """Files that a checkpoint shares are never written again, though what the store needs of them has moved on."""
    table = make(store)
    fill(table, 0, 2 * CAPACITY)
    store.checkpoint(tmp_path / "old")
    before = numbers(table.peek(table.keys()).data["x"])
    was = digests(tmp_path / "old")
    shared = {path.stat().st_ino for path in (tmp_path / "disk").glob("segment-*") if path.stat().st_nlink > 1}
    assert shared
    fill(table, 2 * CAPACITY, 6 * CAPACITY)
    assert disk(store)["moved"] > 0
    kept = [path for path in (tmp_path / "disk").glob("segment-*") if path.stat().st_ino in shared]
    assert len(kept) < len(shared), "no file was used again"
    full = {name for name, digest in digests(tmp_path / "old").items() if was[name] != digest}
    # The ones that were being filled at the instant got more records behind those that the checkpoint names.
    assert len(full) <= 2
    numbers(table.peek(table.keys()).data["x"])
    with di_store.restore(tmp_path / "old", memory="128MiB") as again:
        rows = again.table("rows")
        assert (numbers(rows.peek(rows.keys()).data["x"]) == before).all()


def test_a_checkpoint_drops_nearly_dead_files(store: di_store.Store, tmp_path: Path) -> None:
    """The next one in the same folder lets go of files that are nearly dead in the store."""
    table = make(store)
    fill(table, 0, 2 * CAPACITY)
    for turn in range(4):
        store.checkpoint(tmp_path / "checkpoint")
        fill(table, (2 + 2 * turn) * CAPACITY, 2 * CAPACITY)
    store.checkpoint(tmp_path / "checkpoint")
    before = numbers(table.peek(table.keys()).data["x"])
    size = sum(path.stat().st_size for path in (tmp_path / "checkpoint").glob("disk-*"))
    assert size <= 64 << 20, "files that the store has used again are kept for what has moved"
    with di_store.restore(tmp_path / "checkpoint", memory="128MiB") as again:
        rows = again.table("rows")
        assert (numbers(rows.peek(rows.keys()).data["x"]) == before).all()


def test_a_file_kept_by_a_checkpoint_gets_a_new_name(store: di_store.Store, tmp_path: Path) -> None:
    """Who reads it has it open by its name, and it does not go: it would be read in the place of the new one."""
    table = make(store, Fifo())
    for turn in range(8):
        fill(table, turn * CAPACITY, CAPACITY)
        numbers(table.peek(table.keys()).data["x"])
        store.checkpoint(tmp_path / f"checkpoint-{turn}")
    assert not store.check()


@pytest.mark.memory_only
def test_the_write_budget_makes_inserts_wait(tmp_path: Path) -> None:
    """An hour's part of it at once; then nothing is evicted, and the error says what is waited for."""
    with di_store.open(
        memory="16MiB", disk=tmp_path / "disk", disk_capacity="256MiB", write_budget="1GB", seed=1
    ) as store:
        table = make(store, Fifo(), 4 * CAPACITY)
        with pytest.raises((di_store.StoreFull, di_store.Timeout), match=r"write_budget=1000000000 bytes a day"):
            fill(table, 0, 4 * CAPACITY, timeout=0.5)
        rows = len(table)
        assert table.stats()["evicted_for_room"] == 0
        found = disk(store)
        assert found["write_budget"] == 10**9
        assert 10**9 / 24 <= found["written"] <= 10**9 / 24 + (16 << 20)
        store.resize(write_budget="100TB")
        fill(table, rows, 2 * CAPACITY)
        assert len(table) == rows + 2 * CAPACITY
        assert disk(store)["write_budget"] == 10**14
        with pytest.raises(ValueError, match="minimum"):
            store.resize(write_budget=1)
        store.resize(write_budget="10GB")
        fill(table, 0, CAPACITY, timeout=0)  # far less than an hour's part: nothing waits
    with di_store.open(memory="16MiB") as store, pytest.raises(ValueError, match="disk="):
        store.resize(write_budget="1TB")
    with pytest.raises(ValueError, match="disk="):
        di_store.open(memory="16MiB", write_budget="1TB")


@pytest.mark.memory_only
def test_hit_rate_counts_items_in_memory(store: di_store.Store) -> None:
    table = make(store, Fifo())
    fill(table, 0, 100)
    assert disk(store)["hit_rate"] is None
    table.sample(50)
    assert disk(store)["hit_rate"] == 1
    fill(table, 100, CAPACITY)
    for _ in range(20):
        table.sample(50)
    assert 0.2 < disk(store)["hit_rate"] < 0.8
