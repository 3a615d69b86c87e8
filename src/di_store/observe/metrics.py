"""The metrics of stores for Prometheus, and a collector that reads them.

Names follow Prometheus's conventions: base units, and ``_total`` for what only grows. docs/metric_names.md lists them.
"""

from __future__ import annotations

import importlib.util
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from di_store.observe.explain import WAITS_FOR, process_state
from di_store.observe.report import StoreReport
from di_store.policy.limiters import UNBOUNDED

PREFIX = "di_store_"
USES = ("live", "pinned", "pending", "free")
TABLE_WAITS = ("items", "limiter", "room")

Facts: TypeAlias = "Mapping[str, Any]"
"""A report of a store, its disk, or one of its tables."""

Look: TypeAlias = "Callable[[], list[StoreReport]]"
"""Reads the stores."""


def _counted(kinds: Iterable[str], found: Iterable[str]) -> dict[str, int]:
    """How often each of the kinds was found, with zeros: a series that vanished would look like a gap."""
    return dict.fromkeys(kinds, 0) | Counter(found)


def _states(store: Facts) -> dict[str, int]:
    states = process_state("R", True), process_state("T", True), process_state("", False)
    return _counted(states, (each["state"] for each in store["clients"]))


def _longest(store: Facts) -> dict[str, float]:
    longest = dict.fromkeys(WAITS_FOR, 0.0)
    for each in store["waiters"]:
        longest[each["kind"]] = max(longest[each["kind"]], each["age_seconds"])
    return longest


def _bound(name: str) -> Callable[[Facts], float]:
    """A bound of the limiter, infinite if there is none."""

    def read(table: Facts) -> float:
        bound: float = table["limiter"][name]
        return math.copysign(math.inf, bound) if abs(bound) >= UNBOUNDED else bound

    return read


def _difference(table: Facts) -> float:
    limiter = table["limiter"]
    return float(limiter["inserts"] * limiter["ratio"] - limiter["samples"])


class StoreMetric(NamedTuple):
    """One metric; its `value` is None where there is none.

    Attributes:
        name: without `PREFIX`; it is a counter if it ends with ``_total``.
        text: what it means.
        value: key of the facts; or a function that gives the value, or values by those of the `label`.
        label: a label besides ``store`` and ``table``.
    """

    name: str
    text: str
    value: str | Callable[[Facts], Any]
    label: str = ""


