"""What all kinds of elements share: the table of their arrays, and the numbers beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import di_store
from di_store.adapters.ring import Ring
from di_store.adapters.stored_array import Array

_TYPES = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float64)}


def new_rows(specs: Mapping[str, di_store.Spec], slots: int, store: di_store.Store | None, table: str) -> Ring:
    """Rows in a table of their own.

    Args:
        specs: type of each column's row.
        slots: number of rows.
        store: the store of the table; None: a store of its own.
        table: name of the table.

    Raises:
        di_store.TableExists: the store has such a table. di_store.CapacityError: the table does not fit.
    """
    if store is not None and any(name == table for name in store.stats()["tables"]):
        raise di_store.TableExists(
            f"table {table!r} already exists in the store, and does not say which elements its rows belong to",
            remedy="load the buffer's pickle, which continues with the table; or give table= another name",
        )
    return Ring(specs, slots, option="max_capacity=", store=store, table=table)


class InTable:
    """Elements whose arrays lie in a table."""

    rows: Ring | None = None
    """The arrays; None: there are none yet."""

    def close(self) -> None:
        """Drop the table."""
        if self.rows is not None:
            self.rows.store.drop_table(self.rows.table.name)

    def _changed(self) -> Array:
        """Find the rows of the table again: bool[slots], True for slots that now hold another row, or none."""
        assert self.rows is not None
        before = self.rows.keys.copy()
        self.rows.take_over()
        changed: Array = before != self.rows.keys
        return changed


class Values:
    """One value per slot, ``[slots, …]``, of the type that `numpy.stack` would find for all values that were put.

    Args:
        slots: number of values that it holds.
        what: name of the values, for errors.
    """

    def __init__(self, slots: int, what: str) -> None:
        self._slots, self._what = slots, what
        self._array: Array | None = None
        self._kind: Any = None  # values of this Python type need no conversion

    def put(self, slot: int, value: Any) -> None:
        """Set the value of a slot.

        Raises:
            ValueError: the value is not a number or an array of numbers, or has another shape than earlier values.
        """
        if type(value) is self._kind and self._array is not None:
            self._array[slot] = value
        else:
            self._widened(np.asarray(value), type(value))[slot] = value

    def take(self, slots: Any) -> Array:
        """The values of these slots: a new array ``[n, …]``."""
        assert self._array is not None
        found: Array = self._array[slots]
        return found

    def restore(self, slots: Array, values: Array) -> None:
        """Set the values of many slots, ``[n, …]``."""
        if len(slots):
            self._widened(values[0], None)[slots] = values

    def _widened(self, value: Array, kind: Any) -> Array:
        """The array, created or widened so that this value fits."""
        array = self._array
        if value.dtype.kind not in "biufc":
            raise ValueError(f"{self._what} must be a number or an array of numbers, got {value.dtype}")
        if array is None:
            array = np.zeros((self._slots, *value.shape), value.dtype)
            self._kind = kind if _TYPES.get(kind) == value.dtype else None
        elif value.shape != array.shape[1:]:
            raise ValueError(f"{self._what} has the shape {value.shape}, and the first one had {array.shape[1:]}")
        elif value.dtype != array.dtype:
            array = array.astype(np.result_type(array, value))
        self._array = array
        return array
