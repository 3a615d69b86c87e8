"""Ray's own limits at the start of a node, which a busy machine exceeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LATE = "timed out during startup"
"""Ray gives up on a node that has not started within 30 s; nothing changes that limit."""
TRIES = 5


def started(start: Callable[[], T]) -> T:
    """What `start` makes: a node, or a cluster with its first one. Tried again while Ray gives up on it."""
    for _ in range(TRIES - 1):
        try:
            return start()
        except Exception as error:
            if LATE not in str(error):
                raise
    return start()
