"""Part "processes": how attached idle processes slow down a busy one, and how much memory each of them takes."""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from typing import Any

import numpy as np

import di_store
from bench.kit import Worker, time_alone
from bench.scale.elements import fill, make_table
from bench.scale.figures import Figure, Options, Takes, memory_kib, say
from bench.scale.items import sample_round

COUNTS = (1, 16, 64, 256)
PROBES, ITEMS, SERIES = 5, 100_000, "idle"
MEMORY_NAMES = ("RssAnon", "RssShmem", "VmPTE")


def processes(options: Options) -> list[Figure]:
    """Measure with growing, then with falling counts: every count twice, at different times.

    Idle processes have attached and drawn a batch. They are forked from a server that has imported the package.
    """
    takes, counts = Takes("processes"), options.ladder(*COUNTS)
    with di_store.open(memory="256MiB") as store:
        table = make_table(store, "t", ITEMS, "prioritized")
        fill(table, ITEMS)
        others: list[Worker] = []
        for count in [*counts, *reversed(counts)]:
            say(f"processes: {count}")
            while len(others) > count - 1:
                others.pop().end()
            fresh = [idle(store.name) for _ in range(count - 1 - len(others))]
            for each in fresh:
                each.pipe.recv()
            others += fresh
            busy(store, table, count, options, takes)
            probes(store, count, takes)
            if others:
                idle_memory(store, others, count, takes)
        for other in others:
            other.end()
    return takes.figures()


def idle(name: str) -> Worker:
    """Start a process that attaches, draws a batch, sends what that cost, and waits."""
    return Worker(attach_and_wait, name, method="forkserver")


def attach_and_wait(pipe: Any, name: str) -> None:
    """Send the seconds to attach, those until the first batch, and the KiB added by both (`MEMORY_NAMES`)."""
    before, clock = memory_kib(), time.perf_counter
    begin = clock()
    store = di_store.attach(name, timeout=120)  # many processes start at once, and attach one after the other
    attached = clock()
    store.table("t").sample(256)
    drawn = clock()
    after = memory_kib()
    pipe.send((attached - begin, drawn - attached, [after[key] - before[key] for key in MEMORY_NAMES]))
    with suppress(EOFError, ConnectionResetError):
        pipe.recv()


def probes(store: di_store.Store, count: int, takes: Takes) -> None:
    """Start some more processes, one at a time: their times to attach, and the memory that adds to each."""
    found = []
    for _ in range(PROBES):
        probe = idle(store.name)
        found.append(probe.pipe.recv())
        probe.end()
    takes.add(SERIES, count, "attach p50", statistics.median(each[0] for each in found) * 1e3, "ms")
    takes.add(SERIES, count, "first batch p50", statistics.median(each[1] for each in found) * 1e3, "ms")
    for place, name in enumerate(("private memory", "mapped pages", "page tables")):
        takes.add(SERIES, count, f"added by attaching: {name}", statistics.median(f[2][place] for f in found), "KiB")


def idle_memory(store: di_store.Store, others: list[Worker], count: int, takes: Takes) -> None:
    """Add the memory of each idle process."""
    pids = {other.process.pid for other in others}
    resident = [memory_kib(pid)["VmRSS"] / 1024 for pid in pids]
    tables = [client["page_tables"] / 1024 for client in store.stats()["clients"] if client["pid"] in pids]
    takes.add(SERIES, count, "resident, each", statistics.median(resident), "MiB")
    takes.add(SERIES, count, "page tables of the store, each", statistics.median(tables), "KiB")


def busy(store: di_store.Store, table: di_store.Table, count: int, options: Options, takes: Takes) -> None:
    value = np.zeros(1_000, np.uint8)

    def put() -> None:
        store.delete([store.put(value)])

    time_alone(put, options.seconds / 10)
    takes.latencies(SERIES, count, "put and delete of 1 KB", time_alone(put, options.seconds))
    sample_round(table, SERIES, count, options.seconds, takes)
    stats = time_alone(store.stats, options.seconds / 2)
    takes.latencies(SERIES, count, "stats", stats)
