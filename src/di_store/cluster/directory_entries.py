"""The directory entries that a node keeps in its own store: those of tables with a shard on the node.

If the directory is lost, it is rebuilt from these entries.
"""

from __future__ import annotations

import msgspec

from di_store.base.errors import StoreError
from di_store.client.channel import Seconds
from di_store.client.objects import RemoteObjects
from di_store.cluster.node import Node
from di_store.cluster.session_pool import SessionPool
from di_store.objects.weights import Published, Weights
from di_store.runtime.deadline import Deadline
from di_store.session import Session

Entries = dict[str, bytes]
NAME = "di-store/kept"
_ATTEMPTS = 1000  # each fails only if another process has changed an entry meanwhile


def keep_entry(
    sessions: SessionPool,
    node: Node,
    key: str,
    entry: bytes | None,
    timeout: Seconds,
    *,
    what: str,
    only: bytes | None = None,
) -> None:
    """Have the node keep an entry; None: drop the entry, if it equals `only`. `what`: name of the call, for its error.

    Raises:
        NodeUnavailable: the node does not answer in time.
    """
    deadline = Deadline.of(timeout)
    with sessions.calling(node, deadline) as session:
        objects = RemoteObjects(session)
        for _ in range(_ATTEMPTS):
            found = objects.newest(NAME, deadline, what)
            entries = entries_in(found)
            if entries.get(key) == entry or (entry is None and only not in (None, entries.get(key))):
                return
            if entry is None:
                del entries[key]
            else:
                entries[key] = entry
            version = 1 if found is None else found.version + 1
            if objects.publish_at(NAME, msgspec.msgpack.encode(entries), version, deadline, what):
                return
    raise StoreError(f"node {node.name}: too many processes change its directory entries at once")


def kept_entries(sessions: SessionPool, node: Node, timeout: Seconds) -> Entries:
    """The entries that a node keeps.

    Raises:
        NodeUnavailable, Timeout: the node does not answer.
    """
    deadline = Deadline.of(timeout)
    with sessions.calling(node, deadline) as session:
        return entries_in(RemoteObjects(session).newest(NAME, deadline, "list of its tables"))


def own_entries(session: Session) -> Entries:
    """The entries that the store of this machine keeps."""
    return entries_in(Weights(session).latest(NAME, None, None, 0))


def entries_in(found: Published | None) -> Entries:
    """The entries in a version. In a store that was opened again from its disk, only the version number may be left."""
    return {} if found is None or found.value is None else msgspec.msgpack.decode(found.value, type=Entries)
