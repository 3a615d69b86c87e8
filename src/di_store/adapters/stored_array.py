"""An array whose values lie in a table and are read from there when it is indexed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


class StoredArray(np.lib.mixins.NDArrayOperatorsMixin):
    """A column of some slots, with the axes of a value after those of `slots`.

    It can be used in computations like an array, and has the methods of the array that ``self[:]`` reads.

    Args:
        read: returns the values of some slots, an array of any shape.
        slots: the slots.
        dtype: type of the values.
        shape: shape of one value.
    """

    def __init__(self, read: Callable[[Array], Array], slots: Array, dtype: Any, shape: tuple[Any, ...]) -> None:
        self._read, self._slots, self._each = read, slots, shape
        self.dtype, self.shape = np.dtype(dtype), (*slots.shape, *shape)
        self.ndim, self.size = len(self.shape), int(np.prod(self.shape, dtype=np.int64))
        self.nbytes = self.size * self.dtype.itemsize

    def part(self, part: slice) -> StoredArray:
        """The column of a part of these slots, without reading it."""
        return StoredArray(self._read, self._slots[part], self.dtype, self._each)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Any:
        axes, inner = self._slots.ndim, ()
        if isinstance(index, tuple):
            if any(each is Ellipsis or each is None for each in index):
                return self[:][index]
            index, inner = index[:axes], index[axes:]
        slots = np.asarray(self._slots[index])
        found = self._read(slots)
        return found[(slice(None),) * slots.ndim + inner] if inner else found

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("stored steps cannot be changed: add() the right ones, or reset() the buffer")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found: Array = self[:]
        return found.astype(dtype or self.dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        given = [each[:] if isinstance(each, StoredArray) else each for each in inputs]
        return getattr(ufunc, method)(*given, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(np.ndarray, name):
            raise AttributeError(name)
        return getattr(self[:], name)

    def __repr__(self) -> str:
        return f"<{self.dtype}{list(self.shape)} in a Di-store table>"
