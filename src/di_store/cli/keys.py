"""Reads single keys from a terminal while a command waits."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any

from di_store.cli.common import Stop

SLICE_SECONDS = 0.1


class Keys:
    """Reads keys from stdin without echo and without waiting for Enter. Returns no keys if stdin is no terminal."""

    def __init__(self) -> None:
        self._before: Any = None

    def __enter__(self) -> Keys:
        if sys.stdin is not None and sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin, termios.TCSANOW)  # Ctrl-C stays a signal
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, self._before)

    def wait(self, seconds: float, stop: Stop) -> str:
        """The next key; "" if none was typed within `seconds`, or `stop` was set."""
        end = time.monotonic() + seconds
        while not stop.wait(0) and (left := end - time.monotonic()) > 0:
            if self._before is None:
                stop.wait(left)
            elif select.select([sys.stdin], [], [], min(left, SLICE_SECONDS))[0]:
                return os.read(sys.stdin.fileno(), 1).decode(errors="replace")
        return ""
