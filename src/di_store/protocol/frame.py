"""Kinds and limits of frames. docs/wire_format.md draws them; native/net/ makes and reads them."""

from __future__ import annotations

import enum
from typing import TypeAlias

import numpy as np

from di_store import _core
from di_store.base.dtypes import Array

Buffer: TypeAlias = "bytes | bytearray | memoryview | Array"

MAGIC = b"DiSw"
MAX_META_BYTES = _core.FRAME_MAX_META_BYTES


def view(data: Buffer) -> memoryview:
    """The bytes of a C-contiguous buffer."""
    if type(data) is bytes or (type(data) is memoryview and data.format == "B" and data.ndim == 1 and data.contiguous):
        return memoryview(data)
    found = memoryview(data.data if isinstance(data, np.ndarray) else data)
    return found.cast("B") if found.nbytes else memoryview(b"")


class Kind(enum.IntEnum):
    """The purpose of a frame."""

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
