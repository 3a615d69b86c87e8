"""Some items of a table, evenly spread, from which histograms are drawn."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

import numpy as np

from di_store import observe
from di_store.base.dtypes import Array
from di_store.dashboard.watch import SECONDS, StoreWatch
from di_store.observe import ItemFacts, TableReport

MOST_ITEMS = 4_096
MOST_SLOTS = 65_536
"""Places for items that are looked at, of which many may be empty."""
_PATIENCE_SECONDS = 0.05  # to wait for the table's lock


class ItemSample(NamedTuple):
    """Facts of items at one time."""

    at: float  # of `time.monotonic`
    facts: ItemFacts
    ages: Array | None  # by item, how many were inserted after it; None: items do not leave in order


def _once(keys: Array) -> Array:
    """Each key once, in the order of the first."""
    return keys[np.sort(np.unique(keys, return_index=True)[1])]


class ItemSamples:
    """The last sample of each table: however many pages look at a table, it is read once in `SECONDS`."""

    def __init__(self, watch: StoreWatch) -> None:
        self._watch = watch
        self._known: dict[tuple[str, str], ItemSample] = {}
        self._lock = threading.Lock()  # between this process's threads

    def of(self, store: str, table: TableReport) -> ItemSample:
        """A sample that is at most `SECONDS` old.

        Raises:
            Timeout: a stopped process holds the table's lock. StoreError: the table is gone.
        """
        with self._lock:
            now = time.monotonic()
            self._known = {name: each for name, each in self._known.items() if now - each.at < SECONDS}
            if (store, table["name"]) not in self._known:
                share = max(table["size"], 1) / table["slots"]  # of the slots that have an item
                with self._watch.attached(store) as handle:
                    opened = handle.table(table["name"])
                    keys = observe.spread_keys(opened, min(round(MOST_ITEMS / share), MOST_SLOTS), _PATIENCE_SECONDS)
                    facts = observe.facts_of(opened, _once(keys)[:MOST_ITEMS])
                    ages = observe.ages_of(opened, facts.keys, _PATIENCE_SECONDS)
                self._known[store, table["name"]] = ItemSample(now, facts, ages)
            return self._known[store, table["name"]]
