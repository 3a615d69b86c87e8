"""sample: a batch drawn by priority, put together and copied out of a full table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import di_store
from di_store.workloads.meter import Figure, Meter, bytes_text
from di_store.workloads.replay import full_table, loads


def run(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """One figure by load; its bytes are those of the batch."""
    for load in loads():
        with full_table(store, load) as (table, _):
            batch = table.sample(load.batch)
            example_bytes = data_bytes(batch.data) // load.batch
            held = [batch]

            def call(table: Any = table, size: int = load.batch, held: list[Any] = held) -> None:
                held[0] = table.sample(size)  # the batch before is let go, so its buffer comes back

            case = f"{load.name}, {load.batch} x {bytes_text(example_bytes)}"
            yield meter.take("sample", case, call, items=load.batch, bytes_per_item=example_bytes)
            del batch
            held.clear()


def data_bytes(data: Any) -> int:
    """Bytes of a batch's arrays."""
    if isinstance(data, dict):
        return sum(data_bytes(value) for value in data.values())
    return int(data.nbytes)
