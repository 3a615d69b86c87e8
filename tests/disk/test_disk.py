"""Stores with a disk tier: more rows than memory holds, on a real drive."""

from __future__ import annotations

import multiprocessing as mp
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import is_removed, until

import di_store
from di_store import _core
from di_store.runtime import chores

FRAME = (32, 32)
SCHEMA = {
    "obs": di_store.Spec(FRAME, "uint8"),
    "action": di_store.Spec((), "int64"),
    "reward": di_store.Spec((), "float64"),
    "terminated": di_store.Spec((), "bool"),
    "truncated": di_store.Spec((), "bool"),
}
ROWS = 40_000  # of 1 KiB, in a store of 16 MiB
BLOCK = 50
"""Rows of one call of `fill`."""
SPAWN = mp.get_context("spawn")
LISTED = "listed-" + Path(os.environ["DI_STORE_DIR"]).parent.name
"""A store of this test run; its children compute the same name."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[di_store.Store]:
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="256MiB", seed=1) as opened:
        yield opened


def row(number: int) -> dict[str, Any]:
    """A row whose values all follow from its number."""
    frame = np.full(FRAME, number % 251, np.uint8)
    frame[0, :4] = np.frombuffer(np.int32(number).tobytes(), np.uint8)
    ends = number % 50 == 49
    return {"obs": frame, "action": number % 7, "reward": float(number % 5), "terminated": ends, "truncated": False}


def rows(first: int, count: int) -> dict[str, Any]:
    """Rows with these numbers, as `row` makes them."""
    number = np.arange(first, first + count)
    frames = np.broadcast_to((number % 251).astype(np.uint8)[:, None, None], (count, *FRAME)).copy()
    frames[:, 0, :4] = number.astype(np.int32)[:, None].view(np.uint8)
    ends, flags = number % 50 == 49, np.zeros(count, bool)
    return {"obs": frames, "action": number % 7, "reward": number % 5 * 1.0, "terminated": ends, "truncated": flags}


def numbers(frames: np.ndarray) -> np.ndarray:
    """The numbers of the rows that these frames are of; all of each frame is checked."""
    found = frames[..., 0, :4].copy().view(np.int32)[..., 0]
    assert (frames[..., 1:, :] == (found % 251)[..., None, None]).all()
    return found


def fill(table: di_store.Table, first: int = 0, count: int = ROWS, fault: str = "") -> None:
    """`fault`: a point to stop at. No thread does chores then: one that stops would stop this one with its locks."""
    with table.writer() as writer:
        if fault:
            chores._stop()
            _core.arm_fault(fault)
        for begin in range(first, first + count, BLOCK):
            writer.extend(rows(begin, min(BLOCK, first + count - begin)))


def read_in_child(name: str, pipe: Any) -> None:
    with di_store.attach(name) as store:
        batch = store.table("replay").sample(256)
        pipe.send((numbers(batch.data["obs"]) % 7 == batch.data["action"]).all())


@pytest.mark.parametrize("compress", ["auto", None])
def test_batches_hold_what_was_written(store: di_store.Store, compress: str | None) -> None:
    """Most rows are on disk; memory stays below its limit, and nothing is counted wrongly."""
    view = di_store.Transition(n_step=2, gamma=0.5)
    table = store.create_table("replay", capacity=ROWS, lanes=1, view=view, compress=compress)
    fill(table)
    for _ in range(20):
        batch = table.sample(128)
        found = numbers(batch.data["obs"])
        assert (batch.data["action"] == found % 7).all()
        after = numbers(batch.data["next_obs"])
        assert (after - found == np.minimum(2, 49 - found % 50).clip(min=0) + (found % 50 == 49) * 0).all()
    stats = store.stats()
    disk = stats["disk"]
    assert disk is not None
    assert disk["read"] > 0
    assert disk["raw"] > 20 << 20, "what 40 MB leave of 16 MiB"
    assert (disk["live"] < disk["raw"] / 4) == (compress == "auto")
    assert stats["committed"] <= 16 << 20
    assert len(table) > ROWS - 100
    assert not store.check()


@pytest.mark.parametrize("prioritized", [False, True])
def test_frame_stacks_span_chunks_on_disk(store: di_store.Store, prioritized: bool) -> None:
    table = store.create_table(
        "replay",
        capacity=ROWS // 8,
        lanes=1,
        view=di_store.Sequence(length=8, frame_stack={"obs": 4}, bootstrap=("obs",)),
        sampler=di_store.Prioritized(0.6, 0.4) if prioritized else di_store.Uniform(),
    )
    fill(table)
    for _ in range(10):
        batch = table.sample(64)
        found = numbers(batch.data["obs"])
        first = found[:, 3]
        for time in range(8):
            valid = batch.data["mask"][:, time] > 0
            assert (found[valid, 3 + time] == first[valid] + time).all()
        table.update_priorities(batch.keys, np.ones(64))
    assert not store.check()


@pytest.mark.parametrize("capacity", [500, 1_000, 1_500, 2_000, 3_000, 5_000, 9_000, 20_000])
def test_chunks_of_every_size_come_back(store: di_store.Store, capacity: int) -> None:
    """Small tables cut small chunks; their blocks lie at all multiples of 64 bytes."""
    schema = {"x": di_store.Spec((), "i4"), "terminated": di_store.Spec((), "?")}
    view = di_store.Sequence(4, period=20)
    table = store.create_table("replay", capacity=capacity, schema=schema, view=view)
    with table.writer() as writer:
        for number in range(0, 20 * capacity, 100):
            writer.extend({"x": np.arange(number, number + 100, dtype="i4"), "terminated": np.zeros(100, bool)})
        writer.end_episode()
    batch = table.peek(table.keys())
    assert (batch.data["x"] == batch.starts[:, None] + np.arange(4)).all()


def test_ragged_values_come_back(store: di_store.Store) -> None:
    schema = {"x": di_store.Spec((), "i8"), "tokens": di_store.Spec((None,), "i4", max=2_000)}
    table = store.create_table("replay", capacity=8_000, lanes=1, schema=schema)
    for number in range(8_000):
        table.insert({"x": number, "tokens": np.full(number % 2_000, number, "i4")})
    assert store.stats()["disk"]["dropped_chunks"] > 0  # type: ignore[index]
    for columns in (None, "tokens", "x"):
        batch = table.sample(200, columns=columns)
        if columns != "x":
            tokens = batch.data["tokens"]
            for i, length in enumerate(tokens.lengths):
                part = tokens.values[tokens.offsets[i] : tokens.offsets[i + 1]]
                assert (part % 2_000 == length).all()


def test_peek_keys_and_loader_read_from_disk(store: di_store.Store) -> None:
    table = store.create_table("replay", capacity=ROWS, lanes=1)
    fill(table)
    keys = table.keys(n=ROWS)
    batch = table.peek(keys[::997])
    assert (np.diff(numbers(batch.data["obs"])) == 997).all()
    with table.loader(64, prefetch=3) as loader:
        for _, loaded in zip(range(30), loader, strict=False):
            assert (numbers(loaded.data["obs"]) % 7 == loaded.data["action"]).all()
    assert table.delete(keys[:100]) == 100
    assert not store.check()


@pytest.mark.filterwarnings("ignore:.*evicted before capacity:RuntimeWarning")
def test_items_are_evicted_when_files_hold_only_dead_rows(tmp_path: Path) -> None:
    """A remover of any order leaves files with few live rows. When they are full, items go; nobody waits for ever."""
    rows, size, block = 1_500, 28 << 10, 50
    rng, flags = np.random.default_rng(0), np.zeros(block, bool)
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity=2 * rows * size, seed=1) as store:
        table = store.create_table("replay", capacity=rows, lanes=1, remover=di_store.Uniform())
        with table.writer() as writer:
            for _ in range(0, 3 * rows, block):
                obs = rng.integers(0, 255, (block, size), np.uint8)
                action = obs.sum(axis=1, dtype=np.int64)
                writer.extend({"obs": obs, "action": action, "terminated": flags, "truncated": flags}, timeout=60)
        assert len(table) > rows // 4
        batch = table.sample(64)
        assert (batch.data["obs"].sum(axis=1, dtype=np.int64) == batch.data["action"]).all()
        assert not store.check()


@pytest.mark.filterwarnings("ignore:table .* items were evicted before capacity:RuntimeWarning")
def test_items_are_evicted_when_only_pages_run_short(tmp_path: Path) -> None:
    """Small chunks that leave in random order: what is set aside has room left, but no page of memory or disk has."""
    rng, block = np.random.default_rng(0), 50
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="64MiB", seed=1) as store:
        promised = di_store.Compress(expect=4)  # in vain: noise does not shrink
        table = store.create_table("replay", capacity=20_000, lanes=1, remover=di_store.Uniform(), compress=promised)
        with table.writer() as writer:
            for _ in range(0, 60_000, block):
                obs = rng.integers(0, 256, (block, 700), np.uint8)
                writer.extend({"obs": obs, "sum": obs.sum(axis=1, dtype=np.int64)}, timeout=200)
        data = table.sample(256).data
        assert (data["obs"].sum(axis=1, dtype=np.int64) == data["sum"]).all()
        assert store.check() == []


def test_a_closed_store_leaves_no_files(tmp_path: Path) -> None:
    """Also where the background thread was at work: the folder can be removed at once."""
    rows, size, block = 400, 110 << 10, 50
    obs = np.random.default_rng(0).integers(0, 255, (block, size), np.uint8)
    for turn in range(6):
        folder = tmp_path / str(turn)
        with di_store.open(memory="16MiB", disk=folder, disk_capacity=3 * rows * size) as store:
            table = store.create_table("replay", capacity=rows, lanes=1, remover=di_store.Uniform())
            with table.writer() as writer:
                for _ in range(0, 3 * rows, block):
                    writer.extend({"obs": obs}, timeout=60)
            assert list(folder.glob("segment-*"))
        until(partial(is_removed, folder, store.name), "the end of the store")


def held_open(folder: Path) -> list[str]:
    """The files below a folder that this process has open, those that are removed included."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [name for name in map(os.readlink, links) if name.startswith(str(folder))]


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_no_file_stays_open_once_it_is_closed(tmp_path: Path, durability: Any) -> None:
    """Else a removed file keeps its blocks of the drive for as long as the process runs."""
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="128MiB") as store:
        table = store.create_table("replay", capacity=ROWS, lanes=1, durability=durability)
        fill(table)
        table.sample(256)
        with table.loader(64) as loader:
            next(loader)
        assert [name for name in held_open(tmp_path) if "segment-" in name]
    assert held_open(tmp_path) == []


