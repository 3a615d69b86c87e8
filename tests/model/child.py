"""A writer in another process, driven over a pipe, that may be killed at any moment."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import di_store
from di_store import _core

Numbers = tuple[list[int], list[int], list[int]]
"""Keys, lanes and starts of `Items`."""


def numbers(made: Any, tables: list[str]) -> dict[str, Numbers]:
    """What a writer call returned, by table; nothing where it returned nothing."""
    if made is None:
        return {}
    found = made if isinstance(made, dict) else {tables[0]: made}
    return {
        name: (np.asarray(items.keys).tolist(), np.asarray(items.lanes).tolist(), np.asarray(items.starts).tolist())
        for name, items in found.items()
    }


def open_writer(store: Any, tables: list[str], lanes: int | None) -> Any:
    """A writer over one table, or over several that share its stream."""
    if len(tables) == 1:
        return store.table(tables[0]).writer(lanes=lanes)
    return store.writer([store.table(name) for name in tables], lanes=lanes)


class LocalDriver:
    """A writer in this process."""

    def __init__(self, store: Any, tables: list[str], lanes: int | None) -> None:
        self.tables = tables
        self.writer = open_writer(store, tables, lanes)

    def call(self, method: str, *args: Any, **kwargs: Any) -> dict[str, Numbers]:
        """One writer call; raises what the writer raises."""
        return numbers(getattr(self.writer, method)(*args, **kwargs), self.tables)

    def stop(self) -> None:
        """Nothing is left after `close`."""


class ChildDriver:
    """A writer in a child process; `start` is a multiprocessing start method."""

    def __init__(self, store: str, tables: list[str], lanes: int | None, start: str) -> None:
        context = mp.get_context(start)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, store, tables, lanes), daemon=True)  # type: ignore[attr-defined]
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def call(self, method: str, *args: Any, **kwargs: Any) -> dict[str, Numbers]:
        """One writer call; raises what the writer raises."""
        self.pipe.send((method, args, kwargs))
        answer = self.pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]

    def kill_within(self, fault: str, method: str, *args: Any, **kwargs: Any) -> bool:
        """Kill the process within a call, at a fault point or (``""``) at once; whether it was acknowledged before."""
        if fault:
            self.call("arm", fault)
        self.pipe.send((method, args, kwargs))
        if fault:
            self.pipe.poll(None)
        self.kill()
        try:
            return not isinstance(self.pipe.recv(), BaseException)
        except (EOFError, ConnectionError):
            return False

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        assert self.process.pid is not None
        with suppress(ProcessLookupError):  # died at a fault point, and a fork server has seen it off
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(60)
        assert self.process.exitcode == -signal.SIGKILL

    def stop(self) -> None:
        """End the process after `close`."""
        self.pipe.send(None)
        self.process.join(60)
        self.pipe.close()


def serve(pipe: Connection, store_name: str, tables: list[str], lanes: int | None) -> None:
    """The child's loop: one writer, one call per message."""
    with di_store.attach(store_name, timeout=60) as store:
        writer = open_writer(store, tables, lanes)
        pipe.send("ready")
        while (message := pipe.recv()) is not None:
            method, args, kwargs = message
            try:
                called = _core.arm_fault if method == "arm" else getattr(writer, method)
                pipe.send(numbers(called(*args, **kwargs), tables))
            except Exception as error:  # the parent judges it
                pipe.send(error)
