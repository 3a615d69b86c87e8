"""Calls of one form, written one after the other, ready to be sent.

A program may change its arguments as soon as its call returns, so each call copies them, directly to their place in the
body of a frame. The next call of the same form is written after it. So a frame of many calls is one piece of memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from di_store._core import RowPacker
from di_store.base import tree
from di_store.base.buffers import take_buffer
from di_store.base.dtypes import Array, DType
from di_store.columns.column import FLAGS, Column
from di_store.protocol.rows import ALIGNMENT, stride_of

_BLOCK_BYTES = 1 << 20
_FIRST_CALLS = 4  # in the first block; each later one is twice as large, up to the above
_SCALARS: dict[type, tuple[str, ...]] = {float: ("f4", "f8"), bool: ("b1",), int: ("i4", "i8")}
_LARGEST = 2**31 - 1
"""Python numbers up to this size fit every type in `_SCALARS`, so no further check is needed."""
_NOTHING: Array = np.empty(0, np.uint8)


class _CallValue(NamedTuple):
    """A value of each call.

    Attributes:
        group: 0 for the step, 1 for `next`.
        name: of its column.
        column: as the schema has it.
        shape: with the leading axes of the call.
        dtype: as readers see it.
        at: bytes after the beginning of the call.
    """

    group: int
    name: str
    column: Column
    shape: tuple[int, ...]
    dtype: DType
    at: int


class Block:
    """Memory for calls of one form.

    Attributes:
        raw: uint8 of all calls; `stride` bytes each.
        stride: bytes per call of the form.
        calls: number of calls that fit.
        used: number of calls in it.
        cells: by leaf, the values of all calls.
    """

    __slots__ = ("calls", "cells", "numbers", "raw", "stride", "used", "values")

    def __init__(self, leaves: list[_CallValue], stride: int, most: int) -> None:
        self.calls = max(1, min(_BLOCK_BYTES // stride, most))
        self.stride = stride
        self.used = 0
        self.raw = take_buffer(self.calls * stride)
        self.cells: list[Array] = []
        # By group: numbers of one call each, and values of any other shape.
        self.numbers: tuple[list[Any], list[Any]] = ([], [])
        self.values: tuple[list[Any], list[Any]] = ([], [])
        for leaf in leaves:
            inner = np.ndarray(leaf.shape, leaf.dtype, self.raw, leaf.at).strides
            cells: Array = np.ndarray((self.calls, *leaf.shape), leaf.dtype, self.raw, leaf.at, (stride, *inner))
            size = math.prod(leaf.shape) * leaf.dtype.itemsize
            if gap := -size % ALIGNMENT:  # what lay here before is nobody else's to see
                np.ndarray((self.calls, gap), np.uint8, self.raw, leaf.at + size, (stride, 1))[...] = 0
            self.cells.append(cells)
            exact = leaf.dtype.type if leaf.dtype.kind in "biufc" and not leaf.column.extension else None
            if leaf.shape:
                self.values[leaf.group].append((leaf.name, leaf.dtype, leaf.shape, leaf.column, cells))
            else:
                self.numbers[leaf.group].append((leaf.name, _plain_type(leaf.column), exact, leaf.column, cells))

    def arrays(self, at: int) -> list[Array]:
        """The values of one call, as arrays over this memory."""
        return [cells[at, ...] for cells in self.cells]

    def bytes(self, first: int, count: int) -> memoryview:
        """Bytes of consecutive calls."""
        return self.raw.data[first * self.stride : (first + count) * self.stride]


def _plain_type(column: Column) -> type | None:
    """The type of Python numbers that the column takes without conversion."""
    if column.extension:
        return None
    return next((kind for kind, dtypes in _SCALARS.items() if column.dtype.str[1:] in dtypes), None)


class CallForm:
    """The common part of calls: their columns and leading axes.

    Attributes:
        lead: leading axes of the values; `axes`: the same as a list.
        groups: by argument, the numbers of its columns.
        flags: names of the columns that end episodes.
        complete: whether a step has all required columns.
    """

    def __init__(
        self, argument: str, lead: tuple[int, ...], groups: list[list[tuple[int, Column]]], complete: bool
    ) -> None:
        self.lead = lead
        self.axes = list(lead)
        self.argument = argument
        self.complete = complete
        self.groups = {
            name: [number for number, _ in group] for name, group in zip((argument, "next"), groups, strict=False)
        }
        self.flags = tuple(name for name in FLAGS if any(column.name == name for _, column in groups[0]))
        self._leaves: list[_CallValue] = []
        self.stride = 0
        for group, columns in enumerate(groups):
            for _, column in columns:
                shape, dtype = lead + column.shape, column.value_dtype
                self._leaves.append(_CallValue(group, column.name, column, shape, dtype, self.stride))
                self.stride += stride_of([math.prod(shape) * dtype.itemsize])
        self._trees = [_tree_of([column.name for _, column in columns]) for columns in groups]
        self._sizes = [len(columns) for columns in groups]
        self._packers = [self._packer(group) for group in range(len(groups))] if not any(self._trees) else []
        self._block: Block | None = None

    def _packer(self, group: int) -> RowPacker:
        leaves = [
            (leaf.name, leaf.dtype, leaf.shape, leaf.at, not group and leaf.name in self.flags)
            for leaf in self._leaves
            if leaf.group == group
        ]
        return RowPacker(leaves, self.stride)

    def pack(self, step: Any, next: Any) -> tuple[Block, int, bool] | None:
        """As `write`, in the core. Also returns whether the episode ends.

        None: the call has another form, or a value has to be converted.
        """
        packers, block = self._packers, self._block
        if block is None or block.used == block.calls:
            block = self._new_block()
        if len(packers) != (1 if next is None else 2):
            return None
        at = block.used
        ends = packers[0].write(step, block.raw, at * self.stride)
        if ends is None or (next is not None and packers[1].write(next, block.raw, at * self.stride) is None):
            return None
        block.used = at + 1
        return block, at, ends

    def _new_block(self) -> Block:
        most = _FIRST_CALLS if self._block is None else 2 * self._block.calls
        self._block = Block(self._leaves, self.stride, most)
        return self._block

    def write(self, step: Any, next: Any) -> tuple[Block, int] | None:
        """Copy the values of a call. Returns their place; None: the call has another form.

        Raises:
            SchemaMismatch: a value does not fit its column.
        """
        block = self._block
        if block is None or block.used == block.calls:
            block = self._new_block()
        if (next is None) is (len(self._sizes) == 2) or not self._write(block, 0, step):
            return None
        if next is not None and not self._write(block, 1, next):
            return None
        at = block.used
        block.used = at + 1
        return block, at

    def _write(self, block: Block, group: int, given: Any) -> bool:
        if type(given) is not dict:
            return False
        # A copy: converting a value may run code that takes others out of the dict.
        leaves = given.copy() if self._trees[group] is None else _flat(given, self._trees[group])
        if leaves is None or len(leaves) != self._sizes[group]:
            return False
        at = block.used
        try:
            for name, plain, exact, column, cells in block.numbers[group]:
                leaf = leaves[name]
                kind = type(leaf)
                if kind is exact or (kind is plain and -_LARGEST <= leaf <= _LARGEST):
                    cells[at] = leaf
                elif not self._coerce(column, leaf, cells, at):
                    return False
            for name, dtype, shape, column, cells in block.values[group]:
                leaf = leaves[name]
                if type(leaf) is np.ndarray and leaf.dtype == dtype and leaf.shape == shape:
                    cells[at] = leaf
                elif not self._coerce(column, leaf, cells, at):
                    return False
        except KeyError:
            return False
        return True

    def _coerce(self, column: Column, leaf: Any, cells: Array, at: int) -> bool:
        """Convert a value to the column's type; False: the value is a dict of columns."""
        if isinstance(leaf, Mapping):
            return False
        made: Any = column.coerce(leaf, self.lead or None)
        cells[at] = made.view(cells.dtype) if column.extension else made
        return True


def _tree_of(names: list[str]) -> dict[str, Any] | None:
    """The nesting of steps with these columns; None: no column is nested."""
    plain = all(tree.path_of(name) == (name,) for name in names)
    return None if plain else tree.unflatten({name: name for name in names})


def _flat(given: Any, form: Any) -> dict[str, Any] | None:
    """The leaves of a nested dict of this form by name; None: it has another form."""
    if type(given) is not dict or len(given) != len(form):
        return None
    found: dict[str, Any] = {}
    for key, below in form.items():
        value = given.get(key, _NOTHING)
        if type(below) is str:
            if value is _NOTHING:
                return None
            found[below] = value
        elif (inner := _flat(value, below)) is None:
            return None
        else:
            found.update(inner)
    return found
