"""The frame: 40 bytes of header, then meta, then payload. docs/wire_format.md draws it.

Everything that is read here may come from anybody who can reach the port: sizes are checked before anything is
allocated, and the checksum before meta is decoded.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData

Buffer: TypeAlias = "bytes | bytearray | memoryview | Array"

MAGIC = b"DiSw"
HEADER_BYTES = 40
MAX_META_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 16 << 20


def view(data: Buffer) -> memoryview:
    """The bytes of a C-contiguous buffer."""
    if type(data) is bytes or (type(data) is memoryview and data.format == "B" and data.ndim == 1 and data.contiguous):
        return memoryview(data)
    found = memoryview(data.data if isinstance(data, np.ndarray) else data)
    return found.cast("B") if found.nbytes else memoryview(b"")


_HEADER = struct.Struct("<4sBBHQQIII")  # 36 bytes, then the checksum of these and meta
_CHECK = struct.Struct("<I")


class Kind(enum.IntEnum):
    """What a frame is for."""

    HELLO = 1  # client: who it is
    CHALLENGE = 2  # agent: prove it
    PROOF = 3  # client: the proof
    WELCOME = 4  # agent: what it serves, and its own proof
    REFUSE = 5  # agent: why not; it closes the connection
    CALL = 6  # client: call a method
    PIECE = 7  # either: a part of a large value, after the frame that announced it
    ANSWER = 8  # agent: the result
    ERROR = 9  # agent: the exception
    WAITING = 10  # agent: the call waits, and for what
    APPEND = 12  # client: calls of a writer
    ACKNOWLEDGE = 13  # agent: these calls of a writer are done
    PING = 14
    PONG = 15


KINDS = frozenset(int(kind) for kind in Kind)


@dataclass(slots=True)  # not frozen: that takes four times as long to make
class Header:
    """The header of one frame.

    Attributes:
        kind: a `Kind`.
        flags: by kind.
        request: number of the call that it belongs to, chosen by the client.
        seq: bytes of the whole body; 0 in a `PIECE`.
        meta_bytes: at most 1 MiB.
        payload_bytes: at most 16 MiB.
        payload_check: CRC-32C of the payload.
        check: CRC-32C of the 36 bytes before it, and of meta.
    """

    kind: int
    flags: int
    request: int
    seq: int
    meta_bytes: int
    payload_bytes: int
    payload_check: int
    check: int


def pack(
    kind: Kind,
    *,
    request: int = 0,
    seq: int = 0,
    flags: int = 0,
    meta: bytes = b"",
    payload: Sequence[Buffer] = (),
    payload_bytes: int | None = None,
) -> list[Buffer]:
    """The buffers of a frame, to be sent one after the other.

    Args:
        kind: as in `Header`.
        request: as in `Header`.
        seq: as in `Header`.
        flags: as in `Header`.
        meta: msgpack, at most 1 MiB.
        payload: C-contiguous buffers; they are not copied, so they must not change before they are sent.
        payload_bytes: of all buffers together; None: it is summed up here.

    Raises:
        ValueError: meta or payload is too long for a frame.
    """
    size = sum(len(view(each)) for each in payload) if payload_bytes is None else payload_bytes
    if len(meta) > MAX_META_BYTES or size > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a frame of {len(meta)} + {size} bytes is above {MAX_META_BYTES} + {MAX_PAYLOAD_BYTES}")
    check = 0
    for each in payload:
        check = _core.crc32c(each, check)
    head = _HEADER.pack(MAGIC, kind, flags, 0, request, seq, len(meta), size, check)
    return [head + _CHECK.pack(_core.crc32c(meta, _core.crc32c(head))) + meta, *payload]


def parse(data: Buffer) -> Header:
    """The header that 40 bytes hold. Meta is not checked yet: `check_meta` does.

    Raises:
        CorruptData: it is no header, or of a frame that nobody may send.
    """
    head = view(data)
    if len(head) != HEADER_BYTES:
        raise CorruptData(f"a frame's header is {HEADER_BYTES} bytes, {len(head)} came", remedy="")
    magic, kind, flags, pad, request, seq, meta, payload, payload_check = _HEADER.unpack_from(head)
    check_magic(magic)
    if kind not in KINDS or pad:
        raise CorruptData(f"a frame of an unknown kind ({kind}, {pad}) came", remedy="")
    # mutant: lengths-of-frames-are-not-bounded
    if meta > MAX_META_BYTES or payload > MAX_PAYLOAD_BYTES:
        raise CorruptData(
            f"a frame of {meta} + {payload} bytes came, at most {MAX_META_BYTES} + {MAX_PAYLOAD_BYTES} are allowed",
            remedy="",
        )
    (check,) = _CHECK.unpack_from(head, HEADER_BYTES - 4)
    return Header(kind, flags, request, seq, meta, payload, payload_check, check)


def check_magic(start: Buffer) -> None:
    """CorruptData unless a frame starts so."""
    if bytes(start) != MAGIC:
        raise CorruptData("what came is no frame of di-store: does something else use this port?", remedy="")


def check_meta(head: Buffer, header: Header, meta: Buffer) -> None:
    """CorruptData unless header and meta are as they were sent. `head`: the 40 bytes."""
    # mutant: headers-are-not-verified
    if _core.crc32c(meta, _core.crc32c(view(head)[: HEADER_BYTES - 4])) != header.check:
        raise CorruptData("the header of a frame does not match its checksum", remedy="")


def check_payload(header: Header, check: int) -> None:
    """CorruptData unless the payload is as it was sent. `check`: CRC-32C of what came."""
    # mutant: payloads-are-not-verified
    if check != header.payload_check:
        raise CorruptData("the payload of a frame does not match its checksum", remedy="")
