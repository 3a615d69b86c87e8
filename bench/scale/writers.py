"""Part "writers": many writers with many lanes on one table: total appends, memory of each writer, fairness."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

import di_store
from bench.kit import Worker
from bench.scale.elements import fill, make_table, row
from bench.scale.figures import Figure, Options, Takes, memory_kib, say

SHAPES = ((1, 1), (8, 8), (1, 64), (64, 1), (64, 64))
"""Lanes of each writer, number of writers."""
CAPACITY, LEAD_SECONDS, SERIES = 1_000_000, 0.3, "lanes x writers"


def writers(options: Options) -> list[Figure]:
    """A new table and new processes for each shape. The table is full, so that every row evicts an item."""
    takes = Takes("writers")
    capacity = max(100_000, int(CAPACITY * options.scale))
    for lanes, count in SHAPES:
        if lanes * count > 64 * 64 * options.scale and lanes * count > 64:
            continue
        say(f"writers: {count} with {lanes} lanes each")
        with di_store.open(memory="1GiB") as store:
            table = make_table(store, "t", capacity, "prioritized", lanes=lanes * count)
            fill(table, capacity)
            crew = Crew(store, lanes, count)
            crew.memory(takes)
            for _ in range(max(2, options.rounds // 2)):
                crew.measure(max(2 * options.seconds, count / 16), takes)
            crew.end()
    return takes.figures()


class Crew:
    """Writers of one shape, each in a process of its own."""

    def __init__(self, store: di_store.Store, lanes: int, count: int) -> None:
        self.at, self.lanes = f"{lanes} x {count}", lanes
        self._store = store
        self._before = self._used()
        self._workers = [Worker(write, store.name, lanes, method="forkserver") for _ in range(count)]
        self._private = [int(worker.pipe.recv()) for worker in self._workers]

    def _used(self) -> int:
        stats = self._store.stats()
        return int(stats["chunk_pages"] + stats["meta"])

    def memory(self, takes: Takes) -> None:
        """Add the memory of one writer: in the store (its open chunks), and private."""
        used = max(0, self._used() - self._before) / len(self._workers)
        takes.add(SERIES, self.at, "store, each writer", used / 1024, "KiB")
        takes.add(SERIES, self.at, "private memory, each writer", statistics.median(self._private), "KiB")

    def measure(self, seconds: float, takes: Takes) -> None:
        """Let all writers write for `seconds`, beginning at the same time."""
        begin = time.monotonic() + LEAD_SECONDS
        for worker in self._workers:
            worker.pipe.send((begin, begin + seconds))
        found = [worker.pipe.recv() for worker in self._workers]
        calls = np.array([each[0] for each in found], float)
        takes.add(SERIES, self.at, "rows in all", calls.sum() * self.lanes / seconds, "rows/s")
        for place, name in ((1, "append p50"), (2, "append p99")):
            takes.add(SERIES, self.at, name, statistics.median(each[place] for each in found), "µs")
        takes.add(SERIES, self.at, "fairness (Jain)", calls.sum() ** 2 / len(calls) / (calls**2).sum(), "of 1")
        takes.add(SERIES, self.at, "least share", calls.min() / calls.mean(), "of the mean")

    def end(self) -> None:
        for worker in self._workers:
            worker.pipe.send(None)
        for worker in self._workers:
            worker.end()


def write(pipe: Any, name: str, lanes: int) -> None:
    """The process of one writer: appends once, then writes between the two times that each message gives."""
    before = memory_kib()
    table = di_store.attach(name, timeout=120).table("t")
    step: dict[str, Any] = row()
    if lanes > 1:
        step = {key: np.stack([leaf] * lanes) for key, leaf in step.items()}
    clock, percents = time.perf_counter_ns, (50, 99)
    with table.writer(lanes=None if lanes == 1 else lanes) as writer:
        writer.append(step)
        pipe.send(memory_kib()["RssAnon"] - before["RssAnon"])
        while (moments := pipe.recv()) is not None:
            begin, end = moments
            time.sleep(max(0.0, begin - time.monotonic()))
            taken = []
            while time.monotonic() < end:
                start = clock()
                writer.append(step)
                taken.append(clock() - start)
            spent = np.percentile(taken, percents) / 1e3 if taken else (0.0, 0.0)
            pipe.send((len(taken), *map(float, spent)))
