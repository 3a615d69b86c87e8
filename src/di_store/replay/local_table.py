"""A table in this process's memory."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from di_store import _core
from di_store._core import LeaseEnd
from di_store.base.dtypes import Array
from di_store.base.errors import StoreError
from di_store.columns.schema import Schema
from di_store.layout.shape import UNLIMITED
from di_store.policy.samplers import Once, Prioritized, Sampler
from di_store.policy.settings import Settings
from di_store.replay.batch import Batch, empty_batch
from di_store.replay.exporting import Exported, export_table
from di_store.replay.find import find_table
from di_store.replay.handle import TableHandle
from di_store.replay.incomplete import Found, found_incomplete
from di_store.replay.inserter import Inserter
from di_store.replay.keys import GoneKey, GoneKeys, keys_at, positions_of
from di_store.replay.late import update_late
from di_store.replay.lease import Lease
from di_store.replay.left_out import warn_left_out
from di_store.replay.local_writer import LocalWriter
from di_store.replay.lost import without_lost
from di_store.replay.resizing import configure_table, resize_table
from di_store.replay.sampling import Terms, beta_of, check_replace, reading_batch, sample_at_once
from di_store.replay.stats import TableStats, table_stats
from di_store.replay.table import Table, backend_of
from di_store.replay.table_backend import TableBackend
from di_store.replay.table_source import TableSource, begin_learning
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import Steps
from di_store.session import Session, loaded


class LocalTable(TableBackend):
    """A table of a store that this process is attached to."""

    in_memory = True
    inserter: Inserter

    def __init__(self, session: Session, native: _core.Table) -> None:
        handle = TableHandle(session.arena, native, session.versions)
        self.name = handle.name
        self._session = session
        # Another thread may close the store and set this to None: a call reads it once and uses that handle throughout.
        self.handle: TableHandle | None = handle
        self.inserter = Inserter(handle)
        self.repeats = not isinstance(handle.settings.sampler, Once)
        self.prioritized = native if isinstance(handle.settings.sampler, Prioritized) else None
        self.update_now = None if session.readonly else native.update
        self.ack_now = None if session.readonly else native.end_leases
        self._learns = False  # whether this handle has drawn with a lease
        self._closed: StoreError | None = None
        session.follow(self, LocalTable._end_with)

    @property
    def session(self) -> Session:
        return self._session

    @property
    def settings(self) -> Settings:
        return self.open().settings

    @property
    def identity(self) -> str:
        return self.open().identity

    def shown(self) -> str:
        return f"{self.name!r} of store {self._session.name!r}"

    def pickled(self) -> tuple[Any, ...]:
        local = load_table, (self._session.name, self.name, self._session.readonly)
        return local if self._session.abroad is None else self._session.abroad(self.name)

    def pickled_lease(self, number: int, keys: Array) -> tuple[Any, ...]:
        return load_lease, (*self.pickled(), number, keys)

    def open(self) -> TableHandle:
        """The table; `StoreClosed` if its store's handle is closed."""
        return self.handle or self._refuse()

    def writable(self) -> TableHandle:
        """The table, for a call that writes or draws."""
        handle = self.handle or self._refuse()
        if self._session.readonly:
            self._session.check_writable()
        return handle

    def _end_with(self, why: StoreError) -> None:
        """The store's handle is closed: pending and later calls raise `why`."""
        if (handle := self.handle) is None:
            return
        self._closed = self._closed or why
        handle.closed = self._closed
        self.sample_now = self.update_now = self.ack_now = self.prioritized = None
        self.inserter.end_with(self._closed)
        self.handle = None  # the last handle to go unmaps the store

    def _refuse(self) -> NoReturn:
        assert self._closed is not None
        raise copy.copy(self._closed)

    # -- what it is like ----------------------------------------------------------------------------------------

    def schema(self, deadline: Deadline | None = None) -> Schema | None:
        handle = self.open()
        return None if handle.opaque else handle.schema

    def capacity(self) -> int | None:
        capacity = self.open().native.capacity
        return None if capacity >= UNLIMITED else capacity

    def sampler(self) -> Sampler:
        return self.open().sampler()

    def size(self) -> int:
        return int(self.open().native.size())

    def stats(self, deadline: Deadline | None = None) -> TableStats:
        handle = self.open()
        handle.warn_evicted()
        warn_left_out(handle)
        return table_stats(handle)

    # -- writing ------------------------------------------------------------------------------------------------

    def writer(self, lanes: int | None, autoreset: Any, deadline: Deadline | None = None) -> LocalWriter:
        return LocalWriter(self._session, [self.writable()], lanes, autoreset, single=True)

    def inserting(self, value: Any, priority: Any, deadline: Deadline, one: bool = True) -> Steps[Array]:
        self.writable()
        return self.inserter.inserting(value, priority, deadline.left, one)

    # -- reading ------------------------------------------------------------------------------------------------

    def first_sample(self, n: int, beta: float | None, which: list[int] | None, distinct: bool) -> Any:
        handle = self.writable()
        if handle.schema is None:
            return None
        self._begin_learning(handle)
        sample = self.sample_now = sample_at_once(handle)
        if self._closed is not None:  # another thread has closed the handle meanwhile
            self.sample_now = None
        return sample(n, beta, which, distinct)

    def sampling(
        self, found: Any, terms: Terms, beta: float | None, columns: str | Iterable[str] | None, out: Batch | None
    ) -> Steps[Batch]:
        handle = self.writable()
        check_replace(handle, terms.n, terms.replace)
        steps = reading_batch(handle, found, terms, beta_of(handle, beta), columns, out)
        self._begin_learning(handle)
        return steps if terms.lease is None else self._leasing(terms, steps)

    def _leasing(self, terms: Terms, steps: Steps[Batch]) -> Steps[Batch]:
        batch = yield from steps
        batch._lease = self, terms.lease_number
        return batch

    def lease_now(self, n: int, beta: float | None, lease: Any, distinct: bool) -> Batch | None:
        handle = self.writable()
        if handle.opaque or handle.schema is None or type(lease) not in (float, int) or not 0 <= lease < math.inf:
            return None
        self._begin_learning(handle)
        found = handle.reader().lease(n, beta, distinct, lease)
        if found is None:
            return None
        batch = handle.batch(found[0])
        batch._lease = self, found[1]
        return batch

    def _begin_learning(self, handle: TableHandle) -> None:
        """At the first draw."""
        if not self._learns:
            begin_learning(handle.arena)
            self._learns = True

    def peek(self, keys: Array, columns: str | Iterable[str] | None, deadline: Deadline | None = None) -> Batch:
        handle = self.open()
        if handle.read_plan() is None:
            return empty_batch(keys)
        found = without_lost(handle.arena, handle.reader().peek, keys, beta_of(handle, None), handle.which(columns))
        return handle.batch(found)

    def source(self, columns: str | Iterable[str] | None, timeout: float | Deadline | None = None) -> TableSource:
        return TableSource(self.writable(), columns, self)

    def keys(self, start: int, n: int, deadline: Deadline) -> Array:
        return self.open().native.keys(start, n, deadline.core)

    def at(self, positions: Any, deadline: Deadline) -> Array:
        return keys_at(self.open().native, positions, deadline.core)

    def positions(self, keys: Array, deadline: Deadline) -> Array:
        return positions_of(self.open().native, keys, deadline.core)

    def evicted(self, deadline: Deadline) -> Iterator[GoneKey]:
        return GoneKeys(self.writable().native, deadline.core)

    def incomplete(self, deadline: Deadline) -> Found:
        return found_incomplete(self.open(), deadline.core)

    def export(self, path: str | os.PathLike[str], deadline: Deadline) -> Exported:
        return export_table(self.open(), path, deadline.core)

    # -- changing -----------------------------------------------------------------------------------------------

    def update(self, keys: Array, values: Any, row: Any, deadline: Deadline, lease: int | None = None) -> int:
        return update_late(self.writable(), keys, values, row, deadline.core, lease)

    def end_leases(self, keys: Array, number: int, how: LeaseEnd, deadline: Deadline) -> int:
        handle = self.writable()
        if how is LeaseEnd.DROPPED and handle.settings.queued:
            raise ValueError(
                f"ack(counts=False) of table {self.name!r} with {handle.settings.limiter!r}: its draws make room for "
                "inserts, and an item that is done needs its room no longer: leave counts out"
            )
        return handle.native.end_leases(keys, number, how, deadline.core)

    def extend_leases(self, keys: Array, number: int, seconds: float, deadline: Deadline) -> int:
        return self.writable().native.extend_leases(keys, number, seconds, deadline.core)

    def update_priorities(self, keys: Array, priorities: Array, deadline: Deadline) -> int:
        return self.writable().native.update(keys, priorities, deadline.core)

    def delete(self, keys: Array, deadline: Deadline) -> int:
        return self.writable().native.remove(keys, deadline.core)

    def reset(self, deadline: Deadline) -> None:
        self.writable().native.reset(deadline.core)

    def resize(self, capacity: int, deadline: Deadline) -> None:
        resize_table(self.writable(), capacity, deadline.core)

    def configure(self, changes: dict[str, Any], deadline: Deadline) -> None:
        configure_table(self.writable(), changes, deadline.core)

    def finish(self, deadline: Deadline) -> None:
        self.writable().native.finish(deadline.core)


def local_table(session: Session, name: str, timeout: float | None) -> LocalTable:
    """The table `name` of this store; waits and raises as `find_table`."""
    return LocalTable(session, find_table(session, name, timeout))


def load_table(store: str, name: str, readonly: bool) -> Table:
    """Unpickle a table, in the process that loads it."""
    return Table(loaded(lambda session: local_table(session, name, 0), store, readonly))


def load_lease(load: Any, arguments: tuple[Any, ...], number: int, keys: Array) -> Lease:
    """Unpickle a lease; `load` and `arguments` are those of its table."""
    return Lease(backend_of(load(*arguments)), number, keys)
