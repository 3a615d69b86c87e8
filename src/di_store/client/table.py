"""A table of a remote store: every call is one round trip to the agent."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from di_store._core import LeaseEnd
from di_store.base import config
from di_store.base.dtypes import Array
from di_store.base.errors import StoreError
from di_store.base.lacks import Lack
from di_store.client.arguments import blob, items_travelling, named, number_array, plain, travelling
from di_store.client.channel import Seconds
from di_store.client.drawing import RemoteSource, sampled
from di_store.client.session import RemoteSession
from di_store.client.turns import refusing_calls_inside
from di_store.client.writer import RemoteWriter
from di_store.columns.schema import Schema
from di_store.layout.shape import UNLIMITED
from di_store.policy.changes import UNCHANGED
from di_store.policy.limiters import limiter_to_plain
from di_store.policy.samplers import Prioritized, Sampler, sampler_from_plain
from di_store.policy.settings import Settings
from di_store.protocol.batches import unpack_batch
from di_store.protocol.handshake import REASONS
from di_store.replay.batch import Batch
from di_store.replay.incomplete import Found
from di_store.replay.inserter import INSIDE, LATER
from di_store.replay.keys import GoneKey
from di_store.replay.laws import NO_LAWS
from di_store.replay.local_table import load_lease
from di_store.replay.sampling import Terms
from di_store.replay.stats import TableStats
from di_store.replay.table import Table
from di_store.replay.table_backend import TableBackend
from di_store.runtime.deadline import Deadline

_CALL = 60.0
_alone = refusing_calls_inside(INSIDE, LATER)

_ENDS = {LeaseEnd.ACKNOWLEDGED: "ack", LeaseEnd.DROPPED: "ack_uncounted", LeaseEnd.RETURNED: "give_back"}
"""The calls that end leases."""


class RemoteTable(TableBackend):
    """A table that an agent serves."""

    lacks: ClassVar = {
        "export": Lack("writes where the table is", "run it there, with di_store.attach()"),
        **NO_LAWS,
    }

    places = 0

    def __init__(self, session: RemoteSession, described: dict[str, Any]) -> None:
        self._session = session
        self.name = str(described["name"])
        self.target = self.name, str(described["identity"])
        self._settings = Settings.from_text(described["settings"])
        self._columns = None if described["schema"] is None else Schema.from_plain(described["schema"])
        session.follow(self, RemoteTable._close)

    def _close(self, why: StoreError) -> None:
        """The store's handle is closed: the channel refuses all calls."""

    def _call(self, method: str, timeout: Seconds = _CALL, **arguments: Any) -> Any:
        """A call without a timeout of its own."""
        what = f"{method} of table {self.name!r}"
        return self._session.channel.call(method, arguments, target=self.target, timeout=timeout, what=what)

    def _timed(self, method: str, deadline: Deadline, *, once: bool = False, **arguments: Any) -> Any:
        """A call with ``timeout=`` also at the agent; `once`: the call must not run twice."""
        what = f"{method} of table {self.name!r}"
        arguments["timeout"] = deadline.left
        return self._session.channel.call(method, arguments, target=self.target, timeout=deadline, what=what, once=once)

    def _insert(self, method: str, deadline: Deadline, **arguments: Any) -> Array:
        if (weights := self._settings.weights) is not None:
            self._session.tell_version(weights, deadline)
        found: Array = self._timed(method, deadline, once=True, **arguments)
        return found

    def _described(self, timeout: Seconds = _CALL) -> dict[str, Any]:
        found: dict[str, Any] = self._call("describe", timeout)
        if found["schema"] is not None:
            self._columns = Schema.from_plain(found["schema"])
        return found

    @property
    def session(self) -> RemoteSession:
        return self._session

    @property
    def settings(self) -> Settings:
        self._session.channel.check_open()
        return self._settings

    @property
    def identity(self) -> str:
        return self.target[1]

    def is_of(self, session: RemoteSession) -> bool:
        """Whether this is a table of the session's store."""
        return self._session.channel.welcome.uuid == session.channel.welcome.uuid

    def shown(self) -> str:
        return f"{self.name!r} of store {self._session.name!r} at {self._session.channel.node}"

    def where(self) -> str:
        return f"is on node {self._session.channel.node}"

    def pickled(self) -> tuple[Any, ...]:
        if self._session.abroad is not None:
            return self._session.abroad(self.name)
        return load_remote_table, (self._session.pickled(), self.name)

    def pickled_lease(self, number: int, keys: Array) -> tuple[Any, ...]:
        return load_lease, (*self.pickled(), number, keys)

    # -- what it is like ----------------------------------------------------------------------------------------

    def schema(self, deadline: Deadline | None = None) -> Schema | None:
        settings = self.settings
        if self._columns is None and not settings.opaque:
            self._described(deadline or _CALL)
        return None if settings.opaque else self._columns

    def capacity(self) -> int | None:
        found: int | None = self._described()["capacity"]
        return found

    def sampler(self) -> Sampler:
        sampler = self.settings.sampler
        return sampler_from_plain(self._described()["sampler"]) if isinstance(sampler, Prioritized) else sampler

    def size(self) -> int:
        return int(self._call("len"))

    def stats(self, deadline: Deadline | None = None) -> TableStats:
        found: TableStats = self._call("stats", deadline or _CALL)
        return found

    # -- writing ------------------------------------------------------------------------------------------------

    def writer(self, lanes: int | None, autoreset: Any, deadline: Deadline | None = None) -> RemoteWriter:
        return RemoteWriter(self._session, [self], lanes, autoreset, single=True, timeout=deadline)

    @_alone
    def insert(self, value: Any, priority: Any, deadline: Deadline) -> Array:
        value = blob(value) if self._settings.opaque else items_travelling(value, several=False)
        return self._insert("insert", deadline, value=value, priority=number_array(priority))

    @_alone
    def extend(self, batch: Any, priority: Any, deadline: Deadline) -> Array:
        if self._settings.opaque:
            batch = [blob(each) for each in config.listed("batch", batch, "a list of values")]
        else:
            batch = items_travelling(batch, several=True)
        return self._insert("extend", deadline, batch=batch, priority=number_array(priority))

    # -- reading ------------------------------------------------------------------------------------------------

    def sample(
        self, found: Any, terms: Terms, beta: float | None, columns: str | Iterable[str] | None, out: Batch | None
    ) -> Batch:
        return sampled(self, 0, terms, beta, columns, out)

    def peek(self, keys: Array, columns: str | Iterable[str] | None, deadline: Deadline | None = None) -> Batch:
        whose, channel = f"table {self.name!r}", self._session.channel
        wanted = {"keys": keys, "columns": named(columns)}
        message = channel.ask("peek", wanted, target=self.target, timeout=deadline or _CALL, what=f"peek of {whose}")
        return unpack_batch(message.meta, message.body, trusted=channel.allow_pickle, what=whose)[0]

    def source(self, columns: str | Iterable[str] | None, timeout: float | Deadline | None = None) -> RemoteSource:
        return RemoteSource(self, _no_mixture, f"table {self.name!r}", named(columns))

    def keys(self, start: int, n: int, deadline: Deadline) -> Array:
        found: Array = self._timed("keys", deadline, start=start, n=None if n == UNLIMITED else n)
        return found

    def at(self, positions: Any, deadline: Deadline) -> Array:
        found: Array = self._timed("at", deadline, positions=plain(positions))
        return found

    def positions(self, keys: Array, deadline: Deadline) -> Array:
        found: Array = self._timed("positions", deadline, keys=keys)
        return found

    def evicted(self, deadline: Deadline) -> Iterator[GoneKey]:
        number = self._session.channel.client.next_number()
        self._timed("follow_gone", deadline, number=number)
        return _GoneKeys(self, number)

    def incomplete(self, deadline: Deadline) -> Found:
        found: Found = tuple(self._timed("incomplete", deadline))
        return found

    # -- changing -----------------------------------------------------------------------------------------------

    def update(self, keys: Array, values: Any, row: Any, deadline: Deadline, lease: int | None = None) -> int:
        given = {"keys": keys, "values": travelling(values), "row": row}
        if lease is None:
            return int(self._timed("update", deadline, **given))
        return int(self._timed("update", deadline, once=True, lease=lease, **given))

    def end_leases(self, keys: Array, number: int, how: LeaseEnd, deadline: Deadline) -> int:
        return int(self._timed(_ENDS[how], deadline, once=True, keys=keys, number=number))

    def extend_leases(self, keys: Array, number: int, seconds: float, deadline: Deadline) -> int:
        return int(self._timed("extend_lease", deadline, keys=keys, number=number, seconds=seconds))

    def update_priorities(self, keys: Array, priorities: Array, deadline: Deadline) -> int:
        return int(self._timed("update_priorities", deadline, keys=keys, priorities=priorities))

    def delete(self, keys: Array, deadline: Deadline) -> int:
        return int(self._timed("delete", deadline, once=True, keys=keys))

    def reset(self, deadline: Deadline) -> None:
        self._timed("reset", deadline, once=True)

    def resize(self, capacity: int, deadline: Deadline) -> None:
        self._timed("resize", deadline, once=True, capacity=capacity)

    def configure(self, changes: dict[str, Any], deadline: Deadline) -> None:
        given = {name: value for name, value in changes.items() if value is not UNCHANGED}
        if (limiter := given["limiter"]) is not None:
            given["limiter"] = limiter_to_plain(limiter)
        self._timed("configure", deadline, once=True, **given)

    def finish(self, deadline: Deadline) -> None:
        self._timed("finish", deadline)


