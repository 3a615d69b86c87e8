"""Threads of this package. An exception in a signal handler cannot leave a thread half started or half ended.

A handler may raise between any two steps of Python code in the main thread. `threading.Thread.start`, `join`, `Event`
and `Condition` take locks in Python code, and such an exception would leave those locks taken. Here each step that
changes a lock is a single call of a C function.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable

from di_store.runtime.waits import logger

LOOK_SECONDS = 0.1
"""Seconds between two checks of a wait, for changes that wake nobody."""
MOST_STARTS = 600
"""Threads in a row that may end before they begin the work. One start per `LOOK_SECONDS` reaches it in a minute."""


class Wakeup:
    """Wakes one waiting thread. Several calls of `wake` before a wait count as one.

    It does not use `SimpleQueue.get(timeout=)`: up to CPython 3.12 this can wait for ever if its deadline passes inside
    the call.
    """

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wake(self) -> None:
        """Wake the waiting thread, or the next thread that waits."""
        try:
            self._asleep.release()
        except RuntimeError as error:
            if error.args != ("release unlocked lock",):  # it is awake already
                raise

    def wait(self, seconds: float) -> bool:
        """Wait for `wake`, for at most `seconds`.

        Returns whether `wake` was called. The next wait needs another call.
        """
        return self._asleep.acquire(timeout=max(seconds, 0.0))

    def is_pending(self) -> bool:
        """Whether `wake` was called since the last wait."""
        return not self._asleep.locked()


class Background:
    """Runs a function in a daemon thread, in one thread at a time."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._lives = threading.Lock()  # held while the work runs; only the thread takes and releases it
        self._ends = Wakeup()
        self._ident = 0
        self._starts = 0  # since a thread last began the work

    def lives(self) -> bool:
        """Whether the work has begun and not ended.

        A thread that was just started may begin the work a little later.
        """
        return self._lives.locked()

    def start(self) -> None:
        """Start the thread unless it runs. If two calls start one at once, the second thread ends immediately.

        Raises:
            RuntimeError: no memory or pids for a thread, or so little memory that every thread ends before the work.
        """
        if self.lives():
            return
        self._starts += 1
        if self._starts > MOST_STARTS:
            self._starts = 0
            raise RuntimeError(f"{MOST_STARTS} threads ended as soon as they began")
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        if not self._lives.acquire(blocking=False):
            return
        try:  # at once: want of memory can end each of these lines
            self._ident, self._starts = threading.get_ident(), 0
            self._ends.wait(0)  # clear the wakeup of an earlier run
            self._work()
        finally:
            self._lives.release()
            self._ends.wake()

    def join(self, seconds: float) -> bool:
        """Wait until the thread has ended, for at most `seconds`. Returns whether it has. Never waits for itself."""
        until = time.monotonic() + seconds
        while self.lives() and self._ident != threading.get_ident():
            left = until - time.monotonic()
            if left <= 0:
                break
            self._ends.wait(min(left, LOOK_SECONDS))
        return not self.lives()


def look_again(
    look: Callable[[], bool | None],
    stopped: threading.Event,
    seconds: float,
    failed: str,
    ends: tuple[type[Exception], ...] = (),
) -> None:
    """Look every so many seconds, until a look returns True, raises one of `ends`, or `stopped` is set.

    Logs the first failure after each success; `failed` is how the line begins.
    """
    failing = False
    while True:
        try:
            if look():
                return
            failing = False
        except ends:
            return
        except Exception as error:  # whatever it is, the next look may do better
            if not failing and not stopped.is_set():
                logger.warning("%s %s: %s", failed, type(error).__name__, error)
            failing = True
        if stopped.wait(seconds):
            return
