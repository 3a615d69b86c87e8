"""A store with a disk tier is restored without its rows: files of the checkpoint are linked into its folder."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disk.test_copied_forward import disk, numbers
from warm import WARM

import di_store
from di_store import Spec, Uniform, _core

BYTES = 8_192
ROWS = 4_000
BLOCK = 50
"""Rows of one call of `fill`."""
SCHEMA = {"x": Spec((BYTES,), "uint8"), "label": Spec((), "int64"), "seen": Spec((), "float32")}
TIER: dict[str, Any] = {"memory": "16MiB", "disk_capacity": "160MiB"}


def fill(table: di_store.Table, first: int, count: int) -> None:
    with table.writer() as writer:
        for begin in range(first, first + count, BLOCK):
            label = np.arange(begin, min(begin + BLOCK, first + count))
            x = np.repeat((label % 251).astype(np.uint8)[:, None], BYTES, 1)
            x[:, :4] = label.astype("<u4")[:, None].view(np.uint8)
            writer.extend({"x": x, "label": label, "seen": (label / 2).astype(np.float32)})


def read(table: di_store.Table, keys: Any = None) -> dict[int, int]:
    """Numbers of rows by their keys; all bytes of them are checked."""
    found: dict[int, int] = {}
    keys = table.keys() if keys is None else keys
    for at in range(0, len(keys), 200):
        data = table.peek(keys[at : at + 200]).data
        rows = numbers(data["x"])
        assert (rows == data["label"]).all()
        assert (data["seen"] == rows / 2).all()
        found |= dict(zip((int(key) for key in keys[at : at + 200]), rows.tolist(), strict=True))
    return found


MOSTLY_RAW = pytest.mark.parametrize(
    "compress", [None, pytest.param("auto", marks=pytest.mark.extended)], ids=["raw", "packed"], indirect=True
)
"""For tests of files, whatever is in them."""


@pytest.fixture(params=[None, "auto"], ids=["raw", "packed"])
def compress(request: pytest.FixtureRequest) -> Any:
    return request.param


def saved(tmp_path: Path, compress: Any, times: int) -> Path:
    """A checkpoint of a table that was filled so many times, whose store and folder are gone."""
    with di_store.open(disk=tmp_path / "first", **TIER) as store:
        table = store.create_table("t", capacity=ROWS, lanes=1, compress=compress, remover=Uniform(), schema=SCHEMA)
        fill(table, 0, ROWS * times)
        store.checkpoint(tmp_path / "c")
    shutil.rmtree(tmp_path / "first")
    return tmp_path / "c"


@pytest.fixture
def folder(tmp_path: Path, compress: Any) -> Path:
    return saved(tmp_path, compress, 1)


@pytest.fixture
def again(folder: Path, tmp_path: Path) -> Iterator[di_store.Store]:
    with di_store.restore(folder, disk=tmp_path / "disk", **TIER) as store:
        yield store


def links(folder: Path) -> int:
    return sum(os.stat(path).st_nlink > 1 for path in folder.glob("segment-*"))


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*-*")}


def test_restoring_by_links_writes_and_loads_nothing(again: di_store.Store, tmp_path: Path) -> None:
    assert links(tmp_path / "disk") > 0
    assert disk(again)["written"] == 0
    assert disk(again)["live"] > 0
    assert again.check() == []
    assert sorted(read(again.table("t")).values()) == list(range(ROWS))


def test_a_linked_checkpoint_does_not_change_with_the_store(
    again: di_store.Store, folder: Path, tmp_path: Path
) -> None:
    """Its rows are replaced, copied forward and written to files that are used again: the checkpoint is what it was."""
    before, table = hashes(folder), again.table("t")
    there = set(read(table).values())
    for turn in range(1, 5):
        fill(table, turn * ROWS, ROWS)
        for _ in range(10):
            numbers(table.sample(100).data["x"])
        there |= set(range(turn * ROWS, (turn + 1) * ROWS))
        assert set(read(table).values()) <= there
        assert len(table) == ROWS
    assert again.check() == []
    assert disk(again)["files"] <= 160 << 20
    assert hashes(folder) == before
    with di_store.restore(folder, disk=tmp_path / "other", **TIER) as other:
        assert sorted(read(other.table("t")).values()) == list(range(ROWS))


def test_the_checkpoint_may_be_deleted_after_a_restore(again: di_store.Store, folder: Path) -> None:
    shutil.rmtree(folder)
    table = again.table("t")
    assert sorted(read(table).values()) == list(range(ROWS))
    fill(table, ROWS, 3 * ROWS)
    read(table)
    assert again.check() == []


def test_a_restored_store_can_be_checkpointed(
    again: di_store.Store, folder: Path, tmp_path: Path, compress: Any
) -> None:
    """It has the linked files too, whoever wrote them; in the folder from which they came, and in another one."""
    table = again.table("t")
    for turn, name in enumerate(("c", "other", "other")):
        fill(table, ROWS * (turn + 1), ROWS // 4)
        again.checkpoint(tmp_path / name)
        expected, drawn = read(table), table.sample(64).keys
        with di_store.restore(tmp_path / name, disk=tmp_path / f"disk-{turn}", **TIER) as third:
            assert (third.table("t").sample(64).keys == drawn).all()
            assert read(third.table("t")) == expected
            assert disk(third)["written"] == 0
            assert third.check() == []
        with di_store.restore(tmp_path / name, memory="128MiB") as third:
            assert read(third.table("t")) == expected


def test_chunks_with_another_packing_are_loaded(folder: Path, tmp_path: Path, compress: Any) -> None:
    other = "auto" if compress is None else None
    tables = {"t": {"compress": other}}
    with di_store.restore(folder, disk=tmp_path / "disk", tables=tables, **TIER) as store:
        assert sorted(read(store.table("t")).values()) == list(range(ROWS))
        assert store.check() == []
        assert disk(store)["written"] > 0


def test_files_that_cannot_be_linked_are_loaded(folder: Path, tmp_path: Path) -> None:
    _core.arm_fault("file.link:1:EIO+")
    try:
        with di_store.restore(folder, disk=tmp_path / "disk", **TIER) as store:
            _core.arm_fault("")
            assert links(tmp_path / "disk") == 0
            assert sorted(read(store.table("t")).values()) == list(range(ROWS))
            assert store.check() == []
    finally:
        _core.arm_fault("")


def test_unlinked_files_still_have_room(tmp_path: Path) -> None:
    """It does not fit into memory, so not so many files are linked that it would not fit on disk."""
    folder = saved(tmp_path, None, 4)
    tier = {"memory": "12MiB", "disk_capacity": "112MiB"}
    with di_store.restore(folder, disk=tmp_path / "disk", **tier) as store:
        assert links(tmp_path / "disk") > 0
        assert len(read(store.table("t"))) == ROWS
        assert store.check() == []


def test_only_some_files_are_linked_if_room_is_short(tmp_path: Path) -> None:
    """Little of each is needed; of those that are linked the rest is written elsewhere in time."""
    folder = saved(tmp_path, None, 4)
    assert sum(path.stat().st_size for path in folder.glob("disk-*")) > 96 << 20
    tier = TIER | {"disk_capacity": "96MiB"}
    with di_store.restore(folder, disk=tmp_path / "disk", tables={"t": {"capacity": 2_000}}, **tier) as store:
        table = store.table("t")
        assert links(tmp_path / "disk") > 0
        assert len(read(table)) == 2_000
        for turn in range(4, 8):
            fill(table, turn * ROWS, ROWS)
            assert disk(store)["files"] <= 96 << 20
        assert len(read(table)) == 2_000
        assert disk(store)["moved"] > 0
        assert store.check() == []


def test_a_damaged_linked_file_costs_only_its_items(tmp_path: Path) -> None:
    """Nothing of it is read before its rows are."""
    folder = saved(tmp_path, None, 1)
    path = min(folder.glob("disk-*"))  # all are as long; the last ones may hold next to nothing
    with open(path, "r+b") as file:
        for at in range(1 << 20, os.stat(path).st_size - (1 << 20), 4_096):
            file.seek(at)
            file.write(b"\xa5" * 4_096)
    with di_store.restore(folder, disk=tmp_path / "disk", **TIER) as store:
        table = store.table("t")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one in the life of a process
            for _ in range(100):
                numbers(table.sample(100).data["x"])
        store.check(repair=True)
        assert 0 < disk(store)["damaged_items"] == ROWS - len(table) < ROWS
        assert store.check() == []
        read(table)


def bring(folder: str, disk: str, fault: str) -> None:
    _core.arm_fault(fault)
    with di_store.restore(folder, disk=disk, **TIER):
        os.kill(os.getpid(), signal.SIGKILL)


@MOSTLY_RAW
@pytest.mark.parametrize("fault", ["restore.link_counted:1", "restore.link_counted:3", "restore.before_adopt:9", ""])
def test_a_killed_restore_leaves_a_folder_for_the_next_one(fault: str, folder: Path, tmp_path: Path) -> None:
    before = hashes(folder)
    child = WARM.Process(target=bring, args=(str(folder), str(tmp_path / "disk"), fault))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    with di_store.restore(folder, disk=tmp_path / "disk", **TIER) as store:
        assert sorted(read(store.table("t")).values()) == list(range(ROWS))
        assert links(tmp_path / "disk") == sum(1 for _ in (tmp_path / "disk").glob("segment-*"))
        assert store.check() == []
    assert hashes(folder) == before


@MOSTLY_RAW
def test_a_closed_restored_store_leaves_no_file(folder: Path, tmp_path: Path) -> None:
    for _ in range(2):
        with di_store.restore(folder, disk=tmp_path / "disk", **TIER) as store:
            assert links(tmp_path / "disk") > 0
            fill(store.table("t"), ROWS, ROWS // 2)
        end = time.monotonic() + 20  # the thread that does chores may have the store for a moment
        while list((tmp_path / "disk").glob("segment-*")):
            assert time.monotonic() < end
    child = WARM.Process(target=bring, args=(str(folder), str(tmp_path / "disk"), ""))
    child.start()
    child.join(60)
    assert links(tmp_path / "disk") > 0
    with di_store.open(disk=tmp_path / "disk", **TIER):
        assert not list((tmp_path / "disk").glob("segment-*"))


def test_a_failed_restore_releases_everything(folder: Path, tmp_path: Path) -> None:
    def fail(_done: int, _all: int) -> None:
        raise ValueError("no")

    gc.disable()
    try:
        with pytest.raises(ValueError, match="no"):
            di_store.restore(folder, disk=tmp_path / "disk", progress=fail, **TIER)
        with di_store.restore(folder, disk=tmp_path / "disk", **TIER) as store:
            assert store.check() == []
    finally:
        gc.enable()


def test_a_recreated_folder_is_not_mistaken_for_the_old_one(folder: Path, tmp_path: Path) -> None:
    """Of which this process has files open, with names that come again."""
    with di_store.open(disk=tmp_path / "disk", **TIER) as store:
        table = store.create_table("t", capacity=ROWS, lanes=1, compress=None, schema=SCHEMA)
        fill(table, 3 * ROWS, ROWS)
        read(table)
        store.checkpoint(tmp_path / "other")
    shutil.rmtree(tmp_path / "disk")
    with di_store.restore(folder, disk=tmp_path / "disk", **TIER) as store:
        assert sorted(read(store.table("t")).values()) == list(range(ROWS))


def noisy(number: int) -> dict[str, Any]:
    """A row of which half can be compressed."""
    x = np.random.default_rng(number).integers(0, 256, BYTES, dtype=np.uint8)
    x[BYTES // 2 :] = number % 251
    return {"x": x, "label": number, "seen": 0.0}


def test_packing_ignores_tables_that_no_longer_need_a_chunk(tmp_path: Path) -> None:
    """Two tables of one stream, of which one has let go of most chunks: these are packed for both."""
    tier = TIER | {"disk_capacity": "64MiB"}
    with di_store.open(disk=tmp_path / "disk", **tier) as store:
        big = store.create_table("big", capacity=3_000, lanes=1, schema=SCHEMA, durability="disk")
        view = di_store.Sequence(64, period=64)
        small = store.create_table("small", capacity=4, lanes=1, view=view, schema=SCHEMA)
        with store.writer([big, small]) as writer:
            for number in range(6_000):
                writer.append(noisy(number))
        store.sync()
    with di_store.open(disk=tmp_path / "disk", **tier) as store:
        assert disk(store)["written"] == 0
        assert len(store.table("big")) == 3_000
        labels = store.table("big").peek(store.table("big").keys(), columns=("label",)).data["label"]
        assert sorted(labels.tolist()) == list(range(3_000, 6_000))


def test_durable_tables_are_linked(tmp_path: Path) -> None:
    """Opened again and again: each time rows of all stores before are there, and none is written twice."""
    for turn in range(4):
        with di_store.open(disk=tmp_path / "disk", **TIER) as store:
            if turn == 0:
                store.create_table("t", capacity=ROWS, lanes=1, compress=None, schema=SCHEMA, durability="disk")
            table = store.table("t")
            assert len(table) == turn * 1_000
            assert sorted(read(table).values()) == list(range(turn * 1_000))
            assert disk(store)["written"] < 4 << 20
            fill(table, turn * 1_000, 1_000)
            store.sync()
