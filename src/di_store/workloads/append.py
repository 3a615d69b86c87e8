"""append: one step into a full prioritized table; every step makes an item and evicts one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import di_store
from di_store.workloads.meter import Figure, Meter, bytes_text
from di_store.workloads.replay import full_table, loads


def run(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """One figure by load."""
    for load in loads():
        with full_table(store, load) as (_, writer):
            case = f"{load.name}, {bytes_text(load.step_bytes)}"
            yield meter.take("append", case, partial(writer.append, load.step), bytes_per_item=load.step_bytes)
