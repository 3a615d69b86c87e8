"""Parts "items" and "capacity": the cost of draws, updates and inserts by the items in a table, and by its capacity."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from itertools import cycle, repeat
from pathlib import Path
from typing import Any

import numpy as np

import di_store
from bench import ROOT
from bench.kit import Worker, apart, start_module, time_alone, time_calls, turns
from bench.scale.elements import BATCH, SAMPLERS, fill, make_table, row, store_bytes, touch
from bench.scale.figures import At, Figure, Options, Takes, memory_kib, say

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
PEERS, PEER_SIZES = ("cpprb", "tianshou"), (100_000, 1_000_000)
QUIET_SECONDS, MOST_SECONDS = 1.0, 60.0
UPDATES = (32, 256, 1024)
KEPT = 100_000
FACTORS = (1, 10, 100)
Case = tuple[str, int]  # sampler, items


def items(options: Options) -> list[Figure]:
    """Tables of all sizes in one store. Other processes fill them and keep a writer open; this one is measured."""
    takes, sizes = Takes("items"), options.ladder(*SIZES)
    cases: list[Case] = [(sampler, size) for size in sizes for sampler in SAMPLERS]
    with di_store.open(memory=store_bytes(size for _, size in cases)) as store:
        tables = {}
        for sampler, size in cases:
            say(f"items: {size:,} {sampler}")
            tables[sampler, size] = make_full(store, sampler, size, takes)
            if sampler == "prioritized":
                reader_memory(store, size, takes)
            touch(tables[sampler, size], sampler == "prioritized")
        shared = [size for size in PEER_SIZES if size <= sizes[-1]]
        peers = [Peer(options.peers, name, shared) for name in PEERS] if options.peers and shared else []
        writer = Worker(keep_writer, tables["prioritized", sizes[-1]])
        try:
            settle(writer)
            read(tables, peers, options, takes)
        finally:
            writer.end()
            for peer in peers:
                peer.close()
        write({size: tables["prioritized", size] for size in sizes}, options, takes)
    return takes.figures()


def make_full(store: di_store.Store, sampler: str, size: int, takes: Takes) -> di_store.Table:
    """Create a table and fill it in another process; adds its memory in the store."""
    before = store.stats()
    table = make_table(store, f"{sampler}-{size}", size, sampler)
    apart(fill, table, size)
    after = store.stats()
    slots, rows = (after[key] - before[key] for key in ("meta", "chunk_pages"))
    takes.add(sampler, size, "slots and trees", slots / size, "B/item")
    takes.add(sampler, size, "rows", rows / size, "B/item")
    takes.add(sampler, size, "store in all", (slots + rows) / size, "B/item")
    return table


def reader_memory(store: di_store.Store, size: int, takes: Takes) -> None:
    """Add the shared and the private memory of a process that reads every item."""
    private, shared, tables = apart(read_all, store.name, f"prioritized-{size}")
    takes.add("prioritized", size, "mapped by a reader", shared * 1024 / size, "B/item")
    takes.add("prioritized", size, "private memory of a reader", private / 1024, "MiB")
    takes.add("prioritized", size, "page tables of a reader", tables, "KiB")


def read_all(store_name: str, table_name: str) -> tuple[int, int, int]:
    """In a fresh process: KiB of RssAnon, RssShmem and VmPTE that attaching and reading all items adds."""
    before = memory_kib()
    table = di_store.attach(store_name).table(table_name)
    touch(table, priorities=False, block=4_096)
    after = memory_kib()
    return tuple(after[name] - before[name] for name in ("RssAnon", "RssShmem", "VmPTE"))  # type: ignore[return-value]


def read(tables: dict[Case, di_store.Table], peers: list[Peer], options: Options, takes: Takes) -> None:
    """Measure draws and updates of every table and every peer, once per round."""
    feeds = {size: key_batches(table) for (sampler, size), table in tables.items() if sampler == "prioritized"}
    entries: list[Case | Peer] = [*tables, *peers]
    for entry in turns(entries, options.rounds):
        if isinstance(entry, Peer):
            entry.measure(options.seconds, takes)
            continue
        sampler, size = entry
        sample_round(tables[entry], sampler, size, options.seconds, takes)
        if sampler == "prioritized":
            update_round(tables[entry], feeds[size], size, options.seconds, takes)


def sample_round(table: di_store.Table, series: str, at: At, seconds: float, takes: Takes) -> None:
    """One round of draws. Each draw drops the previous batch, so that its buffer is reused."""
    held = [table.sample(BATCH)]

    def call() -> None:
        held[0] = table.sample(BATCH)

    time_alone(call, seconds / 10)
    taken = time_alone(call, seconds)
    takes.latencies(series, at, f"sample({BATCH})", taken)
    takes.rate(series, at, f"sample({BATCH})", taken, BATCH)


def key_batches(table: di_store.Table) -> dict[int, Iterator[Any]]:
    """By batch size: an endless series of keys of the whole table in random order."""
    keys = np.random.default_rng(2).permutation(table.keys())
    return {n: cycle([keys[at : at + n] for at in range(0, len(keys) - n + 1, n)]) for n in UPDATES if n <= len(keys)}


def update_round(table: di_store.Table, feeds: dict[int, Iterator[Any]], at: int, seconds: float, takes: Takes) -> None:
    rng = np.random.default_rng(3)
    for n, feed in feeds.items():
        priorities = rng.random(n) + 0.1

        def call(keys: Any, priorities: Any = priorities) -> None:
            table.update_priorities(keys, priorities)

        time_calls(call, feed, seconds / 10)
        taken = time_calls(call, feed, seconds)
        takes.latencies("prioritized", at, f"update({n})", taken)
        takes.rate("prioritized", at, f"update({n})", taken, n)


def write(tables: dict[int, di_store.Table], options: Options, takes: Takes) -> None:
    """Measure appends and inserts into full tables; each call adds an item and evicts one."""
    step, percents = row(), (50, 99, 99.9)
    finished = {**step, "next_obs": step["obs"], "discount": np.float32(0.99)}
    for size in turns(list(tables), options.rounds):
        table = tables[size]
        with table.writer() as writer:
            time_calls(writer.append, repeat(step), options.seconds / 10)
            taken = time_calls(writer.append, repeat(step), options.seconds)
        takes.latencies("prioritized", size, "append", taken, percents)
        time_calls(table.insert, repeat(finished), options.seconds / 10)
        taken = time_calls(table.insert, repeat(finished), options.seconds)
        takes.latencies("prioritized", size, "insert", taken, percents)


def capacity(options: Options) -> list[Figure]:
    """The same number of items in tables whose capacity is 1, 10 and 100 times that number."""
    takes, kept = Takes("capacity"), max(1_000, int(KEPT * options.scale) // 1_000 * 1_000)
    cases = [(sampler, factor) for factor in FACTORS for sampler in SAMPLERS]
    with di_store.open(memory=store_bytes(kept * factor for _, factor in cases)) as store:
        tables, feeds = {}, {}
        for sampler, factor in cases:
            say(f"capacity: {kept * factor:,} {sampler}")
            table = make_table(store, f"{sampler}-{factor}", kept * factor, sampler)
            apart(fill, table, kept)
            touch(table, sampler == "prioritized")
            tables[sampler, factor], feeds[sampler, factor] = table, key_batches(table)
        writer = Worker(keep_writer, tables[cases[-1]])
        settle(writer)
        for case in turns(cases, max(options.rounds, 5)):
            sampler, factor = case
            sample_round(tables[case], sampler, kept * factor, options.seconds, takes)
            if sampler == "prioritized":
                update_round(tables[case], feeds[case], kept * factor, options.seconds / 2, takes)
        writer.end()
    return takes.figures()


def keep_writer(pipe: Any, table: di_store.Table) -> None:
    """A process with an idle writer, as tables in use have one: its thread turns the store's pages into huge pages."""
    with table.writer():
        pipe.send("open")
        pipe.poll(None)


