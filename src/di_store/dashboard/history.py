"""An hour of figures of stores and tables, one value each look."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from di_store.base.dtypes import Array
from di_store.observe import StoreReport, TableReport

HOUR = 3600.0

STORE_FIGURES: Mapping[str, Callable[[StoreReport], float | None]] = {
    "memory": lambda each: each["bytes"],
    "free": lambda each: each["memory"]["free"],
    "pinned": lambda each: each["memory"]["pinned"],
    "objects": lambda each: each["objects"],
    "processes": lambda each: len(each["clients"]),
    "waiting": lambda each: len(each["waiters"]),
    "disk": lambda each: each["disk"] and each["disk"]["files"],
    "disk written": lambda each: each["disk"] and each["disk"]["written"],
    "disk read": lambda each: each["disk"] and each["disk"]["read"],
    "disk hit rate": lambda each: each["disk"] and each["disk"]["hit_rate"],
}
"""Figures of a store, by name."""

TABLE_FIGURES: Mapping[str, Callable[[TableReport], float | None]] = {
    "items": lambda each: each["size"],
    "inserts/s": lambda each: each["inserts_per_second"],
    "samples/s": lambda each: each["samples_per_second"],
    "samples per insert": lambda each: each["limiter"]["ratio"],
    "sample age": lambda each: each["sample_age"],
    "bytes": lambda each: each["used_bytes"],
    "removed as stale": lambda each: each["stale_dropped"],
}
"""Figures of a table, by name."""


class History:
    """The last hour. A figure that is not known is NaN."""

    def __init__(self, seconds: float) -> None:
        """Set the state; `seconds`: between two calls of `add`."""
        self._length = round(HOUR / seconds)
        self._times = np.full(self._length, np.nan)
        self._figures: dict[tuple[str, str, str], Array] = {}
        self._count = 0
        self._lock = threading.Lock()

    def add(self, found: Iterable[StoreReport]) -> None:
        """Add the figures of one look."""
        values: dict[tuple[str, str, str], float | None] = {}
        for each in found:
            if not each["error"]:
                values |= {(each["name"], "", name): take(each) for name, take in STORE_FIGURES.items()}
                for table in each["tables"]:
                    values |= {(each["name"], table["name"], name): take(table) for name, take in TABLE_FIGURES.items()}
        with self._lock:
            at = self._count % self._length
            self._count += 1
            self._times[at] = time.time()
            for key in values.keys() - self._figures.keys():
                self._figures[key] = np.full(self._length, np.nan)
            for key, ring in list(self._figures.items()):
                value = values.get(key)
                ring[at] = np.nan if value is None else value
                if value is None and at == 0 and np.isnan(ring).all():  # its store or table has ended
                    del self._figures[key]

    def figure(self, store: str, table: str, name: str) -> tuple[Array, Array]:
        """Times (of `time.time`) and values of one figure, oldest first; `table` is "" for a figure of the store."""
        with self._lock:
            ring = self._figures.get((store, table, name))
            values = np.full(self._length, np.nan) if ring is None else ring
            if self._count <= self._length:
                return self._times[: self._count].copy(), values[: self._count].copy()
            at = self._count % self._length
            return np.roll(self._times, -at), np.roll(values, -at)

    def names(self) -> dict[str, list[str]]:
        """The stores of the last hour, and the tables of each."""
        with self._lock:
            found: dict[str, dict[str, Any]] = {}
            for store, table, _ in self._figures:
                found.setdefault(store, {}).update({table: None} if table else {})
        return {store: list(tables) for store, tables in sorted(found.items())}
