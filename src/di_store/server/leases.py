"""The leases of one client: its session holds them, and outlives the agent.

The store has a mark of the session for each table of which the client holds leases (`native/replay/session_marks.h`).
An agent that takes over the client claims these marks. If the client ends, its agent ends the session, and all leases
are given back.
"""

from __future__ import annotations

import contextlib
import threading

from di_store.base.errors import StoreError
from di_store.replay.handle import TableHandle
from di_store.runtime.waits import CALL_SECONDS
from di_store.session import Session


class ClientLeases:
    """The client as the holder of leases. Thread-safe.

    Attributes:
        any: whether there may be leases.
    """

    def __init__(self, session: Session, link: bytes) -> None:
        """Set the state. `link`: names the client."""
        self._arena = session.arena
        self._link = link
        self._lock = threading.Lock()
        self._marks: dict[str, tuple[int, int]] = {}  # by identity of the table
        self._has_all = False
        self.any = False

    def take_over(self) -> None:
        """Take over the leases that the client has from another agent; before any other call, and once."""
        with self._lock:
            if self._has_all:
                return
            try:
                self.any = self._arena.claim_session(self._link, CALL_SECONDS) > 0
            except StoreError:  # a table's lock is not available: `keep` preserves what there is
                self.any = True
            self._has_all = True

    def of(self, table: TableHandle) -> tuple[int, int]:
        """The session's mark of a table, for a draw with a lease.

        Raises:
            StoreFull: the store has too many marks.
        """
        native = table.native
        with self._lock:
            found = self._marks.get(table.identity)
            if found is None or not native.owns_session(*found):
                self.any = True
                found = self._marks[table.identity] = native.claim_session(self._link, CALL_SECONDS)
            return found

    def keep(self) -> None:
        """Note that the client lives: if this agent dies, its leases wait 30 s for the next agent."""
        if self.any:
            with contextlib.suppress(StoreError):
                self._arena.keep_session(self._link)

    def end(self) -> int:
        """End the session, and give its leases back. Returns in how many tables it may have had some."""
        with self._lock:
            if not self.any:
                return 0
            self._marks.clear()
            self.any = False
            return self._arena.end_session(self._link, CALL_SECONDS)
