"""Writers of clients. A session outlives its connection: a client that reconnects continues where it stopped."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from di_store._core import RowsMade, Stopped
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, StoreError
from di_store.policy.views import Opaque
from di_store.protocol.connection import Disconnected, Message
from di_store.protocol.frame import Buffer, Kind, view
from di_store.protocol.handshake import decoded
from di_store.protocol.rows import Acknowledgement, CallRun, Record, Records, RowReader
from di_store.protocol.values import Call, answer_of, failure_of
from di_store.replay.batch import Items
from di_store.replay.serving import (
    RowService,
    abandon,
    append_later,
    append_rows,
    begin_call,
    columns_of,
    names_of,
    open_writer,
)
from di_store.replay.writer import Writer
from di_store.runtime import waits
from di_store.server.conversation import Cancelled, Conversation
from di_store.server.peer import Peer

KEPT_SECONDS = 30.0
"""How long a writer waits for its client to come back."""
MAX_KEPT = 4096
"""The most acknowledgements kept for a client that has not received them; its window is far smaller."""
_AT_ONCE = 256  # rows that the core makes without looking for another thread


class WriterSession:
    """One writer of a client. It runs in one thread, which takes over the client's connections.

    Attributes:
        session: 16 bytes that name the writer.
    """

    def __init__(self, peer: Peer, session: bytes) -> None:
        self.session = session
        self._peer = peer
        self._writer: Writer | None = None
        self._names: list[str] = []
        self._single = True
        self._order: list[int] = []  # of the client's tables among the writer's
        self._opaque = False
        self._rows: RowReader | None = None
        self._service: RowService | None = None
        self._done = 0  # the last call that was looked at
        self._last = 0  # the one that is being made
        self._epoch = 0
        self._acknowledged: deque[tuple[int, bytes, Sequence[Buffer]]] = deque(maxlen=MAX_KEPT)
        self._connections: queue.SimpleQueue[tuple[Conversation, Message] | None] = queue.SimpleQueue()
        self._talk: Conversation | None = None

    # -- its life -----------------------------------------------------------------------------------------------

    def hand_over(self, talk: Conversation, message: Message) -> None:
        """Hand over a new connection of the client, which has reconnected and continues."""
        if (old := self._talk) is not None:
            old.connection.end()
        self._connections.put((talk, message))

    def end(self) -> None:
        """End the session of a client that will not reconnect."""
        self._connections.put(None)
        if (old := self._talk) is not None:
            old.connection.end()

    def serve(self, talk: Conversation, message: Message) -> None:
        """Make the writer's calls until it is closed, or its client has been disconnected for too long."""
        closed = False
        try:
            while True:
                self._talk = talk
                try:
                    if self._serve_on(talk, message):
                        closed = True
                        return
                except (Disconnected, Cancelled, CorruptData):
                    pass
                finally:
                    self._talk = None
                    talk.leave()
                try:
                    found = self._connections.get(timeout=KEPT_SECONDS)
                except queue.Empty:
                    return
                if found is None:
                    return
                talk, message = found
        finally:
            with _lock:
                self._peer.writers.pop(self.session, None)
            self._close()
            if closed:
                with contextlib.suppress(StoreError):
                    self._peer.session.arena.end_session(self.session, waits.CALL_SECONDS)
            while not self._connections.empty():  # who came back just now comes back once more, to a new session
                if (late := self._connections.get()) is not None:
                    late[0].leave()

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(StoreError):  # the store is gone, and the writer with it
                abandon(writer)

    def _serve_on(self, talk: Conversation, message: Message) -> bool:
        """Serve one connection. True: the writer is closed."""
        self._begin(talk, message)
        while True:
            self._serve_rows(talk)
            message = talk.connection.receive()
            self._peer.heard = time.monotonic()
            if message.kind == Kind.APPEND:
                self._append(talk, message)
            elif message.kind == Kind.CALL:
                if self._call(talk, message):
                    return True
            else:
                raise CorruptData(f"expected a call of a writer, got a message of kind {message.kind}", remedy="")

    def _begin(self, talk: Conversation, message: Message) -> None:
        """Answer the call that opens the writer or asks to continue with it."""
        call = decoded(Call, message.meta)
        fresh = self._writer is None
        marks: dict[str, Any] = {}
        try:
            given = call.arguments(message.body)
            versions = self._peer.session.versions
            for name, version in given.get("versions", {}).items():  # rows that are sent again carry them
                versions[name] = max(version, versions.get(name, -1))
            if self._writer is None:
                self._names, self._single = list(given["tables"]), bool(given["single"])
                identities = given.get("identities", [""] * len(self._names))
                tables = [self._peer.handles.table(*each) for each in zip(self._names, identities, strict=True)]
                self._opaque = any(isinstance(table.view, Opaque) for table in tables)
                self._writer = open_writer(
                    self._peer.session, tables, given["lanes"], given["autoreset"], self.session, single=self._single
                )
                self._order = [names_of(self._writer).index(name) for name in self._names]
                # Behind the claim of the new writer: an agent that was only stopped cannot go on after it.
                marks = {} if given["begins"] else self._marks()
            found = {"fresh": fresh, "done": self._done, "epoch": self._epoch, "marks": marks, "schema": self._schema()}
            meta, body = answer_of(found, talk.warned())
        except Exception as error:  # whatever the call raises is the client's to see
            meta = failure_of(error, talk.warned())
            talk.connection.send(Kind.ERROR, request=message.request, meta=meta)
            raise Disconnected("the writer cannot be opened") from None
        talk.connection.send(Kind.ANSWER, request=message.request, meta=meta, body=body)
        self._let_go(given["acknowledged"])
        for _, meta, buffers in list(self._acknowledged):
            talk.connection.send(Kind.ACKNOWLEDGE, meta=meta, body=buffers)

    def _marks(self) -> dict[str, Any]:
        """The progress that a killed agent recorded for this session, by table."""
        return {name: list(mark) for name, mark in self._peer.session.arena.session_marks(self.session).items()}

    def _schema(self) -> Any:
        """The columns of its rows, once they are declared; then rows may come without types."""
        assert self._writer is not None
        schema = columns_of(self._writer)
        if schema is None:
            return None
        self._rows = self._rows or RowReader(schema)
        return schema.to_plain()

    # -- calls --------------------------------------------------------------------------------------------------

    def _call(self, talk: Conversation, message: Message) -> bool:
        """A call that the client waits for: of any form, or with a timeout. True: the writer is closed."""
        call = decoded(Call, message.meta)
        if call.method == "note_version":
            talk.make(message)
            return False
        assert self._writer is not None
        talk.check_client()
        closes, seq = call.method == "close", 0
        try:
            given = call.arguments(message.body)
            seq = int(given.pop("seq"))
            if seq <= self._done:  # the answer was lost on its way
                meta, body = answer_of(self._answered(seq), [])
                talk.connection.send(Kind.ANSWER, request=message.request, meta=meta, body=body)
                return closes
            for argument in ("step", "steps"):
                if self._opaque and argument in given:
                    given[argument] = self._peer.blobs(given[argument])
            with waits.Watched(talk.still_waits):
                begin_call(self._writer, seq)
                made = getattr(self._writer, _method(call.method))(**given)
        except (Disconnected, Cancelled):
            raise
        except Exception as error:  # whatever the call raises is the client's to see
            if closes:
                self._done = max(seq, self._done)
            meta = failure_of(error, talk.warned())
            talk.connection.send(Kind.ERROR, request=message.request, meta=meta)
            return closes
        self._done = seq
        every = self._by_table(made)
        self._keep(seq, [every])
        found = {"items": every, "schema": None if closes else self._schema()}
        meta, body = answer_of(found, talk.warned())
        talk.connection.send(Kind.ANSWER, request=message.request, meta=meta, body=body)
        return closes

    def _answered(self, seq: int) -> Any:
        for last, meta, buffers in self._acknowledged:
            if last == seq:
                raw = b"".join(bytes(view(each)) for each in buffers)
                return {
                    "items": decoded(Acknowledgement, meta).made(np.frombuffer(raw, np.uint8)).of(0),
                    "schema": None,
                }
        return {"items": [], "schema": None}

    def _by_table(self, made: Any) -> list[tuple[Array, Array, Array]]:
        """Keys, lanes and starts of a call's items, for each table of the writer."""
        if made is None:
            return []
        every = [made] if isinstance(made, Items) else [made[name] for name in self._names]
        return [(items.keys, items.lanes, items.starts) for items in every]

    def _serve_rows(self, talk: Conversation) -> None:
        """Make rows in the core until another message arrives."""
        while (service := self._service) is not None and (source := talk.connection.in_core) is not None:
            served = service.serve(*source, self._done, self._epoch)
            self._peer.heard = time.monotonic()
            self._done = served.done
            self._acknowledged += served.kept
            self._let_go(served.acknowledged)
            if served.why == Stopped.ROWS:
                self._append(talk, Message(Kind.APPEND, 0, 0, served.meta, served.body), served.take_made())
            elif served.why == Stopped.TORN:
                raise Disconnected("the received bytes are not a message, or end in the middle of one")
            elif served.why == Stopped.OTHER:
                return

    def _learn(self, record: Record, run: CallRun) -> None:
        """Have calls of this form made in the core from now on."""
        if record.method != "append" or record.priority is not None or run.plan.form is None:
            return
        assert self._writer is not None
        self._service = self._service or RowService(self._writer, self._order)
        self._service.learn(record.text(), run.plan.form, record.lane_array())

    def _append(self, talk: Conversation, message: Message, begun: RowsMade | None = None) -> None:
        """Make calls that the client does not wait for, one by one as on the client's machine.

        `begun`: the results of the first calls, and the reason why the next call was not made.
        """
        records = decoded(Records, message.meta)
        rows, writer = self._rows, self._writer
        if rows is None or writer is None:
            raise CorruptData("received rows for a writer without columns", remedy="")
        at, self._last, failure = 0, 0, b""
        made: list[Any] = [begun] if begun is not None and begun.calls else []
        self._let_go(records.acknowledged)
        talk._told = time.monotonic()
        try:
            with waits.Watched(talk.still_waits):
                for record in records.records:
                    run = rows.find(record, message.body, at)
                    at = run.end
                    self._last = record.seq + run.total - 1
                    if self._last > self._done and records.epoch >= self._epoch:
                        self._make(writer, record, run, made, begun)
                        begun = None
                        if talk.connection.in_core is not None:
                            self._learn(record, run)
        except (Disconnected, Cancelled, CorruptData):
            if made:
                self._keep(self._done, made)
            raise
        except Exception as error:  # whatever a call raises is the client's to see
            failure = failure_of(error, talk.warned())
            self._done = self._last
            self._epoch += 1
        meta, buffers = self._keep(self._last, made, failure, talk.warned())
        talk.connection.send(Kind.ACKNOWLEDGE, meta=meta, body=buffers)

    def _make(self, writer: Writer, record: Record, run: CallRun, made: list[Any], begun: RowsMade | None) -> None:
        """Make the calls of a record, some of which may be done already, and add their results."""
        first = max(0, self._done + 1 - record.seq)
        if record.method == "append" and run.plan.form is not None:
            self._make_rows(writer, record, run, first, made, begun)
            return
        for self._last, given in enumerate(run.calls(first), record.seq + first):
            begin_call(writer, self._last)
            made.append(self._by_table(_made(writer, record, given)))
            self._done = self._last

    def _make_rows(
        self, writer: Writer, record: Record, run: CallRun, first: int, made: list[Any], begun: RowsMade | None
    ) -> None:
        """The same in the core, which makes all rows except those that have to wait."""
        lane, form = record.lane_array(), run.plan.form
        assert form is not None
        while first < run.total:
            self._last = record.seq + first
            if begun is None:
                count = min(_AT_ONCE, run.total - first)
                begun = append_rows(
                    writer, form, run.body, run.place(first), count, self._last, lane, record.priority, self._order
                )
                if begun.calls:
                    made.append(begun)
                    first += begun.calls
                    self._done = record.seq + first - 1
                    self._last = record.seq + min(first, run.total - 1)
            rows, begun = begun, None
            if (blocked := rows.blocked) is None:
                rows.check()  # raises what this call has raised
                continue
            given = next(run.calls(first))
            every = append_later(writer, blocked, given["step"], given.get("next"), lane, record.priority)
            made.append([every[place] for place in self._order])
            self._done = self._last
            first += 1

    def _let_go(self, acknowledged: int) -> None:
        """Note that the client has these acknowledgements."""
        while self._acknowledged and self._acknowledged[0][0] <= acknowledged:
            self._acknowledged.popleft()

    def _keep(
        self, last: int, made: list[Any], failure: bytes = b"", told: list[str] | None = None
    ) -> tuple[bytes, list[Buffer]]:
        """Keep an acknowledgement until the client confirms that it has received it."""
        found = Acknowledgement.of(last, self._epoch, made, failure, told or [])
        self._acknowledged.append((last, *found))
        return found


