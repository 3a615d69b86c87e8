"""An actor on another machine that polls for new weights at each step, and how soon it has a new version."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import di_store
from bench.kit import Worker, time_alone

STEP = {"obs": np.zeros(4, np.float32), "action": 1, "reward": 0.0, "terminated": False}
PUBLISHED = 200
KILLS = 10


def publisher(pipe: Any, name: str) -> None:
    """In a process of its own, on the agent's machine: publish when told to; the value is when that was begun."""
    with di_store.attach(name) as store:
        while pipe.recv():
            store.publish("w", time.monotonic())


def rows_per_second(store: di_store.Store, seconds: float, polls: bool) -> float:
    """Of a writer that appends small steps, and polls at each of them or not."""
    table, version, count = store.table("steps"), store.latest("w").version, 0  # type: ignore[union-attr]
    with table.writer() as writer:
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            if polls and (new := store.latest("w", newer_than=version)) is not None:
                version = new.version
            writer.append(STEP)
            count += 1
        writer.flush()
        return count / (time.perf_counter() - begin)


def poll_us(store: di_store.Store, seconds: float) -> float:
    """Median of a poll that finds nothing new."""
    version = store.latest("w").version  # type: ignore[union-attr]
    taken = time_alone(lambda: store.latest("w", newer_than=version), seconds + 1)
    return float(np.median(taken[len(taken) // 2 :])) / 1e3


def known_ms(store: di_store.Store, name: str, times: int, before: Callable[[], object] = lambda: None) -> list[float]:
    """How long after each publication an actor that steps in between has it, sorted, in ms."""
    worker, found, table = Worker(publisher, name), [], store.table("steps")
    version = store.latest("w").version  # type: ignore[union-attr]
    with table.writer() as writer:
        for _ in range(times):
            before()
            until = time.monotonic() + 0.05  # so that polls go on, as an actor's do
            while time.monotonic() < until:
                writer.append(STEP)
                store.latest("w", newer_than=version)
            worker.pipe.send(True)
            while (new := store.latest("w", newer_than=version)) is None:
                writer.append(STEP)
            found.append((time.monotonic() - new.value) * 1e3)
            version = new.version
    worker.pipe.send(False)
    worker.end()
    return sorted(found)


def kill_agent(store: di_store.Store, name: str, holder: int) -> None:
    """Kill the agent, and wait until the next one answers."""
    (pids,) = (each.pids for each in di_store.list_stores() if each.name == name)
    with open(f"/proc/{holder}/task/{holder}/children") as children:
        for pid in set(pids) & set(map(int, children.read().split())):
            os.kill(pid, signal.SIGKILL)
    store.contains(di_store.Ref.parse("0" * 40))
