"""The block of an object as bytes (docs/object_format.md), for what copies it from one store to another."""

from __future__ import annotations

import math
import struct

import numpy as np

from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData
from di_store.objects import codec

_ARRAY = b"DSA1"
_PACKED = (b"DSP1", b"DSF1")
_ALIGNMENT = 64
_FRONT = 16  # bytes before the header of a packed block
_SHAPE = struct.Struct("<5q")


def payload_start(block: Array) -> int:
    """Where the payload of a block begins; `block`: at least its first 64 bytes, or all of a shorter one."""
    front = block[:_FRONT].tobytes()
    if front[:4] == _ARRAY:
        return _ALIGNMENT
    if front[:4] not in _PACKED or len(front) < _FRONT:
        raise CorruptData("a block of an unknown form came", remedy="use one version of di-store on all nodes")
    return -(-(_FRONT + int.from_bytes(front[4:8], "little")) // _ALIGNMENT) * _ALIGNMENT


def packed_header(head: Array, total: int) -> tuple[bytes, int, int]:
    """How a packed block holds the same value.

    Args:
        head: of the block, up to its payload.
        total: bytes of the whole block.

    Returns:
        Header and bytes of the payload of the packed block; and how many of these the other one has.

    Raises:
        CorruptData: it is no head of such a block.
    """
    front = head[:_FRONT].tobytes()
    if payload_start(head) != len(head) or len(head) > total:
        raise CorruptData("the head of a block came that does not end where its payload begins", remedy="")
    if front[:4] == _ARRAY:
        like = _array_like(head, total)
        encoded = codec.encode(like)
        return encoded.header, encoded.payload_bytes, like.nbytes
    header = head[_FRONT : _FRONT + int.from_bytes(front[4:8], "little")].tobytes()
    payload = int.from_bytes(front[8:16], "little")
    if payload != total - len(head):
        raise CorruptData(f"a block of {total} bytes came that says its payload has {payload}", remedy="")
    return header, payload, payload


def _array_like(head: Array, total: int) -> Array:
    """An array of the type and shape that the head of an array block says. Its memory is not touched."""
    dimensions, kind, size = int(head[4]), chr(head[5]), int(head[6])
    shape = _SHAPE.unpack_from(head.tobytes(), 16)[:dimensions]
    try:
        dtype = np.dtype(f"{kind}{size}")
    except TypeError:
        dtype = np.dtype("V")
    if dimensions > 5 or dtype.kind not in "biufc" or min(shape, default=0) < 0:
        raise CorruptData("the head of a block came that is none of an array", remedy="")
    if math.prod(shape) * dtype.itemsize != total - len(head):
        raise CorruptData(f"a block of {total} bytes came whose array has another size", remedy="")
    return np.empty(shape, dtype)
