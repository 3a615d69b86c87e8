"""The stores that this process has as nodes of clusters, one per cluster.

No lock is held while a process attaches to a store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from di_store.base.errors import NodeUnavailable
from di_store.cluster.store import ClusterStore
from di_store.runtime.deadline import Deadline
from di_store.runtime.forks import in_child

K = TypeVar("K", bound=Hashable)


class OwnStores(Generic[K]):
    """Stores by key. Thread-safe. A forked child begins without stores."""

    def __init__(self) -> None:
        self.begin()
        in_child(self, OwnStores.begin)

    def begin(self) -> None:
        """Set the initial state, also in a forked child, to which the parent's connections and locks do not belong."""
        self._lock = threading.Lock()
        self._stores: dict[K, ClusterStore] = {}
        self._attaching: dict[K, threading.Event] = {}  # set when the thread that attaches has ended

    def get(
        self, key: K, timeout: float | None, attach: Callable[[float | None], ClusterStore], *, alone: bool = False
    ) -> ClusterStore:
        """The store of a key. One thread attaches; others wait for it no longer than their own timeout.

        Args:
            key: key of the store.
            timeout: seconds; None: no limit.
            attach: attaches to the store, within this many seconds.
            alone: whether to forget stores of other keys.

        Raises:
            NodeUnavailable: at the end another thread is still attaching, or `clear` was called meanwhile. As `attach`.
        """
        deadline = Deadline(timeout)
        while True:
            with self._lock:
                known = self._stores.get(key)
                if known is not None and not known.is_closed():
                    return known
                under_way = self._attaching.get(key)
                if under_way is None:
                    mine = self._attaching[key] = threading.Event()
                    break
            if not under_way.wait(deadline.left):
                raise NodeUnavailable(
                    "another thread of this process still attaches to the store", remedy="timeout= waits longer"
                )
        try:
            made = attach(deadline.left)
            with self._lock:
                wanted = self._attaching.get(key) is mine
                if wanted:
                    if alone:
                        self._stores.clear()
                    self._stores[key] = made
            if not wanted:
                made.close()
                raise NodeUnavailable("the stores of this process were closed while this one was attached")
            return made
        finally:
            with self._lock:
                if self._attaching.get(key) is mine:
                    del self._attaching[key]
            mine.set()

    def clear(self) -> None:
        """Close all stores. A store that is being attached is closed by the thread that attaches to it."""
        with self._lock:
            stores, self._stores, self._attaching = list(self._stores.values()), {}, {}
        for each in stores:
            each.close()
