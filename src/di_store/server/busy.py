"""Tells clients that the agent is working on their calls. Copying a batch, for example, sends nothing for a while.

A client gives a call up if its deadline is over and the agent is silent. So the agent must not be silent while it
works.
"""

from __future__ import annotations

import threading
from typing import Protocol

TELL_SECONDS = 0.4
"""How often a client hears of a call that is at work: twice as often as it must."""


class Working(Protocol):
    """A conversation (`Conversation`)."""

    def tell_working(self) -> None:
        """Tell the client that the agent works on its call, if the client waits for a call and heard nothing lately.

        Never waits.
        """


class Busy:
    """The conversations of an agent."""

    def __init__(self) -> None:
        self._talks: set[Working] = set()

    def add(self, talk: Working) -> None:
        """Add a conversation that begins."""
        self._talks.add(talk)

    def remove(self, talk: Working) -> None:
        """Remove a conversation that has ended."""
        self._talks.discard(talk)

    def run(self, stopped: threading.Event) -> None:
        """Notify clients until the agent stops."""
        while not stopped.wait(TELL_SECONDS):
            for talk in list(self._talks):
                talk.tell_working()
