"""Objects that another node copies into its own store: what it needs to know of one, its bytes, and that it should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from di_store.agent.ahead import Ahead
from di_store.agent.answers import Reply
from di_store.agent.talk import Talk
from di_store.base.errors import CorruptData, StoreError
from di_store.objects.blocks import payload_start
from di_store.runtime.waits import check_timeout
from di_store.wire.connection import portions
from di_store.wire.frame import Kind
from di_store.wire.values import answer_meta, answer_of

WHOLE_BYTES = 256 << 10
"""Blocks up to this size are sent at once."""


def _copy_head(talk: Talk, arguments: Any) -> Reply:
    """The block of an object, if it is small; else its bytes before the payload. `header_bytes`: of the whole block."""
    block = talk.peer.objects.raw(arguments["id"], check_timeout(arguments["timeout"]))
    body = block if len(block) <= WHOLE_BYTES else block[: payload_start(block)]
    return Kind.ANSWER, answer_meta(len(block), talk.warned()), [body]


def _copy_payload(talk: Talk, arguments: Any) -> Reply:
    """The payload, in pieces that come before the answer."""
    block = talk.peer.objects.raw(arguments["id"], check_timeout(arguments["timeout"]))
    payload = block[payload_start(block) :]
    if len(payload) != arguments["bytes"]:
        raise CorruptData("the object is another one than it was", remedy="")
    # mutant: two-threads-send-beside-a-copy
    talk.take_over()  # the client reads nothing but pieces until the last one
    connection = talk.go_on()
    for part, size in portions([payload]):
        connection.send_piece(part, size)
    return (Kind.ANSWER, *answer_of(None, talk.warned()))


def _send_ahead(talk: Talk, arguments: Any) -> Reply:
    _ahead(talk).send(**arguments)
    return (Kind.ANSWER, *answer_of(None, talk.warned()))


def _copy_ahead(talk: Talk, arguments: Any) -> Reply:
    _ahead(talk).copy(**arguments)
    return (Kind.ANSWER, *answer_of(None, talk.warned()))


def _ahead(talk: Talk) -> Ahead:
    if talk.peer.ahead is None:
        raise StoreError("this agent takes no part in a group", remedy="di-store serve")
    return talk.peer.ahead


COPY_CALLS: dict[str, Callable[[Talk, Any], Reply]] = {
    "copy_head": _copy_head,
    "copy_payload": _copy_payload,
    "send_ahead": _send_ahead,
    "copy_ahead": _copy_ahead,
}
