"""One call at a time: a call from inside another call of the same thread is refused, as in a local store.

A signal handler may make such a call, or the `__array__` of a value that is being written. Waiting for the outer call
would never end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from di_store.base.errors import StoreError
from di_store.replay.writer import WriterBackend
from di_store.replay.writer_stream import BUSY, LATER

F = TypeVar("F", bound=Callable[..., Any])


class _Inside(threading.local):
    """The ids of objects in whose calls this thread is.

    A new thread has no such ids, and neither has one in a forked child.
    """

    def __init__(self) -> None:
        self.objects: set[int] = set()


def refusing_calls_inside(text: str, remedy: str) -> Callable[[F], F]:
    """Makes methods raise `StoreError` if this thread is inside one of them, of the same object."""
    inside = _Inside()

    def decorate(method: F) -> F:
        @wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            mine, here = inside.objects, id(self)
            if here in mine:
                raise StoreError(text, remedy=remedy)
            try:  # before `add`: a signal handler may raise in between
                mine.add(here)
                return method(self, *args, **options)
            finally:
                mine.discard(here)

        return call  # type: ignore[return-value]

    return decorate


def alone(method: F) -> F:
    """Let the owner's thread make one call of an `OwnedWriter` at a time.

    A second call, from a signal handler, is refused: it would wait for ever.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        self.check_idle()
        try:
            self._inside = True
            return method(self, *args, **options)
        finally:
            self._inside = False

    return call  # type: ignore[return-value]


class OwnedWriter(WriterBackend):
    """A writer whose owner's thread is inside one call at a time."""

    _inside = False

    def check_idle(self) -> None:
        if self._inside:
            raise StoreError(BUSY, remedy=LATER)
