"""Rows on disk that can no longer be read: their items are removed, and the call that found them continues."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from di_store import _core
from di_store.base.errors import RowsLost
from di_store.base.warned import warn
from di_store.runtime.waits import CALL_SECONDS

T = TypeVar("T")
log = logging.getLogger("di_store")
_MOST_LINES = 100
_warned = False


def drop_lost(arena: _core.Arena, marked: bool = False) -> None:
    """Remove the items of chunks that this process could not read, from all tables.

    The log gets a line for each chunk, with file and page; the process warns once.

    Args:
        arena: arena of the store.
        marked: also chunks that other processes could not read.

    Raises:
        Timeout: the store's lock is not available; the next call removes the items.
    """
    global _warned
    found = arena.drop_lost(marked, CALL_SECONDS)
    items, told = found.items, found.what
    for what in told[:_MOST_LINES]:
        log.warning("store %r: rows on disk are lost: %s", arena.name, what)
    if len(told) > _MOST_LINES:
        log.warning("store %r: rows on disk are lost: %s more chunks", arena.name, len(told) - _MOST_LINES)
    if items and not _warned:
        _warned = True
        what = told[0] if told else f"files in {arena.disk!r}"
        warn(
            f"store {arena.name!r}: rows on disk cannot be read any more ({what}); {items} items that need "
            "them were removed, and others will be removed without a further warning; "
            "store.stats()['disk'] counts them as damaged_items, and `di-store check` reads all files"
        )


def without_lost(arena: _core.Arena, call: Callable[..., T], *args: Any) -> T:
    """The result of `call`. After items that it could not read were removed, the call is repeated."""
    while True:
        try:
            return call(*args)
        except RowsLost:
            drop_lost(arena)
