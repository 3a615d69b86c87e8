"""Part "objects": the cost of put, get, delete, keys and stats by the number of objects in the store."""

from __future__ import annotations

import time
from itertools import cycle
from typing import Any

import numpy as np

import di_store
from bench.kit import Nanoseconds, apart, time_alone, time_calls, turns
from bench.scale.figures import Figure, Options, Takes, say

SIZES = (1_000, 10_000, 100_000, 1_000_000)
OBJECT_BYTES, STORE_BYTES_EACH = 1_000, 1_700
BLOCK, KNOWN, AT_ONCE = 10_000, 20_000, 200
SERIES = "1 KB"


def objects(options: Options) -> list[Figure]:
    """One store for each count, filled by another process; the stores are measured in turn."""
    takes, shelves = Takes("objects"), []
    for count in options.ladder(*SIZES):
        say(f"objects: {count:,}")
        shelves.append(Shelf(count, takes))
    for shelf in turns(shelves, options.rounds):
        shelf.measure(options.seconds, takes)
    for shelf in shelves:
        shelf.store.close()
    return takes.figures()


def put_all(name: str, count: int) -> None:
    value = np.zeros(OBJECT_BYTES, np.uint8)
    store = di_store.attach(name)
    for begin in range(0, count, BLOCK):
        store.put_many([value] * min(BLOCK, count - begin))


class Shelf:
    """A store with `count` objects."""

    def __init__(self, count: int, takes: Takes) -> None:
        self.count = count
        self.store = di_store.open(memory=(64 << 20) + count * STORE_BYTES_EACH)
        before = self._used()
        apart(put_all, self.store.name, count)
        takes.add(SERIES, count, "store, payload included", (self._used() - before) / count, "B/object")
        self.refs = self._known()
        self.value = np.ones(OBJECT_BYTES, np.uint8)

    def _used(self) -> int:
        stats = self.store.stats()
        return int(stats["object_pages"] + stats["meta"] + stats["fixed"])

    def _known(self) -> list[di_store.Ref]:
        """Up to `KNOWN` refs in random order. Ids are random, so any part of `keys()` is a random choice of objects."""
        refs: list[di_store.Ref] = []
        while len(refs) < min(self.count, KNOWN) and (more := self.store.keys(refs[-1] if refs else None, BLOCK)):
            refs += more
        order = np.random.default_rng(0).permutation(len(refs))
        return [refs[place] for place in order]

    def measure(self, seconds: float, takes: Takes) -> None:
        """One round. There are as many deletes as puts, so the number of objects stays the same."""
        store, refs = self.store, self.refs
        value: Any = None

        def get(ref: di_store.Ref) -> None:
            nonlocal value
            value = store.get(ref)

        time_calls(get, cycle(refs), seconds / 10)
        takes.latencies(SERIES, self.count, "get", time_calls(get, cycle(refs), seconds))
        value = None
        puts, deletes = self._replace(seconds)
        takes.latencies(SERIES, self.count, "put", puts)
        takes.latencies(SERIES, self.count, "delete", deletes)
        takes.latencies(SERIES, self.count, "keys(n=1000)", time_alone(store.keys, seconds / 4), (50,))
        stats = time_alone(store.stats, seconds / 4)
        takes.latencies(SERIES, self.count, "stats", stats, (50,))
        takes.add(SERIES, self.count, "stats, longest", float(stats.max()) / 1e6, "ms")

    def _replace(self, seconds: float) -> tuple[Nanoseconds, Nanoseconds]:
        """Times of puts, and of deletes of as many older objects, in turns of `AT_ONCE`."""
        puts, deletes, end = [], [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            fresh: list[di_store.Ref] = []

            def put(value: Any, fresh: list[di_store.Ref] = fresh) -> None:
                fresh.append(self.store.put(value))

            puts.append(time_calls(put, [self.value] * AT_ONCE))
            deletes.append(time_calls(self.store.delete, self.refs[:AT_ONCE]))
            self.refs = self.refs[AT_ONCE:] + fresh
        return np.concatenate(puts), np.concatenate(deletes)
