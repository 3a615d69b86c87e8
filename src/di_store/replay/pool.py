"""Arrays whose memory is reused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from di_store.base.dtypes import Array


class ArrayPool:
    """Byte buffers that are reused once no array over them is left: memory with new pages costs 25 times as much.

    Thread-safe: a thread that examines a buffer has a reference to it, so other threads see it as in use.
    """

    def __init__(self, allocate: Callable[[int], Array]) -> None:
        self._allocate = allocate
        self._buffers: list[Array] = []
        # An unused buffer has these references: the list's, the loop variable's, and getrefcount's argument.
        probe: list[Array] = [np.empty(1, np.uint8)]
        for buffer in probe:
            self._idle = sys.getrefcount(buffer)

    def take(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array with undefined content. Its buffer is reused after the last view of it is deleted."""
        element = np.dtype(dtype)
        size = max(1, int(np.prod(shape, dtype=np.int64)) * element.itemsize)
        for buffer in self._buffers:
            if size <= buffer.nbytes <= 2 * size + 4096 and sys.getrefcount(buffer) <= self._idle:
                return _shaped(buffer, size, element, shape)
        found: Array = self._allocate(size)
        self._buffers = [buffer for at, buffer in enumerate(self._buffers) if at >= len(self._buffers) - 63]
        self._buffers.append(found)
        return _shaped(found, size, element, shape)


def _shaped(buffer: Array, size: int, element: Any, shape: tuple[int, ...]) -> Array:
    array: Array = buffer[:size].view(element).reshape(shape)
    return array
