"""Pain 11: a snapshot is cheap: little memory, no long stall of writers, and a second one writes what has changed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from soak.figures import Process

import di_store

MIB = 1 << 20
BYTES = 7_056
STALL_SECONDS = 1.0
"""Ten times what `pains.md` asks for: the machine may be busy."""


@pytest.mark.memory_only
def test_a_checkpoint_costs_little(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    rows = count(64, 2_048) * MIB // BYTES // 100 * 100
    rng = np.random.default_rng(0)
    with di_store.open(memory=count(96, 2_560) * MIB) as store:
        table = store.create_table("t", capacity=rows, lanes=1)
        writer = table.writer()
        flags = np.zeros(100, bool)

        def extend(times: int) -> float:
            longest = 0.0
            for _ in range(times):
                obs = rng.integers(0, 256, (100, BYTES), dtype=np.uint8)
                began = time.monotonic()
                writer.extend({"obs": obs, "terminated": flags, "truncated": flags})
                longest = max(longest, time.monotonic() - began)
            return longest

        extend(rows // 100)
        before = Process.take(os.getpid()).private
        most, stall, ended = 0, 0.0, threading.Event()

        def watch() -> None:
            nonlocal most
            while not ended.wait(0.005):
                most = max(most, Process.take(os.getpid()).private)

        watcher = threading.Thread(target=watch)
        taker = threading.Thread(target=store.checkpoint, args=(tmp_path / "c",))
        watcher.start()
        taker.start()
        while taker.is_alive():
            stall = max(stall, extend(1))
        taker.join()
        ended.set()
        watcher.join()
        assert most - before <= 64 * MIB
        assert stall <= STALL_SECONDS
        store.checkpoint(tmp_path / "c")
        there = {path.name for path in (tmp_path / "c").iterdir()}
        extend(max(1, rows // 10_000))
        store.checkpoint(tmp_path / "c")
        fresh = sum(path.stat().st_size for path in (tmp_path / "c").iterdir() if path.name not in there)
        changed = max(1, rows // 10_000) * 100
        # The open chunk of the lane is written whole; arrays of chunks and counts do not depend on what changed.
        assert fresh <= 1.2 * changed * (BYTES + 56) + 2 * MIB
        writer.close()
