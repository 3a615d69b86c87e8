"""P18: a table that grows and shrinks while it is written and sampled at the rates of DQN on Qbert."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import di_store
from bench.kit import Worker
from bench.tier.disk import fresh
from bench.tier.lines import Line, Options
from bench.tier.stores import open_in

SIZE, BATCH, INSERTS, SAMPLES = 110_000, 32, 400, 1_650
CAPACITIES, STEP_SECONDS, LATER = (18_181, 54_543, 9_090), 20.0, 5.0
DRAWS, BINS, SIGMAS = 25_600, 50, 4.0
MISSED_BAR, RESIDENT_BAR = 0, 0.10
SPARE = 1 << 30
"""Memory beyond the rows of the largest table."""


def write(pipe: Any, table: di_store.Table, prefill: int) -> None:
    """Fill, say so, insert at the rate until told to stop; sends how many inserts failed."""
    rng, failed = np.random.default_rng(0), 0
    row = {"x": np.frombuffer(rng.bytes(SIZE), np.uint8), "terminated": False, "truncated": False}
    with table.writer() as writer:
        for _ in range(prefill):
            writer.append(row)
        pipe.send(None)
        begin, count = time.perf_counter(), 0
        while not pipe.poll(max(0.0, begin + count / INSERTS - time.perf_counter())):
            try:
                writer.append(row, timeout=1.0)
            except di_store.StoreError:
                failed += 1
            count += 1
    pipe.send(failed)


def skew(table: di_store.Table) -> float:
    """How far draws are from uniform over the order of insertion: chi-squared, in standard deviations.

    Of items that are there from the first draw to the last one; the writer goes on.
    """

    def position(at: int) -> int:
        return int(table.positions(table.keys()[[at]])[0])

    last = position(-1)
    keys = [table.sample(256, columns=["terminated"]).keys for _ in range(DRAWS // 256)]
    first = position(0)
    drawn = table.positions(np.concatenate(keys))
    counts, there = (np.histogram(each, BINS, (first, last + 1))[0] for each in (drawn, np.arange(first, last + 1)))
    expected = there * counts.sum() / there.sum()
    chi = ((counts - expected) ** 2 / expected).sum()
    return abs(float(chi) - (BINS - 1)) / (2 * (BINS - 1)) ** 0.5


def sample_until(table: di_store.Table, end: float) -> int:
    """Draw at the rate; returns how many batches failed or were due and not begun within a second."""
    failed, begin, count = 0, time.perf_counter(), 0
    while (now := time.perf_counter()) < end:
        time.sleep(max(0.0, begin + count * BATCH / SAMPLES - now))
        try:
            table.sample(BATCH, timeout=1.0)
        except di_store.StoreError:
            failed += 1
        count += 1
    return failed + int(max(0.0, (time.perf_counter() - begin - 1) * SAMPLES / BATCH - count))


def run(store: di_store.Store, options: Options, name: str, resident: bool) -> list[Line]:
    capacities = [int(each * options.scale) for each in CAPACITIES]
    table = store.create_table("row", capacity=capacities[0], lanes=1)
    writer = Worker(write, table, capacities[0])
    writer.pipe.recv()
    missed, off, skews = 0, list[float](), list[float]()
    for capacity in capacities:
        table.resize(capacity)
        begin = time.perf_counter()
        missed += sample_until(table, begin + LATER)
        off.append(abs(store.stats()["present"] / (len(table) * SIZE) - 1))
        missed += sample_until(table, begin + STEP_SECONDS)
        skews.append(skew(table))
    writer.pipe.send(None)
    missed += writer.pipe.recv()
    writer.end()
    lines = [
        Line(f"{name}: inserts and batches that failed or came late", "", float(missed), bar=MISSED_BAR, at_most=True),
        Line(f"{name}: draws off uniform, the worst of the steps", "sigma", max(skews), bar=SIGMAS, at_most=True),
    ]
    if resident:
        text = f"{name}: resident bytes off those of the rows, {LATER:g} s after the worst step"
        lines.append(Line(text, "share", max(off), bar=RESIDENT_BAR, at_most=True))
    return lines


def elastic(options: Options) -> list[Line]:
    most = int(max(CAPACITIES) * options.scale * SIZE * 1.3)
    with di_store.open(memory=most + SPARE, seed=1) as store:
        lines = run(store, options, "in memory", True)
    with fresh(options.folder) as folder, open_in(folder, most // 4 + SPARE, 2 * most) as store:
        return lines + run(store, options, "with disk=", False)
