"""Objects and weights: their bytes go directly between the socket and shared memory, without an extra copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, ObjectNotFound, StoreFull, Timeout, shown
from di_store.broadcast.chains import CALLS
from di_store.objects.access import is_durable, written
from di_store.objects.blocks import array_head
from di_store.objects.refs import check_ttl, split_ids
from di_store.objects.weights import Weights, check_name, check_own_name, check_published
from di_store.protocol.frame import Kind
from di_store.protocol.values import answer_meta, padded
from di_store.runtime.waits import CALL_SECONDS, check_timeout
from di_store.server.answers import Reply
from di_store.server.copies import COPY_CALLS
from di_store.server.talk import Talk, said

MOST_AT_ONCE = 64 << 20
"""An answer to `get_many` ends with the object that makes its body this large."""


def _reserved(talk: Talk, entry: Any, ttl: float, timeout: float | None, *, named: bool) -> tuple[Any, Array]:
    """Room for one value, with its header written. Returns the draft and its payload."""
    raw, header, size = entry
    if not isinstance(header, bytes) or not isinstance(size, int) or size < 0:
        raise TypeError("received a value without header or size")
    foreign = not talk.peer.trusted
    header = array_head(header, size) or header

    def reserve(arena: _core.Arena) -> _core.Reserved:
        return arena.reserve(header, size, raw, ttl, foreign=foreign, named=named)

    draft = written(talk.peer.session, timeout, "put", reserve)
    return draft, draft.payload()


def _fill(talk: Talk, payloads: Iterable[Array], inline: Any) -> None:
    """Write the bytes of values that have room: bytes from the call itself, or bytes that the client sends now."""
    if inline is not None:
        for payload, given in zip(payloads, inline, strict=True):
            if len(given) != len(payload):
                raise CorruptData("received a value of another size than announced", remedy="")
            payload[:] = np.frombuffer(given, np.uint8)
        return
    connection = talk.go_on()
    for payload in payloads:
        at = 0
        while at < len(payload):
            at += connection.receive_piece(payload[at:])


def _put(talk: Talk, arguments: Any) -> Reply:
    entries, ttl, timeout = arguments["entries"], check_ttl(arguments["ttl"]), check_timeout(arguments["timeout"])
    durable = is_durable(talk.peer.session, arguments["durability"])
    drafts = [_reserved(talk, entry, ttl, timeout, named=True) for entry in entries]
    _fill(talk, [payload for _, payload in drafts], arguments["inline"])
    for draft, _ in drafts:
        draft.seal_durable() if durable else draft.seal()
    return said(talk, None)


def _publish(talk: Talk, arguments: Any) -> Reply:
    name, keep, entry, at = arguments["name"], arguments["keep"], arguments["entry"], arguments.get("at", 0)
    timeout = check_timeout(arguments["timeout"])
    session = talk.peer.session
    session.check_writable()
    check_name(name) if at else check_own_name(name)  # a number: words that nodes keep for each other
    durable = is_durable(session, arguments["durability"])
    if entry is None:
        kept = check_published(name, None, keep, arguments["durability"])
        version = Weights(session).publish(name, None, kept, timeout, arguments["durability"])
    else:
        draft, payload = _reserved(talk, entry, 0.0, timeout, named=False)
        _fill(talk, [payload], arguments["inline"])

        def publish(_: _core.Arena) -> int:
            return int(draft.publish_durable(name, keep) if durable else draft.publish(name, keep, at))

        version = written(session, timeout, f"publish of {shown(name)}", publish)
    return said(talk, version)


def _get(talk: Talk, arguments: Any) -> Reply:
    raw, timeout = arguments["id"], check_timeout(arguments["timeout"])
    block = talk.peer.objects.raw(raw, timeout)
    return Kind.ANSWER, answer_meta(0, talk.warned()), [block]


def _get_many(talk: Talk, arguments: Any) -> Reply:
    """The blocks of those of these objects that can be read at once.

    The body begins with their sizes, int64; 0: no block. `header_bytes` of the answer: for how many of the ids.
    """
    arena = talk.peer.session.arena
    sizes: list[int] = []
    blocks: list[Array] = []
    total = 0
    for raw in split_ids(arguments["ids"]):
        size = 0
        if arena.contains(raw, CALL_SECONDS):
            with suppress(ObjectNotFound, StoreFull, Timeout):
                blocks.append(arena.raw(raw))
                size = len(blocks[-1])
        sizes.append(size)
        total += size
        if total >= MOST_AT_ONCE:
            break
    return Kind.ANSWER, answer_meta(len(sizes), talk.warned()), padded([np.array(sizes, np.int64), *blocks])


def _latest(talk: Talk, arguments: Any) -> Reply:
    """The answer's `header_bytes` is the version; 0: no such version."""
    found = Weights(talk.peer.session).raw_latest(**arguments)
    if found is None:
        return Kind.ANSWER, answer_meta(0, talk.warned()), []
    version, block = found
    return Kind.ANSWER, answer_meta(version, talk.warned()), [] if block is None else [block]


def _watch_versions(talk: Talk, arguments: Any) -> Reply:
    """Waits for at most a second, so no other thread needs to report the wait."""
    talk.take_over()
    return said(talk, talk.peer.parts.versions.news(arguments["known"]))


def _spread(method: str, talk: Talk, arguments: Any) -> Reply:
    """A call by which weights travel from agent to agent: see `di_store.broadcast`."""
    return said(talk, CALLS[method](talk.peer.parts.chains, **arguments))


def _pull(talk: Talk, arguments: Any) -> Reply:
    return said(talk, talk.peer.parts.chains.pull(talk.take_over(), talk.peer.link, **arguments))


STREAM_CALLS: dict[str, Callable[[Talk, Any], Reply]] = {
    "put": _put,
    "publish": _publish,
    "get": _get,
    "get_many": _get_many,
    "latest": _latest,
    "watch_versions": _watch_versions,
    **COPY_CALLS,
    **{method: partial(_spread, method) for method in CALLS},
    "pull": _pull,
}
