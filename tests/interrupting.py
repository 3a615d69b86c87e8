"""An error at a chosen step of some files, as the handler of a signal may raise it there.

By default KeyboardInterrupt in a loader's code and in what that calls of the library, wherever it is written in Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

from di_store.replay import loader, prefetch, sampling
from di_store.runtime import background, chores

SOURCES = {
    str(module.__file__)
    for module in (prefetch, loader, sampling, background, chores, contextlib, queue, threading, weakref)
}


class Interrupt:
    """A trace function that raises at the k-th step (bytecode) of this thread in some files."""

    def __init__(
        self, at: int, files: Collection[str] = SOURCES, error: type[BaseException] = KeyboardInterrupt
    ) -> None:
        self.left = at
        self._files = files
        self._error = error

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                raise self._error
        return self


def interrupted(call: Callable[[], Any], at: int) -> tuple[Any, int]:
    """What a call gives, None if it was interrupted, and how many of the steps until then it did not come to."""
    interrupt = Interrupt(at)
    gc.disable()  # what a callback of the collector raises is only printed
    sys.settrace(interrupt)
    try:
        found = call()
    except KeyboardInterrupt:
        found = None
    finally:
        sys.settrace(None)
        gc.enable()
    forget_handled()
    return found, interrupt.left


def forget_handled() -> None:
    """No error counts as being handled any more; for callers outside of generators and `except`.

    A trace function may raise where no signal handler can: behind the instruction that begins an `except` and before
    what ends it again. Python then takes that error for the context of all later ones.
    """
    ctypes.pythonapi.PyErr_SetExcInfo(None, None, None)
