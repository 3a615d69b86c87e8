"""Numbers and small arrays of elements, indexed by slot."""

from __future__ import annotations

from typing import Any

import numpy as np

from di_store.adapters.stored_array import Array

_TYPES = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float64)}


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
