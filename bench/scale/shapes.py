"""Part "shapes": nested columns, ragged columns and lanes, compared with flat columns of the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

import di_store
from bench.kit import time_alone, time_calls, turns
from bench.scale.elements import BATCH
from bench.scale.figures import Figure, Options, Takes, say

COLUMNS, LANES, CAPACITY = 8, 8, 20_000
ROW_BYTES = (128, 2_048)
FORMS = ("flat", "nested", "ragged", "ragged, lengths vary", "lanes")
"""All have eight float32 columns. Nested: three levels deep. Ragged: one of the eight. Lanes: eight rows per call."""


@dataclass
class Case:
    """One form at one size: a full table, a writer, steps to append."""

    form: str
    row_bytes: int
    table: di_store.Table
    writer: di_store.Writer
    steps: list[dict[str, Any]]


def shapes(options: Options) -> list[Figure]:
    """All forms are measured in turn. Ratios are to the flat form of the same round."""
    takes = Takes("shapes")
    with di_store.open(memory="1GiB") as store:
        cases = [make(store, form, row_bytes, options) for row_bytes in ROW_BYTES for form in FORMS]
        for number, case in enumerate(turns(cases, options.rounds)):
            measure(case, options.seconds, takes)
            if number % len(cases) == len(cases) - 1:
                compare(takes)
        for case in cases:
            case.writer.close()
    return takes.figures()


def make(store: di_store.Store, form: str, row_bytes: int, options: Options) -> Case:
    say(f"shapes: {form}, {row_bytes} B")
    length, capacity = row_bytes // 4 // COLUMNS, max(2_000, int(CAPACITY * options.scale))
    spec: Any = di_store.Spec((length,), "f4")
    ragged = di_store.Spec((None,), "f4", max=2 * length)
    name, schema = f"{form} {row_bytes}", arrange(form, spec, ragged)
    table = store.create_table(name, capacity=capacity, schema=schema, sampler=di_store.Uniform())
    writer = table.writer(lanes=LANES if form == "lanes" else None)
    rng, steps = np.random.default_rng(0), []
    for _ in range(64):
        long = int(rng.integers(1, 2 * length)) if form == "ragged, lengths vary" else length
        front = (LANES,) if form == "lanes" else ()
        leaf, varied = rng.random((*front, length), np.float32), rng.random((*front, long), np.float32)
        steps.append(arrange(form, leaf, varied))
    made = Case(form, row_bytes, table, writer, steps)
    feed = cycle(steps)
    while len(table) < capacity:
        writer.append(next(feed))
    return made


def arrange(form: str, leaf: Any, varied: Any) -> dict[str, Any]:
    if form == "nested":
        return {f"a{i}": {f"b{j}": {f"c{k}": leaf for k in range(2)} for j in range(2)} for i in range(2)}
    flat = {f"column{number}": leaf for number in range(COLUMNS)}
    return {**flat, "column7": varied} if form.startswith("ragged") else flat


def measure(case: Case, seconds: float, takes: Takes) -> None:
    feed, held = cycle(case.steps), [case.table.sample(BATCH)]

    def sample() -> None:
        held[0] = case.table.sample(BATCH)

    time_calls(case.writer.append, feed, seconds / 10)
    taken = time_calls(case.writer.append, feed, seconds) // (LANES if case.form == "lanes" else 1)  # of one row
    takes.latencies(case.form, case.row_bytes, "append of a row", taken)
    time_alone(sample, seconds / 10)
    takes.latencies(case.form, case.row_bytes, f"sample({BATCH})", time_alone(sample, seconds))


def compare(takes: Takes) -> None:
    """Add the ratio of each form's last figure to the flat form's last figure."""
    for row_bytes in ROW_BYTES:
        for metric in ("append of a row", f"sample({BATCH})"):
            flat = takes.last("flat", row_bytes, f"{metric} p50")
            for form in FORMS[1:]:
                ratio = takes.last(form, row_bytes, f"{metric} p50") / flat
                takes.add(form, row_bytes, f"{metric}, by flat", ratio, "x")
