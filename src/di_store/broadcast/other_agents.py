"""The agents of other nodes, as this agent calls them. One that does not answer soon is asked again later."""

from __future__ import annotations

from typing import Any

import numpy as np

from di_store.client.sessions import Sessions
from di_store.protocol.connection import Connection
from di_store.runtime.deadline import Deadline

DIAL_SECONDS = 1.0
"""Time to connect, with the handshake: many round trips of any network that this is meant for."""
ANSWER_SECONDS = 1.5
"""Time for a short call: the other agent only notes something, or says what it has."""
LEAST_RATE = 16 << 20
"""Bytes a second of a note with a large header: the time for them comes on top."""
MOST_IDLE = 64
"""Agents with which connections are kept for later calls."""


class OtherAgents(Sessions):
    """Calls of other agents that end soon. Thread-safe."""

    def connect(self, address: str) -> Connection:
        """A connection for one call, after the handshake. The caller sets its time limits.

        Raises:
            Disconnected: nothing answers. StoreError: the agent refuses, or this one ends.
        """
        return self.at(address).channel.connect("call", Deadline.brief(DIAL_SECONDS))

    def ask(self, address: str, method: str, arguments: dict[str, Any]) -> Any:
        """Make a call of the agent at an address. It must be one that may arrive twice.

        Raises:
            NodeUnavailable, Timeout: no answer in time. StoreError, TypeError, ValueError: the error of the call there.
        """
        size = sum(each.nbytes for each in arguments.values() if isinstance(each, np.ndarray))
        session = self.at(address)
        try:
            return session.call(method, arguments, timeout=Deadline.brief(ANSWER_SECONDS + size / LEAST_RATE))
        finally:
            if len(self._sessions) > MOST_IDLE:
                session.channel.client.drop_idle()
