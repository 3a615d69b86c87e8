"""Answers of calls that must not run twice, kept for a client whose connection broke before it received them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from di_store.protocol.frame import Buffer, Kind
from di_store.runtime.inside import SLICE_SECONDS

Reply = tuple[Kind, bytes, list[Buffer]]
"""Kind, meta and body of an answer."""


class Answers:
    """The answers kept for one client. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._known: dict[int, Reply] = {}
        self._running: set[int] = set()

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, request: int, may_repeat: list[int], waits: Callable[[str], None]) -> Reply | None:
        """The answer that this request already got; None: the caller makes the call now, and then calls `end`.

        Args:
            request: number of the request.
            may_repeat: numbers that the client may still repeat. Answers to all other numbers up to the highest of
                `may_repeat` are forgotten.
            waits: called while another thread, whose connection broke, makes the same call; may raise to give up.
        """
        last = max(may_repeat, default=0)
        while True:
            with self._changed:
                for number in [each for each in self._known if each < last and each not in may_repeat]:
                    del self._known[number]
                if (found := self._known.get(request)) is not None:
                    return found
                if request not in self._running:
                    self._running.add(request)
                    return None
                self._changed.wait(SLICE_SECONDS)
            waits("the same call, received over a connection that broke, is still running")

    def end(self, request: int, answer: Reply | None) -> None:
        """Note the answer of a call that is done; None: the call was given up, and nothing was done."""
        with self._changed:
            self._running.discard(request)
            if answer is not None:
                self._known[request] = answer
            self._changed.notify_all()
