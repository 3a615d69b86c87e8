"""Processes that hold draws nobody has received, and others that are stopped with no lock in hand."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from typing import Any

from pains import status, stop, threads_of, until

import di_store
from di_store.replay.local_table import LocalTable
from di_store.replay.table import backend_of


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
        stop(pid)
        turns = turns_of(pid)
        try:
            for table in tables:
                table.keys(n=1, timeout=0.5)
                if isinstance(backend := backend_of(table), LocalTable):  # else its agent takes the locks
                    backend.open().arena.available(0, 0.5)
        except di_store.Timeout:
            os.kill(pid, signal.SIGCONT)
            until(
                lambda before=turns: turns_of(pid) > before, "the process to go on"
            )  # else it stops at the same place
        else:
            return


def turns_of(pid: int) -> int:
    """How often threads of a process have left a processor."""
    fields = [status(thread) for thread in threads_of(pid)]
    return sum(int(each["voluntary_ctxt_switches"]) + int(each["nonvoluntary_ctxt_switches"]) for each in fields)
