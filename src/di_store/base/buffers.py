"""Memory for data from another machine, and for large results of adapters."""

from __future__ import annotations

from di_store import _core
from di_store.base.dtypes import Array

_buffers = _core.BatchBuffers()


def take_buffer(size: int) -> Array:
    """uint8[size] at a multiple of 64 bytes. Memory of large buffers is reused when the last array over it is gone."""
    return _buffers.take(size)