def test_another_process_reads_rows_on_disk(store: di_store.Store) -> None:
    table = store.create_table("replay", capacity=ROWS, lanes=1)
    fill(table)
    near, far = SPAWN.Pipe()
    child = SPAWN.Process(target=read_in_child, args=(store.name, far))
    child.start()
    assert near.poll(120)
    assert near.recv()
    child.join(60)
    assert child.exitcode == 0


def read_and_stop(name: str) -> None:
    """Draws, and stops before it copies: its rows must stay in memory, whoever wants room."""
    _core.arm_fault("sample.before_copy:1:stop")
    with di_store.attach(name) as store:
        batch = store.table("replay").sample(300)  # too large to be copied under the lock
        os._exit(0 if (numbers(batch.data["obs"]) % 7 == batch.data["action"]).all() else 3)


def test_a_stopped_reader_keeps_its_rows(store: di_store.Store) -> None:
    table = store.create_table("replay", capacity=ROWS, lanes=2)
    fill(table, 0, 8_000)  # all of it in memory
    child = SPAWN.Process(target=read_and_stop, args=(store.name,))
    child.start()
    assert child.pid is not None
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    fill(table, 8_000, ROWS - 8_000)
    os.kill(child.pid, signal.SIGCONT)
    child.join(60)
    assert child.exitcode == 0
    assert not store.check()


