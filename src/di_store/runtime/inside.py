"""The threads that sleep inside the core, and the end of the interpreter.

Before the interpreter ends, all threads but the main one leave the core and then sleep in Python. Their calls go on and
keep their deadlines, because an exit handler may wait for them. The interpreter can end a thread that sleeps in Python
without harm; unwinding the stack of a thread inside the core would abort the process.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Any

SLICE_SECONDS = 0.1
"""The longest sleep inside the core."""

_inside: set[int] = set()
_ending = False


def sleep_inside(sleep: Callable[..., None], *arguments: Any) -> None:
    """Sleep one slice inside the core: the last of the arguments are the seconds, at most `SLICE_SECONDS`."""
    me = threading.get_ident()
    if _ending and me != threading.main_thread().ident:
        time.sleep(arguments[-1])
        return
    _inside.add(me)
    try:
        sleep(*arguments)
    finally:
        _inside.discard(me)


def _leave() -> None:
    """Called before the interpreter ends."""
    global _ending
    _ending = True
    me = {threading.get_ident()}  # an exception of a signal handler may have left its own entry
    until = time.monotonic() + 20 * SLICE_SECONDS
    while _inside - me and time.monotonic() < until:
        time.sleep(SLICE_SECONDS / 20)


def _forget() -> None:
    """Reset the state in a forked child, which has none of the parent's other threads."""
    _inside.clear()


atexit.register(_leave)
os.register_at_fork(after_in_child=_forget)
