"""Items as bytes: the columns of an item one after the other, and a form that tells their types and shapes.

The number of a form is a digest of its description, which lies in the store as an object of that id. So a form is
described once, however many items and processes use it.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import di_store

Array: TypeAlias = NDArray[Any]
Kind: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""Type and shape of a column."""

OBJECTS = np.dtype(object)
PICKLED = 0
"""The number in place of a form of items that are pickled, as they hold Python objects (strings)."""


class Form:
    """Where the columns of an item lie.

    Attributes:
        number: of the form.
        columns: type, shape and first byte of each column.
        ends: one after the last byte of each column.
        total: bytes of an item, a multiple of 8.
        key: `number` as the table takes it.
    """

    def __init__(self, kinds: Sequence[Kind], number: int) -> None:
        self.number, self.key = number, np.uint64(number)
        self.columns: list[tuple[np.dtype[Any], tuple[int, ...], int]] = []
        self.ends: list[int] = []
        end = 0
        for dtype, shape in kinds:
            start = _aligned(end, dtype.alignment)
            end = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            self.columns.append((dtype, shape, start))
            self.ends.append(end)
        self.total = max(8, _aligned(end, 8))

    @property
    def kinds(self) -> list[Kind]:
        """Type and shape of each column."""
        return [(dtype, shape) for dtype, shape, _ in self.columns]

    def one(self, data: Array, start: int) -> list[Array]:
        """The columns of the item that begins at this byte of `data`, as views."""
        return [np.ndarray(shape, dtype, data, start + offset) for dtype, shape, offset in self.columns]

    def many(self, data: Array, count: int) -> list[Array]:
        """The columns ``[count, …]`` of items that lie one after the other, as views."""
        if count == 0:
            return [np.zeros((0, *shape), dtype) for dtype, shape, _ in self.columns]
        rows = np.ndarray((count, self.total), np.uint8, data)
        return [
            rows[:, start:end].view(dtype).reshape(count, *shape) if end > start else np.zeros((count, *shape), dtype)
            for (dtype, shape, start), end in zip(self.columns, self.ends, strict=True)
        ]

    def pack(self, arrays: Sequence[Array]) -> Array:
        """The bytes of an item, uint8[total]."""
        data = np.empty(self.total, np.uint8)
        for (dtype, shape, start), array in zip(self.columns, arrays, strict=True):
            np.ndarray(shape, dtype, data, start)[...] = array
        return data


class Forms:
    """The forms that a process knows of a store."""

    def __init__(self, store: di_store.Store) -> None:
        self._store = store
        self._known: dict[int, Form] = {}
        self._declared: dict[tuple[Kind, ...], Form] = {}

    def declare(self, kinds: Sequence[Kind]) -> Form:
        """The form of items with these columns; its description is in the store afterwards."""
        key = tuple(kinds)
        if (known := self._declared.get(key)) is not None:
            return known
        described = pickle.dumps([(dtype, tuple(shape)) for dtype, shape in kinds], protocol=4)
        number = int.from_bytes(hashlib.blake2b(described, digest_size=8).digest(), "little") or 1
        try:
            self._store.put(described, id=_object_id(number))
        except di_store.ObjectExists:
            pass  # another process has described it
        form = self._known[number] = self._declared[key] = Form(kinds, number)
        return form

    def find(self, number: int) -> Form:
        """The form of this number."""
        if (known := self._known.get(number)) is not None:
            return known
        kinds = pickle.loads(self._store.get(_object_id(number), timeout=60))
        form = self._known[number] = Form(kinds, number)
        return form

    def items(self, numbers: Array, data: Array, offsets: Array) -> list[list[Array]]:
        """The columns of each item of a batch.

        Args:
            numbers: uint64[n], the forms.
            data: uint8, the items one after the other.
            offsets: int64[n + 1], where they begin, and the last one ends.
        """
        starts = offsets.tolist()
        found = []
        for place, number in enumerate(numbers.tolist()):
            if number == PICKLED:
                found.append(pickle.loads(data[starts[place] : starts[place + 1]].data))
            else:
                found.append(self.find(number).one(data, starts[place]))
        return found


def pickled(arrays: Sequence[Array]) -> Array:
    """The bytes of an item with columns of Python objects."""
    return np.frombuffer(pickle.dumps([np.asarray(array) for array in arrays], protocol=5), np.uint8)


def _object_id(number: int) -> str:
    return f"{number:040x}"


def _aligned(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
