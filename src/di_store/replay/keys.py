"""Keys of items: the position of an item in its table, and the shard of a key.

The shard is a key's highest byte: the number of its table among the tables of one batch. In a table's own keys it is 0.
Calls of a table accept only such keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from di_store import _core
from di_store._core import KEY_SHARD_AT, KEY_SHARDS
from di_store.base.dtypes import Array
from di_store.base.errors import StoreError
from di_store.layout.shape import UNLIMITED
from di_store.replay.batch import as_array

MOST_SHARDS = KEY_SHARDS
_SHIFT = np.uint64(KEY_SHARD_AT)
_PLAIN = np.uint64((1 << KEY_SHARD_AT) - 1)
_WHOLE = "whole numbers, such as 0 for the oldest item and -1 for the newest"
_AT_ONCE = 4_096
"""Keys or positions that the core looks up in one hold of the table's lock; for more it lists all keys."""


def with_shard(keys: Array, shard: int) -> Array:
    """A table's keys uint64[n], with `shard` (0 to 255) in their highest byte."""
    tagged: Array = keys | np.uint64(shard << KEY_SHARD_AT)
    return tagged


def shards_of(keys: Array) -> Array:
    """The shard of each key, int64[n]."""
    shards: Array = (keys >> _SHIFT).astype(np.int64)
    return shards


def plain(keys: Array) -> Array:
    """The keys with shard 0, as in their own tables."""
    own: Array = keys & _PLAIN
    return own


def keys_at(native: _core.Table, positions: Any, seconds: float) -> Array:
    """`Table.at`."""
    wanted = as_array("positions", positions, _WHOLE).reshape(-1)
    if not wanted.size:
        return np.empty(0, np.uint64)
    if wanted.dtype.kind not in "iu":
        raise TypeError(f"positions are {wanted.dtype}: give {_WHOLE}")
    size = native.size()
    if wanted.max() >= size or wanted.min() < -size:
        raise ValueError(f"positions reach from {wanted.min()} to {wanted.max()}, and the table has {size} items")
    wanted = np.ascontiguousarray(wanted, np.int64)
    wanted = np.where(wanted < 0, wanted + size, wanted)
    found = native.at(wanted, seconds) if wanted.size <= _AT_ONCE else None
    if found is None:
        every = native.keys(0, UNLIMITED, seconds)
        if wanted.max() >= len(every):
            raise ValueError(f"position {wanted.max()}: items were removed meanwhile, and the table has {len(every)}")
        found = every[wanted]
    return found


def positions_of(native: _core.Table, keys: Array, seconds: float) -> Array:
    """`Table.positions`."""
    found = native.positions(keys, seconds) if keys.size <= _AT_ONCE else None
    if found is not None:
        return found
    every = native.keys(0, UNLIMITED, seconds)
    if not every.size:
        return np.full(len(keys), -1, np.int64)
    order = np.argsort(every)
    places = order[np.searchsorted(every, keys, sorter=order).clip(max=len(every) - 1)]
    found = np.where(every[places] == keys, places, -1)
    return found


class GoneKey(int):
    """The key of an item that has left its table.

    Attributes:
        reason: "evicted", for capacity or room; "used_up": drawn `max_times_sampled` times; "dropped": the same, and
            ``ack(counts=False)`` ended its last draw; "stale": older than `max_staleness` allows; "deleted"; "reset";
            "lost": its rows could not be read from disk; or "overdue": its group was not complete at its deadline.
            "": the agent of the table is of an older version.
    """

    reason: str

    def __new__(cls, key: int, reason: str) -> GoneKey:
        """Make it; it equals the key itself."""
        made = super().__new__(cls, key)
        made.reason = reason
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return GoneKey, (int(self), self.reason)


_REASONS = tuple(each.name.lower() for each in sorted(_core.GoneFor, key=lambda each: each.value))


class GoneKeys:
    """The iterator of `Table.evicted`: the keys of items that leave a table from now on.

    A loop over it yields the new keys since the last loop, and ends; a later loop continues.
    """

    def __init__(self, native: _core.Table, seconds: float) -> None:
        self._native = native
        self._seconds = seconds
        self._next = native.keep_gone_keys(seconds)
        self._keys: list[GoneKey] = []  # read and not handed out yet, the next one last

    def __iter__(self) -> GoneKeys:
        return self

    def __next__(self) -> GoneKey:
        if not self._keys:
            found = self._native.gone_keys(self._next, self._seconds)
            if found is None:
                self._next = self._native.keep_gone_keys(self._seconds)
                raise StoreError(
                    f"keys of items that left table {self._native.name!r} were missed: more than 65,536 "
                    "left since the last call, or a process was killed while it removed some",
                    remedy="compare with table.keys(), then continue: later keys are reported as before",
                )
            keys, reasons, self._next = found
            self._keys = [GoneKey(key, _REASONS[why]) for key, why in zip(keys.tolist(), reasons.tolist(), strict=True)]
            self._keys.reverse()
        if not self._keys:
            raise StopIteration
        return self._keys.pop()
