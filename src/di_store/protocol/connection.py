"""One connection: whole messages over a socket. For one thread at a time.

A message is a frame whose body may be longer than a frame's payload: the rest follows in frames of kind `PIECE`.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from di_store import _core
from di_store.base.buffers import take_buffer
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData
from di_store.protocol.frame import Buffer, Kind

TICK_SECONDS = 0.5
"""How long a read waits before it looks whether the call should go on."""
PIECE_BYTES = _core.FRAME_PIECE_BYTES
"""Longer bodies are sent in pieces of this size."""
STALLED_SECONDS = 30.0
"""A peer that takes nothing for this time counts as gone."""
MAX_CALL_BYTES = 1 << 30
"""The most bytes of a call's body; larger objects are sent in another way."""
_DRAIN_SECONDS, _MOST_DRAINED, _DRAINED_AT_ONCE = 1.0, 1 << 20, 64 << 10
_TICK = struct.pack("ll", 0, int(TICK_SECONDS * 1e6))  # a struct timeval
_KINDS = sum(1 << kind for kind in Kind)


class Disconnected(ConnectionError):
    """The other side closed the connection, or sent data that are no message."""


class Message(NamedTuple):
    """A whole message.

    Attributes:
        kind: a `Kind`.
        request: number of the call that the message belongs to.
        meta: msgpack.
        body: uint8, at a multiple of 64 bytes.
    """

    kind: int
    request: int
    flags: int
    meta: bytes
    body: Array


