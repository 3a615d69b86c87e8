"""The sending side: sends pieces of a version to a child as they arrive here."""

from __future__ import annotations

from typing import Any

import msgspec

from di_store.base.dtypes import Array
from di_store.broadcast.chain import Chain, Complete, Incoming, Superseded, now
from di_store.broadcast.note import SourceProgress
from di_store.broadcast.transfer import PIECE_BYTES
from di_store.protocol.connection import Connection
from di_store.protocol.frame import Kind

BEAT_SECONDS = 0.25
"""How often a child hears that its source lives, while nothing comes."""
KNOWN_SECONDS = 1.0
"""How long a child waits here for the publisher's note to reach this node."""


def serve(chain: Chain, connection: Connection, child: bytes, asked: Any) -> str:
    """Send a version from a byte on.

    Returns how it ended: "all", "refused", "gone" (a newer version is known), "unknown".

    Args:
        chain: chain of the name.
        connection: connection of the child.
        child: id of the child's process.
        asked: version, size, check and `at`, the first byte that the child lacks.
    """
    version, size, check, at = (asked[name] for name in ("version", "size", "check", "at"))
    if not all(isinstance(each, int) for each in (version, size, check, at)) or not 0 <= at <= size:
        raise TypeError("received a pull without a version and an offset")
    with chain.changed:
        turn = chain.children.admit(child, now())
    if turn is None:
        return "refused"
    try:
        found = _found(chain, connection, version, size, check)
        if found is None:
            return "unknown"
        return _send(chain, connection, (child, turn), found, at, size)
    except Superseded:
        return "gone"
    finally:
        with chain.changed:
            chain.children.ends(child, turn)


def _found(chain: Chain, connection: Connection, version: int, size: int, check: int) -> Incoming | Complete | None:
    """The version; waits a moment for it."""
    until = now() + KNOWN_SECONDS
    while True:
        found = chain.holding(version, size, check)
        if found is not None or now() > until or chain.local.stopped.is_set():
            return found
        _tell(connection, SourceProgress(0, 0, 0))
        with chain.changed:
            chain.changed.wait(BEAT_SECONDS)


def _send(
    chain: Chain, connection: Connection, turn: tuple[bytes, int], found: Incoming | Complete, at: int, size: int
) -> str:
    while True:
        part, payload = _next(chain, turn, found, at, size)
        _tell(connection, part)
        if part.size and payload is not None:
            with chain.changed:
                chain.children.sends(turn[0], now())
            connection.send_pieces([payload[at : at + part.size]])
            at += part.size
            with chain.changed:
                chain.children.took(turn[0])
                chain.sent += part.size
        if at >= size:
            return "all"


def _next(
    chain: Chain, turn: tuple[bytes, int], found: Incoming | Complete, at: int, size: int
) -> tuple[SourceProgress, Array | None]:
    """The next message: a piece, or after a while without pieces a sign of life.

    Raises:
        Superseded: the version was abandoned, or the child has reconnected.
    """
    if isinstance(found, Complete):
        with chain.changed:
            if not chain.children.has(*turn):
                raise Superseded
        return SourceProgress(size, 0, min(PIECE_BYTES, size - at)), found.payload
    until = now() + BEAT_SECONDS
    with chain.changed:
        while True:
            if not chain.children.has(*turn) or (found.ended and not found.published) or chain.local.stopped.is_set():
                raise Superseded
            have = found.have
            left = until - now()
            if have > at or left <= 0:
                return SourceProgress(have, found.fallen, max(0, min(PIECE_BYTES, have - at))), found.payload
            chain.changed.wait(left)


def _tell(connection: Connection, part: SourceProgress) -> None:
    connection.send(Kind.WAITING, meta=msgspec.msgpack.encode(part))