def settle(writer: Worker) -> None:
    """Wait until the writer is open and the machine's number of huge shared pages no longer changes."""
    writer.pipe.recv()
    end, seen, since = time.monotonic() + MOST_SECONDS, -1, time.monotonic()
    while time.monotonic() < min(end, since + QUIET_SECONDS):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = sum(int(line.split()[1]) for line in lines if line.startswith("ShmemHugePages:"))
        if found != seen:
            seen, since = found, time.monotonic()
        time.sleep(QUIET_SECONDS / 10)
    say(f"huge pages: {seen / 2**20:.2f} GiB")


class Peer:
    """Buffers of one library in a process of their own: filled at the start, and measured when told to."""

    def __init__(self, python: str, name: str, sizes: list[int]) -> None:
        say(f"items: {name}")
        self.name = name
        pipes = {"stdin": subprocess.PIPE, "stderr": None, "cwd": ROOT}
        self._process = start_module(python, "bench.peers.scale_bench", [name, *map(str, sizes)], [ROOT], **pipes)
        self._answer()  # it is ready

    def measure(self, seconds: float, takes: Takes) -> None:
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        for size, metric, value, unit in self._answer():
            takes.add(self.name, size, metric, value, unit)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)

    def _answer(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self._process.wait(60)}")
        return json.loads(line)
