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

import numpy as np

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData
from di_store.wire.buffers import take_buffer
from di_store.wire.frame import (
    HEADER_BYTES,
    MAGIC,
    MAX_META_BYTES,
    Buffer,
    Header,
    Kind,
    check_magic,
    check_meta,
    check_payload,
    pack,
    parse,
    view,
)

TICK_SECONDS = 0.5
"""How long a read waits before it looks whether the call should go on."""
PIECE_BYTES = 1 << 20
"""Longer bodies are sent in such pieces: one is checked, still in the cache, while the next one is on its way."""
STALLED_SECONDS = 30.0
"""A peer that takes nothing for so long counts as gone."""
MAX_CALL_BYTES = 1 << 30
"""Of the body of a call; larger objects travel in another way."""
MAX_GREETING_BYTES = 16 << 10
"""Of the meta of a message before the handshake is over."""
_DRAIN_SECONDS, _MOST_DRAINED = 1.0, 1 << 20
_BUFFER_BYTES = 64 << 10
_AT_ONCE = 512 << 10
"""Bytes of one system call: the kernel does not let another thread run before it has copied them, so that short calls
wait for that long. And what was read is summed up while it is in the cache, and more comes meanwhile."""
_TICK = struct.pack("ll", 0, int(TICK_SECONDS * 1e6))  # a struct timeval
_MOST_BUFFERS = 512  # of one sendmsg; the kernel takes 1,024


class Disconnected(ConnectionError):
    """The other side has gone, or what it sent is no message."""


class Message(NamedTuple):
    """A whole message.

    Attributes:
        kind: a `Kind`.
        request: number of the call that it belongs to.
        meta: msgpack.
        body: uint8, at a multiple of 64 bytes.
    """

    kind: int
    request: int
    flags: int
    meta: bytes
    body: Array


_NOTHING: Array = np.empty(0, np.uint8)


