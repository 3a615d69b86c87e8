"""A table of a remote store: every call is one round trip to the agent."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from di_store.base import config
from di_store.base.dtypes import Array
from di_store.base.errors import StoreError
from di_store.client.arguments import blob, items_travelling, named, number_array, plain, travelling
from di_store.client.channel import Seconds
from di_store.client.drawing import RemoteSource, sampled
from di_store.client.session import RemoteSession
from di_store.client.turns import refusing_calls_inside
from di_store.client.writer import RemoteWriter
from di_store.columns.schema import Schema
from di_store.policy.changes import UNCHANGED, Unchanged
from di_store.policy.limiters import Limiter, check_limiter, limiter_to_plain
from di_store.policy.options import check_table_name
from di_store.policy.samplers import Prioritized, Sampler, sampler_from_plain
from di_store.policy.settings import Settings
from di_store.policy.views import View
from di_store.protocol.batches import unpack_batch
from di_store.replay.batch import Batch, host_array, key_array
from di_store.replay.exporting import Exported
from di_store.replay.incomplete import IncompleteGroup, check_grouped, listed_incomplete
from di_store.replay.inserter import INSIDE, LATER
from di_store.replay.loader import Loader
from di_store.replay.stats import TableStats
from di_store.replay.table import Table
from di_store.replay.writer import Writer
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import check_timeout

_CALL = 60.0
_alone = refusing_calls_inside(INSIDE, LATER)


class RemoteTable(Table):
    """A handle of a table that an agent serves; thread-safe. It pickles as the address and the table's name."""

    def __init__(self, session: RemoteSession, described: dict[str, Any]) -> None:
        self._far = session
        self._table_name = str(described["name"])
        self.target = self._table_name, str(described["identity"])
        self._settings = Settings.from_text(described["settings"])
        self._columns = None if described["schema"] is None else Schema.from_plain(described["schema"])
        session.follow(self, RemoteTable._close)

    def _close(self, why: StoreError) -> None:
        """The store's handle is closed: the channel refuses all calls."""

    def _call(self, method: str, timeout: Seconds = _CALL, **arguments: Any) -> Any:
        """A call without a timeout of its own."""
        what = f"{method} of table {self._table_name!r}"
        return self._far.channel.call(method, arguments, target=self.target, timeout=timeout, what=what)

    def _timed(self, method: str, timeout: Any, *, once: bool = False, **arguments: Any) -> Any:
        """A call that takes ``timeout=`` there as well; `once`: it must not be done twice."""
        deadline, what = Deadline.given(timeout), f"{method} of table {self._table_name!r}"
        arguments["timeout"] = deadline.left
        return self._far.channel.call(method, arguments, target=self.target, timeout=deadline, what=what, once=once)

    def _insert(self, method: str, timeout: Any, **arguments: Any) -> Array:
        deadline = Deadline.given(timeout)
        if (weights := self._settings.weights) is not None:
            self._far.tell_version(weights, deadline)
        found: Array = self._timed(method, deadline, once=True, **arguments)
        return found

    def _described(self, timeout: Seconds = _CALL) -> dict[str, Any]:
        found: dict[str, Any] = self._call("describe", timeout)
        if found["schema"] is not None:
            self._columns = Schema.from_plain(found["schema"])
        return found

    def is_of(self, session: RemoteSession) -> bool:
        """Whether it is a table of the store that this session reaches."""
        return self._far.channel.welcome.uuid == session.channel.welcome.uuid

    @property
    def settings(self) -> Settings:
        """The settings with which the table was made."""
        return self._settings

    @property
    def described_columns(self) -> Schema | None:
        """The columns, as far as this process knows them."""
        if self._columns is None and not self._settings.opaque:
            self._described()
        return self._columns

    @property
    def name(self) -> str:
        return self._table_name

    @property
    def schema(self) -> dict[str, Any] | None:
        return self._schema(_CALL)

    def _schema(self, timeout: Seconds) -> dict[str, Any] | None:
        self._far.channel.check_open()
        if self._columns is None and not self._settings.opaque:
            self._described(timeout)
        return None if self._settings.opaque or self._columns is None else self._columns.specs()

    @property
    def capacity(self) -> int | None:
        found: int | None = self._described()["capacity"]
        return found

    @property
    def view(self) -> View:
        self._far.channel.check_open()
        return self._settings.view

    @property
    def sampler(self) -> Sampler:
        if not isinstance(self._settings.sampler, Prioritized):
            self._far.channel.check_open()
            return self._settings.sampler
        return sampler_from_plain(self._described()["sampler"])

    def __len__(self) -> int:
        return int(self._call("len"))

    def __repr__(self) -> str:
        return f"<Table {self._table_name!r} of store {self._far.name!r} at {self._far.channel.node}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._far.abroad is not None:
            return self._far.abroad(self._table_name)
        return load_remote_table, (self._far.pickled(), self._table_name)

    # -- writing ------------------------------------------------------------------------------------------------

    def writer(self, *, lanes: int | None = None, autoreset: Any = None) -> RemoteWriter:
        return RemoteWriter(self._far, [self], lanes, autoreset, single=True)

    @_alone
    def insert(self, value: Any, *, priority: float | None = None, timeout: float | None = None) -> Array:
        value = blob(value) if self._settings.opaque else items_travelling(value, several=False)
        return self._insert("insert", timeout, value=value, priority=number_array(priority))

    @_alone
    def extend(self, batch: Any, *, priority: Any = None, timeout: float | None = None) -> Array:
        if self._settings.opaque:
            batch = [blob(each) for each in config.listed("batch", batch, "a list of values")]
        else:
            batch = items_travelling(batch, several=True)
        return self._insert("extend", timeout, batch=batch, priority=number_array(priority))

    # -- reading ------------------------------------------------------------------------------------------------

    def sample(
        self,
        n: int,
        *,
        timeout: float | None = None,
        min_n: int | None = None,
        linger: float | None = None,
        beta: float | None = None,
        columns: str | Iterable[str] | None = None,
        out: Batch | None = None,
        replace: bool = True,
    ) -> Batch:
        return sampled(
            self._far,
            self.target,
            0,
            n,
            timeout=timeout,
            min_n=min_n,
            linger=linger,
            beta=beta,
            columns=columns,
            out=out,
            replace=replace,
        )

    def peek(self, keys: Any, *, columns: str | Iterable[str] | None = None) -> Batch:
        return self._peek(keys, columns, _CALL)

    def _peek(self, keys: Any, columns: str | Iterable[str] | None, timeout: Seconds) -> Batch:
        wanted = {"keys": key_array(keys), "columns": named(columns)}
        whose, channel = f"table {self._table_name!r}", self._far.channel
        message = channel.ask("peek", wanted, target=self.target, timeout=timeout, what=f"peek of {whose}")
        return unpack_batch(message.meta, message.body, trusted=channel.allow_pickle, what=whose)[0]

    def keys(self, start: int = 0, n: int | None = None, *, timeout: float | None = 60) -> Array:
        found: Array = self._timed("keys", timeout, start=start, n=n)
        return found

    def at(self, positions: Any, *, timeout: float | None = 60) -> Array:
        found: Array = self._timed("at", timeout, positions=plain(positions))
        return found

    def positions(self, keys: Any, *, timeout: float | None = 60) -> Array:
        found: Array = self._timed("positions", timeout, keys=key_array(keys))
        return found

    def evicted(self, *, timeout: float | None = 60) -> Iterator[int]:
        number = self._far.channel.client.next_number()
        self._timed("follow_gone", timeout, number=number)
        return _GoneKeys(self, number)

    def incomplete(self, *, timeout: float | None = 60) -> list[IncompleteGroup]:
        view = check_grouped(self._table_name, self.view)
        return listed_incomplete(view, tuple(self._timed("incomplete", timeout)))

    def update(self, keys: Any, values: Any, *, row: int | None = 0, timeout: float | None = 60) -> int:
        return int(self._timed("update", timeout, keys=key_array(keys), values=travelling(values), row=row))

    def update_priorities(self, keys: Any, priorities: Any, *, timeout: float | None = 60) -> int:
        own, given = key_array(keys), host_array(priorities)
        return int(self._timed("update_priorities", timeout, keys=own, priorities=given))

    def delete(self, keys: Any, *, timeout: float | None = 60) -> int:
        return int(self._timed("delete", timeout, once=True, keys=key_array(keys)))

    # -- changing -----------------------------------------------------------------------------------------------

    def reset(self, *, timeout: float | None = 60) -> None:
        self._timed("reset", timeout, once=True)

    def resize(self, capacity: int, *, timeout: float | None = 60) -> None:
        self._timed("resize", timeout, once=True, capacity=capacity)

    def configure(
        self,
        *,
        limiter: Limiter | None = None,
        alpha: float | None = None,
        beta: float | Unchanged | None = UNCHANGED,
        max_staleness: int | Unchanged | None = UNCHANGED,
        timeout: float | None = 60,
    ) -> None:
        changes: dict[str, Any] = {"alpha": alpha, "beta": beta, "max_staleness": max_staleness}
        changes = {name: value for name, value in changes.items() if value is not UNCHANGED}
        if limiter is not None:
            changes["limiter"] = limiter_to_plain(check_limiter(limiter))
        self._timed("configure", timeout, once=True, **changes)

    def finish(self, *, timeout: float | None = 60) -> None:
        self._timed("finish", timeout)

    def stats(self) -> TableStats:
        found: TableStats = self._call("stats")
        return found

    def loader(
        self,
        batch_size: int,
        *,
        prefetch: int = 2,
        device: Any = None,
        pin_memory: bool = False,
        beta: float | Callable[[int], float | None] | None = None,
        columns: str | Iterable[str] | None = None,
        drop_last: bool = False,
        timeout: float | None = None,
        replace: bool = True,
    ) -> Loader:
        source = remote_source(self, columns)
        return Loader(self._far, source, batch_size, prefetch, device, pin_memory, beta, drop_last, timeout, replace)

    def export(self, path: str | os.PathLike[str], *, timeout: float | None = 60) -> Exported:
        raise StoreError(
            f"table {self._table_name!r} is on node {self._far.channel.node}: export() writes where the table is",
            remedy="run it there, with di_store.attach()",
        )


