"""Converts data to rows of a table and back.

The form of a datum is its structure, and the types and shapes of its arrays. Data of one form are rows of one table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from treetensor.torch import Tensor as Tree
from treevalue import TreeValue
from treevalue.tree.common import create_storage

import di_store
from di_store.adapters.casts import zeros
from di_store.adapters.stored_array import Array
from di_store.adapters.torch_types import array_of

Build: TypeAlias = Callable[[Sequence[Any]], Any]

_MOST_COLUMNS = 64
_TOO_LARGE = 2**63
_NUMBERS = {bool: "?", int: "i8", float: "f8"}
_MOST_LIVE_BYTES = 1_024
_new, _init = TreeValue.__new__, TreeValue.__init__
_detach = TreeValue._detach
_typed = attrgetter("__class__", "dtype", "shape", "is_cpu")


def as_tree(leaves: dict[str, Any]) -> Any:
    """A tree, made without treetensor's conversion of dicts, which takes 0.5 ms."""
    storage = create_storage(leaves)
    tree = _new(Tree, storage)
    _init(tree, storage)
    return tree


class NoColumnsError(Exception):
    """A datum that has no columns: text, objects, too many arrays."""


def described(datum: Any, leaves: list[Any]) -> Any:
    """The form of a datum, which can be hashed.

    Args:
        datum: a tensor, array or number, or a nested dict, list, tuple or tree of them.
        leaves: list to which its tensors, arrays and numbers are appended.

    Raises:
        NoColumnsError: the datum holds something else.
    """
    kind = type(datum)
    if kind is torch.Tensor:
        if 0 in datum.shape:
            raise NoColumnsError
        leaves.append(datum)
        return kind, datum.dtype, datum.shape
    if kind is Tree:
        return kind, described(datum.json(), leaves)
    if kind is dict:
        return kind, tuple([(key, described(value, leaves)) for key, value in datum.items()])
    if kind in _NUMBERS:
        if kind is int and not -_TOO_LARGE <= datum < _TOO_LARGE:
            raise NoColumnsError
        leaves.append(datum)
        return kind
    if kind is np.ndarray or isinstance(datum, np.generic):
        if datum.dtype.kind not in "biufc" or 0 in datum.shape:
            raise NoColumnsError
        leaves.append(datum)
        return kind, datum.dtype, datum.shape
    if kind is list or kind is tuple:
        if len(datum) > _MOST_COLUMNS:
            raise NoColumnsError
        return kind, tuple([described(value, leaves) for value in datum])
    if datum is None:
        return None
    raise NoColumnsError


def flat(datum: Any) -> tuple[Any, list[Any]]:
    """The form of a dict or tree of tensors, in half the time of `described`, and its leaves; None: another datum.

    This form also says whether tensors are on the CPU, so it differs from that of `described`.
    """
    kind = type(datum)
    if kind is Tree:
        datum = _detach(datum).detach()
    elif kind is not dict:
        return None, []
    leaves = [*datum.values()]
    try:
        return (kind, *datum, *map(_typed, leaves)), leaves
    except AttributeError:
        return None, leaves


def _plain(leaf: Any) -> Any:
    """A leaf as a table takes it: an array or a number."""
    if type(leaf) is not torch.Tensor:
        return leaf
    try:
        return array_of(leaf)
    except (RuntimeError, TypeError) as error:
        raise NoColumnsError from error


