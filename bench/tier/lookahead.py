"""P15: a learner at its row's own rate, with batches drawn and read ahead: how long it waits for them."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import di_store
from bench.kit import Worker
from bench.tier.disk import process_bytes
from bench.tier.lines import Line, Options, alone, beside
from bench.tier.stores import disk_stats, opened

AHEAD = (0, 1, 4, 16)
STALL_BAR, WASTED_BAR = 0.2, 0.01
BATCHES = 12


@dataclass(frozen=True)
class Row:
    """A row of the target table at `box_tier`: items of `size` bytes, rates in items a second."""

    name: str
    size: int
    capacity: int
    memory: int
    batch: int
    inserts: float
    samples: float
    most: int
    """Largest `prefetch`: batches ahead are memory."""


ROWS = (
    Row("R2D2 Qbert", 10_000_000, 1_200, 3_000_000_000, 64, 3, 45, 4),
    Row("IMPALA Qbert", 3_000_000, 4_000, 3_000_000_000, 128, 4, 253, 16),
)


def items(row: Row) -> Any:
    """An endless series of items of random bytes."""
    rng = np.random.default_rng(0)
    while True:
        yield {"x": np.frombuffer(rng.bytes(row.size), np.uint8), "terminated": False, "truncated": False}


def write(pipe: Any, table: di_store.Table, row: Row) -> None:
    """Fill the table, say so, and insert at the row's rate until the pipe closes."""
    with table.writer() as writer:
        source = items(row)
        for _ in range(row.capacity):
            writer.append(next(source))
        pipe.send(None)
        while not pipe.poll(1 / row.inserts):
            writer.append(next(source))


def learn(store: di_store.Store, table: di_store.Table, row: Row, prefetch: int) -> tuple[float, float]:
    """Seconds waited for a batch, and the share of bytes read that no draw wanted."""
    period, waited = row.batch / row.samples, 0.0
    with table.loader(row.batch, prefetch=prefetch) as loader:
        for number in range(prefetch + 2 + BATCHES):  # the first ones make the pages of the batches
            if number == prefetch + 2:
                waited, wanted, read = 0.0, disk_stats(store)["read"], process_bytes()
            begin = time.perf_counter()
            batch = next(loader)
            waited += time.perf_counter() - begin
            table.update_priorities(batch.keys, np.ones(row.batch))
            del batch
            time.sleep(period)  # the learner computes on its accelerator
        read, wanted = process_bytes() - read, disk_stats(store)["read"] - wanted
    return waited / BATCHES, max(0.0, 1 - wanted / read)


def of_row(row: Row, options: Options) -> list[Line]:
    taken: dict[int, list[tuple[float, float]]] = {k: [] for k in AHEAD if k <= row.most}
    memory = row.memory + (256 << 20)  # of which bodies get what the row says
    staging = (row.most + 1) * row.batch * row.size
    with opened(options.folder, memory, row.capacity * row.size * 3 // 2, staging=staging) as store:
        sampler = di_store.Prioritized(alpha=0.6, beta=0.4)
        table = store.create_table("row", capacity=row.capacity, lanes=1, sampler=sampler)
        writer = Worker(write, table, row)
        writer.pipe.recv()
        for _ in range(options.rounds):
            for prefetch in taken:
                taken[prefetch].append(learn(store, table, row, prefetch))
                print(f"{row.name}, {prefetch}: {taken[prefetch][-1]}", file=sys.stderr, flush=True)
        writer.pipe.send(None)
        writer.end()
    waits = {prefetch: [wait * 1e3 for wait, _ in found] for prefetch, found in taken.items()}
    lines = [
        beside(
            f"{row.name}, prefetch={k}: wait a batch",
            "ms",
            waits[k],
            waits[0],
            "prefetch=0",
            STALL_BAR if k == 4 else None,
            True,
        )
        for k in taken
        if k
    ]
    wasted = [share for found in taken.values() for _, share in found]
    return [*lines, alone(f"{row.name}: read in vain", "share", wasted, WASTED_BAR, True)]


def scaled(row: Row, scale: float) -> Row:
    """A row with fewer bytes: items, memory and batches; bytes a second stay."""
    batch = max(8, int(row.batch * scale))
    return Row(
        row.name,
        row.size,
        int(row.capacity * scale),
        int(row.memory * scale),
        batch,
        row.inserts,
        row.samples,
        row.most,
    )


def lookahead(options: Options) -> list[Line]:
    return [line for row in ROWS for line in of_row(scaled(row, options.scale), options)]