class Connection:
    """A socket of frames. `ticking` is called about twice a second while a read or write waits, and may raise."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        sock.settimeout(0 if self._tls else TICK_SECONDS)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            if not self._tls:  # the kernel waits, for a tick at most: Python's own timeout would poll before each call
                sock.settimeout(None)
                for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    sock.setsockopt(socket.SOL_SOCKET, direction, _TICK)
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
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0
        self.ticking: Callable[[], None] = _go_on
        self.most_bytes = 0
        """Of a body that is accepted; 0 until the handshake is over."""
        self.until: float | None = None
        """When reading ends with `Disconnected`, by `time.monotonic()`, however the bytes come. None: never."""
        self.look_at = float("inf")
        """When `ticking` is called while a read waits, if that is before the next tick, by `time.monotonic()`."""
        self.moved = time.monotonic()
        """When bytes came or went last."""

    def fileno(self) -> int:
        """Of the socket; -1 once it is closed."""
        return self._sock.fileno()

    def end(self) -> None:
        """End it from any thread: the one that uses it gets `Disconnected`, and closes it.

        The descriptor stays, so that no thread can come to read from another socket that has got the same number.
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
        """Read, for at most a second, what the other side still sends: it would lose our last words otherwise."""
        until, left = time.monotonic() + _DRAIN_SECONDS, _MOST_DRAINED
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_WR)
            self._sock.settimeout(_DRAIN_SECONDS)
            while left > 0 and time.monotonic() < until and (found := socket.socket.recv(self._sock, _BUFFER_BYTES)):
                left -= len(found)
        except (OSError, ValueError):
            pass

    def forget(self) -> None:
        """Close the descriptor in a forked child, without a word to the other side."""
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
        """Send a message; `body`: buffers that follow each other without gaps.

        Raises:
            Disconnected: the other side has gone.
        """
        views = [view(each) for each in body]
        total = sum(map(len, views))
        if total <= PIECE_BYTES:
            self._write(
                pack(kind, request=request, seq=total, flags=flags, meta=meta, payload=views, payload_bytes=total)
            )
            return
        first = True
        for part, size in portions(views):
            if first:
                self._write(
                    pack(kind, request=request, seq=total, flags=flags, meta=meta, payload=part, payload_bytes=size)
                )
                first = False
            else:
                self._write(pack(Kind.PIECE, request=request, payload=part, payload_bytes=size))

    def send_piece(self, payload: Sequence[Buffer], size: int) -> None:
        """Send a part of a value that a call has announced; `size`: its bytes."""
        self._write(pack(Kind.PIECE, payload=payload, payload_bytes=size))

    def _write(self, buffers: list[Buffer]) -> None:
        views = [found for each in buffers if len(found := view(each))]
        if self._tls:
            views = [memoryview(b"".join(views))] if sum(map(len, views)) <= _BUFFER_BYTES else views
        stalled = 0.0
        while views:
            try:
                sent = self._sent(views)
            except (TimeoutError, BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError) as error:
                stalled = stalled or time.monotonic()
                if not self._waited(error):
                    self.ticking()
                if time.monotonic() - stalled > STALLED_SECONDS:
                    raise Disconnected(f"the other side has taken nothing for {STALLED_SECONDS:.0f} s") from None
                continue
            except (OSError, ValueError) as error:
                raise Disconnected(str(error)) from None
            stalled = 0.0
            self.moved = time.monotonic()
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def _sent(self, views: list[memoryview]) -> int:
        if self._tls:
            with self._using:
                return self._sock.send(views[0])
        if len(views) == 1:
            return self._sock.send(views[0][:_AT_ONCE])
        return self._sock.sendmsg(_front(views))

    def _waited(self, error: OSError) -> bool:
        """Wait, for a tick at most, until a TLS connection may go on. False: it may not, or the wait is over."""
        if not isinstance(error, (ssl.SSLWantReadError, ssl.SSLWantWriteError)):
            return False
        poll = select.poll()
        try:
            poll.register(self._sock, select.POLLIN if isinstance(error, ssl.SSLWantReadError) else select.POLLOUT)
        except ValueError:
            raise Disconnected("the connection is closed") from None
        return bool(poll.poll(TICK_SECONDS * 1000))

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self) -> Message:
        """The next message; waits for it.

        Raises:
            Disconnected: the other side has gone. CorruptData: it sends no messages; the connection is of no use then.
        """
        header, meta = self._head()
        if header.kind == Kind.PIECE:
            raise CorruptData("a piece of a message came without the message", remedy="")
        total = header.seq
        # mutant: messages-of-any-size
        if total > self.most_bytes or total < header.payload_bytes:
            raise CorruptData(
                f"a message of {total} bytes came, at most {self.most_bytes} are allowed here; send it in parts",
                remedy="",
            )
        if not total:
            return Message(header.kind, header.request, header.flags, meta, _NOTHING)
        try:
            body = take_buffer(total)
        except MemoryError:
            raise CorruptData(f"this process has no memory for a message of {total} bytes", remedy="") from None
        self.read_into(header, body[: header.payload_bytes])
        at = header.payload_bytes
        while at < total:
            at += self.receive_piece(body[at:])
        return Message(header.kind, header.request, header.flags, meta, body)

    def receive_piece(self, into: Array) -> int:
        """Read the next frame, a `PIECE`, into the front of `into`. Returns its bytes."""
        header, _ = self._head(HEADER_BYTES)  # what follows goes where it stays
        if header.kind != Kind.PIECE or not 0 < header.payload_bytes <= len(into):
            raise CorruptData("a message ended before all its pieces had come", remedy="")
        self.read_into(header, into[: header.payload_bytes])
        return header.payload_bytes

    def read_into(self, header: Header, into: Array) -> None:
        """Read a frame's payload, and check it."""
        whole, have, check = view(into), 0, 0
        while have < len(whole):
            part = whole[have : have + _AT_ONCE]
            found = self._some(part)
            check = _core.crc32c(part[:found], check)
            have += found
        check_payload(header, check)

    def has_something(self) -> bool:
        """Whether bytes lie in this process already, so that `receive` may not have to wait."""
        if self._end > self._start:
            return True
        if not self._tls:
            return False
        with self._using:
            return bool(self._sock.pending())  # type: ignore[attr-defined]

    def is_ready(self, seconds: float) -> bool:
        """Wait until something comes, or the connection ends; False: nothing has for so many seconds."""
        if self.has_something():
            return True
        poll = select.poll()
        try:
            poll.register(self._sock, select.POLLIN)
        except ValueError:
            return True  # it is closed: `receive` says so
        return bool(poll.poll(seconds * 1000))

    def is_silent_until(self, end: float) -> bool:
        """Of a wait that is looked at once a tick: whether it is over, as nothing comes until `end`.

        If that is nearer than the next look, this waits for it.
        """
        rest = end - time.monotonic()
        # mutant: waits-end-a-tick-later
        return rest <= 0 or (rest < TICK_SECONDS and not self.is_ready(rest))

    def _head(self, most: int = _BUFFER_BYTES) -> tuple[Header, bytes]:
        """Header and meta of the next frame. `most`: bytes to read for the header and, in one go, of what follows."""
        if self._end - self._start < HEADER_BYTES:
            self._need(len(MAGIC), most)  # the short request of another protocol would wait for more, and so would we
            check_magic(self._buffer[self._start : self._start + len(MAGIC)])
            self._need(HEADER_BYTES, most)
        head = bytes(self._buffer[self._start : self._start + HEADER_BYTES])
        header = parse(head)
        self._start += HEADER_BYTES
        meta = b""
        most = MAX_META_BYTES if self.most_bytes else MAX_GREETING_BYTES
        # mutant: greetings-of-any-size
        if header.meta_bytes > most:
            raise CorruptData(
                f"a message with {header.meta_bytes} bytes of meta came, at most {most} are allowed here", remedy=""
            )
        if header.meta_bytes:
            if header.meta_bytes <= _BUFFER_BYTES:
                self._need(header.meta_bytes)
                meta = bytes(self._buffer[self._start : self._start + header.meta_bytes])
                self._start += header.meta_bytes
            else:
                long, have = memoryview(bytearray(header.meta_bytes)), 0
                while have < len(long):
                    have += self._some(long[have:])
                meta = bytes(long)
        check_meta(head, header, meta)
        return header, meta

    def _some(self, into: memoryview) -> int:
        """Read at least a byte, what has been read before first. Returns how many."""
        have = min(self._end - self._start, len(into))
        if not have:
            return self._read(into)
        into[:have] = self._buffer[self._start : self._start + have]
        self._start += have
        return have

    def _need(self, size: int, most: int = _BUFFER_BYTES) -> None:
        """Have so many bytes in the buffer, and not more than `most`, unless they are there already."""
        if self._end - self._start >= size:
            return
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start + size > _BUFFER_BYTES:
            left = bytes(self._buffer[self._start : self._end])
            self._buffer[: len(left)] = left
            self._start, self._end = 0, len(left)
        while self._end - self._start < size:
            self._end += self._read(self._buffer[self._end : self._start + most])

    def _read(self, into: memoryview) -> int:
        while True:
            # mutant: a-byte-now-and-then-is-enough
            if self.until is not None and time.monotonic() > self.until:
                raise Disconnected("the other side took too long")
            rest = self.look_at - time.monotonic()
            # mutant: a-wait-that-begins-late-ends-a-tick-later
            if rest < TICK_SECONDS and not self.is_ready(max(rest, 0.0)):
                self.ticking()
            try:
                if self._tls:
                    with self._using:
                        found = self._sock.recv_into(into)
                else:
                    found = self._sock.recv_into(into)
            except (TimeoutError, BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if not self._waited(error):
                    self.ticking()
                continue
            except (OSError, ValueError) as error:
                raise Disconnected(str(error)) from None
            if not found:
                raise Disconnected("the other side has closed the connection")
            self.moved = time.monotonic()
            return found


def _go_on() -> None:
    """Wait on."""


def _front(views: list[memoryview]) -> list[memoryview]:
    """What one call sends of these."""
    left = _AT_ONCE
    for number, each in enumerate(views[:_MOST_BUFFERS]):
        if len(each) >= left:
            return [*views[:number], each[:left]]
        left -= len(each)
    return views[:_MOST_BUFFERS]


def portions(body: Sequence[Buffer]) -> list[tuple[list[Buffer], int]]:
    """The buffers cut into pieces."""
    parts: list[tuple[list[Buffer], int]] = []
    part: list[Buffer] = []
    size = 0
    for each in body:
        left = view(each)
        while len(left):
            cut = left[: PIECE_BYTES - size]
            part.append(cut)
            size += len(cut)
            left = left[len(cut) :]
            if size == PIECE_BYTES:
                parts.append((part, size))
                part, size = [], 0
    if part:
        parts.append((part, size))
    return parts
