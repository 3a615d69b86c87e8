"""The workloads of `di-store bench`: one file each, measured in one process on a store of their own.

A first look at a machine, with the speed of its memory beside every figure. The comparisons with other systems and
across processes are not part of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import di_store
from di_store.workloads import append, get, put, sample, update
from di_store.workloads.meter import Figure, Meter

WORKLOADS: Mapping[str, Callable[[di_store.Store, Meter], Iterator[Figure]]] = {
    "put": put.run,
    "get": get.run,
    "append": append.run,
    "sample": sample.run,
    "update": update.run,
}
"""By name: what runs a workload and yields one figure per case."""

__all__ = ["WORKLOADS", "Figure", "Meter"]
