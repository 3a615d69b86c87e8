"""append: one step into a full prioritized table; every step makes an item and evicts one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import di_store
from di_store.workloads.meter import Figure, Meter, bytes_text
from di_store.workloads.replay import full_table, loads


def run(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """One figure by load."""
    for load in loads():
        with full_table(store, load) as (_, writer):
            case = f"{load.name}, {bytes_text(load.step_bytes)}"
            steps = load.steps()

            def call(append: Callable[..., object] = writer.append, steps: Iterator[object] = steps) -> None:
                append(next(steps))

            yield meter.take("append", case, call, bytes_per_item=load.step_bytes)
