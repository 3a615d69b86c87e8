"""The directory entries that a node keeps in its own store: those of tables that have a shard there.

If the directory is lost, it is rebuilt from these entries.
"""

from __future__ import annotations

import msgspec

from di_store.base.errors import StoreError
from di_store.client.link import Seconds
from di_store.client.objects import RemoteObjects
from di_store.cluster.links import Links
from di_store.cluster.node import Node
from di_store.objects.weights import Published, Weights
from di_store.runtime.deadline import Deadline
from di_store.session import Session

Words = dict[str, bytes]
NAME = "di-store/kept"
_ATTEMPTS = 1000  # each fails only if another process has changed a word meanwhile


def keep_word(
    links: Links,
    node: Node,
    key: str,
    word: bytes | None,
    timeout: Seconds,
    *,
    what: str,
    only: bytes | None = None,
) -> None:
    """Have the node keep an entry; None: forget the entry, if it is `only`. `what`: name of the call, for its error.

    Raises:
        NodeUnavailable: the node does not answer in time.
    """
    deadline = Deadline.of(timeout)
    with links.calling(node, deadline) as session:
        objects = RemoteObjects(session)
        for _ in range(_ATTEMPTS):
            found = objects.newest(NAME, deadline, what)
            words = words_in(found)
            if words.get(key) == word or (word is None and only not in (None, words.get(key))):
                return
            if word is None:
                del words[key]
            else:
                words[key] = word
            version = 1 if found is None else found.version + 1
            if objects.publish_at(NAME, msgspec.msgpack.encode(words), version, deadline, what):
                return
    raise StoreError(f"node {node.name}: too many processes change its words at once")


def kept_words(links: Links, node: Node, timeout: Seconds) -> Words:
    """The entries that a node keeps.

    Raises:
        NodeUnavailable, Timeout: the node does not answer.
    """
    deadline = Deadline.of(timeout)
    with links.calling(node, deadline) as session:
        return words_in(RemoteObjects(session).newest(NAME, deadline, "which tables it keeps"))


def own_words(session: Session) -> Words:
    """The entries that the store of this machine keeps."""
    return words_in(Weights(session).latest(NAME, None, None, 0))


def words_in(found: Published | None) -> Words:
    """The entries in a version. In a store that was opened again from its disk, only the version number may be left."""
    return {} if found is None or found.value is None else msgspec.msgpack.decode(found.value, type=Words)
