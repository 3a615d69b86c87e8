"""Indexes of a ring for the items of a table."""

from __future__ import annotations

import numpy as np

import di_store
from di_store.adapters.stored_array import Array

_LOOKS = 1_000
"""How often to look for an item's number while other processes insert."""


class ItemRing:
    """cpprb's indexes of items: the item with the number s since the last `reset` of the table has ``s % size``.

    An item's number is counted from the anchor, an item with a known number: `Table.positions` gives the positions of
    both under one lock. If the anchor was evicted, the ring finds another one, which takes several tries while other
    processes insert.
    """

    def __init__(self, table: di_store.Table, size: int) -> None:
        self._table, self._size = table, size
        self._anchor: tuple[int, int] | None = None  # key and number

    def forget(self) -> None:
        """Forget the anchor: the table was emptied."""
        self._anchor = None

    def index(self, key: int) -> int:
        """Ring index of an item that was just inserted."""
        if (anchor := self._anchor) is not None:
            positions = self._table.positions(np.array([anchor[0], key], np.uint64)).tolist()
            if min(positions) >= 0:
                number = anchor[1] + int(positions[1] - positions[0])
                self._anchor = key, number
                return number % self._size
        return int(self.indexes(np.array([key], np.uint64))[0])

    def numbers(self, keys: Array) -> Array:
        """Numbers of items since the last reset, int64[n]; -1: gone."""
        for _ in range(_LOOKS):
            anchor = self._anchor or self._find()
            if anchor is None:
                break
            positions = self._table.positions(np.concatenate((np.array([anchor[0]], np.uint64), keys)))
            if positions[0] < 0:
                self._anchor = None
                continue
            found = positions[1:]
            newest = int(found.argmax())
            if found[newest] > positions[0]:
                self._anchor = int(keys[newest]), anchor[1] + int(found[newest] - positions[0])
            return np.where(found < 0, -1, found + (anchor[1] - positions[0]))
        return np.full(len(keys), -1, np.int64)

    def _find(self) -> tuple[int, int] | None:
        for look in range(_LOOKS):
            before = self._table.stats()["inserts"]
            if not before or not len(self._table):
                return None
            try:
                newest = int(self._table.at([-1])[0])
            except IndexError:  # emptied meanwhile
                continue
            if self._table.stats()["inserts"] == before or look == _LOOKS - 1:
                self._anchor = newest, before - 1
                return self._anchor
        return None

    def indexes(self, keys: Array) -> Array:
        """Ring indexes uint64[n]; evicted items get the index that will be written next."""
        numbers = self.numbers(keys)
        if numbers.min() < 0:
            numbers[numbers < 0] = self._table.stats()["inserts"]
        return (numbers % self._size).astype(np.uint64)

    def keys(self, indexes: Array) -> tuple[Array, Array]:
        """Keys of the items at these indexes, and their numbers.

        Raises:
            IndexError: nothing is stored at an index.
        """
        stats = self._table.stats()
        total, held = stats["inserts"], stats["size"]
        wanted = np.atleast_1d(np.asarray(indexes)).reshape(-1).astype(np.int64)
        numbers = total - 1 - (total - 1 - wanted) % self._size
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < self._size and numbers.min() >= total - held):
            raise IndexError(f"indexes reach from {wanted.min()} to {wanted.max()}, and {held} transitions are stored")
        return self._table.at(numbers - (total - held)), numbers
