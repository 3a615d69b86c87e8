"""Connections that have not proved their identity yet.

Anybody can open such connections, so their number and time are limited.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading

MAX_GREETINGS = 256


class Greetings:
    """The sockets of clients that have not finished the handshake. Thread-safe.

    If there are too many, the oldest one is closed. Genuine clients finish within milliseconds, so silent connections
    are closed before them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._sockets: dict[int, socket.socket] = {}  # in the order in which they came

    def add(self, sock: socket.socket) -> int:
        """Add a connection that was accepted. Returns its number."""
        with self._lock:
            number = next(self._numbers)
            self._sockets[number] = sock
            oldest = next(iter(self._sockets))
            first = self._sockets.pop(oldest) if len(self._sockets) > MAX_GREETINGS else None
            if first is not None:  # under the lock: its thread closes it only after `remove`
                _end(first)
        return number

    def replace(self, number: int, sock: socket.socket) -> None:
        """Replace a socket by its TLS socket. If the connection was closed meanwhile, the new socket is closed too."""
        with self._lock:
            if number in self._sockets:
                self._sockets[number] = sock
            else:
                _end(sock)

    def remove(self, number: int) -> None:
        """Remove a connection that has finished the handshake, or that is about to be closed."""
        with self._lock:
            self._sockets.pop(number, None)

    def end(self) -> None:
        """End all these connections."""
        with self._lock:
            for sock in self._sockets.values():
                _end(sock)


def _end(sock: socket.socket) -> None:
    """The reading thread then finds that the connection has ended, and closes it."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
