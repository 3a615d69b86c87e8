"""Looks at the stores of this machine again and again, without waiting for locks, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import di_store
from di_store import observe
from di_store.base.errors import StoreError, StoreNotFound, TableNotFound
from di_store.dashboard.history import History
from di_store.observe import Rates, StoreReport, TableReport
from di_store.observe.machine import Holders, held_stores, pids_of
from di_store.observe.why import Finding, Samples
from di_store.store.opening import LOCK_SECONDS, attach_held, other_pids, pins, stats_without_locks, weights

SECONDS = 2.0
"""Between two looks."""

SECONDS_OF_WHY = 1.0
"""Between two looks while somebody asks why a store is slow."""

ASKED_SECONDS = 10.0
"""After so many seconds nobody asks that any more."""

ATTACH_SECONDS = 1.0


class Seen(NamedTuple):
    """One store at the last look."""

    holders: Holders
    report: StoreReport
    pins: list[tuple[int, bytes, bool, int, int]]  # as `store.opening.pins`
    weights: list[tuple[str, int, int, list[tuple[int, bytes, int | None]]]]  # as `store.opening.weights`


class Readers:
    """The threads of this process that read stores now, and may hold locks of them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._refused = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A block that reads. Entering waits for the end of `none`, so blocks of one thread must not be nested."""
        with self._changed:
            self._changed.wait_for(lambda: not self._refused)
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    @contextmanager
    def none(self) -> Iterator[None]:
        """A block in which no thread reads. Entering waits for those that do."""
        with self._changed:
            self._refused = True
            self._changed.wait_for(lambda: not self._count)
        try:
            yield
        finally:
            with self._changed:
                self._refused = False
                self._changed.notify_all()


class StoreWatch:
    """The stores at the last look, and an hour of history."""

    def __init__(self, only: Sequence[str] = ()) -> None:
        """Look once; `only`: names of the stores to look at, all if empty."""
        self.only = tuple(only)
        self.history = History(SECONDS)
        self.readers = Readers()
        self._rates = Rates()
        self._seen: dict[str, Seen] = {}
        self._at = self._recorded = 0.0
        self._asked: dict[str, float] = {}  # by store, when a page last asked why it is slow
        self._samples: dict[str, Samples] = {}
        self._findings: dict[str, list[Finding]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="di-store dashboard", daemon=True)
        self._look()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    # -- for pages -------------------------------------------------------------------------------------------------

    @property
    def age(self) -> float:
        """Seconds since the last look."""
        return time.monotonic() - self._at

    @property
    def seen(self) -> list[Seen]:
        """All stores, by name."""
        return list(self._seen.values())

    def store(self, name: str) -> Seen:
        """The store `name`.

        Raises:
            StoreNotFound: it has ended, or never was. StoreError: it cannot be read.
        """
        found = self._seen.get(name)
        if found is None:
            raise StoreNotFound(f"no process of this user holds a store named {name!r}", remedy="")
        if found.report["error"]:
            raise StoreError(f"store {name!r} cannot be read: {found.report['error']}")
        return found

    def table(self, store: str, name: str) -> TableReport:
        """The table `name` of `store`.

        Raises:
            TableNotFound: it was dropped, or never was. StoreError: as `store`.
        """
        for table in self.store(store).report["tables"]:
            if table["name"] == name:
                return table
        raise TableNotFound(f"store {store!r} has no table {name!r}", remedy="")

    def findings(self, name: str) -> list[Finding]:
        """Why the job of a store is slow; empty for the first seconds. Its processes are looked at while pages ask.

        Raises:
            StoreNotFound, StoreError: as `store`.
        """
        self.store(name)
        self._asked[name] = time.monotonic()
        return self._findings.get(name, [])

    @contextmanager
    def attached(self, name: str) -> Iterator[di_store.Store]:
        """A handle of the store that only reads, for one request: it keeps the store alive.

        Raises:
            StoreNotFound: it has ended. StoreError: it cannot be attached to.
        """
        holders = self.store(name).holders
        with self.readers.reading():
            try:
                store = attach_held(name, holders, LOCK_SECONDS)
            except StoreNotFound:  # others hold it by now, or a new store of that name
                store = di_store.open(name, mode="r")
            try:
                yield store
            finally:
                store.close()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(SECONDS_OF_WHY if self._asked else SECONDS):
            with suppress(StoreError, OSError):  # such as too many open files: pages tell the age of their figures
                self._look()

    def _look(self) -> None:
        found: dict[str, Seen] = {}
        with self.readers.reading():
            for name, holders in held_stores(self.only).items():
                seen = _seen(name, holders)
                if seen is not None:
                    seen.report["pids"] = other_pids(pids_of(holders))
                    found[name] = seen
        reports = [each.report for each in found.values()]
        self._rates.add(reports)
        now = time.monotonic()
        if now - self._recorded > SECONDS_OF_WHY * 1.5:
            self.history.add(reports, {name: seen.weights for name, seen in found.items()})
            self._recorded = now
        self._seen, self._at = found, now
        for name, asked in list(self._asked.items()):
            if name in found and now - asked < ASKED_SECONDS:
                samples = self._samples.setdefault(name, Samples())
                samples.add(found[name].report)
                self._findings[name] = samples.findings()
            else:
                del self._asked[name]
                self._samples.pop(name, None)
                self._findings.pop(name, None)


def _seen(name: str, holders: Holders) -> Seen | None:
    """A store; None: it has ended meanwhile."""
    try:
        store = attach_held(name, holders, ATTACH_SECONDS)
        try:
            return Seen(holders, observe.report(stats_without_locks(store)), pins(store), weights(store))
        finally:
            store.close()
    except StoreNotFound:
        return None
    except StoreError as error:
        return Seen(holders, observe.unreadable(name, str(error)), [], [])
