"""Calls by which another node copies an object into its own store: its description, its bytes, the request to copy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData
from di_store.client.copying import SLOWEST_BYTES
from di_store.objects.blocks import payload_start
from di_store.protocol.frame import Kind
from di_store.protocol.values import answer_meta
from di_store.runtime.waits import check_timeout
from di_store.server.answers import Reply
from di_store.server.engine import EngineFailed
from di_store.server.engine_bulk import RETURNED
from di_store.server.talk import Talk, said

WHOLE_BYTES = 256 << 10
"""Blocks up to this size are sent at once."""
LENT_SECONDS = 60.0
"""How long a block is lent, in addition to the time for its bytes. A node that was stopped for longer finds a wrong
checksum."""


def _copy_head(talk: Talk, arguments: Any) -> Reply:
    """The block of an object, if it is small; else its bytes before the payload. `header_bytes`: of the whole block."""
    block = talk.peer.objects.raw(arguments["id"], check_timeout(arguments["timeout"]))
    body = block if len(block) <= WHOLE_BYTES else block[: payload_start(block)]
    return Kind.ANSWER, answer_meta(len(block), talk.warned()), [body]


def _copy_payload(talk: Talk, arguments: Any) -> Reply:
    """Send the payload in pieces before the answer."""
    payload = _payload(talk, arguments)
    talk.take_over()  # the client reads nothing but pieces until the last one
    connection = talk.go_on()
    connection.send_pieces([payload])
    return said(talk, None)


def _payload(talk: Talk, arguments: Any) -> Array:
    """The block of the requested object. It is pinned as long as it is referenced."""
    block = talk.peer.objects.raw(arguments["id"], check_timeout(arguments["timeout"]))
    payload = block[payload_start(block) :]
    if len(payload) != arguments["bytes"]:
        raise CorruptData("the object was replaced by another one", remedy="")
    return payload


def _lend_payload(talk: Talk, arguments: Any) -> Reply:
    """Have the client's engine read the payload.

    The payload is lent until the client confirms by a piece that it has read it, or closes the connection. The answer
    is the checksum. If nothing is lent, the answer is a text with the reason, and no piece precedes it.
    """
    engine = talk.peer.parts.engine
    if engine is None:
        return said(talk, "its agent was started without --bulk")
    if engine.kind != arguments["kind"]:
        return said(talk, f"its agent was started with --bulk {engine.kind}")
    if why := engine.missing():
        return said(talk, why)
    payload = _payload(talk, arguments)
    try:
        with engine.registered(payload) as offer:
            talk.take_over()  # the client reads nothing but the piece
            connection = talk.go_on()
            connection.until = time.monotonic() + LENT_SECONDS + len(payload) / SLOWEST_BYTES
            packed = msgspec.msgpack.encode(offer)
            connection.send_pieces([packed])
            check = _core.crc32c(payload)  # while the engines are at work
            connection.receive_piece(np.empty(len(RETURNED), np.uint8))
            connection.until = None
    except EngineFailed as error:
        return said(talk, str(error))
    return said(talk, check)


def _copy_here(talk: Talk, arguments: Any) -> Reply:
    """Whether the object was copied into this store; False: the client should copy it itself."""
    engine = talk.peer.parts.engine
    able = engine is not None and not engine.missing()
    timeout = check_timeout(arguments["timeout"])
    return said(talk, able and talk.peer.parts.push.copy_now(arguments["id"], arguments["source"], timeout))


def _send_ahead(talk: Talk, arguments: Any) -> Reply:
    talk.peer.parts.push.send(**arguments)
    return said(talk, None)


def _copy_ahead(talk: Talk, arguments: Any) -> Reply:
    talk.peer.parts.push.copy(**arguments)
    return said(talk, None)


COPY_CALLS: dict[str, Callable[[Talk, Any], Reply]] = {
    "copy_head": _copy_head,
    "copy_payload": _copy_payload,
    "lend_payload": _lend_payload,
    "copy_here": _copy_here,
    "send_ahead": _send_ahead,
    "copy_ahead": _copy_ahead,
}
