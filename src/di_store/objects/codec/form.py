"""The encoded form: header framing, node tags and how classes are named.

Header: 4 bytes magic, 4 bytes CRC-32 of all that follows, 1 byte version, then msgpack of ``[payload bytes, node]``.

A node is nil, a bool, an integer of 64 bits, a float, text or bytes as msgpack has them, or a list whose first entry is
a tag. Offsets and sizes count bytes of the payload; every span starts at a multiple of 64 bytes.

| tag | the rest of the list |
|---|---|
| DICT | keys (list of nodes), values (list of nodes) |
| ORDERED | keys, values, node of the instance's attributes or nil (torch keeps versions there) |
| LIST, TUPLE | one node per entry |
| NAMED | class path, one node per entry |
| DATACLASS | class path, field names, values |
| ARRAY, TENSOR | dtype, shape, offset |
| SCALAR | dtype, bytes |
| INT | hexadecimal text |
| COMPLEX | real, imaginary |
| TEXT, BYTES, BYTEARRAY | bytes inline, or offset and size (TEXT: UTF-8, lone surrogates allowed) |
| PICKLE | stream (bytes inline, or ``[offset, size, CRC-32]``), ``[[offset, size], …]`` of its buffers |
"""

from __future__ import annotations

import functools
import importlib
import zlib
from enum import IntEnum
from typing import Any

import msgspec

from di_store.base.errors import CorruptData, LayoutMismatch

MAGIC = b"DIob"
VERSION = 1
FRAME_BYTES = 9
ALIGNMENT = 64

INLINE_BYTES = 1024
"""Text and bytes above this lie in the payload, so that a header grows with the number of leaves only."""

MAX_HEADER_BYTES = 64 * 2**20
MAX_DEPTH = 100
"""Deeper values, and those that hold themselves, are pickled as a whole."""


class Tag(IntEnum):
    """First entry of a node that is a list. Numbers are part of the format: never reuse one."""

    DICT = 1
    ORDERED = 2
    LIST = 3
    TUPLE = 4
    NAMED = 5
    DATACLASS = 6
    ARRAY = 7
    TENSOR = 8
    SCALAR = 9
    INT = 10
    COMPLEX = 11
    TEXT = 12
    BYTES = 13
    BYTEARRAY = 14
    PICKLE = 15


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def pack_header(payload_bytes: int, node: Any) -> bytes:
    """The header of a value."""
    body = bytes([VERSION]) + _encode((payload_bytes, node))
    return MAGIC + zlib.crc32(body).to_bytes(4, "little") + body


def unpack_header(header: bytes | bytearray | memoryview) -> tuple[int, Any]:
    """Payload bytes and root node of a header.

    Raises:
        CorruptData: not a header, or damaged.
        LayoutMismatch: written by another version of this format.
    """
    view = header if type(header) is bytes else memoryview(header)  # slices of short bytes are made faster
    if len(view) < FRAME_BYTES or len(view) > MAX_HEADER_BYTES or view[:4] != MAGIC:
        raise CorruptData(f"the object's header ({len(view)} bytes) was not written by Di-store")
    body = view[8:]
    if zlib.crc32(body) != int.from_bytes(view[4:8], "little"):
        raise CorruptData("the object's header does not match its checksum")
    if body[0] != VERSION:
        raise LayoutMismatch(f"the object was encoded in format {body[0]}, and this process knows format {VERSION}")
    try:
        decoded = _decode(body[1:])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptData(f"the object's header cannot be read: {error}") from None
    if type(decoded) is not list or len(decoded) != 2 or type(decoded[0]) is not int or decoded[0] < 0:
        raise CorruptData("the object's header is not [payload bytes, node]")
    return decoded[0], decoded[1]


@functools.lru_cache(maxsize=1024)
def class_path(cls: type) -> str:
    """Module and qualified name of a class, joined by a colon.

    Raises:
        TypeError: other processes cannot find the class under that name (local classes, deleted names).
    """
    path = f"{cls.__module__}:{cls.__qualname__}"
    try:
        found = _lookup(path)
    except (ImportError, AttributeError, ValueError):
        found = None
    if found is not cls:
        raise TypeError(
            f"{cls.__qualname__!r} of module {cls.__module__!r} cannot be found by name: define it at module level, "
            f"so that other processes can import it"
        )
    return path


@functools.lru_cache(maxsize=1024)
def find_class(path: str) -> type:
    """The class of that path.

    Raises:
        TypeError: this process cannot import it.
        CorruptData: the path does not name a class.
    """
    try:
        found = _lookup(path)
    except (ImportError, AttributeError) as error:
        raise TypeError(
            f"the object holds a {path.replace(':', '.')}, which this process cannot import ({error}): "
            f"define the class in a module that all processes share"
        ) from None
    except ValueError:
        raise CorruptData(f"the object names a class {path!r}") from None
    if not isinstance(found, type):
        raise CorruptData(f"the object names {path!r}, which is not a class")
    return found


def parts_of_path(path: str) -> tuple[str, str]:
    """Module and qualified name of a class path; ValueError for other text."""
    module, _, qualname = path.partition(":")
    if not module or not qualname:
        raise ValueError(path)
    return module, qualname


def _lookup(path: str) -> Any:
    module, qualname = parts_of_path(path)
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found
