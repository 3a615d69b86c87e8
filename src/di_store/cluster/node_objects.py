"""Calls about the objects of one other node, and about a home node's notes on copies of its objects."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

from di_store.base.errors import NodeUnavailable, Timeout
from di_store.client.channel import Seconds
from di_store.client.objects import RemoteObjects
from di_store.cluster.cluster import Cluster
from di_store.cluster.node import Node
from di_store.cluster.session_pool import LOOK_SECONDS
from di_store.runtime import waits
from di_store.runtime.deadline import Deadline

T = TypeVar("T")

COPIES_MARK = b"copies"
"""A part of the ids of a home node's notes on copies of an object. These notes are not objects of users."""


class NodeObjects:
    """Calls about one node's objects. Thread-safe: it has no state that changes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def patiently(self, node: Node, call: Callable[[float], T]) -> T:
        """Make a call without a timeout: a node that answers has a minute, a silent one a second or two."""
        try:
            return call(LOOK_SECONDS)
        except (NodeUnavailable, Timeout):
            if node not in self._cluster.nodes(fresh=True):
                raise
            return call(waits.CALL_SECONDS)

    def is_replaced(self, node: Node) -> bool:
        """Whether another store has taken the node's place: then the node's objects are lost, not only unreachable."""
        if self._cluster.sessions.is_replaced(node):
            return True
        return any(each.address == node.address and each.uuid != node.uuid for each in self._cluster.last_seen())

    def has(self, node: Node, raw: bytes, timeout: Seconds) -> bool:
        """Whether the node has an object."""
        deadline = Deadline.of(timeout)
        with self._cluster.sessions.calling(node, deadline) as session:
            return bool(session.call("contains", {"id": raw}, timeout=deadline, what="contains"))

    def delete(self, node: Node, raws: list[bytes], timeout: float | None = None) -> int:
        """Delete objects there. `timeout`: seconds for the node's answer; None: as in `patiently`."""

        def delete(seconds: float) -> int:
            with self._cluster.sessions.calling(node, seconds) as session:
                return int(session.call("delete", {"ids": raws}, timeout=seconds, what="delete", once=True))

        return self.patiently(node, delete) if timeout is None else delete(timeout)

    def delete_each(self, node: Node, raws: list[bytes]) -> set[bytes]:
        """As `delete`. Returns which of the objects existed there."""

        def delete(seconds: float) -> set[bytes]:
            with self._cluster.sessions.calling(node, seconds) as session:
                return RemoteObjects(session).delete_each(raws, seconds)

        return self.patiently(node, delete)


def mark_of(raw: bytes) -> bytes:
    """The id of the note that a home node keeps about the copies of an object."""
    return raw[:6] + COPIES_MARK + hashlib.blake2b(raw, digest_size=8).digest()
