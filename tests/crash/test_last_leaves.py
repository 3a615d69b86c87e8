"""Processes that attach to a store with a disk just when its last one leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import is_gone, until
from warm import WARM, stopped_at_its_fault

import di_store
from di_store import Spec, StoreNotFound, _core

SECONDS = 60
OPTIONS: dict[str, Any] = {"memory": "16MiB", "disk_capacity": "64MiB"}
SCHEMA = {"number": Spec((), "int64"), "noise": Spec((100_000,), "uint8")}


def rows(first: int, count: int) -> dict[str, Any]:
    noise = np.random.default_rng(0).integers(0, 256, (count, 100_000), np.uint8)
    return {"number": np.arange(first, first + count), "noise": noise}


def leave(name: str, folder: str, begins: Any, goes_on: Any) -> None:
    """Holds a store, then is stopped after it has said that it is the last."""
    store = di_store.open(name, disk=folder, **OPTIONS)
    table = store.create_table("t", capacity=300, schema=SCHEMA, lanes=1)
    table.extend(rows(0, 100))
    begins.set()
    assert goes_on.wait(SECONDS)
    _core.arm_fault("arena.ending:1:stop")
    del table
    store.close()


def come(name: str, fault: str, result: Any) -> None:
    """Attaches, and fills what memory does not hold."""
    if fault:
        _core.arm_fault(fault)
    try:
        with di_store.attach(name, timeout=0) as store:
            table = store.table("t")
            table.extend(rows(100, 100))
            table.extend(rows(200, 100))
            disk = store.stats()["disk"]
            assert disk is not None
            evicted = table.stats()["evicted_for_room"]
            result.put((table.peek(table.keys()).data["number"].tolist(), evicted, disk["files"] > 0, store.check()))
    except StoreNotFound:
        result.put("not there")


def leaving(name: str, folder: Path) -> Any:
    """A process that is stopped where it has said that it is the last."""
    begins, goes_on = WARM.Event(), WARM.Event()
    process = WARM.Process(target=leave, args=(name, str(folder), begins, goes_on))
    process.start()
    assert begins.wait(SECONDS)
    goes_on.set()
    assert stopped_at_its_fault(process)
    return process


def joining(name: str, result: Any) -> Any:
    """A process that is stopped where it has its client slot, and has not yet looked whether the store ends."""
    process = WARM.Process(target=come, args=(name, "arena.after_claim:1:stop", result))
    process.start()
    assert stopped_at_its_fault(process)
    return process


def opens(name: str, folder: Path) -> None:
    """Another store may have the name and the folder, once no dashboard of another test has the one that was left."""
    until(partial(is_gone, name), "the store's end")
    with di_store.open(name, disk=folder, **OPTIONS) as store:
        table = store.create_table("t", capacity=300, schema=SCHEMA, lanes=1)
        for first in range(0, 300, 100):
            table.extend(rows(first, 100))
        assert len(table) == 300
        assert store.check() == []


def test_a_process_that_attaches_in_time_keeps_the_store(tmp_path: Path, store_name: Callable[[], str]) -> None:
    """The one that leaves sees it at its second look, and removes no file."""
    name, result = store_name(), WARM.Queue()
    last, fresh = leaving(name, tmp_path), joining(name, result)
    os.kill(last.pid, signal.SIGCONT)
    last.join(SECONDS)
    os.kill(fresh.pid, signal.SIGCONT)
    assert result.get(timeout=SECONDS) == (list(range(300)), 0, True, [])
    fresh.join(SECONDS)


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_process_that_attaches_too_late_finds_no_store(
    goes_on: bool, tmp_path: Path, store_name: Callable[[], str]
) -> None:
    """Nor does it wait for long, should the one that leaves be stopped for good."""
    name, result = store_name(), WARM.Queue()
    last = leaving(name, tmp_path)
    fresh = WARM.Process(target=come, args=(name, "", result))
    fresh.start()
    if not goes_on:
        assert result.get(timeout=SECONDS) == "not there"
    os.kill(last.pid, signal.SIGCONT)
    last.join(SECONDS)
    fresh.join(SECONDS)
    opens(name, tmp_path)


def test_attaching_ends_when_the_last_holder_is_killed(tmp_path: Path, store_name: Callable[[], str]) -> None:
    """Whoever was about to attach finds none, as its files may be gone."""
    name, result = store_name(), WARM.Queue()
    last, fresh = leaving(name, tmp_path), joining(name, result)
    last.kill()
    last.join(SECONDS)
    os.kill(fresh.pid, signal.SIGCONT)
    assert result.get(timeout=SECONDS) == "not there"
    fresh.join(SECONDS)
    opens(name, tmp_path)
