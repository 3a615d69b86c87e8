"""put: one array copied into the store. Deleting it again, which makes room, is not timed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import di_store
from di_store.workloads.meter import Figure, Meter, bytes_text
from di_store.workloads.objects import OBJECT_BYTES, arrays

HELD = 8


def run(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """One figure by size."""
    for size in OBJECT_BYTES:
        values = cycle(arrays(size))
        refs: list[di_store.Ref] = []

        def call(values: Iterator[object] = values, refs: list[di_store.Ref] = refs) -> None:
            refs.append(store.put(next(values)))

        def after(refs: list[di_store.Ref] = refs) -> None:
            store.delete(refs)
            refs.clear()

        yield meter.take("put", bytes_text(size), call, bytes_per_item=size, after=after, after_every=HELD)
        after()
