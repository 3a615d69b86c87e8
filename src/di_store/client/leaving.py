"""Finishes calls in flight whose writers were dropped."""

from __future__ import annotations

import atexit
import contextlib
import os
from typing import Protocol

from di_store.base.errors import WriterClosed
from di_store.runtime.deadline import Deadline

END_SECONDS = 5.0
"""How long the end of the interpreter, or of a store's handle, waits for dropped writers; for interrupted ones, a
second."""


class Pending(Protocol):
    """A writer with calls in flight."""

    interrupted: bool
    """Whether a signal handler has raised in the writer's last call."""

    def flush(self, timeout: Deadline, what: str = "") -> None:
        """Wait until everything is acknowledged."""

    def close(self, why: BaseException) -> None:
        """End the writer, and report the calls that were not acknowledged."""


leaving: dict[Pending, object] = {}
"""Dropped writers whose calls are not acknowledged yet, each with its channel."""


def settle(channel: object | None, seconds: float = END_SECONDS) -> None:
    """Wait for the calls of a channel that is being closed; None: for all channels."""
    those = [each for each, its in list(leaving.items()) if channel is None or its is channel]
    for each, step in Deadline(seconds).steps(those):
        with contextlib.suppress(Exception):  # nobody is left to hear of it
            each.flush(step.sooner(0.0) if each.interrupted else step)
        leaving.pop(each, None)
        each.close(WriterClosed("this writer was dropped"))


atexit.register(settle, None)
os.register_at_fork(after_in_child=leaving.clear)
