"""The block of an object as bytes (docs/object_format.md), for copies from one store to another."""

from __future__ import annotations

import math
import struct

from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, LayoutMismatch
from di_store.objects.codec.decode import array_of
from di_store.objects.codec.form import Tag, unpack_header

_ARRAY = b"DSA1"
_PACKED = (b"DSP1", b"DSF1")
_ALIGNMENT = 64
_FRONT = 16  # bytes before the header of a packed block
_HEAD = struct.Struct("<4sBcBxQ6q")  # of an array's block
_DIMENSIONS = 5
_MOST_BYTES = 128  # of the codec's header of such an array
_PLAIN = frozenset(("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"))
"""Types of elements of arrays that are not packed."""


def payload_start(block: Array) -> int:
    """The offset of a block's payload; `block`: at least its first 64 bytes, or all of a shorter one."""
    front = block[:_FRONT].tobytes()
    if front[:4] == _ARRAY:
        return _ALIGNMENT
    if front[:4] not in _PACKED or len(front) < _FRONT:
        raise CorruptData("received a block of an unknown format", remedy="use one version of di-store on all nodes")
    return -(-(_FRONT + int.from_bytes(front[4:8], "little")) // _ALIGNMENT) * _ALIGNMENT


def header_of(head: Array, total: int) -> tuple[bytes, int]:
    """The arguments with which `Arena.reserve` makes the same block: the header, and the bytes of the payload.

    Args:
        head: bytes of the block up to its payload.
        total: bytes of the whole block.

    Raises:
        CorruptData: the bytes are no head of such a block.
    """
    front = head[:_FRONT].tobytes()
    if payload_start(head) != len(head) or len(head) > total:
        raise CorruptData("received a block whose header does not end where its payload begins", remedy="")
    payload = int.from_bytes(front[8:16], "little")
    if payload != total - len(head):
        raise CorruptData(f"received a block of {total} bytes that announces a payload of {payload}", remedy="")
    if front[:4] == _ARRAY:
        return head.tobytes(), payload  # the core checks the rest
    return head[_FRONT : _FRONT + int.from_bytes(front[4:8], "little")].tobytes(), payload


def array_head(header: bytes, payload: int) -> bytes | None:
    """The head of an array's block, from the codec's header for the array; None: the value is packed.

    A damaged header raises no error here: reading the value does.
    """
    if len(header) > _MOST_BYTES:
        return None
    try:
        size, node = unpack_header(header)
        if type(node) is not list or not node or node[0] != Tag.ARRAY:
            return None
        dtype, shape, offset = array_of(node, size)
    except (CorruptData, LayoutMismatch, TypeError):
        return None
    if dtype.isbuiltin != 1 or not dtype.isnative or dtype.str[1:] not in _PLAIN:
        return None
    if len(shape) > _DIMENSIONS or max(shape, default=0) >> 62:
        return None
    if offset or not size == payload == math.prod(shape) * dtype.itemsize:
        return None
    return _HEAD.pack(_ARRAY, len(shape), dtype.kind.encode(), dtype.itemsize, size, *shape, *[0] * (6 - len(shape)))
