"""Calls of several nodes at once, so that those which do not answer are waited for together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import TypeVar

T = TypeVar("T")

_THREADS = 16


def at_once(calls: Sequence[Callable[[], T]], seconds: float | None = None) -> Iterator[T]:
    """Make calls, of one node each, and give the results as they come.

    Args:
        calls: may be empty.
        seconds: what is not there by then is not waited for, and goes on in its thread; None: no limit.

    Raises:
        What a call has raised. Without a limit, all have ended before.
    """
    if not calls:
        return
    pool = futures.ThreadPoolExecutor(min(len(calls), _THREADS), "di-store nodes")
    ended = futures.as_completed([pool.submit(call) for call in calls], seconds)
    try:
        while True:
            try:
                each = next(ended)
            except (StopIteration, futures.TimeoutError):
                return
            yield each.result()
    finally:
        pool.shutdown(wait=seconds is None, cancel_futures=seconds is not None)
