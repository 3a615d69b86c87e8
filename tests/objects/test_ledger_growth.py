"""Several threads of a process need a ledger block at the same moment: afterwards every pin can still be let go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pains

import di_store
from di_store import _core

BLOCK = 255  # entries of a ledger block
THREADS = 3
CHILD = """
import sys, di_store
store = di_store.open(sys.argv[1])
key = store.keys()[0]
di_store._core.arm_fault("heap.pinned:1:stop")
store.get(key)
"""


def test_concurrent_ledger_blocks_have_room_for_all_dropped_pins(store_name: Callable[[], str]) -> None:
    count = (THREADS + 1) * BLOCK - 50
    with di_store.open(store_name(), memory="64MiB") as store:
        refs = [store.put(np.full(64, i)) for i in range(count)]
        arrays: list[Any] = [store.get(ref) for ref in refs[:BLOCK]]  # the ledger is full
        child = subprocess.Popen([sys.executable, "-c", CHILD, store.name])
        try:
            pains.until(lambda: pains.is_stopped(child.pid), "the child, stopped with the heap's lock")
            late = refs[BLOCK : BLOCK + THREADS]
            threads = [threading.Thread(target=lambda ref=ref: arrays.append(store.get(ref))) for ref in late]
            for thread in threads:
                thread.start()

            def waiting() -> int:
                return sum(waiter["pid"] == os.getpid() for waiter in store.stats()["waiters"])

            pains.until(lambda: waiting() == THREADS, "all threads, which wait for the lock to make a block")
        finally:
            os.kill(child.pid, signal.SIGCONT)
        for thread in threads:
            thread.join()
        assert child.wait() == 0
        arrays += [store.get(ref) for ref in refs[BLOCK + THREADS :]]
        assert len(arrays) == count
        arrays.clear()
        store.get(refs[0])
        store.get(refs[1])  # settles what was dropped before it
        assert store.stats()["pinned"] <= 1024  # of the last array at most


def test_a_snapshot_can_end_while_the_heap_is_locked(store_name: Callable[[], str]) -> None:
    """What it has let go is settled later: its end does not fail for a lock that somebody holds just then."""
    with di_store.open(store_name(), memory="64MiB") as store:
        store.put(np.arange(64))
        arena = store._backend.session.arena
        snapshot = _core.Snapshot(arena, None, 60.0)
        child = subprocess.Popen([sys.executable, "-c", CHILD, store.name])
        try:
            pains.until(lambda: pains.is_stopped(child.pid), "the child, stopped with the heap's lock")
            snapshot.close(60.0)
        finally:
            os.kill(child.pid, signal.SIGCONT)
        assert child.wait() == 0
        assert store.check() == []


def test_ledger_blocks_find_room_in_a_store_full_of_objects(tmp_path: Path) -> None:
    """Those that nobody holds leave for the disk, until all that is held has its entry."""
    with di_store.open(memory="14MiB", disk=tmp_path, disk_capacity="256MiB") as store:
        refs = [store.put(np.full(1_000, number)) for number in range(3_000)]  # 24 MB
        before = store.stats()["disk"]["objects"]
        assert before > 0
        held = [store.get(refs[-1]) for _ in range(400 * BLOCK)]  # blocks of 1.6 MiB
        assert store.stats()["disk"]["objects"] > before
        assert all(int(array[-1]) == 2_999 for array in held[:: 10 * BLOCK])
        assert store.check() == []