def _no_mixture(call: Callable[[int], Any], deadline: Deadline) -> Any:
    return call(0)


class _GoneKeys:
    """As `GoneKeys`, of a remote table. The agent tells the same turn again, if its answer was lost."""

    def __init__(self, table: RemoteTable, number: int) -> None:
        self._of = table
        self._number = number
        self._turn = 0
        self._left: list[int] = []
        weakref.finalize(self, table._far.channel.client.let_go, number)
        table._far.follow(self, _GoneKeys._close)

    def _close(self, why: StoreError) -> None:
        """The store's handle is closed: the agent may forget it."""
        self._of._far.channel.client.let_go(self._number)

    def __iter__(self) -> _GoneKeys:
        return self

    def __next__(self) -> int:
        if not self._left:
            keys, missed = self._of._call("gone_since", number=self._number, turn=self._turn)
            self._turn, self._left = self._turn + 1, keys[::-1]
            if missed is not None:
                raise StoreError(f"{missed[0]} [node {self._of._far.channel.node}]", remedy=missed[1])
        if not self._left:
            raise StopIteration
        return self._left.pop()


def session_of(table: RemoteTable) -> RemoteSession:
    """The session through which a table reaches its store."""
    return table._far


def stats_within(table: Table, timeout: Seconds) -> TableStats:
    """`Table.stats`, with a deadline for a table elsewhere."""
    if not isinstance(table, RemoteTable):
        return table.stats()
    found: TableStats = table._call("stats", timeout)
    return found


