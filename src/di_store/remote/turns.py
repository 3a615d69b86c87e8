"""One call at a time: a call from within another one of the same thread is refused, as it is on one machine.

A signal handler may make such a call, or the `__array__` of a value that is being written. Waiting for the outer call
would never end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from di_store.base.errors import StoreError

F = TypeVar("F", bound=Callable[..., Any])


def refusing_calls_inside(text: str, remedy: str) -> Callable[[F], F]:
    """Makes methods raise `StoreError` if this thread is inside one of them, of the same object."""
    inside: set[tuple[int, int]] = set()

    def decorate(method: F) -> F:
        @wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            here = threading.get_ident(), id(self)
            if here in inside:
                raise StoreError(text, remedy=remedy)
            try:  # before `add`: a signal handler may raise in between
                inside.add(here)
                return method(self, *args, **options)
            finally:
                inside.discard(here)

        return call  # type: ignore[return-value]

    return decorate
