"""Background work: a thread commits memory ahead, makes huge pages, and cleans up after dead processes.

Each process with a writer or loader has one such thread. No call depends on it: a call that needs the result does the
work itself. The thread ends with the last handle of its store.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

from di_store import _core
from di_store.base.errors import StoreError, Timeout
from di_store.runtime.background import Background, Wakeup

log = logging.getLogger("di_store")
IDLE_SECONDS = 0.2
END_SECONDS = 5.0
BEGIN_SECONDS = 1.0
"""A thread begins within this time, also on a busy machine."""


def run_ahead(arena: _core.Arena) -> None:
    """Start the background thread of this store in this process, unless it runs."""
    (_all.get(id(arena)) or _all.setdefault(id(arena), _Chores(arena))).start()


def start_again(arena: _core.Arena) -> None:
    """Start the thread if lack of memory prevented its start or ended it.

    Frequent operations call this now and then.
    """
    known = _all.get(id(arena))
    if known is not None and known.is_missing():
        known.start()


def run_beside(arena: _core.Arena, work: Callable[[_core.Arena], None]) -> None:
    """Let a second thread do this work, unless it is still busy, because the work would delay the chores for long."""
    known = _all.get(id(arena))
    if known is not None:
        known.run_beside(work)


def let_go(key: int, has_others: Callable[[], bool]) -> None:
    """End the threads' work for the arena with this id(), so that they are not the last to leave the store.

    Waits for that, for at most `END_SECONDS`. If other handles of this process use the store, the threads continue
    afterwards.
    """
    if not _letting_go.acquire(timeout=END_SECONDS):
        return
    try:
        known = _all.get(key)
        if known is None or has_others():
            return
        known.end()
        try:
            known.join(END_SECONDS)
        finally:  # also after Ctrl-C, and where a stopped process holds the thread up
            known.go_on()
            if has_others() and _all.get(key) is known:  # somebody has attached to the store meanwhile
                known.start()
    finally:
        _letting_go.release()


def on_look(look: Callable[[_core.Arena], None]) -> None:
    """Let the background thread of every store call this too, several times a second. The function must be quick."""
    _looks.append(look)


_letting_go = threading.Lock()  # one at a time: the next one would wait for the thread that was started again
_looks: list[Callable[[_core.Arena], None]] = []


class _Chores:
    """The chores of one store, and their threads."""

    def __init__(self, arena: _core.Arena) -> None:
        # Removes the entry when the arena is freed: one call of C, before another arena can get the same id().
        self._arena = weakref.ref(arena, partial(_all.pop, id(arena)))
        self._end = Wakeup()  # ends the thread
        self._name = arena.name
        self._ending = False
        self._due = False  # it was started, and has not ended as it should
        self._started = 0.0
        self._told = False
        self._work: Callable[[_core.Arena], None] | None = None
        self._beside = Background(self._run_beside)
        self.thread = Background(self._run)

    def start(self) -> None:
        """Start the thread, unless it runs or is to end: waiting for its end must not become waiting for a new one."""
        if self._ending or self.thread.lives():
            return
        self._due, self._started = True, time.monotonic()
        try:
            self.thread.start()
        except RuntimeError:  # no memory or pids for it: see `is_missing`
            self._tell()

    def is_missing(self) -> bool:
        """Whether the thread should run and does not."""
        if self.thread.lives() or not self._due:
            return False
        return time.monotonic() - self._started > BEGIN_SECONDS  # else it may be about to begin

    def run_beside(self, work: Callable[[_core.Arena], None]) -> None:
        """As the module's function `run_beside`."""
        self._work = work
        with contextlib.suppress(RuntimeError):  # no memory or pids for a thread: the next look tries again
            self._beside.start()

    def end(self) -> None:
        """Tell the thread to end, without waiting."""
        self._ending = True
        self._end.wake()

    def go_on(self) -> None:
        """Take `end` back."""
        self._ending = False
        self._end.wait(0)

    def join(self, seconds: float) -> None:
        """Wait until both threads have ended, `seconds` at most.

        The second thread is waited for last, because the first one starts it.
        """
        until = time.monotonic() + seconds
        for each in (self.thread, self._beside):
            each.join(until - time.monotonic())

    def _run(self) -> None:
        seconds = 0.0
        while not self._ending:  # also of a second thread that was started beside the first one and begins late
            try:
                if self._end.wait(seconds) or not self._slice():
                    break
            except MemoryError:
                self._tell()
            seconds = IDLE_SECONDS
        self._due = False

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            log.warning("store %r lacks memory, or a thread, for its background work; it tries again", self._name)

    def _run_beside(self) -> None:
        arena, work = self._arena(), self._work
        if arena is not None and work is not None:
            work(arena)

    def _slice(self) -> bool:
        """Do all chores that are due; False if the store has ended. Keeps the arena alive only during this call."""
        arena = self._arena()
        if arena is None:
            return False
        try:
            while arena.chore():
                if self._end.is_pending():
                    return True
            for look in _looks:
                look(arena)
        except Timeout:
            return True  # a stopped process holds a lock; it may go on
        except StoreError:
            return False
        return True


_all: dict[int, _Chores] = {}  # by id of the arena


def _after_fork() -> None:
    global _letting_go
    _all.clear()
    _letting_go = threading.Lock()


def _stop() -> None:
    """Called before the interpreter ends: no thread may be inside the core then."""
    running = list(_all.values())
    _all.clear()
    until = time.monotonic() + END_SECONDS
    for each in running:
        each.end()
    for each in running:
        each.join(until - time.monotonic())


atexit.register(_stop)
os.register_at_fork(after_in_child=_after_fork)
