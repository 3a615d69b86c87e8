"""Files of the disk tier that are damaged under a store in use: rows that are lost cost their items, nothing else."""

from __future__ import annotations

import logging
import multiprocessing as mp
import random
import signal
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import _core
from di_store.replay import lost
from disk.test_disk import SCHEMA, fill, numbers, row

PAGE = 4096
ROWS = 24_000
SPAWN = mp.get_context("spawn")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[di_store.Store]:
    monkeypatch.setattr(lost, "_warned", False)
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="256MiB", seed=1) as opened:
        yield opened
        _core.arm_fault("")


def files(store: di_store.Store) -> list[Path]:
    return sorted(Path(store.stats()["disk"]["folder"]).glob("segment-*"))  # type: ignore[index]


def damaged(store: di_store.Store) -> tuple[int, int]:
    disk = store.stats()["disk"]
    assert disk is not None
    return disk["damaged_chunks"], disk["damaged_items"]


def records(path: Path) -> list[tuple[int, int, int]]:
    """Of each record of a file: the page of its header, that of its body, that behind it."""
    data = path.read_bytes()
    found, page = [], 1
    while (page + 1) * PAGE <= len(data):
        magic, _, _, _, _, _, stored, _, at, head = struct.unpack_from("<IBBHQQQQII", data, page * PAGE)
        if magic != 0x4352443A or at != page:
            break
        body = page + -(-(64 + head) // PAGE)
        found.append((page, body, body + -(-stored // PAGE)))
        page = found[-1][2]
    return found


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def flip_bodies(store: di_store.Store, every: int) -> int:
    """Flip a byte in the body of each so many records. How many there are."""
    flipped = 0
    for path in files(store):
        for _, body, end in records(path)[::every]:
            flip(path, (body + (end - body) // 2) * PAGE + 17)
            flipped += 1
    return flipped


def cut(store: di_store.Store) -> int:
    path = files(store)[0]
    all_of_it = records(path)
    with path.open("r+b") as file:
        file.truncate(all_of_it[1][0] * PAGE)
    return len(all_of_it) - 1


def remove(store: di_store.Store) -> int:
    path = files(store)[0]
    all_of_it = records(path)
    path.unlink()
    return len(all_of_it)


def pair(store: di_store.Store, compress: Any) -> tuple[di_store.Table, di_store.Table]:
    """Two tables over one stream: steps, and sequences of which many reach over the border of a chunk."""
    steps = store.create_table("steps", capacity=ROWS, schema=SCHEMA, lanes=1, compress=compress)
    runs = store.create_table(
        "runs",
        capacity=ROWS // 3,
        schema=SCHEMA,
        lanes=1,
        view=di_store.Sequence(length=8, period=3, cross_episodes=True),
        sampler=di_store.Prioritized(alpha=1.0),
        compress=compress,
    )
    with store.writer([steps, runs]) as writer:
        for number in range(ROWS):
            writer.append(row(number))
    return steps, runs


def right(batch: di_store.Batch) -> np.ndarray:
    """The numbers of a batch's rows; all of it is checked."""
    found = numbers(batch.data["obs"])
    assert (batch.data["action"] == found % 7).all()
    return found


def follow(batch: di_store.Batch) -> None:
    """The rows of each item of a batch of sequences follow each other."""
    found, there = right(batch), batch.data["mask"] > 0
    assert (np.diff(found, axis=1) == 1)[there[:, 1:]].all()


@pytest.mark.memory_only
@pytest.mark.parametrize("compress", [None, "auto"])
@pytest.mark.parametrize("harm", [flip_bodies, cut, remove])
def test_damaged_rows_remove_only_their_items(
    store: di_store.Store, compress: Any, harm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Both tables lose the items that need a lost chunk, and keep all others; one warning, one line a chunk or file."""
    steps, runs = pair(store, compress)
    keys, run_keys = steps.keys(), runs.keys()
    assert len(keys) == ROWS
    held = harm(store, 3) if harm is flip_bodies else harm(store)
    with warnings.catch_warnings(record=True) as told, caplog.at_level(logging.WARNING, "di_store"):
        warnings.simplefilter("always")
        for _ in range(4):
            right(steps.sample(200))
            batch = runs.sample(50)
            follow(batch)
            runs.update_priorities(batch.keys, np.arange(1.0, 51.0))
        seen, run_seen = steps.peek(keys), runs.peek(run_keys)
    assert [str(each.category) for each in told if "rows on disk" in str(each.message)] == [str(RuntimeWarning)]
    chunks, items = damaged(store)
    assert 0 < chunks <= held
    lines = [each.getMessage() for each in caplog.records if "rows on disk" in each.getMessage()]
    assert all("segment-" in line for line in lines)
    assert len(lines) == (1 if harm is remove else min(chunks, 100))
    live = np.asarray(seen.live)
    assert (right(seen)[live] == np.flatnonzero(live)).all()
    assert not live.all()
    gone = np.flatnonzero(~live)
    rows = 3 * np.arange(len(run_keys))[:, None] + np.arange(8)
    hit = np.isin(rows, gone).any(axis=1)
    run_live = np.asarray(run_seen.live)
    assert (run_live == ~hit).all(), "an item goes with each of its chunks, and only then"
    valid = run_live[:, None] & (run_seen.data["mask"] > 0)
    assert (right(run_seen)[valid] == rows[valid]).all()
    assert items == len(gone) + int(hit.sum())
    assert len(steps) == live.sum()
    assert steps.stats()["samples"] == 800
    assert not [line for line in store.check() if "rows on disk" not in line]
    fill(steps, ROWS, 2_000)
    assert len(steps) == min(ROWS, live.sum() + 2_000)


def keep_sampling(name: str, end: Any, pipe: Any) -> None:
    with di_store.attach(name) as store:
        steps, runs = store.table("steps"), store.table("runs")
        right(steps.sample(100))
        pipe.send("began")
        with runs.loader(40, prefetch=3) as loader:
            while not end.is_set():
                right(steps.sample(100))
                follow(next(loader))
        pipe.send("ended")


def test_other_processes_continue_after_damage(store: di_store.Store) -> None:
    pair(store, None)
    end, (near, far) = SPAWN.Event(), SPAWN.Pipe()
    children = [SPAWN.Process(target=keep_sampling, args=(store.name, end, far)) for _ in range(2)]
    for child in children:
        child.start()
    for _ in children:
        assert near.poll(60)
        assert near.recv() == "began"
    flip_bodies(store, 2)
    steps = store.table("steps")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(20):
            right(steps.sample(300))
        live = np.asarray(steps.peek(steps.keys()).live)
    end.set()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert damaged(store)[1] > 0
    assert live.any()
    assert not store.check(repair=True) or not store.check()


@pytest.mark.parametrize(("prefetch", "lease"), [(0, None), (1, None), (4, None), (4, 600.0)])
@pytest.mark.filterwarnings("ignore:.*rows on disk:RuntimeWarning")
def test_loaders_continue_after_damage(store: di_store.Store, prefetch: int, lease: float | None) -> None:
    """Also those of a mixture. Each batch is whole, and each draw counted once."""
    steps, _ = pair(store, None)
    other = store.create_table("other", capacity=4_000, schema=SCHEMA, lanes=1, compress=None)
    fill(other, 0, 4_000)
    mixture = store.mix({"steps": 1, "other": 1})
    with steps.loader(128, prefetch=prefetch, lease=lease) as loader, mixture.loader(64) as mixed:
        right(next(loader))
        right(next(mixed))
        flip_bodies(store, 2)
        for _ in range(25):
            batch = next(loader)
            assert len(right(batch)) == 128
            if lease is not None:  # rows may be lost after they were copied
                assert steps.ack(batch) >= np.count_nonzero(steps.peek(batch.keys).live) > 0
            assert len(right(next(mixed))) == 64
    assert damaged(store)[1] > 0
    more = steps.stats()["samples"] + other.stats()["samples"] - 26 * (128 + 64)
    assert more == 0 or (lease is not None and more > 0), "a leased item that leaves counts as drawn"
    right(mixture.sample(100))
    out = steps.sample(64)
    assert steps.sample(64, out=out) is out
    right(out)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.filterwarnings("ignore:.*rows on disk:RuntimeWarning")
def test_a_queue_delivers_the_undamaged_items_and_ends(store: di_store.Store, prefetch: int) -> None:
    """Each item once, those of lost chunks not at all; the loader ends. Without batches ahead in their order."""
    queue = store.create_table(
        "queue", capacity=ROWS, schema=SCHEMA, lanes=1, limiter=di_store.Queue(ROWS), compress=None
    )
    fill(queue, 0, ROWS)
    queue.finish()
    flip_bodies(store, 4)
    found: list[int] = []
    with queue.loader(500, prefetch=prefetch) as loader:
        for batch in loader:
            found += right(batch).tolist()
    assert len(set(found)) == len(found)
    assert prefetch or sorted(found) == found
    left = ROWS - damaged(store)[1]
    # Rows of a chunk that were copied before another page of it was found damaged are handed out.
    assert len(found) == left if prefetch == 0 else left <= len(found) < ROWS
    assert left < ROWS
    assert len(queue) == 0


@pytest.mark.parametrize("call", ["file.read", "file.open"])
def test_a_transient_read_error_loses_nothing(store: di_store.Store, call: str) -> None:
    steps, _ = pair(store, None)
    _core.arm_fault(f"{call}:1:EIO")
    for _ in range(5):
        right(steps.sample(300))
    assert damaged(store) == (0, 0)
    assert len(steps) == ROWS


@pytest.mark.memory_only
@pytest.mark.filterwarnings("ignore:.*rows on disk:RuntimeWarning")
def test_a_failing_drive_still_serves_rows_in_memory(store: di_store.Store) -> None:
    """What is in memory is served. One that may only not be opened now is an error, and nothing is lost."""
    steps, _ = pair(store, None)
    _core.arm_fault("file.open:1:EINVAL+")
    with pytest.raises(di_store.StoreError, match="segment"):
        for _ in range(5):
            steps.sample(500)
    assert damaged(store) == (0, 0)
    _core.arm_fault("file.read:1:EIO+")
    for _ in range(5):
        right(steps.sample(500))
    live = np.asarray(steps.peek(steps.keys()).live)
    _core.arm_fault("")
    assert 0 < live.sum() < ROWS / 2
    assert damaged(store)[0] > 10
    right(steps.sample(500))


@pytest.mark.filterwarnings("ignore:.*rows on disk:RuntimeWarning")
def test_exports_leave_out_damaged_rows(store: di_store.Store, tmp_path: Path) -> None:
    _, runs = pair(store, None)
    flip_bodies(store, 5)
    before = len(runs)
    exported = runs.export(tmp_path / "runs")
    assert exported.skipped == before - exported.items > 0
    with di_store.open(memory="64MiB") as other:
        again = other.import_table(tmp_path / "runs")
        # Items that were read before another page of their chunk was found damaged are in the file, whole.
        assert len(again) == exported.items >= len(runs)
        batch = again.peek(again.keys())
        follow(batch)
        assert (right(batch)[:, 0] % 3 == 0).all()


@pytest.mark.filterwarnings("ignore:.*rows on disk:RuntimeWarning")
@pytest.mark.parametrize("harm", ["flip", "remove"])
def test_checkpoints_leave_out_damaged_rows(store: di_store.Store, tmp_path: Path, harm: str) -> None:
    steps, runs = pair(store, None)
    if harm == "flip":
        flip_bodies(store, 5)
        assert store.check(repair=True)
    else:
        remove(store)
    store.checkpoint(tmp_path / "saved")
    assert damaged(store)[1] > 0
    with di_store.restore(tmp_path / "saved", memory="128MiB") as other:
        for mine in (steps, runs):
            table = other.table(mine.name)
            assert (table.keys() == mine.keys()).all()
            right(table.peek(table.keys()))
        assert len(other.table("steps")) < ROWS


@pytest.mark.filterwarnings("ignore:.*rows on disk:RuntimeWarning")
def test_check_reads_all_files(store: di_store.Store) -> None:
    """Header and head of a record, its body, the first page of a file, a file that is gone; repaired once."""
    steps, _ = pair(store, None)
    assert store.check() == []
    first, second, third, *_ = files(store)
    (head, _, _), (header, _, _), (_, body, _), *_ = records(first)
    flip(first, head * PAGE + 64 + 200)
    flip(first, header * PAGE + 9)
    flip(first, body * PAGE + 3 * PAGE + 5)
    flip(second, 20)
    third.unlink()
    in_second = len(records(second))
    found = store.check()
    assert len(found) == 3 + in_second + 1, found
    assert all("rows on disk" in line and "segment-" in line for line in found)
    assert len(steps) == ROWS, "only found"
    assert damaged(store) == (0, 0)
    assert store.check(repair=True) == found
    assert store.check() == []
    keys = steps.keys()
    assert len(keys) < ROWS
    right(steps.peek(keys))
    assert damaged(store)[1] > ROWS - len(keys)


def write_on(name: str, end: Any) -> None:
    with di_store.attach(name) as store, store.writer(["steps", "runs"]) as writer:
        number = ROWS
        while not end.is_set():
            writer.append(row(number))
            number += 1


def test_a_check_beside_a_writer_finds_no_damage(store: di_store.Store) -> None:
    """Files are used again while they are read, and rows leave: none of it is damage."""
    steps, _ = pair(store, None)
    end = SPAWN.Event()
    child = SPAWN.Process(target=write_on, args=(store.name, end))
    child.start()
    written = store.stats()["disk"]["written_chunks"]  # type: ignore[index]
    while store.stats()["disk"]["written_chunks"] < written + 60:  # type: ignore[index]
        assert child.is_alive()
        assert store.check() == []
    end.set()
    child.join(60)
    assert child.exitcode == 0
    assert damaged(store) == (0, 0)
    right(steps.sample(300))


@pytest.mark.filterwarnings("ignore:.*rows on disk:RuntimeWarning")
def test_check_rewrites_damaged_rows_that_are_still_in_memory(tmp_path: Path) -> None:
    """A check that repairs loses no row whose bytes are still in memory."""
    with di_store.open(memory="64MiB", disk=tmp_path / "disk", disk_capacity="256MiB") as store:
        table = store.create_table("replay", capacity=4_000, schema=SCHEMA, lanes=1, compress=None)
        fill(table, 0, 4_000)
        arena = store._backend.session.arena
        last = arena.last_uid(60)
        while arena.write_to_disk(None, last, 60):
            pass
        flipped = flip_bodies(store, 1)
        assert flipped > 2
        assert len(store.check(repair=True)) == flipped
        assert damaged(store) == (0, 0)
        while arena.write_to_disk(None, last, 60):
            pass
        assert store.check() == []
        assert (right(table.peek(table.keys())) == np.arange(4_000)).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore:.*rows on disk:RuntimeWarning")
def test_random_damage_yields_no_wrong_row(tmp_path: Path, seed: int) -> None:
    """Bytes anywhere in any file: no row is wrong, none is lost but with a damaged record, and nothing is raised."""
    chance = random.Random(seed)
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="256MiB") as store:
        table = store.create_table(
            "replay", capacity=ROWS, schema=SCHEMA, lanes=1, compress=chance.choice([None, "auto"])
        )
        fill(table, 0, ROWS)
        keys = table.keys()
        hit: set[tuple[str, int]] = set()
        for path in files(store):
            known = records(path)
            for _ in range(chance.choice([0, 1, 3, 40])):
                at = chance.randrange(path.stat().st_size)
                flip(path, at)
                hit |= {(path.name, page) for page, body, end in known if body <= at // PAGE < end}
        for _ in range(10):
            right(table.sample(200))
            table.update_priorities(keys[:10], np.ones(10))
        seen = table.peek(keys)
        live = np.asarray(seen.live)
        assert (right(seen)[live] == np.flatnonzero(live)).all()
        chunks, items = damaged(store)
        assert chunks <= len(hit)
        assert items == (~live).sum()
        runs = np.flatnonzero(np.diff(np.concatenate([[0], ~live, [0]]))).reshape(-1, 2)
        assert len(runs) <= chunks, "whole chunks, and no others"
        store.check(repair=True)
        assert store.check() == []
        right(table.peek(table.keys()))


def meet(name: str, fault: str) -> None:
    _core.arm_fault(fault)
    with di_store.attach(name) as store:
        steps = store.table("steps")
        steps.peek(steps.keys())


@pytest.mark.parametrize("fault", ["tier.lost_marked:3", "table.lost_item:70"])
@pytest.mark.filterwarnings("ignore:.*rows on disk:RuntimeWarning")
def test_a_kill_during_the_removal_of_damaged_items_is_completed(store: di_store.Store, fault: str) -> None:
    """Whoever reads next removes the rest."""
    steps, runs = pair(store, None)
    flip_bodies(store, 4)
    child = SPAWN.Process(target=meet, args=(store.name, fault))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    for _ in range(3):
        right(steps.sample(300))
    for table in (steps, runs):
        table.peek(table.keys())
        right(table.peek(table.keys()))
    assert len(steps) < ROWS
    assert store.check(repair=True) == [] or store.check() == []