def test_the_files_stay_below_their_limit(tmp_path: Path) -> None:
    """Rows leave by the remover, and segments without rows that are there are used again."""
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="64MiB") as store:
        table = store.create_table("replay", capacity=30_000, lanes=1, compress=None)
        for turn in range(6):
            fill(table, turn * 30_000, 30_000)
            taken = sum(path.stat().st_blocks * 512 for path in (tmp_path / "disk").iterdir())
            assert taken <= (64 << 20) + (64 << 10)
        found = numbers(table.sample(500).data["obs"])
        assert found.min() >= 5 * 30_000 - 2_000
        assert len(table) == 30_000
        assert not store.check()


def test_a_table_beyond_memory_and_disk_is_refused(store: di_store.Store) -> None:
    table = store.create_table("replay", capacity=ROWS, lanes=1)
    with pytest.raises(di_store.CapacityError, match="disk_capacity"):
        table.insert({"x": np.zeros(20_000, np.uint8)})
    table = store.create_table("many", capacity=20_000_000, lanes=1)
    with pytest.raises(di_store.CapacityError, match="in memory"):
        table.insert({"x": np.float32(1)})


def test_impossible_disk_options_are_refused(tmp_path: Path, store: di_store.Store) -> None:
    folder = tmp_path / "disk"
    with pytest.raises(di_store.StoreError, match="another store lives"):
        di_store.open(memory="16MiB", disk=folder, disk_capacity="64MiB")
    with pytest.raises(ValueError, match="disk="):
        di_store.open(memory="16MiB", disk_capacity="64MiB")
    with pytest.raises(ValueError, match="disk_capacity"):
        di_store.open(memory="16MiB", disk=tmp_path / "other", disk_capacity="1MiB")
    with pytest.raises(di_store.StoreError, match="does not exist"):
        di_store.open(memory="16MiB", disk=tmp_path / "no" / "where")
    with pytest.raises(TypeError, match="disk="):
        di_store.open(memory="16MiB", disk=7)  # type: ignore[arg-type]
    with pytest.raises(di_store.StoreError, match="exists already"):
        di_store.open(store.name, disk=tmp_path / "other", disk_capacity="64MiB")
    assert di_store.open(store.name, disk=folder).name == store.name