def _no_mixture(call: Callable[[int], Any], deadline: Deadline) -> Any:
    return call(0)


class _GoneKeys:
    """As `GoneKeys`, of a remote table. If the agent's answer was lost, the agent repeats it."""

    def __init__(self, table: RemoteTable, number: int) -> None:
        self._of = table
        self._number = number
        self._turn = 0
        self._left: list[GoneKey] = []
        weakref.finalize(self, table.session.channel.client.let_go, number)
        table.session.follow(self, _GoneKeys._close)

    def _close(self, why: StoreError) -> None:
        """Called when the store's handle is closed: the agent may forget the table."""
        self._of.session.channel.client.let_go(self._number)

    def __iter__(self) -> _GoneKeys:
        return self

    def __next__(self) -> GoneKey:
        if not self._left:
            tells = self._of.session.channel.client.protocol >= REASONS
            call = "gone_with_reasons" if tells else "gone_since"
            keys, missed, *reasons = self._of._call(call, number=self._number, turn=self._turn)
            each = reasons[0] if reasons else [""] * len(keys)
            self._turn, self._left = self._turn + 1, [*map(GoneKey, keys, each)][::-1]
            if missed is not None:
                raise StoreError(f"{missed[0]} [node {self._of.session.channel.node}]", remedy=missed[1])
        if not self._left:
            raise StopIteration
        return self._left.pop()


def create_remote(
    session: RemoteSession, name: str, settings: Settings, exist_ok: bool, timeout: Seconds
) -> RemoteTable:
    """`Store.create_table` with checked settings."""
    deadline = Deadline.of(timeout)
    arguments = {"name": name, "settings": settings.to_text(), "exist_ok": exist_ok, "timeout": deadline.left}
    made = session.call("create_table", arguments, timeout=deadline, what=f"create_table({name!r})", once=True)
    return RemoteTable(session, made)


def open_remote(session: RemoteSession, name: str, deadline: Deadline, wait: float | None = None) -> RemoteTable:
    """The table of that name. `wait`: seconds to wait for the table, if this differs from the time for the answer."""
    arguments = {"name": name, "timeout": deadline.left if wait is None else wait}
    return RemoteTable(session, session.call("table", arguments, timeout=deadline, what=f"table {name!r}"))


def load_remote_table(pickled: Any, name: str) -> Table:
    """Unpickle a table, in the process that loads it."""
    session = RemoteSession.of(pickled)
    try:
        return Table(open_remote(session, name, Deadline(0)))
    except BaseException:  # also Ctrl-C: no handle is returned that would end it
        session.close()
        raise
