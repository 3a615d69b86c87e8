"""Ctrl-C and SIGTERM as a flag, so that they end a run between two updates and never inside one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """`asked` turns True at the first signal."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Take the signals inside the block. Only a main thread can; in another one this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