def _made(writer: Writer, record: Record, rows: dict[str, Any]) -> Any:
    """Make one call of a writer."""
    if record.method == "append":
        return writer.append(**rows, lane=record.lane_array(), priority=record.priority)
    if record.method == "extend":
        return writer.extend(**rows, lane=record.lane_array(), priority=record.priority)
    if record.method == "end_episode":
        return writer.end_episode(**rows, lane=record.lane_array(), discard=record.discard)
    raise CorruptData(f"received an unknown call {record.method!r} for a writer", remedy="")


def _method(name: str) -> str:
    if name not in ("append", "extend", "end_episode", "close"):
        raise TypeError(f"a writer has no call {name!r}: is the agent older than this client?")
    return name


_lock = threading.Lock()


def serve_writer(talk: Conversation, message: Message) -> None:
    """Serve the connection of a writer, in the thread that already served this writer if there is one."""
    call = decoded(Call, message.meta)
    if call.method != "open_writer":
        raise CorruptData("received a call for a writer that was not opened", remedy="")
    session = call.arguments(message.body)["session"]
    if not isinstance(session, bytes) or len(session) != 16:
        raise CorruptData("received a writer without a session", remedy="")
    with _lock:
        known = talk.peer.writers.get(session)
        if known is not None:
            known.hand_over(talk, message)
        else:
            made = talk.peer.writers[session] = WriterSession(talk.peer, session)
    if known is None:
        made.serve(talk, message)
    else:
        talk.ended.wait()