class DingColumns:
    """The columns of one form.

    Args:
        form: the form that `described` returned.
        leaves: leaves of the datum.

    Raises:
        NoColumnsError: no columns, or too many.

    Attributes:
        schema: schema of the table.
        live: whether data are small dicts or trees of tensors, which may also stay in this process as objects.
    """

    def __init__(self, form: Any, leaves: list[Any]) -> None:
        if not 0 < len(leaves) <= _MOST_COLUMNS:
            raise NoColumnsError
        leaves = [*map(_plain, leaves)]
        self._form, self._names = form, [f"c{number}" for number in range(len(leaves))]
        self._split: list[Callable[[Array], Any]] = []
        self._build = self._builder(form, count())
        self.schema = {
            name: di_store.Spec((), _NUMBERS[type(leaf)])
            if type(leaf) in _NUMBERS
            else di_store.Spec(leaf.shape, leaf.dtype)
            for name, leaf in zip(self._names, leaves, strict=True)
        }

        flat = form[1] if isinstance(form, tuple) and form[0] is Tree else form
        small = sum(np.asarray(leaf).nbytes for leaf in leaves) <= _MOST_LIVE_BYTES
        self.live = small and _all_tensors(flat)

    def __reduce__(self) -> tuple[Any, ...]:
        return DingColumns, (self._form, [zeros((), spec) for spec in self.schema.values()])

    def row(self, leaves: list[Any]) -> dict[str, Any]:
        """The row of a datum with these leaves."""
        return dict(zip(self._names, map(_plain, leaves), strict=True))

    def rows(self, many: list[list[Any]]) -> dict[str, Any]:
        """The rows of data that are `live`."""
        columns = map(torch.stack, zip(*many, strict=True))
        return {name: _plain(column) for name, column in zip(self._names, columns, strict=True)}

    def data(self, columns: dict[str, Array]) -> list[Any]:
        """The data of rows. They share the memory of `columns`."""
        parts = [split(columns[name]) for name, split in zip(self._names, self._split, strict=True)]
        return [*map(self._build, zip(*parts, strict=True))]

    def _builder(self, form: Any, numbers: count[int]) -> Build:
        """The function that makes a datum of its leaves."""
        kind, inner = (form[0], form[1]) if isinstance(form, tuple) else (form, None)
        if kind is None:
            return lambda row: None
        if kind is Tree:
            make = self._builder(inner, numbers)
            return lambda row: as_tree(make(row))
        if kind is dict:
            return self._dict_builder(inner, numbers)
        if kind is list or kind is tuple:
            makers = [self._builder(each, numbers) for each in inner or ()]
            return lambda row: kind([make(row) for make in makers])
        self._split.append(_splitter(form))
        return itemgetter(next(numbers))

    def _dict_builder(self, inner: Any, numbers: count[int]) -> Build:
        first = len(self._split)
        makers = [(key, self._builder(each, numbers)) for key, each in inner]
        keys = [key for key, _ in makers]
        if len(self._split) - first == len(makers) and all(isinstance(make, itemgetter) for _, make in makers):
            if first == 0:  # takes the first leaves, and all of them where the dict is the whole datum
                return lambda row: dict(zip(keys, row))  # noqa: B905
            part = slice(first, first + len(keys))
            return lambda row: dict(zip(keys, row[part], strict=True))
        return lambda row: {key: make(row) for key, make in makers}


def _all_tensors(form: Any) -> bool:
    """Whether it is the form of a dict of tensors."""
    return type(form) is tuple and form[0] is dict and all(_is_tensor(each) for _, each in form[1])


def _is_tensor(form: Any) -> bool:
    return type(form) is tuple and form[0] is torch.Tensor


def _splitter(form: Any) -> Callable[[Array], Any]:
    """The function that turns a column into its leaves."""
    kind = form[0] if isinstance(form, tuple) else form
    if kind is torch.Tensor:
        return _tensors
    if kind in _NUMBERS:
        return lambda column: column.tolist()
    if kind is np.ndarray and not form[2]:
        return lambda column: [*map(np.array, column)]
    return list


def _tensors(column: Array) -> Any:
    return torch.from_numpy(column).unbind(0)


@dataclass
class _Packed:
    """A tree inside a value that is stored as a whole."""

    leaves: Any


def packed(value: Any) -> Any:
    """The value with its trees replaced by values that a store encodes faster."""
    kind = type(value)
    if kind is Tree:
        return _Packed(value.json())
    if kind is dict:
        return {key: packed(each) for key, each in value.items()}
    if kind is list or kind is tuple:
        return kind([packed(each) for each in value])
    if kind is torch.Tensor and value.requires_grad:
        return value.detach()
    return value


def unpacked(value: Any) -> Any:
    """Undo `packed`; the value's arrays are writable."""
    kind = type(value)
    if kind is _Packed:
        return as_tree(unpacked(value.leaves))
    if kind is dict:
        return {key: unpacked(each) for key, each in value.items()}
    if kind is list or kind is tuple:
        return kind([unpacked(each) for each in value])
    if kind is np.ndarray and not value.flags.writeable:
        return value.copy()
    return value
