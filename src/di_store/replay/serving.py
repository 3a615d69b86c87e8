"""Calls on tables for agents only, which serve clients on other machines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import WriterClosed
from di_store.columns.schema import Schema
from di_store.policy.options import check_table_name
from di_store.policy.settings import Settings
from di_store.replay.handle import TableHandle
from di_store.replay.local_mixture import LocalMixture
from di_store.replay.local_table import LocalTable
from di_store.replay.local_writer import LocalWriter
from di_store.replay.mixture import Mixture
from di_store.replay.mixture import backend_of as mixture_backend_of
from di_store.replay.prefetch import DrawSource
from di_store.replay.table import Table, backend_of
from di_store.replay.tables import Tables
from di_store.replay.writer import Writer
from di_store.replay.writer import backend_of as writer_backend_of
from di_store.session import Session

Made: TypeAlias = "tuple[Array, Array, Array]"
"""Keys, lanes and starts of the items that a call has made in a table."""


def local_of(table: Table) -> LocalTable:
    """A table in this process's memory."""
    found = backend_of(table)
    assert isinstance(found, LocalTable)
    return found


def handle_of(table: Table) -> TableHandle:
    """The table as this process sees it; `StoreClosed` if its store's handle is closed."""
    return local_of(table).open()


def is_dropped(table: Table) -> bool:
    """Whether the table was dropped, so that only this handle remains."""
    return not handle_of(table).native.live


def identities_of(drawn: Mixture) -> dict[str, str]:
    """The identities of its tables, by name."""
    return {table.name: table.identity for table in tables_of(drawn)}


def keep_encoded(drawn: Table | Mixture) -> None:
    """Let later batches of this handle hold the values of `Opaque` tables as bytes and their ends."""
    for table in tables_of(drawn):
        table.open().keeps_encoded = True


def tables_of(drawn: Table | Mixture) -> list[LocalTable]:
    """The table, or the tables of the mixture."""
    if isinstance(drawn, Table):
        return [local_of(drawn)]
    found = mixture_backend_of(drawn)
    assert isinstance(found, LocalMixture)
    return found.tables


def source_of(drawn: Table | Mixture, columns: str | Iterable[str] | None) -> DrawSource:
    """The source of a loader over this table or mixture."""
    if isinstance(drawn, Table):
        return local_of(drawn).source(columns)
    return mixture_backend_of(drawn).source(columns)


def uses_items_up(drawn: Table | Mixture) -> bool:
    """`Settings.uses_items_up`, for a table or any table of a mixture."""
    return any(table.settings.uses_items_up for table in tables_of(drawn))


def settle(session: Session, name: str, settings: Settings, exist_ok: bool, timeout: float | None) -> LocalTable:
    """`Store.create_table` with checked settings."""
    session.check_writable()
    return Tables(session).settle(check_table_name(name), settings, exist_ok, timeout)


def open_writer(
    session: Session, tables: list[Table], lanes: int | None, autoreset: Any, marked: bytes, *, single: bool
) -> Writer:
    """`Table.writer` and `Store.writer`, for a session whose calls are counted (`begin_call`)."""
    session.check_writable()
    handles = [local_of(table).writable() for table in tables]
    return Writer(LocalWriter(session, handles, lanes, autoreset, single=single, marked=marked))


def _local(writer: Writer) -> LocalWriter:
    found = writer_backend_of(writer)
    assert isinstance(found, LocalWriter)
    return found


def begin_call(writer: Writer, seq: int) -> None:
    """Begin call number `seq` of the writer's session."""
    _local(writer).begin_call(seq)


def append_rows(
    writer: Writer,
    form: _core.RowForm,
    body: Array,
    at: int,
    count: int,
    seq: int,
    lane: Any,
    priority: Any,
    order: Any,
) -> _core.RowsMade:
    """`Writer.append` for calls whose values lie in `body` from `at` on, until a call has to wait or is refused.

    Args:
        writer: writer of the session.
        form: form of the calls.
        body: uint8.
        at: offset of the first call's values.
        count: number of calls.
        seq: number of the first call.
        lane: lane of all calls.
        priority: priority of each call.
        order: by table of the client, its place among the writer's tables.
    """
    own = _local(writer)
    stream = own.open()
    stream.take_versions()
    priority = own.by_table(priority)
    found = stream.opened().append_rows(form, body, at, count, seq, lane, priority, order)
    own.count(found.calls)
    return found


class RowService:
    """Makes the rows of a remote writer directly from its socket, without the interpreter."""

    def __init__(self, writer: Writer, order: list[int]) -> None:
        """Set the state; `order` as in `append_rows`."""
        self._writer = _local(writer)
        self._native = _core.RowService(self._writer.open().opened(), order)

    def learn(self, text: bytes, form: _core.RowForm, lane: Any) -> None:
        """Make calls of this form from now on. `text`: the form in a message. Known or large forms are ignored."""
        self._native.learn(self._writer.open().opened(), text, form, lane)

    def serve(self, incoming: _core.Incoming, socket: int, most_bytes: int, done: int, epoch: int) -> _core.Served:
        """Make rows until another kind of message arrives.

        Args:
            incoming: buffer of the connection.
            socket: its file descriptor.
            most_bytes: largest body that is accepted.
            done: number of the last call that was made.
            epoch: epoch of the session.
        """
        stream = self._writer.open()
        stream.take_versions()
        found = self._native.serve(incoming, socket, most_bytes, done, epoch)
        self._writer.count(found.calls)
        return found


def append_later(writer: Writer, blocked: _core.Blocked, step: Any, next: Any, lane: Any, priority: Any) -> list[Made]:
    """Make the call at which `append_rows` has stopped, once it can be made."""
    own = _local(writer)
    stream, priority = own.open(), own.by_table(priority)
    found: list[Made] = stream.finish_waiting("append", blocked, None, stream.again, step, next, None, lane, priority)
    return found


def names_of(writer: Writer) -> list[str]:
    """Names of its tables, in the order of its calls' results."""
    return list(_local(writer).names)


def abandon(writer: Writer) -> None:
    """End a writer whose client has ended: open episodes make no more items, as after a kill of its process."""
    writer._end(WriterClosed("the client of this writer has gone"), idle=True)


def columns_of(writer: Writer) -> Schema | None:
    """The columns of its rows; None: they are not declared yet, or the table is opaque."""
    stream = _local(writer).stream
    return None if stream is None or stream.opaque else stream.schema
