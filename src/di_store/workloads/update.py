"""update: new priorities for a batch of keys of a full table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import di_store
from di_store.workloads.meter import Figure, Meter
from di_store.workloads.replay import full_table, loads

BATCH = 256


def run(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """One figure; the same keys spread over the whole table."""
    load = next(load for load in loads() if load.name == "states")
    with full_table(store, load) as (table, _):
        rng = np.random.default_rng(0)
        keys = rng.choice(table.keys(), BATCH, replace=False)
        priorities = rng.random(BATCH) + 0.5
        case = f"{BATCH} of {load.capacity:,}"
        yield meter.take("update", case, lambda: table.update_priorities(keys, priorities), items=BATCH)
