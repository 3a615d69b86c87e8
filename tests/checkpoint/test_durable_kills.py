"""Durable objects and weights: processes killed one by one at each line, and all at once."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from warm import WARM

import di_store
from di_store import _core

OPTIONS: dict[str, Any] = {"memory": "32MiB", "disk_capacity": "64MiB"}
POINTS = (
    "log.file_taken:1",
    "log.file_taken:2",
    "log.file_made:1",
    "log.bytes_written:1",
    "log.appended:1",
    "log.synced:20",
    "durable.synced:5",
    "durable.noted:5",
    "heap.publish_sealed:2",
    "heap.published:2",
    "log.before_seal:1",
    "log.marked:7",
    "log.forgotten:1",
    "log.copied:1",
)
ALONE = (
    "log.file_made:1",
    "log.bytes_written:9",
    "durable.synced:5",
    "log.marked:7",
    "log.forgotten:1",
    "log.copied:1",
)


def value_of(id: str) -> bytes:
    """Of an object: 200 KB that its id gives."""
    return random.Random(id).randbytes(200) * 1_000


def id_of(writer: int, number: int) -> str:
    return f"{writer:020x}{number:020x}"


def work(folder: str, name: str, writer: int, fault: str, acknowledged: str) -> None:
    """Put, delete three of four, publish; each line of the file is a call that has returned, or one that was begun."""
    store = di_store.open(name, disk=folder, **OPTIONS)
    if fault:
        _core.arm_fault(fault)
    with open(acknowledged, "a", buffering=1) as file:
        for i in range(writer, 1_000_000):
            id = id_of(writer, i)
            store.put(value_of(id), id=id, durability="disk")
            file.write(f"put {id}\n")
            if i % 4:
                file.write(f"deleting {id}\n")
                store.delete(id)
                file.write(f"deleted {id}\n")
            if i % 5 == 0:
                version = store.publish(f"w{writer}", i, durability="disk")
                file.write(f"published {version} {i}\n")
            if i % 60 == 0:
                for old in range(max(writer, i - 60), i, 4):
                    file.write(f"deleting {id_of(writer, old)}\n")
                    store.delete(id_of(writer, old))
                    file.write(f"deleted {id_of(writer, old)}\n")


def check(store: di_store.Store, folder: Path, writers: dict[int, list[str]]) -> None:
    """What was put is there, whole, unless its deletion had begun; what was deleted is not; no older weights."""
    there = {ref.id for ref in store.keys(n=1_000_000)}
    for id in there:
        assert store.get(id) == value_of(id)
    for writer, files in writers.items():
        lines = [line.split() for name in files if (folder / name).exists() for line in (folder / name).open()]
        put, begun, deleted = (
            {id for what, id, *_ in lines if what == each} for each in ("put", "deleting", "deleted")
        )
        assert put - begun <= there
        assert not deleted & there
        # One more, whose put had not returned.
        mine = {id for id in there if int(id[:20], 16) == writer}
        assert len(mine - put) <= len(files)
        published = [(int(line[1]), int(line[2])) for line in lines if line[0] == "published"]
        if published:
            latest = store.latest(f"w{writer}")
            assert latest is not None
            assert latest.version >= published[-1][0]
            if latest.version == published[-1][0]:
                assert latest.value == published[-1][1]


def started(*args: Any) -> Any:
    child = WARM.Process(target=work, args=args)
    child.start()
    return child


def lines_of(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.parametrize("fault", POINTS)
def test_a_kill_at_any_fault_point_loses_no_synced_object(fault: str, tmp_path: Path) -> None:
    """Another process goes on, deletes what is left and puts the same ids; then the store is opened again."""
    folder = tmp_path / "disk"
    name = f"killed-{os.getpid()}-{fault.replace(':', '-').replace('_', '-')}"
    with di_store.open(name, disk=folder, **OPTIONS) as store:
        child = started(str(folder), name, 1, fault, str(tmp_path / "a"))
        child.join(60)
        assert child.exitcode == -signal.SIGKILL, "the point was not reached"
        check(store, tmp_path, {1: ["a"]})
        again = {}
        for line in (tmp_path / "a").read_text().splitlines()[-3:] if (tmp_path / "a").exists() else []:
            id = line.split()[1]
            if len(id) != 40:
                continue
            store.delete(id)
            again[id] = store.put(value_of(id), id=id, durability="disk")
        last = id_of(1, 1 + lines_of(tmp_path / "a"))
        store.delete(store.put(value_of(last), id=last, durability="disk"))
        expected = {ref.id for ref in store.keys(n=1_000_000)}
        store.check(repair=True)
        assert not store.check()
    with di_store.open(disk=folder, **OPTIONS) as store:
        assert set(again) <= expected == {ref.id for ref in store.keys(n=1_000_000)}


@pytest.mark.parametrize("fault", ALONE)
def test_a_killed_single_process_loses_no_synced_object(fault: str, tmp_path: Path) -> None:
    """Nobody else has the store."""
    folder = str(tmp_path / "disk")
    child = started(folder, f"alone-{os.getpid()}", 1, fault, str(tmp_path / "a"))
    child.join(60)
    assert child.exitcode == -signal.SIGKILL, "the point was not reached"
    with di_store.open(disk=folder, **OPTIONS) as store:
        check(store, tmp_path, {1: ["a"]})


def test_a_kill_of_all_processes_loses_no_synced_object(tmp_path: Path, full: bool) -> None:
    """Two writers and who made the store, at a random moment; the next ones go on with the same folder."""
    folder, rng = str(tmp_path / "disk"), random.Random(1)
    files: dict[int, list[str]] = {}
    for turn in range(50 if full else 3):
        name = f"all-{os.getpid()}-{turn}"
        writers = [10 * turn + 1, 10 * turn + 2]
        names = [f"{turn}-{writer}" for writer in writers]
        children = [
            started(folder, name, writer, "", str(tmp_path / file)) for writer, file in zip(writers, names, strict=True)
        ]
        wanted, end = rng.randint(1, 150), time.monotonic() + 60
        while lines_of(tmp_path / names[turn % 2]) < wanted:
            assert time.monotonic() < end
            os.sched_yield()
        for child in children:
            os.kill(child.pid, signal.SIGSTOP)
        for child in children:
            child.kill()
        for child in children:
            child.join(60)
        files |= {writer: [file] for writer, file in zip(writers, names, strict=True)}
        with di_store.open(disk=folder, **OPTIONS) as store:
            check(store, tmp_path, files)
            kept = store.keys(n=1_000_000)
            if len(kept) > 60:
                store.delete(kept)
                files = {}


STAYS, TWICE = id_of(0, 1), id_of(0, 2)


def put_twice(name: str) -> None:
    """One object that stays; one that is on disk when this process is killed, and that nobody could read."""
    with di_store.attach(name) as store:
        store.put(value_of(STAYS), id=STAYS, durability="disk")
        _core.arm_fault("durable.synced:1")
        store.put("of the dead", id=TWICE, durability="disk")


def put_by_the_dead(store: di_store.Store) -> None:
    child = WARM.Process(target=put_twice, args=(store.name,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert not store.contains(TWICE)


def test_the_newest_record_counts(tmp_path: Path) -> None:
    """And not the one that is read last."""
    with di_store.open(disk=tmp_path, **OPTIONS) as store:
        store.put(1, durability="disk")  # its file has a lower number than the child's
        put_by_the_dead(store)
        store.put("of the living", id=TWICE, durability="disk")
    with di_store.open(disk=tmp_path, **OPTIONS) as store:
        assert store.get(TWICE) == "of the living"


def test_deleted_objects_of_dead_processes_do_not_return(tmp_path: Path) -> None:
    """Though the file that says that the object was deleted is gone."""
    with di_store.open(disk=tmp_path, **OPTIONS) as store:
        put_by_the_dead(store)
        store.delete(store.put("of the living", id=TWICE, durability="disk"))
        own = {path.name for path in tmp_path.glob("objects-*")}
        for _ in range(60):  # until its file is full, and goes
            store.delete(store.put(bytes(200_000), durability="disk"))
        assert own - {path.name for path in tmp_path.glob("objects-*")}, "no file has gone"
    with di_store.open(disk=tmp_path, **OPTIONS) as store:
        assert {ref.id for ref in store.keys(n=1_000)} == {STAYS}


@pytest.mark.parametrize("fault", ["arena.before_magic:1", "heap.sealed:20"])
def test_a_kill_during_opening_loses_nothing(fault: str, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    with di_store.open(disk=folder, **OPTIONS) as store:
        ids = [id_of(0, i) for i in range(50)]
        store.put_many([value_of(id) for id in ids], ids=ids, durability="disk")
        store.delete(ids[:10])
    child = WARM.Process(target=open_at, args=(str(folder), fault))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    with di_store.open(disk=folder, **OPTIONS) as store:
        assert {ref.id for ref in store.keys(n=1_000)} == set(ids[10:])


def open_at(folder: str, fault: str) -> None:
    _core.arm_fault(fault)
    di_store.open(disk=folder, **OPTIONS)
