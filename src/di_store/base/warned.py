"""Warnings that point to the program's own line, even if an agent made the call that warns."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_of_thread = threading.local()


def warn(text: str) -> None:
    """Raise a `RuntimeWarning` at the line of the user's program; inside `noted`, keep its text instead."""
    texts: list[str] | None = getattr(_of_thread, "texts", None)
    if texts is not None:
        texts.append(text)
        return
    warnings.warn(text, RuntimeWarning, stacklevel=_users_level())


@contextmanager
def noted() -> Iterator[None]:
    """In this block the thread works for a program elsewhere, so its warnings are kept for `taken`."""
    before, _of_thread.texts = getattr(_of_thread, "texts", None), []
    try:
        yield
    finally:
        _of_thread.texts = before


def taken() -> list[str]:
    """The texts that this thread has kept since the last call."""
    texts: list[str] | None = getattr(_of_thread, "texts", None)
    if not texts:
        return []
    found, texts[:] = list(texts), []
    return found


def _users_level() -> int:
    """The `stacklevel` with which a warning of the caller points to the line of the user's program."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("di_store."):
        frame, level = frame.f_back, level + 1
    return level
