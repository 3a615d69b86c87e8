"""Calls that look for something, again and again until it is there: what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

import msgspec

from di_store._core import Arena, Awaited
from di_store.runtime.waits import Steps, Wait, run

T = TypeVar("T")


class Missing(msgspec.Struct, Generic[T]):
    """Result of a look in `until` that did not find its result yet.

    Attributes:
        awaited: the number that changes when the result may exist.
        seen: that number before the look.
        reason: the condition that the call waits for, with counts.
        full: at the deadline raise `StoreFull` instead of `Timeout`.
        holder: the process that the reason names, by its place among the store's clients.
        late: returns the call's result at the deadline; None: the deadline is an error.
        error: raised at the deadline instead of `Timeout`.
    """

    awaited: Awaited
    seen: int
    reason: str
    full: bool = False
    holder: int | None = None
    late: Callable[[], T] | None = None
    error: Exception | None = None


Search: TypeAlias = "tuple[Callable[[], Arena], float | None, str, Callable[[Arena], T | Missing[T]]]"
"""The arguments of `until` and `looking`: a call that looks for something, in a thread or in a task."""


def until(arena: Callable[[], Arena], timeout: float | None, what: str, look: Callable[[Arena], T | Missing[T]]) -> T:
    """As `looking`, in this thread."""
    found: T | Missing[T] | None = look(arena())
    try:
        if type(found) is not Missing:  # most calls do not wait
            return found  # type: ignore[return-value]
        if timeout == 0 and found.late is not None and found.error is None:
            return found.late()
        return run(looking(arena, timeout, what, look, found))  # type: ignore[no-any-return]
    finally:
        found = None  # breaks the cycle error -> traceback -> frame -> error


def looking(
    arena: Callable[[], Arena],
    timeout: float | None,
    what: str,
    look: Callable[[Arena], T | Missing[T]],
    first: Missing[T] | None = None,
) -> Steps[T]:
    """Look repeatedly until the look returns something other than `Missing`.

    Args:
        arena: returns the store's attachment for each look, or raises to end the wait.
        timeout: seconds; None: no limit.
        what: name of the call, for its error.
        look: one attempt; must not block.
        first: the result of a look that was just made; None: there was none.

    Raises:
        Timeout, StoreFull: the deadline is over, and the last look gave neither `late` nor `error`.
    """
    wait: Wait | None = None
    found: T | Missing[T] | None = None
    try:
        while True:
            attached = arena()
            found, first = first or look(attached), None
            if type(found) is not Missing:
                return found  # type: ignore[return-value]
            may_end = found.late is not None or found.error is not None
            if wait is None and not (may_end and timeout == 0):
                wait = Wait(attached, timeout, what)
                if not may_end and attached.reap():  # dead processes may have held what is missing
                    continue
            if wait is None or (left := wait.left) <= 0:
                if found.error is not None:
                    raise found.error
                if found.late is not None:
                    return found.late()
                assert wait is not None
                raise wait.failure(found.reason, full=found.full, holder=found.holder)
            yield wait.nap(found.awaited, found.seen, found.reason, left, holder=found.holder)
    finally:
        found = None  # breaks the cycle error -> traceback -> frame -> error
        if wait is not None:
            wait.end()
