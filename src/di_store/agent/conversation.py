"""One connection of a client: reads calls, makes them, answers. One thread each."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable

import msgspec

from di_store.agent import calls, streams
from di_store.agent.batches import BATCH_CALLS
from di_store.agent.peer import Peer
from di_store.base.errors import CorruptData
from di_store.runtime import waits
from di_store.wire.connection import Connection, Disconnected, Message
from di_store.wire.frame import Kind
from di_store.wire.handshake import decoded
from di_store.wire.values import Call, Waiting, answer_of, failure_of

TELL_SECONDS = 1.0
"""How often a client hears that its call still waits."""


class Cancelled(Exception):
    """The client of a call that waits has gone."""


class Conversation:
    """The calls of one connection."""

    def __init__(
        self, connection: Connection, peer: Peer, warned: Callable[[], list[str]], left: Callable[[], None]
    ) -> None:
        """Begin.

        Args:
            connection: after the handshake.
            peer: the client process.
            warned: takes the texts of warnings that this thread has raised since the last call.
            left: called once when the connection has ended.
        """
        self._left: Callable[[], None] | None = left
        self.ended = threading.Event()
        self.connection = connection
        self.peer = peer
        self.role = ""
        self.warned = warned
        self._told = 0.0
        self._request = 0
        self._poll = select.poll()
        self._poll.register(connection.fileno(), getattr(select, "POLLRDHUP", 0))

    def leave(self) -> None:
        """The connection has ended. A second call does nothing."""
        left, self._left = self._left, None
        if left is not None:
            self.connection.close()
            left()
            self.ended.set()

    def run(self) -> None:
        """Make calls until the client goes."""
        try:
            while True:
                message = self.connection.receive()
                self.peer.heard = time.monotonic()
                if message.kind == Kind.PING:
                    self.connection.send(Kind.PONG, request=message.request)
                elif message.kind == Kind.CALL:
                    self.make(message)
                else:
                    raise CorruptData(f"a call was due, a message of kind {message.kind} came", remedy="")
        finally:
            self.peer.give_back_of(self)

    def make(self, message: Message) -> None:
        """Make one call and answer it."""
        call = decoded(Call, message.meta)
        if call.once and (known := self.peer.answered(message.request)) is not None:
            kind, meta, body = known
            self.connection.send(Kind(kind), request=message.request, meta=meta, body=body)
            return
        self.check_client()
        self._request, self._told = message.request, time.monotonic()
        try:
            arguments = call.arguments(message.body)
            with waits.watched(self.still_waits):
                if call.method in streams.STREAM_CALLS:
                    kind, meta, body = streams.STREAM_CALLS[call.method](self, arguments)
                elif call.method in BATCH_CALLS:
                    kind, meta, body = BATCH_CALLS[call.method](self, call.target, arguments)
                else:
                    result = calls.run(self.peer, call.method, call.target, arguments)
                    kind = Kind.ANSWER
                    meta, body = answer_of(result, self.warned())
        except (Disconnected, Cancelled):
            raise
        except Exception as error:  # whatever the call raises is the client's to see
            kind, meta, body = Kind.ERROR, failure_of(error, self.warned()), []
        if call.once:
            self.peer.note_answer(message.request, kind, meta, body)
        self.connection.send(kind, request=message.request, meta=meta, body=body)

    def check_client(self) -> None:
        """Raise `Cancelled` if the client has closed the connection: it has given up what it had asked for.

        An agent that was stopped finds such calls when it goes on. The client was told that nothing was done.
        """
        # mutant: calls-that-were-given-up-are-made
        if self._poll.poll(0):
            raise Cancelled

    def still_waits(self, reason: str) -> None:
        """Called after each slice of a wait of this thread.

        Raises:
            Cancelled: the client has gone.
        """
        self.check_client()
        now = time.monotonic()
        if now - self._told >= TELL_SECONDS:
            self._told = now
            meta = msgspec.msgpack.encode(Waiting(reason[:2000]))
            self.connection.send(Kind.WAITING, request=self._request, meta=meta)

    def go_on(self) -> Connection:
        """Tell the client to send what it announced; returns the connection to read it from."""
        self.connection.send(Kind.WAITING, request=self._request, flags=1)
        return self.connection
