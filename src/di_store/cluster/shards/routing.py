"""Chooses the shard that a lane writes to: rendezvous hashing.

Every shard has a score for a lane, and the highest score wins. So if a shard is lost, only its lanes move, evenly to
the other shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def chosen(key: bytes, uuids: Iterable[str]) -> str:
    """The node of the shard for a key: a lane of a writer, or a node that has no shard of its own.

    Args:
        key: any bytes.
        uuids: uuids of the nodes that have a shard; at least one.
    """
    return max(uuids, key=lambda uuid: (_score(key, uuid), uuid))


def lane_key(writer: bytes, lane: int) -> bytes:
    """The key of a lane: the first lanes of two writers are different lanes."""
    return writer + lane.to_bytes(4, "little")


def _score(key: bytes, uuid: str) -> bytes:
    return hashlib.blake2b(key + bytes.fromhex(uuid), digest_size=8).digest()