def test_commands_show_the_disk(store: di_store.Store) -> None:
    table = store.create_table("replay", capacity=ROWS, lanes=1)
    fill(table)
    table.sample(256)
    shown = subprocess.run(
        [sys.executable, "-m", "di_store", "inspect", store.name],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "disk" in shown.stdout
    assert re.search(r"needed for [0-9.]+ [MG]iB of rows; written", " ".join(shown.stdout.split()))


ENDS = {
    "closes": "store.close(); del table, store",
    "exits": "",
    "has a child that goes on": """import os
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent: pass
    table.sample(8)
os._exit(0)""",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_last_process_removes_the_files(tmp_path: Path, end: str, store_name: Callable[[], str]) -> None:
    name, goes_on = store_name(), end == "has a child that goes on"
    code = (
        "import numpy as np, di_store\n"
        f"store = di_store.open({name!r}, memory='16MiB', disk={str(tmp_path / 'disk')!r}, disk_capacity='64MiB')\n"
        "table = store.create_table('replay', capacity=30_000, lanes=1)\n"
        "with table.writer() as writer:\n"
        "    for i in range(30_000): writer.append({'x': np.full(1024, i % 251, np.uint8)})\n"
        f"{ENDS[end]}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    if goes_on:
        assert list((tmp_path / "disk").glob("segment-*"))
    else:
        until(partial(is_removed, tmp_path / "disk", name), "the end of the store")


def fill_and_close(folder: str, begins: Any, goes_on: Any, fault: str) -> None:
    store = di_store.open(LISTED, memory="16MiB", disk=folder, disk_capacity="64MiB")
    table = store.create_table("replay", capacity=30_000, lanes=1)
    fill(table, 0, 20_000)
    begins.set()
    assert goes_on.wait(60)
    if fault:
        _core.arm_fault(fault)
    del table
    store.close()


def look() -> None:
    """As `di-store ls`; it is stopped with the file of each store open."""
    _core.arm_fault("looks.opened:1:stop+")
    di_store.list_stores()


def stops(pid: int | None) -> bool:
    """Whether a child stops before it ends."""
    assert pid is not None
    return os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])


def test_listing_stores_keeps_no_files(tmp_path: Path) -> None:
    """However long it looks: `di-store ls` has each store's file open, and may get no processor for long."""
    spawn = mp.get_context("spawn")
    begins, goes_on = spawn.Event(), spawn.Event()
    child = spawn.Process(target=fill_and_close, args=(str(tmp_path), begins, goes_on, ""))
    looker = spawn.Process(target=look)
    child.start()
    assert begins.wait(60)
    assert list(tmp_path.glob("segment-*"))
    looker.start()
    while stops(looker.pid):  # also with the stores of others
        assert looker.pid is not None
        if any(LISTED in os.readlink(path) for path in Path(f"/proc/{looker.pid}/fd").iterdir()):
            break
        os.kill(looker.pid, signal.SIGCONT)
    else:
        raise AssertionError("it did not look at the store")
    goes_on.set()
    child.join(60)
    try:
        assert child.exitcode == 0
        until(partial(is_removed, tmp_path, LISTED), "the end of the store")
    finally:
        looker.kill()
        looker.join(60)


def test_attaching_and_leaving_keeps_no_files(tmp_path: Path) -> None:
    """`attach` opens a file before it joins, and may find that it is not the store, which is left just then."""
    spawn = mp.get_context("spawn")
    begins, goes_on = spawn.Event(), spawn.Event()
    child = spawn.Process(target=fill_and_close, args=(str(tmp_path), begins, goes_on, "arena.looked_at:1:stop"))
    child.start()
    assert begins.wait(60)
    files = [path for path in Path(f"/proc/{child.pid}/fd").iterdir() if "di-store:" in os.readlink(path)]
    opened = [os.open(path, os.O_RDWR) for path in files]
    goes_on.set()
    assert stops(child.pid)
    for file in opened:
        os.close(file)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGCONT)
    child.join(60)
    assert child.exitcode == 0
    until(partial(is_removed, tmp_path, LISTED), "the end of the store")