STORE = (
    StoreMetric("up", "1 if the store can be read, else 0", lambda store: store["error"] is None),
    StoreMetric("memory_limit_bytes", "the memory limit", "budget"),
    StoreMetric(
        "memory_bytes",
        "memory by use: live, pinned (read by a process), pending (deleted, and still read), free",
        lambda store: {use: store["memory"][use] for use in USES},
        "use",
    ),
    StoreMetric("memory_committed_bytes", "pages that are charged to the store", "bytes"),
    StoreMetric("memory_reserved_bytes", "memory reserved for tables", lambda store: store["memory"]["reserved"]),
    StoreMetric("page_tables_bytes", "page tables of all processes", lambda store: store["memory"]["page_tables"]),
    StoreMetric("objects", "objects in the store", "objects"),
    StoreMetric("clients", "processes that have the store open, by state", _states, "state"),
    StoreMetric(
        "waiters",
        "threads that wait now, by what they wait for",
        lambda store: _counted(WAITS_FOR, (each["kind"] for each in store["waiters"])),
        "kind",
    ),
    StoreMetric("longest_wait_seconds", "age of the longest of these waits, 0 if there is none", _longest, "kind"),
    StoreMetric("deaths_total", "processes that died while they had the store open", "deaths"),
    StoreMetric("rebuilds_total", "rebuilds of derived data, after a process died while it held a lock", "rebuilds"),
)
DISK = (
    StoreMetric("disk_capacity_bytes", "limit on the files of the disk tier", "capacity"),
    StoreMetric("disk_files_bytes", "files of the disk tier", "files"),
    StoreMetric("disk_live_bytes", "the part of these files that is needed", "live"),
    StoreMetric("disk_raw_bytes", "the rows in that part, as they would lie in memory", "raw"),
    StoreMetric("disk_written_bytes_total", "bytes written to these files", "written"),
    StoreMetric("disk_moved_bytes_total", "the part of these that was copied out of mostly empty files", "moved"),
    StoreMetric("disk_read_bytes_total", "bytes read from disk for batches", "read"),
    StoreMetric("disk_reads_total", "reads from disk for batches", "reads"),
    StoreMetric("disk_hit_ratio", "share of the drawn items that were in memory, 0 to 1", "hit_rate"),
    StoreMetric("disk_batches_total", "batches that loaders handed out", "loaded"),
    StoreMetric(
        "disk_stalled_seconds_total", "time that learners waited for the next batch of a loader", "stalled_seconds"
    ),
    StoreMetric("disk_objects", "objects that are on disk alone", "objects"),
    StoreMetric("disk_objects_bytes", "bytes of the objects that are on disk alone", "object_bytes"),
    StoreMetric("disk_damaged_items_total", "items removed because their rows on disk were damaged", "damaged_items"),
)
TABLE = (
    StoreMetric("table_items", "items that can be drawn", "size"),
    StoreMetric("table_capacity_items", "the largest number of items, if there is one", "capacity"),
    StoreMetric("table_incomplete_items", "items that lack late columns; with `Group`, incomplete groups", "waiting"),
    StoreMetric("table_held_items", "removed items that a draw still uses", "held"),
    StoreMetric("table_inserts_total", "items inserted", "inserts"),
    StoreMetric("table_samples_total", "items drawn", "samples"),
    StoreMetric("table_removed_total", "items removed, for any reason", "removed"),
    StoreMetric("table_evicted_for_room_total", "items removed before `capacity` was reached", "evicted_for_room"),
    StoreMetric("table_stale_dropped_total", "items removed as older than `max_staleness`", "stale_dropped"),
    StoreMetric("table_groups_dropped_total", "groups removed before they were complete", "groups_dropped"),
    StoreMetric("table_groups_short_total", "groups delivered without all their answers", "groups_short"),
    StoreMetric("table_late_answers_total", "answers to groups that had ended", "late_answers"),
    StoreMetric("table_episodes_cut_total", "episodes longer than the view's `max_length`", "episodes_cut"),
    StoreMetric("table_steps_left_out_total", "steps that made no item", "steps_left_out"),
    StoreMetric("table_updates_total", "priorities set", "updates"),
    StoreMetric("table_stale_updates_total", "priorities set of items that were gone", "stale_updates"),
    StoreMetric("table_sample_age_items", "items inserted since the drawn one: a mean of recent draws", "sample_age"),
    StoreMetric("table_since_insert_seconds", "time since the last insert", "seconds_since_insert"),
    StoreMetric(
        "table_newest_version", "newest version of the weights; `max_staleness` counts from it", "newest_version"
    ),
    StoreMetric("table_writers", "open writers", "writers"),
    StoreMetric("table_finished", "1 if no more inserts will come, else 0", "finished"),
    StoreMetric("table_bytes", "bytes of the table's chunks", "bytes_stored"),
    StoreMetric(
        "table_logical_bytes", "bytes of the items, if each had its own copy of all that a batch shows", "bytes_logical"
    ),
    StoreMetric("table_reserve_bytes", "memory reserved for the table's chunks", "reserve_bytes"),
    StoreMetric(
        "table_waiters",
        "threads that wait for the table now, by what they wait for",
        lambda table: _counted(TABLE_WAITS, (each for each in table["waits"] if each in TABLE_WAITS)),
        "kind",
    ),
    StoreMetric(
        "table_limiter_waits",
        "1 if the limiter makes the next call wait, else 0, by call: insert, sample",
        lambda table: {call: bool(table["limiter"][f"{call}_reason"]) for call in ("insert", "sample")},
        "call",
    ),
    StoreMetric(
        "table_limiter_ratio", "samples per insert that the limiter asks for", lambda table: table["limiter"]["ratio"]
    ),
    StoreMetric(
        "table_limiter_min_size_items",
        "samples wait while the table has fewer items",
        lambda table: table["limiter"]["min_size"],
    ),
    StoreMetric("table_limiter_difference", "inserts · ratio − samples, since the limiter was set", _difference),
    StoreMetric(
        "table_limiter_min_difference", "samples wait rather than take the difference below this", _bound("min_diff")
    ),
    StoreMetric(
        "table_limiter_max_difference", "inserts wait rather than take the difference above this", _bound("max_diff")
    ),
)


def check_library() -> None:
    """Raise an ImportError that names the extra, if the client library is not installed."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise ImportError("metrics need prometheus_client: pip install 'di-store[metrics]'")


class StoresCollector:
    """A collector for the client library. After `close` it reads no store any more."""

    def __init__(self, look: Look) -> None:
        self._look, self._lock, self._closed = look, threading.Lock(), False

    def describe(self) -> Iterable[Any]:
        """The metrics without values, for a scrape that asks for some of them by name."""
        return _families().values()

    def collect(self) -> Iterable[Any]:
        """The metrics with their present values."""
        families = _families()
        with self._lock:
            for store in () if self._closed else self._look():
                _add_store(families, store)
        return families.values()

    def close(self) -> None:
        """Wait until no scrape reads a store, and let none read any more."""
        with self._lock:
            self._closed = True


def _families() -> dict[str, Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    families = {}
    for labels, metrics in (("store",), STORE + DISK), (("store", "table"), TABLE):
        for each in metrics:
            kind = CounterMetricFamily if each.name.endswith("_total") else GaugeMetricFamily
            families[each.name] = kind(
                PREFIX + each.name, each.text, labels=[*labels, *([each.label] if each.label else [])]
            )
    return families


def _add_store(families: dict[str, Any], store: StoreReport) -> None:
    _add(families, STORE if store["error"] is None else STORE[:1], store, store["name"])
    if store["disk"] is not None:
        _add(families, DISK, store["disk"], store["name"])
    for table in store["tables"]:
        waits = [each["kind"] for each in store["waiters"] if each["table"] == table["name"]]
        _add(families, TABLE, {**table, "waits": waits}, store["name"], table["name"])


def _add(families: dict[str, Any], metrics: Iterable[StoreMetric], facts: Facts, *labels: str) -> None:
    for each in metrics:
        value = facts[each.value] if isinstance(each.value, str) else each.value(facts)
        values = {(key,): one for key, one in value.items()} if each.label else {(): value}
        for more, number in values.items():
            if number is not None:
                families[each.name].add_metric((*labels, *more), float(number))