class Connection:
    """A socket of frames. `ticking` is called about twice a second while a read or write waits, and may raise."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        sock.settimeout(0 if self._tls else None)
        if not self._tls:  # the kernel waits, for a tick at most
            for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, direction, _TICK)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            # Room for a piece from the start: a short answer would wait for the kernel's own tuning. SO_RCVBUF would
            # end that tuning; a higher low-water mark makes room too, which stays when the mark is put back.
            for mark in (PIECE_BYTES, 1):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 5)):
                if hasattr(socket, option):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._using = threading.Lock()  # a TLS object is for one thread at a time; never held while it waits
        self._incoming = _core.Incoming(_KINDS, take_buffer)
        self._sent_at = 0.0
        self.ticking: Callable[[], None] = _go_on
        self.protocol = 0
        """The protocol that both sides speak; 0 until a client's handshake is over."""
        self.most_bytes = 0
        """The most bytes of a body that is accepted; 0 until the handshake is over."""
        self.until: float | None = None
        """When reading ends with `Disconnected`, by `time.monotonic()`, even while bytes arrive. None: never."""
        self.look_at = float("inf")
        """When `ticking` is called while a read waits, if that is before the next tick, by `time.monotonic()`."""

    @property
    def moved(self) -> float:
        """The time at which bytes were last received or sent."""
        return max(self._incoming.moved, self._sent_at)

    def fileno(self) -> int:
        """File descriptor of the socket; -1 once it is closed."""
        return self._sock.fileno()

    def end(self) -> None:
        """End the connection from any thread: the thread that uses it gets `Disconnected`, and closes it.

        The descriptor stays open. So no thread can read from another socket with the same number.
        """
        try:  # not SSLSocket.shutdown: what is sent meanwhile would go out in plain text
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            pass  # it is not connected any more, or closed

    def close(self) -> None:
        """Close the socket, in the thread that uses it."""
        self.end()
        self._sock.close()

    def drain(self) -> None:
        """Read the other side's remaining data, for at most a second: otherwise it would lose our last message."""
        until, left = time.monotonic() + _DRAIN_SECONDS, _MOST_DRAINED
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_WR)
            self._sock.settimeout(_DRAIN_SECONDS)
            while left > 0 and time.monotonic() < until and (found := socket.socket.recv(self._sock, _DRAINED_AT_ONCE)):
                left -= len(found)
        except (OSError, ValueError):
            pass

    def forget(self) -> None:
        """Close the descriptor in a forked child, without notifying the other side."""
        try:
            os.close(self._sock.detach())
        except OSError:
            pass

    # -- sending ------------------------------------------------------------------------------------------------

    def send(
        self,
        kind: Kind,
        *,
        request: int = 0,
        flags: int = 0,
        meta: bytes = b"",
        body: Sequence[Buffer] = (),
    ) -> None:
        """Send a message; `body`: consecutive buffers without gaps.

        Raises:
            Disconnected: the other side closed the connection.
        """
        self._write(_core.Outgoing(kind, request, flags, meta, body))

    def send_pieces(self, body: Sequence[Buffer]) -> None:
        """Send a value, or a part of one, that a call has announced."""
        self._write(_core.Outgoing(Kind.PIECE, 0, 0, b"", body))

    def _write(self, message: _core.Outgoing) -> None:
        before, stalled = 0, time.monotonic()
        while not (self._sent_secured(message) if self._tls else self._sent(message)):
            now = time.monotonic()
            if message.sent != before:
                before, stalled = message.sent, now
                self._sent_at = now
            self.ticking()
            if time.monotonic() - stalled > STALLED_SECONDS:
                raise Disconnected(f"the other side has read nothing for {STALLED_SECONDS:.0f} s")
        self._sent_at = time.monotonic()

    def _sent(self, message: _core.Outgoing) -> bool:
        """Whether all bytes are sent; False: the other side accepts no bytes."""
        try:
            return message.send(self._sock.fileno())
        except OSError as error:
            raise Disconnected(str(error)) from None

    def _sent_secured(self, message: _core.Outgoing) -> bool:
        """As `_sent`, with TLS."""
        front: memoryview | None = None
        while not message.done:
            front = message.front() if front is None else front
            try:
                with self._using:
                    sent = self._sock.send(front)
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError) as error:
                if not self._waited(error):
                    return False
                continue
            except (OSError, ValueError) as error:
                raise Disconnected(str(error)) from None
            message.took(sent)
            front = None
        return True

    def _waited(self, error: ssl.SSLWantReadError | ssl.SSLWantWriteError) -> bool:
        """Wait, for a tick at most, until a TLS connection may go on. False: the wait is over."""
        poll = select.poll()
        try:
            poll.register(self._sock, select.POLLIN if isinstance(error, ssl.SSLWantReadError) else select.POLLOUT)
        except ValueError:
            raise Disconnected("the connection is closed") from None
        return bool(poll.poll(TICK_SECONDS * 1000))

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self) -> Message:
        """Wait for the next message and return it.

        Raises:
            Disconnected: the other side closed the connection.
            CorruptData: the data are no message; the connection is then unusable.
        """
        while True:
            self._look_ahead()
            try:
                found = self._incoming.message(self._descriptor(), self.most_bytes, self.until)
            except OSError as error:
                raise Disconnected(str(error)) from None
            except MemoryError:
                raise CorruptData("this process has no memory for a received message", remedy="") from None
            if found is not None:
                return Message(*found)
            self._more()

    def receive_piece(self, into: Array) -> int:
        """Read the next frame, a `PIECE`, into the front of `into`. Returns its bytes."""
        while True:
            self._look_ahead()
            try:
                found = self._incoming.piece(self._descriptor(), into, self.until)
            except OSError as error:
                raise Disconnected(str(error)) from None
            if found is not None:
                return found
            self._more()

    def _descriptor(self) -> int | None:
        """The descriptor from which the core reads; None with TLS, when the core does not read."""
        return None if self._tls else self._sock.fileno()

    @property
    def in_core(self) -> tuple[_core.Incoming, int, int] | None:
        """Buffer, descriptor and `most_bytes` with which the core reads messages for `receive`.

        None with TLS. Later calls of `receive` continue after these messages.
        """
        return None if self._tls else (self._incoming, self._sock.fileno(), self.most_bytes)

    def has_something(self) -> bool:
        """Whether this process already has bytes of a message, so that `receive` may not have to wait."""
        if self._incoming.has_bytes:
            return True
        if not self._tls:
            return False
        with self._using:
            return bool(self._sock.pending())  # type: ignore[attr-defined]

    def is_ready(self, seconds: float) -> bool:
        """Wait until data arrive or the connection ends; False: no data for this many seconds."""
        if self.has_something():
            return True
        poll = select.poll()
        try:
            poll.register(self._sock, select.POLLIN)
        except ValueError:
            return True  # it is closed: `receive` says so
        return bool(poll.poll(seconds * 1000))

    def is_silent_until(self, end: float) -> bool:
        """Whether a wait that is checked once per tick is over, because nothing arrives until `end`.

        If `end` is before the next check, this waits for it.
        """
        rest = end - time.monotonic()
        return rest <= 0 or (rest < TICK_SECONDS and not self.is_ready(rest))

    def _look_ahead(self) -> None:
        """Call `ticking` in time before the core reads, because the core waits for up to a tick.

        With TLS this does nothing: a whole message may be there already.
        """
        if not self._tls:
            self._look()

    def _more(self) -> None:
        """Called when the core's wait ended without data, or when TLS needs more bytes."""
        if self._tls:
            self._look()
            self._filled()
        else:
            self.ticking()

    def _look(self) -> None:
        """Call `ticking` in time if nothing arrives until `look_at`."""
        rest = self.look_at - time.monotonic()
        if rest < TICK_SECONDS and not self.is_ready(max(rest, 0.0)):
            self.ticking()

    def _filled(self) -> None:
        """With TLS: read bytes that the core waits for, or wait for some."""
        try:
            with self._using:
                found = self._sock.recv_into(self._incoming.room())
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            if not self._waited(error):
                self.ticking()
            return
        except (OSError, ValueError) as error:
            raise Disconnected(str(error)) from None
        if not found:
            raise Disconnected("the other side has closed the connection")
        self._incoming.filled(found)


def _go_on() -> None:
    """Wait on."""
