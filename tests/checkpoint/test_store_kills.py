"""Processes killed while they make a checkpoint, and while they restore one."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from warm import WARM, stopped_at_its_fault

import di_store
from checkpoint.stores import MEMORY, sound, write
from di_store import _core


def take(name: str, folder: str, fault: str) -> None:
    if fault:
        _core.arm_fault(fault)
    with di_store.attach(name) as store:
        store.checkpoint(folder)


def bring(folder: str, name: str) -> None:
    with di_store.restore(folder, name, memory=MEMORY):
        signal.pause()


def newest(folder: Path) -> int:
    with di_store.restore(folder, memory=MEMORY) as store:
        sound(store)
        table = store.table("t")
        rewards = table.peek(table.keys(0, len(table))).data["reward"]
        assert (np.diff(rewards) == 1).all()
        return int(rewards[-1])


def test_a_child_forked_during_a_checkpoint_holds_no_lock(tmp_path: Path) -> None:
    """It may live as long as it likes: the next checkpoint does not wait for it, nor one beside a killed process."""
    ready = WARM.Event()
    with di_store.open(memory=MEMORY) as store:
        write(store.create_table("t", capacity=500), 500)
        child = WARM.Process(target=fork_in_checkpoint, args=(store.name, str(tmp_path / "c"), ready))
        child.start()
        assert ready.wait(60)
        (forked,) = children(child.pid)
        child.kill()
        child.join()
        try:
            store.checkpoint(tmp_path / "c", timeout=0)
            store.checkpoint(tmp_path / "c", timeout=0)
        finally:
            os.kill(forked, signal.SIGKILL)
    assert newest(tmp_path / "c") == 499


def fork_in_checkpoint(name: str, folder: str, ready: Any) -> None:
    def fork(*_: Any) -> None:
        if os.fork() == 0:  # in the child, where what follows a fork is done by now
            ready.set()
        threading.Event().wait()

    with di_store.attach(name) as store:
        store.checkpoint(folder, progress=fork)


def children(pid: int | None) -> list[int]:
    """Those that its threads have forked."""
    return [int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()]


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_a_killed_checkpoint_leaves_the_one_before(disk: bool, tmp_path: Path, full: bool) -> None:
    """At the instant, and at any moment: the folder holds the old state or the new one."""
    rng = random.Random(1)
    tier = {"disk": tmp_path / "d", "disk_capacity": "96MiB"} if disk else {}
    with di_store.open(memory=MEMORY, **tier) as store:  # type: ignore[arg-type]
        table = store.create_table("t", capacity=500)
        write(table, 500)
        store.checkpoint(tmp_path / "c")
        there = 499
        for turn in range(60 if full else 6):
            write(table, 100, there + 1)
            fault = "snapshot.taken:1" if turn % 3 == 0 else ""
            child = WARM.Process(target=take, args=(store.name, str(tmp_path / "c"), fault))
            child.start()
            if not fault:
                names = set(os.listdir(tmp_path / "c"))
                while child.is_alive() and set(os.listdir(tmp_path / "c")) == names:
                    pass
                child.join(rng.random() * 0.02)
                child.kill()
            child.join(60)
            found = newest(tmp_path / "c")
            assert found in (there, there + 100)
            if found == there:
                store.checkpoint(tmp_path / "c")
                assert newest(tmp_path / "c") == there + 100
            there += 100
            sound(store)
            assert store.stats()["pinned"] == 0
        assert len(list((tmp_path / "c").iterdir())) < 60


def test_a_killed_restore_leaves_nothing(tmp_path: Path) -> None:
    with di_store.open(memory=MEMORY) as store:
        write(store.create_table("t", capacity=5_000), 5_000)
        store.checkpoint(tmp_path / "c")
    for turn in range(4):
        name = f"killed-{os.getpid()}-{turn}"
        child = WARM.Process(target=bring, args=(str(tmp_path / "c"), name))
        child.start()
        while child.is_alive() and name not in {info.name for info in di_store.list_stores()}:
            pass
        child.kill()
        child.join(60)
        assert name not in {info.name for info in di_store.list_stores()}
    assert newest(tmp_path / "c") == 4_999


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_a_stopped_checkpoint_blocks_no_writer_or_learner(disk: bool, tmp_path: Path) -> None:
    """Its chunks stay while it is stopped, writers and learners go on; when it is dead all is let go."""
    tier = {"disk": tmp_path / "d", "disk_capacity": "96MiB"} if disk else {}
    with di_store.open(memory=MEMORY, **tier) as store:  # type: ignore[arg-type]
        table = store.create_table("t", capacity=2_000)
        write(table, 2_000)
        child = WARM.Process(target=take, args=(store.name, str(tmp_path / "c"), "snapshot.taken:1:stop"))
        child.start()
        assert stopped_at_its_fault(child)
        for turn in range(5):
            write(table, 2_000, 2_000 * (turn + 1))
            table.sample(64)
        child.kill()
        child.join(60)
        write(table, 2_000, 20_000)
        store.checkpoint(tmp_path / "c")
        sound(store)
        assert newest(tmp_path / "c") == 21_999
