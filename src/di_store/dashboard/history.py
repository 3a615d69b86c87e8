"""An hour of figures of stores, tables and weights, one value each look."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from di_store.base.dtypes import Array
from di_store.observe import StoreReport, TableReport

HOUR = 3600.0
T = TypeVar("T")


class Chart(NamedTuple):
    """Figures that are drawn together. `take`: for each line its label and its value in a report; None: not known."""

    label: str
    unit: str  # "count", "bytes", "share"; with "/s" the values only grow, and their changes are drawn
    take: dict[str, Callable[[Any], float | None]]


def _disk(name: str) -> Callable[[StoreReport], float | None]:
    def take(each: StoreReport) -> float | None:
        disk: Any = each["disk"]
        return None if disk is None else disk[name]

    return take


def _table(name: str) -> Callable[[TableReport], Any]:
    return lambda each: each.get(name)


MEMORY = Chart(
    "memory",
    "bytes",
    {"in use": lambda each: each["bytes"], "read by processes": lambda each: each["memory"]["pinned"]},
)
PROCESSES = Chart(
    "processes",
    "count",
    {"attached": lambda each: len(each["clients"]), "waiting threads": lambda each: len(each["waiters"])},
)
OBJECTS = Chart("objects", "count", {"objects": lambda each: each["objects"]})
FILES = Chart("files", "bytes", {"all": _disk("files"), "needed": _disk("live")})
TRAFFIC = Chart("traffic of the disk", "bytes/s", {"written": _disk("written"), "read": _disk("read")})
HITS = Chart("drawn items that were in memory", "share", {"since the store was made": _disk("hit_rate")})
STORE_CHARTS = (MEMORY, PROCESSES, OBJECTS)
DISK_CHARTS = (FILES, TRAFFIC, HITS)

ITEMS = Chart("items", "count", {"items": _table("size"), "not complete": _table("waiting")})
RATES = Chart("per second", "count/s", {"inserts": _table("inserts"), "samples": _table("samples")})
RATIO = Chart("samples per insert", "count", {"ratio": lambda each: each["limiter"]["ratio"]})
AGE = Chart("age of drawn items, in inserts", "count", {"age": _table("sample_age")})
BYTES = Chart("bytes of the table", "bytes", {"used": _table("used_bytes"), "reserved": _table("reserve_bytes")})
LOSSES = Chart(
    "removed early per second", "count/s", {"stale": _table("stale_dropped"), "for room": _table("evicted_for_room")}
)
TABLE_CHARTS = (RATES, ITEMS, RATIO, AGE, BYTES, LOSSES)


VERSIONS = Chart("versions published per second", "count/s", {"published": lambda newest: newest})


class Subject(NamedTuple):
    """What a figure is about: a store, or a part of it."""

    store: str
    kind: str = ""  # "table" or "weights"; "": the store itself
    name: str = ""


class History:
    """The last hour. A figure that is not known is NaN."""

    def __init__(self, seconds: float) -> None:
        """Set the state; `seconds`: between two calls of `add`."""
        self._length = round(HOUR / seconds)
        self._times = np.full(self._length, np.nan)
        self._figures: dict[tuple[Subject, str, str], Array] = {}
        self._before: dict[tuple[Subject, str, str], float] = {}  # of figures that only grow
        self._count = 0
        self._lock = threading.Lock()  # between this process's threads

    def add(self, found: Iterable[StoreReport], weights: Mapping[str, Iterable[tuple[Any, ...]]]) -> None:
        """Add the figures of one look; `weights`: by store, as `store.opening.weights`."""
        published = [
            (Subject(store, "weights", name), (VERSIONS,), newest)
            for store, all in weights.items()
            for name, newest, *_ in all
        ]
        values = {
            (subject, chart.label, name): (take(report), chart.unit.endswith("/s"))
            for subject, charts, report in [*_parts(found), *published]
            for chart in charts
            for name, take in chart.take.items()
        }
        with self._lock:
            at, now = self._count % self._length, time.time()
            since = now - self._times[at - 1]
            self._count += 1
            self._times[at] = now
            before, self._before = self._before, {}
            for key, (value, grows) in values.items():
                if key not in self._figures:
                    self._figures[key] = np.full(self._length, np.nan)
                if grows and value is not None:
                    self._before[key] = value
                    last = before.get(key)  # a smaller value: the figure was reset, or the store was made again
                    value = None if last is None or value < last or since <= 0 else (value - last) / since
                self._figures[key][at] = np.nan if value is None else value
            for key in self._figures.keys() - values.keys():  # its store or table has ended
                self._figures[key][at] = np.nan
                if np.isnan(self._figures[key]).all():
                    del self._figures[key]

    def lines(self, subject: Subject, chart: Chart) -> tuple[Array, list[tuple[str, Array]]]:
        """Times (of `time.time`), and the values of each line of a chart, oldest first."""
        with self._lock:
            unknown = np.full(self._length, np.nan)
            found = [(name, self._figures.get((subject, chart.label, name), unknown)) for name in chart.take]
            return self._in_order(self._times), [(name, self._in_order(values)) for name, values in found]

    def subjects(self) -> list[Subject]:
        """All stores and tables of the last hour."""
        with self._lock:
            return sorted({subject for subject, _, _ in self._figures})

    def _in_order(self, ring: Array) -> Array:
        if self._count <= self._length:
            ring = ring[: self._count]
        found: Array = np.roll(ring, -(self._count % self._length))
        return found


def _parts(found: Iterable[StoreReport]) -> Iterator[tuple[Subject, tuple[Chart, ...], Any]]:
    for each in found:
        if each["error"]:
            continue
        yield Subject(each["name"]), STORE_CHARTS if each["disk"] is None else STORE_CHARTS + DISK_CHARTS, each
        for table in each["tables"]:
            yield Subject(each["name"], "table", table["name"]), TABLE_CHARTS, table
