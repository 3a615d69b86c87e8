"""An idle writer beside the reader, as a table in use has one: its background thread makes the store's pages huge."""

from __future__ import annotations

import multiprocessing as mp
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

import di_store
from bench.scale.figures import say

QUIET_SECONDS, MOST_SECONDS = 1.0, 60.0


class Keeper:
    """The writer's process; it ends with the `with`."""

    def __init__(self, table: di_store.Table) -> None:
        context = mp.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=keep, args=(there, table), daemon=True)
        self._process.start()
        there.close()
        self._pipe.recv()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join()

    def settle(self) -> float:
        """Wait until no more pages become huge; GiB of them on the machine, 0 where it allows none."""
        end, seen, since = time.monotonic() + MOST_SECONDS, -1, time.monotonic()
        while time.monotonic() < min(end, since + QUIET_SECONDS):
            if (found := huge_kib()) != seen:
                seen, since = found, time.monotonic()
            time.sleep(QUIET_SECONDS / 10)
        say(f"huge pages: {seen / 2**20:.2f} GiB")
        return seen / 2**20


def keep(pipe: Connection, table: di_store.Table) -> None:
    """Hold a writer open until the pipe is closed."""
    with table.writer():
        pipe.send("open")
        pipe.poll(None)


def huge_kib() -> int:
    """Shared memory of the machine in huge pages."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("ShmemHugePages:"))
