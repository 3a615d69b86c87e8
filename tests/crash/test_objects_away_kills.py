"""Processes that are killed or stopped while objects leave memory, and while they come back."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disk.test_objects_away import COUNT, fill, id_of, opened, same, value_of
from pains import is_removed, until
from warm import WARM, stopped_at_its_fault

import di_store
from di_store import ObjectNotFound, _core

POINTS = (
    "heap.bytes_dropped:1",
    "heap.bytes_dropped:40",
    "heap.block_given:3",
    "heap.block_taken:3",
    "objects.written:1",
    "objects.written:70",
    "objects.noted:1",
    "objects.noted:30",
    "get.loaded:5",
)
WITHOUT_LOCK = ("objects.written:20", "get.loaded:9")
"""Of these nobody else has to wait for the process that is stopped there."""


def work(name: str, fault: str, acknowledged: str) -> None:
    """Put, get and delete; a line of the file is a call that has returned, or a deletion that was begun."""
    with di_store.attach(name) as store, open(acknowledged, "a", buffering=1) as file:
        _core.arm_fault(fault)
        rng = np.random.default_rng(0)
        for number in range(COUNT, 10 * COUNT):
            store.put(value_of(number), id=id_of(number), timeout=60)
            file.write(f"put {number}\n")
            other = int(rng.integers(number))
            try:
                assert same(store.get(id_of(other), timeout=0), other)
            except ObjectNotFound:
                pass
            if number % 2:
                file.write(f"deleting {number}\n")
                store.delete(id_of(number))


def check(store: di_store.Store, acknowledged: Path, more: int = 20 * COUNT) -> None:
    """All that was put and not deleted is there, whole; `more`: ids for others."""
    there = set(range(COUNT))
    for line in acknowledged.read_text().splitlines():
        what, number = line.split()
        (there.add if what == "put" else there.discard)(int(number))
    for number in sorted(there):
        assert same(store.get(id_of(number), timeout=60), number), number
    fill(store, range(more, more + 200))
    assert store.check() == []


def started(name: str, fault: str, acknowledged: Path) -> Any:
    acknowledged.touch()
    process = WARM.Process(target=work, args=(name, fault, str(acknowledged)))
    process.start()
    return process


@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_at_any_point_loses_no_object(tmp_path: Path, point: str) -> None:
    acknowledged = tmp_path / "acknowledged"
    with opened(tmp_path / "disk", f"objects-die-{os.getpid()}") as store:
        fill(store, range(COUNT))
        process = started(store.name, point, acknowledged)
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
        check(store, acknowledged)
        assert store.stats()["deaths"] == 1
    until(partial(is_removed, tmp_path / "disk", store.name), "the end of the store")


@pytest.mark.parametrize("point", WITHOUT_LOCK)
def test_a_process_stopped_at_any_point_blocks_nobody(tmp_path: Path, point: str) -> None:
    """The others go on; and so does it, once it is woken."""
    acknowledged = tmp_path / "acknowledged"
    with opened(tmp_path / "disk", f"objects-stop-{os.getpid()}") as store:
        fill(store, range(COUNT))
        process = started(store.name, f"{point}:stop", acknowledged)
        try:
            assert stopped_at_its_fault(process)
            check(store, acknowledged)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        before = len(acknowledged.read_text().splitlines())
        while len(acknowledged.read_text().splitlines()) < before + 20:
            assert process.is_alive()
        process.kill()
        process.join(60)
        check(store, acknowledged, 30 * COUNT)


def test_the_folder_is_usable_after_all_processes_die(tmp_path: Path) -> None:
    """Objects that left memory end with their store; durable ones do not, wherever they were."""
    process = WARM.Process(target=put_and_die, args=(str(tmp_path),))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    with opened(tmp_path) as store:
        assert [ref.id for ref in store.keys(n=10 * COUNT)] == [id_of(number) for number in range(0, COUNT, 3)]
        for number in range(0, COUNT, 3):
            assert same(store.get(id_of(number)), number)
        fill(store, range(COUNT, 2 * COUNT))
        assert store.check() == []


def put_and_die(folder: str) -> None:
    store = opened(Path(folder))
    fill(store, range(0, COUNT, 3), durability="disk")
    fill(store, range(1, COUNT, 3))
    fill(store, range(2, COUNT, 3))
    os.kill(os.getpid(), signal.SIGKILL)
