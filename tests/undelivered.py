"""Processes that hold draws nobody has received."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from pathlib import Path
from typing import Any

import di_store


def _hold(table: Any) -> None:
    table.sample(10**6, timeout=600)  # in vain: whatever the table lets through is held


def holder(table: Any, n: int) -> Any:
    """A process that holds n draws more than there were, stopped inside `sample`."""
    before = table.stats()["samples"]
    process = mp.get_context("fork").Process(target=_hold, args=(table,), daemon=True)
    process.start()
    while table.stats()["samples"] < before + n:
        pass
    while True:  # it may be stopped with the lock of the table or the heap in hand
        os.kill(process.pid or 0, signal.SIGSTOP)
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            pass
        try:
            table.keys(n=1, timeout=0.5)
            table._handle.arena.available(0.5)
        except di_store.Timeout:
            os.kill(process.pid or 0, signal.SIGCONT)
        else:
            return process
