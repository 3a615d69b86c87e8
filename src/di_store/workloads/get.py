"""get: an array out of the store, as a view of its memory, and as a copy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import di_store
from di_store.workloads.meter import Figure, Meter, bytes_text
from di_store.workloads.objects import OBJECT_BYTES, array


def run(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """Two figures by size; the first moves no bytes."""
    for size in OBJECT_BYTES:
        ref = store.put(array(size))
        yield meter.take("get", bytes_text(size), partial(store.get, ref))
        copied = partial(store.get, ref, copy=True)
        yield meter.take("get", f"{bytes_text(size)}, copied", copied, bytes_per_item=size)
        store.delete([ref])
