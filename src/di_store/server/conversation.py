"""One connection of a client: reads calls, makes them, answers. Each connection has a thread."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable

import msgspec

from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData
from di_store.protocol.connection import Connection, Disconnected, Message
from di_store.protocol.frame import Kind
from di_store.protocol.handshake import decoded
from di_store.protocol.values import Call, Waiting, failure_of
from di_store.runtime import waits
from di_store.server import calls, streams
from di_store.server.answers import Reply
from di_store.server.batches import BATCH_CALLS
from di_store.server.peer import Peer
from di_store.server.talk import said

TELL_SECONDS = 1.0
"""How often a client hears that its call still waits."""
TELL_WORKING_SECONDS = 0.4
"""How often a client hears that the agent works on its call: twice as often as needed. A client gives a call up if its
deadline is over and the agent is silent; copying a batch, for example, sends nothing for a while."""
WAITS_SECONDS = 0.3
"""Longer than a slice of a wait: a call that has reported a wait within this time still waits, and is not at work."""
_NEVER = float("-inf"), ""


class Cancelled(Exception):
    """The client of a waiting call closed its connection."""


class Conversation:
    """The calls of one connection."""

    def __init__(
        self, connection: Connection, peer: Peer, warned: Callable[[], list[str]], left: Callable[[], None]
    ) -> None:
        """Begin.

        Args:
            connection: the connection, after the handshake.
            peer: the client process.
            warned: returns the texts of warnings that this thread has raised since the last call.
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
        self._working = False  # whether a call is being made, which is not answered yet
        self._said = 0.0  # when something was sent last
        self._waits = _NEVER  # when the call was last seen to wait, and for what; replaced as a whole
        self._sending = threading.Lock()
        self._poll = select.poll()
        self._poll.register(connection.fileno(), getattr(select, "POLLRDHUP", 0))
        self._room = select.poll()
        self._room.register(connection.fileno(), select.POLLOUT)

    def leave(self) -> None:
        """End the connection. A second call does nothing."""
        left, self._left = self._left, None
        if left is not None:
            self.connection.close()
            left()
            self.ended.set()

    def run(self) -> None:
        """Make calls until the client closes the connection."""
        try:
            while True:
                message = self.connection.receive()
                self.peer.heard = time.monotonic()
                if message.kind == Kind.PING:
                    self.connection.send(Kind.PONG, request=message.request)
                elif message.kind == Kind.CALL:
                    self.make(message)
                else:
                    raise CorruptData(f"expected a call, got a message of kind {message.kind}", remedy="")
        finally:
            self.peer.draws.give_back_of(self)

    def make(self, message: Message) -> None:
        """Make one call and answer it."""
        call, request = decoded(Call, message.meta), message.request
        self.peer.let_go(call.dropped)
        self._request, self._told = request, time.monotonic()
        self._said, self._waits, self._working = self._told, _NEVER, True
        try:
            kind, meta, body = self._made_once(call, message) if call.once else self._made(call, message.body)
        finally:
            with self._sending:
                self._working = False
        self.connection.send(kind, request=request, meta=meta, body=body)

    def _made_once(self, call: Call, message: Message) -> Reply:
        """The answer to a call that must not run twice: the call may have been made before."""
        answers, answer = self.peer.answers, None
        known = answers.begin(message.request, call.may_repeat, self.still_waits)
        if known is not None:
            return known
        try:
            answer = self._made(call, message.body)
            return answer
        finally:
            answers.end(message.request, answer)

    def _made(self, call: Call, body: Array) -> Reply:
        """The answer to a call, which is made now."""
        if call.method != "goodbye":  # whoever says that closes the connection
            self.check_client()
        try:
            arguments = call.arguments(body)
            with waits.Watched(self.still_waits):
                if call.method in streams.STREAM_CALLS:
                    return streams.STREAM_CALLS[call.method](self, arguments)
                if call.method in BATCH_CALLS:
                    return BATCH_CALLS[call.method](self, (call.target, call.table), arguments)
                return said(self, calls.run(self.peer, call, arguments))
        except (Disconnected, Cancelled):
            raise
        except Exception as error:  # whatever the call raises is the client's to see
            return Kind.ERROR, failure_of(error, self.warned()), []

    def check_client(self) -> None:
        """Raise `Cancelled` if the client has closed the connection, and so has given up its call.

        An agent that was stopped finds such calls when it continues. The client was told that nothing was done.
        """
        if self._poll.poll(0):
            raise Cancelled

    def still_waits(self, reason: str) -> None:
        """Called after each slice of a wait of this thread.

        Raises:
            Cancelled: the client closed the connection.
        """
        self.check_client()
        now = time.monotonic()
        self._waits = now, reason
        if now - self._told >= TELL_SECONDS:
            self._told = now
            self._say(_word(reason), 0)

    def tell_working(self) -> None:
        """Tell the client that the agent works on its call, if it has one and heard nothing lately. Never waits.

        Called by another thread.
        """
        if not self._working or time.monotonic() - self._said < TELL_WORKING_SECONDS:
            return
        if not self._sending.acquire(blocking=False):
            return
        try:
            if self._working and self._room.poll(0):
                waited, reason = self._waits
                waits = time.monotonic() - waited < WAITS_SECONDS  # it is not at work: the client need not wait for it
                self.connection.send(Kind.WAITING, request=self._request, meta=_word(reason) if waits else b"")
        except (Disconnected, OSError, ValueError):
            pass  # the thread of the connection sees that it is gone
        finally:
            self._sending.release()

    def _say(self, meta: bytes, flags: int) -> None:
        """Send a report on the call that is being made."""
        with self._sending:
            self._said = time.monotonic()
            self.connection.send(Kind.WAITING, request=self._request, flags=flags, meta=meta)

    def go_on(self) -> Connection:
        """Tell the client to send the data that it announced; returns the connection to read them from."""
        self._say(b"", 1)
        return self.connection

    def take_over(self) -> Connection:
        """The connection, for a call that reports its own progress. No other thread sends before the call's answer."""
        with self._sending:
            self._working = False
        return self.connection


def _word(reason: str) -> bytes:
    """Sends a client the reports about a waiting call."""
    return msgspec.msgpack.encode(Waiting(reason[:2000]))
