"""The versions of weights that the agent last reported, so that a process that polls `latest` need not ask each time.

A process that asks for a name twice within `POLL_SECONDS` counts as polling. Then one of its threads keeps a call open
at the agent, on a connection of its own. The agent answers when there is a newer version, at the latest after a second.
Its answer is valid for `TRUSTED_SECONDS` after the call was sent, as long as the connection exists. Otherwise each
`latest` asks. Version numbers only rise, so no older version is taken for the newest.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Set
from typing import Any, Protocol

from di_store.base.errors import CorruptData, StoreError
from di_store.client.address import Address
from di_store.protocol.connection import Connection
from di_store.protocol.frame import Kind
from di_store.protocol.handshake import WATCHES
from di_store.protocol.values import call_of, error_of, value_of
from di_store.runtime.background import Background, Wakeup
from di_store.runtime.deadline import Deadline

TRUSTED_SECONDS = 3.0
"""After this time the agent's last word is too old. It says something each second."""
POLL_SECONDS = 1.0
IDLE_SECONDS = 5.0
"""A name that nobody has asked for in this time is no longer polled; without names the connection ends."""
MOST_NAMES = 1000
"""The most names whose new versions the agent reports; other names are asked for."""
MOST_VERSION = 2**62
_CONNECT_SECONDS = 5.0
_PAUSE_SECONDS = 0.5  # between two attempts to reach the agent


class Caller(Protocol):
    """A process as an agent's client (`Client`)."""

    address: Address
    protocol: int
    ended: StoreError | None

    def connect(self, role: str, deadline: Deadline, check_open: Callable[[], None]) -> Connection:
        """A new connection."""

    def next_request(self) -> int:
        """A new number for a call."""

    def check_ended(self) -> None:
        """Raise why no call is possible any more."""


class KnownVersions:
    """The known versions of one client. Thread-safe."""

    def __init__(self, client: Caller) -> None:
        self._client = weakref.ref(client)
        self._lock = threading.RLock()  # a signal handler may ask in the middle of another call
        self._newest: dict[str, int] = {}  # at least; only rises. Under `_lock`
        self._reported: Set[str] = frozenset()  # names of which the agent tells, on the connection that is there
        self._since = float("-inf")  # when the call was sent that it has answered last
        self._polled: dict[str, float] = {}  # when somebody last asked for the name
        self._connection: Connection | None = None
        self._ends = Wakeup()
        self._thread = Background(self._watch)

    def is_newest(self, name: str, version: int) -> bool:
        """Whether the agent has recently reported that there is no newer version. Called by each poll."""
        now, before = time.monotonic(), self._polled.get(name)
        self._polled[name] = now
        if name in self._reported and now - self._since < TRUSTED_SECONDS:
            return self._newest[name] <= version <= MOST_VERSION
        if before is not None and now - before < POLL_SECONDS and not self._thread.lives():
            client = self._client()
            if client is not None and client.protocol >= WATCHES:
                with contextlib.suppress(RuntimeError):  # no thread: each poll asks
                    self._thread.start()
        return False

    def at_least(self, name: str, version: int) -> None:
        """Note that this version exists, because this process has published or got it."""
        with self._lock:
            self._newest[name] = max(version, self._newest.get(name, 0))

    def end(self) -> None:
        """End, because the client ends."""
        self._ends.wake()
        if (connection := self._connection) is not None:
            connection.end()

    def forget(self) -> None:
        """Drop the parent's connection in a forked child."""
        if self._connection is not None:
            self._connection.forget()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Have the agent report new versions until nobody polls any more. The thread does not keep the client alive."""
        known: dict[str, int] = {}  # as the agent has told on this connection
        try:
            while (client := self._client()) is not None and client.ended is None and (names := self._names()):
                try:
                    if self._connection is None:
                        known = {}
                        deadline = Deadline(_CONNECT_SECONDS)
                        self._connection = client.connect("watch", deadline, client.check_ended)
                    if self._connection.protocol < WATCHES:
                        return  # another agent is there, of an older version
                    known = {name: known.get(name, -1) for name in names}
                    self._ask(client, self._connection, known)
                except (StoreError, OSError, TypeError, ValueError):  # whatever it answers: polls ask meanwhile
                    self._let_go()
                    del client
                    self._ends.wait(_PAUSE_SECONDS)
        finally:
            self._let_go()

    def _names(self) -> list[str]:
        since = time.monotonic() - IDLE_SECONDS
        polled = list(self._polled.items())
        for name, at in polled:
            if at < since:
                self._polled.pop(name, None)
        return [name for name, at in polled if at >= since][-MOST_NAMES:]

    def _ask(self, client: Caller, connection: Connection, known: dict[str, int]) -> None:
        """Make one call, and add its answer to `known`."""
        sent = time.monotonic()
        connection.until = sent + TRUSTED_SECONDS
        meta, body = call_of("watch_versions", "", {"known": known}, once=False)
        connection.send(Kind.CALL, request=client.next_request(), meta=meta, body=body)
        while (message := connection.receive()).kind == Kind.WAITING:
            pass
        if message.kind == Kind.ERROR:
            raise error_of(message.meta, client.address.node)
        known.update(_versions(value_of(message)))
        with self._lock:
            for name, version in known.items():
                self._newest[name] = max(version, self._newest.get(name, 0))
        self._since, self._reported = sent, frozenset(known)

    def _let_go(self) -> None:
        """Drop the connection; its answers no longer count."""
        self._reported = frozenset()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _versions(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or not all(type(each) is int for each in value.values()):
        raise CorruptData("received an answer without versions", remedy="")
    return value
