"""Counts the bytes of batches that the loaders of a process hold ahead of their consumers."""

from __future__ import annotations

import warnings
import weakref
from typing import Protocol

from di_store import _core
from di_store.base.sizes import format_size

MOST_BYTES, MEMORY_SHARE = 256 << 20, 8
"""The limits without `staging=`: bytes, and the part (1/n) of the store's memory."""


class Holder(Protocol):
    """A loader."""

    def staged(self) -> int:
        """Bytes of its batches, without the batch that is handed out next."""


class Staging:
    """The budget of all loaders made through one handle of a store. Thread-safe.

    A store without a disk tier has no budget: only `prefetch=` limits how many batches its loaders hold.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._told = False

    def follow(self, holder: Holder) -> None:
        """Count the batches of this loader."""
        self._holders.add(holder)

    def limit(self, arena: _core.Arena) -> int | None:
        """The limit in bytes; None: no limit."""
        if not arena.disk:
            return None
        return min(MOST_BYTES, arena.budget // MEMORY_SHARE) if self._limit is None else self._limit

    def has_room(self, arena: _core.Arena, batch_bytes: int) -> bool:
        """Whether one more batch of that many bytes may be drawn ahead."""
        limit = self.limit(arena)
        return limit is None or sum(each.staged() for each in list(self._holders)) + batch_bytes <= limit

    def tell(self, arena: _core.Arena, name: str, ahead: int, prefetch: int, batch_bytes: int) -> None:
        """Warn, once, that a loader holds fewer batches than requested."""
        if self._told:
            return
        self._told = True
        limit = self.limit(arena) or 0
        default = f", the smaller of {format_size(MOST_BYTES)} and an eighth of memory="
        warnings.warn(
            f"loader of {name} holds {ahead} batches of {format_size(batch_bytes)} ahead instead of "
            f"prefetch={prefetch}: the loaders of this process share "
            f"staging={format_size(limit)}{default if self._limit is None else ''}; give open() or attach() "
            "a larger staging=, or lower prefetch=",
            RuntimeWarning,
            stacklevel=5,
        )
