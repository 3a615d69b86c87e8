"""Ctrl-C and SIGTERM set a flag, so that a run ends between two updates, never within one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """`asked` turns True at the first signal. Only the main thread can handle signals; elsewhere this does nothing."""

    def __init__(self) -> None:
        self.asked = False
        self._mine = threading.current_thread() is threading.main_thread()

    def take(self) -> None:
        """Handle the signals from now on."""
        self._set(self._ask)

    def ignore(self) -> None:
        """Ignore the signals from now on: the process is about to end, and a signal would only print a traceback."""
        self._set(signal.SIG_IGN)

    def _set(self, handler: signal.Handlers | Callable[[int, FrameType | None], None]) -> None:
        if self._mine:
            for number in SIGNALS:
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