def test_a_store_that_fits_grows_by_heads_only(tmp_path: Path) -> None:
    with di_store.open(memory="fit", disk=tmp_path / "disk", disk_capacity="2GiB") as store:
        before = store.stats()["memory"]
        table = store.create_table("replay", capacity=1_000_000, lanes=1)
        fill(table, 0, 100)
        assert store.stats()["memory"] - before < 200 << 20


def test_a_folder_serves_one_store_after_the_other(tmp_path: Path) -> None:
    for turn in range(3):
        with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="128MiB") as store:
            table = store.create_table("replay", capacity=30_000, lanes=1)
            fill(table, turn, 30_000)
            numbers(table.sample(64).data["obs"])
        del table, store


@pytest.mark.memory_only
def test_the_disk_grows_and_shrinks_in_use(tmp_path: Path) -> None:
    """A table that does not fit fits after it; a disk that tables need is not made smaller."""
    with di_store.open(memory="32MiB", disk=tmp_path / "disk", disk_capacity="64MiB") as store:
        with pytest.raises(di_store.CapacityError):
            store.create_table("replay", capacity=150_000, lanes=1, schema=SCHEMA, compress=None)
        store.resize(disk_capacity="256MiB")
        table = store.create_table("replay", capacity=150_000, lanes=1, schema=SCHEMA, compress=None)
        fill(table, 0, 120_000)
        disk = store.stats()["disk"]
        assert disk is not None
        assert disk["files"] > 64 << 20
        least: list[Any] = ["64MiB", disk["files"] - (4 << 20)]
        for less in least:
            with pytest.raises(di_store.CapacityError, match="disk_capacity"):
                store.resize(disk_capacity=less)
        store.resize("64MiB", disk_capacity="180MiB")
        with pytest.raises(di_store.CapacityError, match="set aside"):
            store.resize("12MiB")
        store.drop_table("replay")
        small = store.create_table("small", capacity=1_000, lanes=1, schema=SCHEMA)
        fill(small, 0, 1_000)
        with pytest.raises(TypeError, match="memory= or disk_capacity= or write_budget="):
            store.resize()
        with pytest.raises(ValueError, match="at least"):
            store.resize(disk_capacity=1)
        with pytest.raises(di_store.StoreFull, match="room"):
            store.resize(disk_capacity="100TiB")
        assert store.check() == []
    with di_store.open(memory="16MiB") as store, pytest.raises(ValueError, match="disk="):
        store.resize(disk_capacity="1GiB")


@pytest.mark.memory_only
def test_frequently_drawn_rows_stay_in_memory(tmp_path: Path) -> None:
    """A table that is drawn all the time, beside one that is only written and does not fit."""
    with di_store.open(memory="24MiB", disk=tmp_path / "disk", disk_capacity="256MiB") as store:
        hot = store.create_table("hot", capacity=4_000, lanes=1, schema=SCHEMA, compress=None)
        cold = store.create_table("cold", capacity=100_000, lanes=1, schema=SCHEMA, compress=None)
        fill(hot, 0, 4_000)
        reads: list[int] = []
        with cold.writer() as writer:
            for number in range(100_000):
                writer.append(row(number))
                if number % 100 == 0:
                    numbers(hot.sample(64).data["obs"])
                    disk = store.stats()["disk"]
                    assert disk is not None
                    reads.append(disk["reads"])
        assert disk["dropped_chunks"] > 50
        assert reads[-1] - reads[len(reads) // 4] < 3 * len(reads)  # of 48 draws each
        assert store.check() == []
