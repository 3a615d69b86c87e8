"""Processes that hold draws nobody has received, and others that are stopped with no lock in hand."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from pathlib import Path
from typing import Any

import di_store


def _hold(table: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
    table.sample(10**6, timeout=600)  # in vain: whatever the table lets through is held


def holder(table: Any, n: int) -> Any:
    """A process that holds n draws more than there were, stopped inside `sample`."""
    before = table.stats()["samples"]
    process = mp.get_context("fork").Process(target=_hold, args=(table,), daemon=True)
    process.start()
    while table.stats()["samples"] < before + n:
        pass
    stop_outside_locks(process.pid or 0, table)
    return process


def stop_outside_locks(pid: int, *tables: Any) -> None:
    """Stop a process with no lock of these tables or of their store's heap in hand."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            pass
        try:
            for table in tables:
                table.keys(n=1, timeout=0.5)
                if hasattr(table, "_handle"):  # else its agent takes the locks
                    table._backend.handle.arena.available(0, 0.5)
        except di_store.Timeout:
            os.kill(pid, signal.SIGCONT)
        else:
            return
