"""Memory that an item takes whatever lies on disk, and how often the drive writes a row."""

from __future__ import annotations

import sys

import numpy as np

import di_store
from bench.scale.elements import fill, make_table
from bench.tier.disk import process_bytes
from bench.tier.lines import Line, Options, alone
from bench.tier.stores import disk_stats, opened

SIZES = (1_000_000, 10_000_000)
ROW_MEMORY, SLOT = 256 << 20, 180
DATA, MEMORY, ROW, BLOCK = 1 << 30, 256 << 20, 28 << 10, 256
WAIT = 20.0
REMOVERS = {"Fifo": (di_store.Fifo(), 1.02), "random": (di_store.Uniform(), 2.5)}


def items(options: Options) -> list[Line]:
    """Slots, trees and heads by number of items: rows of 61 B, most of them on disk."""
    lines = []
    for size in SIZES:
        count = int(size * options.scale) // 1000 * 1000
        for sampler in ("uniform", "prioritized"):
            with opened(options.folder, ROW_MEMORY + SLOT * count, 4 << 30) as store:
                before = store.stats()["meta"]
                fill(make_table(store, "table", count, sampler), count)
                each = (store.stats()["meta"] - before) / count
            lines.append(alone(f"{count:,} items, {sampler}: slots and trees", "B/item", [each], None))
    return lines


def amplification(remover: di_store.Fifo | di_store.Uniform, options: Options) -> float | None:
    """Bytes written to the drive by bytes of rows inserted, once the table is full: incompressible rows.

    None: an insert has waited for `WAIT` seconds, or the table did not keep its capacity.
    """
    rows, rng = int(DATA * max(options.scale, 0.5)) // ROW // BLOCK * BLOCK, np.random.default_rng(0)
    flags, before = np.zeros(BLOCK, bool), 0
    with opened(options.folder, MEMORY, 2 * rows * ROW) as store:
        table = store.create_table("rows", capacity=rows, lanes=1, remover=remover)
        writer = table.writer()
        for done in range(0, 3 * rows, BLOCK):
            if done == rows:
                before = process_bytes("write_bytes")
            data = np.frombuffer(rng.bytes(BLOCK * ROW), np.uint8).reshape(BLOCK, ROW)
            try:
                writer.extend({"x": data, "terminated": flags, "truncated": flags}, timeout=WAIT)
            except (di_store.StoreFull, di_store.Timeout) as error:
                print(f"after {done:,} rows of {3 * rows:,}: {error}", file=sys.stderr, flush=True)
                return None
        written, found = process_bytes("write_bytes") - before, disk_stats(store)
        if len(table) < rows:
            print(f"{len(table):,} of {rows:,} rows are there: {found}", file=sys.stderr, flush=True)
            return None
        return written / (2 * rows * ROW)


def writes(options: Options) -> list[Line]:
    return [
        Line(
            f"bytes written by those inserted, remover {name}",
            "times",
            amplification(remover, options),
            bar=bar,
            at_most=True,
        )
        for name, (remover, bar) in REMOVERS.items()
    ]
