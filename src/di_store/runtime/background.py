"""A thread of the package's own, which an exception of a signal handler cannot leave half started or half ended.

A handler may raise between any two steps of Python code in the main thread. `threading.Thread.start`, `join`, `Event`
and `Condition` take locks in such code, and would keep them for ever. Here every step that matters is one call of C.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

LOOK_SECONDS = 0.1
"""How soon a wait sees what no call has woken it for."""
MOST_STARTS = 600
"""Threads in a row that end before they come to the work: a minute's, where each look starts one."""


class Background:
    """Does a piece of work in a daemon thread, in one at a time."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._lives = threading.Lock()  # taken and released by the thread alone
        self._ends: SimpleQueue[None] = SimpleQueue()
        self._ident = 0
        self._starts = 0  # since a thread last came to the work

    def lives(self) -> bool:
        """Whether the work has begun and not ended. A thread that was just started may begin it a little later."""
        return self._lives.locked()

    def start(self) -> None:
        """Start the thread, unless it lives. Started twice, the second one ends at once.

        Raises:
            RuntimeError: no memory or pids for it, or so little memory that each one ends before it begins.
        """
        if self.lives():
            return
        self._starts += 1
        if self._starts > MOST_STARTS:
            self._starts = 0
            raise RuntimeError(f"{MOST_STARTS} threads ended as they began")
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        if not self._lives.acquire(blocking=False):
            return
        self._ident, self._starts = threading.get_ident(), 0
        while not self._ends.empty():  # of the lives before
            self._ends.get()
        try:
            self._work()
        finally:
            self._lives.release()
            self._ends.put(None)

    def join(self, seconds: float) -> bool:
        """Wait until it has ended, so long at most; whether it has. Never in the thread itself."""
        until = time.monotonic() + seconds
        while self.lives() and self._ident != threading.get_ident():
            left = until - time.monotonic()
            if left <= 0:
                break
            wait_for(self._ends, min(left, LOOK_SECONDS))
        return not self.lives()


def wait_for(queue: SimpleQueue[None], seconds: float) -> bool:
    """Wait until something is in a queue, so long at most, and take it; whether there was something."""
    try:
        queue.get(timeout=seconds)
    except Empty:
        return False
    return True
