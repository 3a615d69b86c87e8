"""Writers that were dropped while calls of theirs were on their way: these calls still come."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from typing import Protocol

from di_store.base.errors import WriterClosed

END_SECONDS = 5.0
"""How long the end of the interpreter, or of a store's handle, waits for them. If they were interrupted: a second."""


class Pending(Protocol):
    """What has calls on their way."""

    interrupted: bool
    """Whether a signal handler has raised in its last call."""

    def flush(self, timeout: float | None, what: str = "") -> None:
        """Wait until everything is acknowledged."""

    def close(self, why: BaseException) -> None:
        """End it here, and say what was not acknowledged."""


leaving: dict[Pending, object] = {}
"""What nobody else holds any more, until its calls are acknowledged; with its link."""


def settle(link: object | None, seconds: float = END_SECONDS) -> None:
    """Wait for those of a link, which is being closed; None: of all."""
    until = time.monotonic() + seconds
    for each in [each for each, its in list(leaving.items()) if link is None or its is link]:
        with contextlib.suppress(Exception):  # nobody is left to hear of it
            each.flush(0.0 if each.interrupted else max(until - time.monotonic(), 0.0))
        leaving.pop(each, None)
        each.close(WriterClosed("this writer was dropped"))


atexit.register(settle, None)
os.register_at_fork(after_in_child=leaving.clear)