def schema_within(table: Table, timeout: Seconds) -> dict[str, Any] | None:
    """`Table.schema`, as in `stats_within`."""
    return table._schema(timeout) if isinstance(table, RemoteTable) else table.schema


def peek_within(table: Table, keys: Array, columns: str | Iterable[str] | None, timeout: Seconds) -> Batch:
    """`Table.peek`, as in `stats_within`."""
    return table._peek(keys, columns, timeout) if isinstance(table, RemoteTable) else table.peek(keys, columns=columns)


def writer_within(table: Table, timeout: Seconds, lanes: int | None, autoreset: Any) -> Writer:
    """`Table.writer`, with a deadline for a table elsewhere. None: as long as `writer` takes."""
    if not isinstance(table, RemoteTable):
        return table.writer(lanes=lanes, autoreset=autoreset)
    return RemoteWriter(table._far, [table], lanes, autoreset, single=True, timeout=timeout)


def remote_source(table: RemoteTable, columns: Any) -> RemoteSource:
    """The source of a loader over the table."""
    return RemoteSource(table._far, table.target, _no_mixture, f"table {table.name!r}", named(columns))


def create_remote(
    session: RemoteSession, name: str, settings: Settings, exist_ok: bool, timeout: Seconds
) -> RemoteTable:
    """`Store.create_table` with checked settings."""
    deadline = Deadline.given(timeout)
    arguments = {"name": name, "settings": settings.to_text(), "exist_ok": exist_ok, "timeout": deadline.left}
    made = session.call("create_table", arguments, timeout=deadline, what=f"create_table({name!r})", once=True)
    return RemoteTable(session, made)


def open_remote(
    session: RemoteSession, name: str, timeout: float | None, answer: Deadline | None = None
) -> RemoteTable:
    """The table of that name, as `open_table`. `answer`: time limit for the answer, if it differs from `timeout`."""
    arguments = {"name": check_table_name(name), "timeout": check_timeout(timeout)}
    given = arguments["timeout"] if answer is None else answer
    return RemoteTable(session, session.call("table", arguments, timeout=given, what=f"table {name!r}"))


def load_remote_table(pickled: Any, name: str) -> RemoteTable:
    """Unpickle a table, in the process that loads it."""
    session = RemoteSession.of(pickled)
    try:
        return open_remote(session, name, 0)
    except BaseException:  # also Ctrl-C: no handle is returned that would end it
        session.close()
        raise
