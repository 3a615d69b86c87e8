"""Part "processes": what attached processes cost a busy one, and what each of them costs the machine."""

from __future__ import annotations

import multiprocessing as mp
import statistics
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import di_store
from bench.scale.elements import fill, make_table
from bench.scale.figures import Figure, Options, Takes, memory_kib, say, time_alone
from bench.scale.items import sample_round

COUNTS = (1, 16, 64, 256)
PROBES, ITEMS, SERIES = 5, 100_000, "idle"
MEMORY_NAMES = ("RssAnon", "RssShmem", "VmPTE")


def processes(options: Options) -> list[Figure]:
    """Up the counts and down again, so that every count is measured twice, at other moments of the machine.

    The idle ones have attached and drawn a batch. They are forked from a server that has imported the package.
    """
    takes, counts = Takes("processes"), options.ladder(*COUNTS)
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["bench.scale.processes"])
    with di_store.open(memory="256MiB") as store:
        table = make_table(store, "t", ITEMS, "prioritized")
        fill(table, ITEMS)
        others: list[Idle] = []
        for count in [*counts, *reversed(counts)]:
            say(f"processes: {count}")
            while len(others) > count - 1:
                others.pop().end()
            others += Idle.start(context, store.name, count - 1 - len(others))
            busy(store, table, count, options, takes)
            probes(context, store, count, takes)
            if others:
                idle_memory(store, others, count, takes)
        for other in others:
            other.end()
    return takes.figures()


class Idle:
    """A process that is attached and does nothing."""

    def __init__(self, context: Any, name: str) -> None:
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=attach_and_wait, args=(there, name), daemon=True)
        self._process.start()
        there.close()

    @classmethod
    def start(cls, context: Any, name: str, count: int) -> list[Idle]:
        """So many, all of them attached."""
        made = [cls(context, name) for _ in range(count)]
        for each in made:
            each.answer()
        return made

    @property
    def pid(self) -> int:
        """Its process."""
        return int(self._process.pid)

    def answer(self) -> tuple[float, float, list[int]]:
        """Seconds of attach, seconds of the table's handle and first batch, KiB added by both (`MEMORY_NAMES`)."""
        found: tuple[float, float, list[int]] = self._pipe.recv()
        return found

    def end(self) -> None:
        """Let it go."""
        self._pipe.send("end")
        self._process.join()


def attach_and_wait(pipe: Connection, name: str) -> None:
    """The idle process."""
    before, clock = memory_kib(), time.perf_counter
    begin = clock()
    store = di_store.attach(name, timeout=120)  # many begin at once, and attach one after the other
    attached = clock()
    store.table("t").sample(256)
    drawn = clock()
    after = memory_kib()
    pipe.send((attached - begin, drawn - attached, [after[key] - before[key] for key in MEMORY_NAMES]))
    with suppress(EOFError, ConnectionResetError):
        pipe.recv()


def probes(context: Any, store: di_store.Store, count: int, takes: Takes) -> None:
    """Some more processes, one at a time: how long they need to begin, and what that adds to each."""
    found = []
    for _ in range(PROBES):
        probe = Idle(context, store.name)
        found.append(probe.answer())
        probe.end()
    takes.add(SERIES, count, "attach p50", statistics.median(each[0] for each in found) * 1e3, "ms")
    takes.add(SERIES, count, "first batch p50", statistics.median(each[1] for each in found) * 1e3, "ms")
    for place, name in enumerate(("private memory", "mapped pages", "page tables")):
        takes.add(SERIES, count, f"added by attaching: {name}", statistics.median(f[2][place] for f in found), "KiB")


def idle_memory(store: di_store.Store, others: list[Idle], count: int, takes: Takes) -> None:
    """What the idle ones hold in all."""
    pids = {other.pid for other in others}
    resident = [memory_kib(pid)["VmRSS"] / 1024 for pid in pids]
    tables = [client["page_tables"] / 1024 for client in store.stats()["clients"] if client["pid"] in pids]
    takes.add(SERIES, count, "resident, each", statistics.median(resident), "MiB")
    takes.add(SERIES, count, "page tables of the store, each", statistics.median(tables), "KiB")


def busy(store: di_store.Store, table: di_store.Table, count: int, options: Options, takes: Takes) -> None:
    """The one client that works."""
    value = np.zeros(1_000, np.uint8)

    def put() -> None:
        store.delete([store.put(value)])

    time_alone(put, options.seconds / 10)
    takes.latencies(SERIES, count, "put and delete of 1 KB", time_alone(put, options.seconds))
    sample_round(table, SERIES, count, options.seconds, takes)
    stats = time_alone(store.stats, options.seconds / 2)
    takes.latencies(SERIES, count, "stats", stats)
