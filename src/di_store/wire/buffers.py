"""Memory for what comes from another machine."""

from __future__ import annotations

import numpy as np

from di_store import _core
from di_store.base.dtypes import Array

_SMALL_BYTES = 64 << 10
_ALIGNMENT = 64
_buffers = _core.BatchBuffers()


def take_buffer(size: int) -> Array:
    """uint8[size] at a multiple of 64 bytes; memory of large ones is used again when the last array over it is gone."""
    if size > _SMALL_BYTES:
        return _buffers.take(size)
    raw: Array = np.empty(size + _ALIGNMENT, np.uint8)
    at = -raw.__array_interface__["data"][0] % _ALIGNMENT
    return raw[at : at + size]
