"""Background work: a thread commits memory ahead, makes huge pages, and cleans up after dead processes.

Each process with a writer or loader has one. No call depends on it: a call that needs the result does the work itself.
 The thread ends with the last handle of its store.
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
from di_store.runtime.background import Background, Bell

log = logging.getLogger("di_store")
IDLE_SECONDS = 0.2
END_SECONDS = 5.0


def run_ahead(arena: _core.Arena) -> None:
    """Start the background thread of this store in this process, unless it runs."""
    known = _all.get(id(arena)) or _all.setdefault(id(arena), _Chores(arena))
    with contextlib.suppress(RuntimeError):  # no memory or pids for it: the next writer or loader tries again
        known.thread.start()


def let_go(key: int) -> None:
    """Have the thread end what it does for the arena with this id(), so that it is not the last to leave the store.

    Waits for that, `END_SECONDS` at most. It starts again where others of this process have the store.
    """
    if not _letting_go.acquire(timeout=END_SECONDS):
        return
    try:
        known = _all.get(key)
        if known is None or not known.thread.lives():
            return
        known.end()
        try:
            known.thread.join(END_SECONDS)
        finally:  # also after Ctrl-C, and where a stopped process holds the thread up
            known.go_on()
            if _all.get(key) is known:
                with contextlib.suppress(RuntimeError):
                    known.thread.start()
    finally:
        _letting_go.release()


def on_look(look: Callable[[_core.Arena], None]) -> None:
    """Have the background thread of every store call this too, several times a second. It must be quick."""
    _looks.append(look)


_letting_go = threading.Lock()  # one at a time: the next one would wait for the thread that was started again
_looks: list[Callable[[_core.Arena], None]] = []


class _Chores:
    """The chores of one store, and their thread."""

    def __init__(self, arena: _core.Arena) -> None:
        # Removes the entry when the arena is freed: one call of C, before another arena can get the same id().
        self._arena = weakref.ref(arena, partial(_all.pop, id(arena)))
        self._end = Bell()  # ends the thread
        self.thread = Background(self._run)

    def end(self) -> None:
        """Let the thread end; waits for nothing."""
        self._end.ring()

    def go_on(self) -> None:
        """Take `end` back."""
        self._end.wait(0)

    def _run(self) -> None:
        while self._slice() and not self._end.wait(IDLE_SECONDS):
            pass

    def _slice(self) -> bool:
        """Do all chores that are due; False if the store is gone. Keeps the arena alive only during this call."""
        arena = self._arena()
        if arena is None:
            return False
        try:
            while arena.chore():
                if self._end.has_rung():
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
        each.thread.join(until - time.monotonic())


atexit.register(_stop)
os.register_at_fork(after_in_child=_after_fork)
