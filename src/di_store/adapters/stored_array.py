"""An array whose values lie in a table and are read from there when it is indexed."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


class StoredArray(np.lib.mixins.NDArrayOperatorsMixin):
    """It can be used in computations like an array, and has the methods of the array that ``self[:]`` reads.

    A subclass reads in `__getitem__`.

    Args:
        dtype: type of the values.
        shape: shape of the whole array.
    """

    def __init__(self, dtype: Any, shape: tuple[Any, ...]) -> None:
        self.dtype, self.shape = np.dtype(dtype), shape
        self.ndim, self.size = len(shape), int(np.prod(shape, dtype=np.int64))
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("steps in the store do not change: add() the right ones, or reset() the buffer")

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
