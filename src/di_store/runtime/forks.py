"""State that a forked child makes anew: locks that another thread of the parent may hold, threads, connections."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_renewed: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def in_child(owner: T, renew: Callable[[T], None]) -> None:
    """Have ``renew(owner)`` called in each child that is forked while the owner lives. It must not wait."""
    _renewed[owner] = renew


def _renew() -> None:
    for owner, renew in list(_renewed.items()):
        renew(owner)


os.register_at_fork(after_in_child=_renew)
