"""Items as bytes: the columns of an item one after the other, and a form with their types and shapes.

The number of a form is a digest of its description. The store holds the description as an object with this id. So each
form is described once, however many items and processes use it.

Anybody who can write to the store can make these bytes, even on another machine. Reading them runs no code that they
name: they hold types, sizes, numbers and text, and are checked.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

import di_store
from di_store.base import dtypes

Array: TypeAlias = NDArray[Any]
Kind: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""Type and shape of a column."""

OBJECTS = np.dtype(object)
TEXTS = 0
"""Stands in place of a form's number for items of Python objects (strings), which name their types themselves."""
_OBJECTS = (str, bytes, bool, int, float, type(None))
_Columns = list[tuple[Any, tuple[int, ...], Any]]
"""Type (None: Python objects), shape and values of each column of an item of `TEXTS`."""


class ItemForm:
    """The places of an item's columns.

    Attributes:
        columns: type, shape and first byte of each column.
        ends: one after the last byte of each column.
        total: bytes of an item, a multiple of 8.
        key: number of the form, as the table takes it.
    """

    def __init__(self, kinds: Sequence[Kind], number: int) -> None:
        self.key = np.uint64(number)
        self.columns: list[tuple[np.dtype[Any], tuple[int, ...], int]] = []
        self.ends: list[int] = []
        end = 0
        for dtype, shape in kinds:
            start = _aligned(end, dtype.alignment)
            end = start + dtype.itemsize * math.prod(shape)
            self.columns.append((dtype, shape, start))
            self.ends.append(end)
        self.total = max(8, _aligned(end, 8))

    def one(self, data: Array, start: int) -> list[Array]:
        """The columns of the item that begins at this byte of `data`, as views."""
        return [np.ndarray(shape, dtype, data, start + offset) for dtype, shape, offset in self.columns]

    def many(self, data: Array, count: int) -> list[Array]:
        """The columns ``[count, …]`` of consecutive items, as views."""
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


class ItemForms:
    """The forms of a store that this process knows."""

    def __init__(self, store: di_store.Store) -> None:
        self._store = store
        self._known: dict[int, ItemForm] = {}
        self._declared: dict[tuple[Kind, ...], ItemForm] = {}

    def declare(self, kinds: Sequence[Kind]) -> ItemForm:
        """The form of items with these columns. Stores its description if the store lacks it."""
        key = tuple(kinds)
        if (known := self._declared.get(key)) is not None:
            return known
        described = [[dtypes.describe(dtype), list(shape)] for dtype, shape in kinds]
        number = _digest(described)
        try:
            self._store.put(described, id=_object_id(number))
        except di_store.ObjectExists:
            pass  # another process has described it
        form = self._known[number] = self._declared[key] = ItemForm(kinds, number)
        return form

    def find(self, number: int) -> ItemForm:
        """The form of this number.

        Raises:
            di_store.CorruptData: the object with its id describes no form.
        """
        if (known := self._known.get(number)) is not None:
            return known
        try:
            described = self._store.get(_object_id(number))
            if _digest(described) != number:
                raise ValueError("its description has another format")
            kinds = [_kind(plain, shape) for plain, shape in described]
        except (di_store.ObjectNotFound, TypeError, ValueError) as error:
            raise di_store.CorruptData(f"an item has the unknown form {number}: {error}") from None
        form = self._known[number] = ItemForm(kinds, number)
        return form

    def items(self, numbers: Array, data: Array, offsets: Array) -> list[list[Array]]:
        """The columns of each item of a batch.

        Args:
            numbers: uint64[n], the forms.
            data: uint8, the items one after the other.
            offsets: int64[n + 1], where each item begins, and the last one ends.
        """
        starts = offsets.tolist()
        found = []
        for place, number in enumerate(numbers.tolist()):
            item = data[starts[place] : starts[place + 1]]
            if number == TEXTS:
                found.append(_untold(item))
                continue
            form = self.find(number)
            if len(item) != form.total:
                raise di_store.CorruptData(f"an item has {len(item)} bytes, but its form has {form.total}")
            found.append(form.one(item, 0))
        return found


def told(arrays: Sequence[Array]) -> Array:
    """The bytes of an item with columns of Python objects.

    Raises:
        TypeError: an object is neither text, bytes nor a number.
    """
    columns: _Columns = []
    for array in map(np.asarray, arrays):
        if array.dtype == OBJECTS:
            columns.append((None, array.shape, [_plain(each) for each in array.reshape(-1)]))
        else:
            columns.append((dtypes.describe(array.dtype), array.shape, array.tobytes()))
    try:
        return np.frombuffer(msgspec.msgpack.encode(columns), np.uint8)
    except (OverflowError, UnicodeEncodeError) as error:
        raise ValueError(f"an item holds a number or text that a table does not take: {error}") from None


def _plain(value: Any) -> Any:
    if not isinstance(value, _OBJECTS):
        raise TypeError(f"an item holds a {type(value).__name__}: tables take text, bytes, and arrays of numbers")
    return value


def _untold(item: Array) -> list[Array]:
    """The columns of an item that `told` made.

    Raises: di_store.CorruptData: the bytes are no such item.
    """
    try:
        return [_column(*column) for column in msgspec.msgpack.decode(item.data, type=_Columns)]
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise di_store.CorruptData(f"an item of text is damaged: {error}") from None


def _column(plain: Any, shape: tuple[int, ...], values: Any) -> Array:
    if plain is not None:
        dtype, sizes = _kind(plain, shape)
        if type(values) is not bytes or len(values) != dtype.itemsize * math.prod(sizes):
            raise ValueError(f"its bytes do not fill {list(shape)} of {dtype}")
        array: Array = np.ndarray(sizes, dtype, bytearray(values))
        return array
    if type(values) is not list or len(values) != math.prod(shape):
        raise ValueError(f"its values do not fill {list(shape)} objects")
    found: Array = np.empty(len(values), object)
    found[:] = [_plain(each) for each in values]
    return found.reshape(shape)


def _kind(plain: Any, shape: Sequence[int]) -> Kind:
    """Type and shape from their description."""
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"{shape} is not a shape")
    return dtypes.parse(plain), tuple(shape)


def _digest(described: Any) -> int:
    """The number of a form, from its description."""
    return int.from_bytes(hashlib.blake2b(repr(described).encode(), digest_size=8).digest(), "little") or 1


def _object_id(number: int) -> str:
    return f"{number:040x}"


def _aligned(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
