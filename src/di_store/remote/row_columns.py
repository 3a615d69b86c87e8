"""The leaves of steps as arrays of known columns, copied so that the program may go on with its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from di_store.base import tree
from di_store.base.dtypes import Array
from di_store.columns.column import Column
from di_store.columns.schema import Schema
from di_store.wire.buffers import Scratch
from di_store.wire.connection import MAX_CALL_BYTES

_SCALARS: dict[type, tuple[str, ...]] = {float: ("f4", "f8"), bool: ("b1",), int: ("i4", "i8")}
_LARGEST = 2**31 - 1


class RowColumns:
    """Reads the leaves of steps as arrays of known columns."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._known: dict[str, tuple[int, Column]] = {c.name: (at, c) for at, c in enumerate(schema)}
        self._due = {at for at, column in enumerate(schema) if not column.late}
        self._fixed = not any(column.ragged for column in schema)
        self._scratch = Scratch()
        self._top = {name for name in self._known if tree.SEPARATOR not in name}
        # Python numbers that need no closer look: of the column's own kind, and small enough for it.
        self._scalars = {
            column.name: kind
            for column in schema
            for kind, dtypes in _SCALARS.items()
            if not column.shape and not column.extension and column.dtype.str[1:] in dtypes
        }

    def complete(self, places: list[int]) -> bool:
        """Whether a step gives every column."""
        return self._due <= set(places)

    def read(self, leaves: Any, lead: tuple[int, ...]) -> tuple[list[int], list[Array]] | None:
        """Numbers of the columns, and copies of their values; None: the call has to be asked.

        Raises:
            SchemaMismatch: a value does not fit its column.
        """
        if not self._fixed or not isinstance(leaves, dict):
            return None
        places, arrays = [], []
        flat: dict[str, Any] = dict(leaves) if leaves.keys() <= self._top else tree.flatten(leaves)
        for name, leaf in flat.items():
            known = self._known.get(name)
            if known is None:
                raise self._schema.unknown(name, leaf)
            at, column = known
            number: Any = leaf
            if not lead and self._scalars.get(name) is type(leaf) and -_LARGEST <= number <= _LARGEST:
                array: Any = np.array(leaf, column.dtype)
            elif type(leaf) is np.ndarray and leaf.dtype == column.value_dtype and leaf.shape == lead + column.shape:
                if leaf.nbytes > MAX_CALL_BYTES:
                    return None
                array = self._scratch.copy(leaf)
            else:
                made = column.coerce(leaf, lead or None)
                array = np.array(made, copy=True)
            places.append(at)
            arrays.append(array)
        return places, arrays
