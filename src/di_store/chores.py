"""Work that runs ahead: a thread of the first writer or loader commits memory, collapses pages and settles the dead.

Nobody depends on it: whoever needs a result does the same slice itself. It ends with the last handle of its store.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref

from di_store import _core
from di_store.errors import StoreError, Timeout

IDLE_SECONDS = 0.2

_lock = threading.RLock()  # a signal handler may open a writer while its thread opens one
_threads: dict[int, tuple[int, threading.Thread, threading.Event]] = {}  # by id of the arena: pid, thread, its end


def run_ahead(arena: _core.Arena) -> None:
    """Start the thread for this store in this process, unless it runs."""
    with _lock:
        known = _threads.get(id(arena))
        if known is not None and known[0] == os.getpid() and known[1].is_alive():
            return
        end = threading.Event()
        thread = threading.Thread(target=_run, args=(weakref.ref(arena), end), name="di-store chores", daemon=True)
        _threads[id(arena)] = os.getpid(), thread, end
        try:
            thread.start()
        except RuntimeError:
            pass  # no memory or pids for it: whoever needs a slice does it, and the next writer or loader tries again


def _run(arena: weakref.ref[_core.Arena], end: threading.Event) -> None:
    while not end.is_set():
        if not _slice(arena, end):
            return
        end.wait(IDLE_SECONDS)


def _slice(reference: weakref.ref[_core.Arena], end: threading.Event) -> bool:
    """All that is due; False when the store has gone. The arena is held no longer than that."""
    arena = reference()
    if arena is None:
        return False
    try:
        while arena.chore():
            if end.is_set():
                break
    except Timeout:
        return True  # a stopped process holds a lock; it may go on
    except StoreError:
        return False
    return True


def _stop() -> None:
    """Before the interpreter ends, which threads inside the core must not see."""
    with _lock:
        running = [(thread, end) for pid, thread, end in _threads.values() if pid == os.getpid()]
        _threads.clear()
    for _, end in running:
        end.set()
    for thread, _ in running:
        if thread.is_alive():
            thread.join(5)


def _forget() -> None:
    global _lock
    _lock = threading.RLock()
    _threads.clear()


atexit.register(_stop)
os.register_at_fork(after_in_child=_forget)
