"""Memory for data from another machine."""

from __future__ import annotations

import numpy as np

from di_store import _core
from di_store.base.dtypes import Array

_ALIGNMENT = 64
_BLOCK_BYTES = 1 << 20
_buffers = _core.BatchBuffers()
_NOTHING: Array = np.empty(0, np.uint8)


def take_buffer(size: int) -> Array:
    """uint8[size] at a multiple of 64 bytes. Memory of large buffers is reused when the last array over it is gone."""
    return _buffers.take(size)


class Scratch:
    """Copies of arrays, side by side in blocks. A block is reused when the last array in it is gone.

    New memory for each copy would cost a page fault for every 4 KiB of it. For one thread.
    """

    def __init__(self) -> None:
        self._block = _NOTHING
        self._end = 0

    def copy(self, array: Array) -> Array:
        """A copy in C order."""
        size = array.nbytes
        if size > _BLOCK_BYTES // 4 or not size:
            copied: Array = array.copy()
            return copied
        if self._end + size > len(self._block):
            self._block, self._end = _buffers.take(_BLOCK_BYTES), 0
        found: Array = self._block[self._end : self._end + size].view(array.dtype).reshape(array.shape)
        found[...] = array
        self._end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return found
