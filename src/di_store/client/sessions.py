"""The sessions of this process with several stores, by address. They are shared by all of its calls."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from di_store.base.errors import StoreClosed
from di_store.client.session import RemoteSession
from di_store.runtime.forks import in_child


@dataclass(frozen=True)
class Credentials:
    """The credentials of this process for every node, as in `di_store.connect`."""

    token: str | bytes | None = None
    tls: Any = None
    allow_pickle: bool = False


class Sessions:
    """The sessions. Thread-safe: the dict changes under a lock, which is never held while anything waits."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self.closed = False
        self._sessions: dict[str, RemoteSession] = {}
        self.begin()
        in_child(self, lambda each: each.begin())

    def begin(self) -> None:
        """Set the initial state, also in a forked child, where another thread of the parent may hold the lock."""
        self._lock = threading.Lock()

    def at(self, address: str) -> RemoteSession:
        """The session with the store that is now served at an address. Makes no call.

        Raises:
            StoreClosed: `close` was called.
        """
        given = self.credentials
        with self._lock:
            if self.closed:
                raise StoreClosed("the sessions with other nodes were closed")
            known = self._sessions.get(address)
            if known is None or known.is_over():
                known = self._sessions[address] = RemoteSession.at(address, given.token, given.tls, given.allow_pickle)
            return known

    def close(self) -> None:
        """End all sessions."""
        with self._lock:
            sessions, self._sessions = list(self._sessions.values()), {}
            self.closed = True
        for each in sessions:
            each.close()
