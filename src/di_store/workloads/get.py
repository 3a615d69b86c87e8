"""get: an array out of the store, as a view of its memory, and as a copy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import di_store
from di_store.workloads.meter import Figure, Meter, bytes_text
from di_store.workloads.objects import OBJECT_BYTES, arrays


def run(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """Two figures by size; the first moves no bytes."""
    for size in OBJECT_BYTES:
        refs = store.put_many(arrays(size))
        turn = cycle(refs)
        yield meter.take("get", bytes_text(size), lambda turn=turn: store.get(next(turn)))  # type: ignore[misc]

        def copied(turn: Iterator[di_store.Ref] = turn) -> object:
            return store.get(next(turn), copy=True)

        yield meter.take("get", f"{bytes_text(size)}, copied", copied, bytes_per_item=size)
        store.delete(refs)
