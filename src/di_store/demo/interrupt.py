"""Ctrl-C and SIGTERM as a flag, so that they end a run between two updates and never inside one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """`asked` turns True at the first signal. Only a main thread can take signals; elsewhere this does nothing."""

    def __init__(self) -> None:
        self.asked = False
        self._mine = threading.current_thread() is threading.main_thread()

    def take(self) -> None:
        """Take the signals from here on."""
        self._set(self._ask)

    def ignore(self) -> None:
        """Let them do nothing any more: the process is ending, and a late one would only spoil its last words."""
        self._set(signal.SIG_IGN)

    def _set(self, handler: signal.Handlers | Callable[[int, FrameType | None], None]) -> None:
        if self._mine:
            for number in SIGNALS:
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
