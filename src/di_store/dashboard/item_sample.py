"""Some items of a table, evenly spread, from which histograms are drawn."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from di_store import observe
from di_store.base.dtypes import Array
from di_store.dashboard.watch import SECONDS, StoreWatch
from di_store.observe import ItemFacts

MOST_ITEMS = 4_096
_PATIENCE_SECONDS = 0.05  # to wait for the table's lock


class ItemSample(NamedTuple):
    """Facts of items at one time."""

    at: float  # of `time.monotonic`
    facts: ItemFacts
    ages: Array | None  # by item, how many were inserted after it; None: items do not leave in order


class ItemSamples:
    """The last sample of each table: however many pages look at a table, it is read once in `SECONDS`."""

    def __init__(self, watch: StoreWatch) -> None:
        self._watch = watch
        self._known: dict[tuple[str, str], ItemSample] = {}
        self._lock = threading.Lock()  # between this process's threads

    def of(self, store: str, table: str) -> ItemSample:
        """A sample that is at most `SECONDS` old.

        Raises:
            Timeout: a stopped process holds the table's lock. StoreError: the table is gone.
        """
        with self._lock:
            now = time.monotonic()
            self._known = {name: each for name, each in self._known.items() if now - each.at < SECONDS}
            if (store, table) not in self._known:
                with self._watch.attached(store) as handle:
                    opened = handle.table(table)
                    keys = observe.spread_keys(opened, MOST_ITEMS, _PATIENCE_SECONDS)
                    facts = observe.facts_of(opened, keys)
                    ages = observe.ages_of(opened, facts.keys, _PATIENCE_SECONDS)
                self._known[store, table] = ItemSample(now, facts, ages)
            return self._known[store, table]
