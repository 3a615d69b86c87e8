"""Part "items" and part "capacity": what a draw, an update and an insert cost as tables hold more, or could."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, repeat
from typing import Any

import numpy as np

import di_store
from bench.scale.elements import BATCH, SAMPLERS, fill, make_table, row, store_bytes, touch
from bench.scale.figures import At, Figure, Options, Takes, apart, memory_kib, say, time_alone, time_calls, turns
from bench.scale.keeper import Keeper
from bench.scale.peers import Peer

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
PEER_SIZES = (100_000, 1_000_000)
UPDATES = (32, 256, 1024)
KEPT = 100_000
FACTORS = (1, 10, 100)
Case = tuple[str, int]  # sampler, items


def items(options: Options) -> list[Figure]:
    """Tables of all sizes at once; others fill them and hold an idle writer, this one draws, updates, then inserts."""
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
        peers = Peer.start_all(options.peers, [size for size in PEER_SIZES if size <= sizes[-1]])
        try:
            with Keeper(tables["prioritized", sizes[-1]]) as keeper:
                takes.add("prioritized", sizes[-1], "machine's shared memory in huge pages", keeper.settle(), "GiB")
                read(tables, peers, options, takes)
        finally:
            for peer in peers:
                peer.close()
        write({size: tables["prioritized", size] for size in sizes}, options, takes)
    return takes.figures()


def make_full(store: di_store.Store, sampler: str, size: int, takes: Takes) -> di_store.Table:
    """A table filled by another process, and what it takes of the store."""
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
    """What a process that reads every item maps, and what it needs for itself."""
    private, shared, tables = apart(read_all, store.name, f"prioritized-{size}")
    takes.add("prioritized", size, "mapped by a reader", shared * 1024 / size, "B/item")
    takes.add("prioritized", size, "private memory of a reader", private / 1024, "MiB")
    takes.add("prioritized", size, "page tables of a reader", tables, "KiB")


def read_all(store_name: str, table_name: str) -> tuple[int, int, int]:
    """In a fresh process: KiB of RssAnon, RssShmem, VmPTE that attaching and reading everything adds."""
    before = memory_kib()
    table = di_store.attach(store_name).table(table_name)
    touch(table, priorities=False, block=4_096)
    after = memory_kib()
    return tuple(after[name] - before[name] for name in ("RssAnon", "RssShmem", "VmPTE"))  # type: ignore[return-value]


def read(tables: dict[Case, di_store.Table], peers: list[Peer], options: Options, takes: Takes) -> None:
    """Draws and updates, every table and every peer once a round."""
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
    """One round of draws; the batch before is let go in time for its buffer to be used again."""
    held = [table.sample(BATCH)]

    def call() -> None:
        held[0] = table.sample(BATCH)

    time_alone(call, seconds / 10)
    taken = time_alone(call, seconds)
    takes.latencies(series, at, f"sample({BATCH})", taken)
    takes.add(series, at, f"sample({BATCH})", BATCH * len(taken) * 1e9 / taken.sum(), "items/s")


def key_batches(table: di_store.Table) -> dict[int, Iterator[Any]]:
    """By batch size: keys of the whole table in random order, so that none is soon met again."""
    keys = np.random.default_rng(2).permutation(table.keys())
    return {n: cycle([keys[at : at + n] for at in range(0, len(keys) - n + 1, n)]) for n in UPDATES if n <= len(keys)}


def update_round(table: di_store.Table, feeds: dict[int, Iterator[Any]], at: int, seconds: float, takes: Takes) -> None:
    """One round of updates, by batch size."""
    rng = np.random.default_rng(3)
    for n, feed in feeds.items():
        priorities = rng.random(n) + 0.1

        def call(keys: Any, priorities: Any = priorities) -> None:
            table.update_priorities(keys, priorities)

        time_calls(call, feed, seconds / 10)
        taken = time_calls(call, feed, seconds)
        takes.latencies("prioritized", at, f"update({n})", taken)
        takes.add("prioritized", at, f"update({n})", n * len(taken) * 1e9 / taken.sum(), "items/s")


def write(tables: dict[int, di_store.Table], options: Options, takes: Takes) -> None:
    """Single steps into full tables; each makes an item and evicts one."""
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
    """The same items in tables that could hold as many, ten times and a hundred times as many."""
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
        with Keeper(tables[cases[-1]]) as keeper:
            keeper.settle()
            for case in turns(cases, max(options.rounds, 5)):
                sampler, factor = case
                sample_round(tables[case], sampler, kept * factor, options.seconds, takes)
                if sampler == "prioritized":
                    update_round(tables[case], feeds[case], kept * factor, options.seconds / 2, takes)
    return takes.figures()
