"""Short connections of one agent to others. An agent that does not answer soon is asked again later."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from di_store.base.errors import StoreError
from di_store.client.address import Address
from di_store.protocol.connection import TICK_SECONDS, Connection, Disconnected, Message
from di_store.protocol.frame import Kind, view
from di_store.protocol.handshake import NEWEST, NONCE_BYTES, OLDEST, Hello, greet
from di_store.protocol.values import call_of, error_of, value_of

DIAL_SECONDS = 0.5
"""To connect, and again for the handshake: the round trips of any network that this is for, many times."""
ANSWER_SECONDS = 1.5
"""For a short call: the other agent only notes something, or tells of what it has."""
LEAST_RATE = 16 << 20
"""Bytes a second of a note with a large header: the time for them comes on top."""
MOST_BYTES = 1 << 31
"""Of an answer: a note with the largest header."""
MOST_IDLE = 64


class Unreachable(Exception):
    """The other agent cannot be reached, does not answer soon enough, or refuses this one."""


@dataclass
class Dialler:
    """How this agent reaches others. Thread-safe, since nothing here changes.

    Attributes:
        token: token that all agents know.
        tls: context for TLS; None: without TLS.
        id: id of this process, the same for all its connections.
    """

    token: bytes
    tls: ssl.SSLContext | None = None
    id: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    def dial(self, address: str) -> Connection:
        """A new connection, after the handshake. The caller sets its time limits.

        Raises:
            Unreachable: nothing answers, or the agent refuses.
        """
        where = Address.parse(address)
        connection: Connection | None = None
        sock: socket.socket | None = None
        try:
            sock = socket.create_connection((where.host, where.port), timeout=DIAL_SECONDS)
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_hostname=where.host)
            connection = Connection(sock)
            limit(connection, 2 * DIAL_SECONDS)
            name = f"agent {os.getpid()} on {socket.gethostname()}"
            hello = Hello(OLDEST, NEWEST, secrets.token_bytes(NONCE_BYTES), self.id, "call", where.store, name)
            greet(connection, self.token, hello)
            connection.most_bytes = MOST_BYTES
            return connection
        except (OSError, StoreError) as error:  # Disconnected and ssl.SSLError are OSErrors
            if connection is not None:
                connection.close()
            elif sock is not None:
                sock.close()
            raise Unreachable(str(error) or type(error).__name__) from None


def limit(connection: Connection, seconds: float) -> None:
    """Let reads and writes end with `Disconnected` after this many seconds, even if bytes arrive."""
    until = time.monotonic() + seconds
    connection.until = until

    def tick() -> None:
        if time.monotonic() + TICK_SECONDS / 2 > until:
            raise Disconnected("it does not answer")

    connection.ticking = tick


def send_call(connection: Connection, method: str, arguments: dict[str, Any]) -> None:
    """Send a call."""
    meta, body = call_of(method, "", arguments, once=False)
    connection.send(Kind.CALL, meta=meta, body=body)


def ask(connection: Connection, node: str, method: str, arguments: dict[str, Any]) -> Any:
    """Make a short call. Returns its value.

    Raises:
        Unreachable: no answer in time; the connection is then unusable. StoreError, TypeError, ValueError: the error of
        the call there.
    """
    meta, body = call_of(method, "", arguments, once=False)
    limit(connection, ANSWER_SECONDS + sum(len(view(each)) for each in body) / LEAST_RATE)
    try:
        connection.send(Kind.CALL, meta=meta, body=body)
        return value_of(_answer(connection, node))
    except Disconnected as error:
        raise Unreachable(str(error)) from None


def _answer(connection: Connection, node: str) -> Message:
    while True:
        message = connection.receive()
        if message.kind == Kind.ERROR:
            raise error_of(message.meta, node)
        if message.kind == Kind.ANSWER:
            return message
        if message.kind != Kind.WAITING:
            raise Disconnected(f"expected an answer, got a message of kind {message.kind}")


class ConnectionPool:
    """Connections for short calls, kept for later ones. Thread-safe."""

    def __init__(self, dialler: Dialler) -> None:
        self._dialler = dialler
        self._lock = threading.Lock()
        self._idle: OrderedDict[str, Connection] = (
            OrderedDict()
        )  # changed under _lock; a connection in use is not in it
        self._closed = False

    def ask(self, address: str, method: str, arguments: dict[str, Any]) -> Any:
        """Make a call to the agent at an address; raises as `ask`. The call may arrive twice."""
        with self._lock:
            kept = self._idle.pop(address, None)
        if kept is not None:
            try:
                return self._ask(kept, address, method, arguments)
            except Unreachable:
                pass  # its agent may be another one by now
        return self._ask(self._dialler.dial(address), address, method, arguments)

    def _ask(self, connection: Connection, address: str, method: str, arguments: dict[str, Any]) -> Any:
        try:
            found = ask(connection, address, method, arguments)
        except Unreachable:
            connection.close()
            raise
        except (StoreError, TypeError, ValueError):  # what the call raises there
            self._keep(address, connection)
            raise
        except BaseException:  # also Ctrl-C: its answer may be on its way
            connection.close()
            raise
        self._keep(address, connection)
        return found

    def _keep(self, address: str, connection: Connection) -> None:
        with self._lock:
            surplus = [connection] if self._closed or address in self._idle else []
            if not surplus:
                self._idle[address] = connection
                if len(self._idle) > MOST_IDLE:
                    surplus.append(self._idle.popitem(last=False)[1])
        for each in surplus:
            each.close()

    def close(self) -> None:
        """Close the idle connections, and those that are given back later."""
        with self._lock:
            idle, self._closed = list(self._idle.values()), True
            self._idle.clear()
        for each in idle:
            each.close()
