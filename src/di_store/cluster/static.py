"""The directory of a fixed list of nodes, which needs no other service: `di-store serve --peers a,b,c`.

The entries lie in the store of one node, the alphabetically first one, as one version of weights. To change the
entries, a process publishes the version after the one that it read; only one process can succeed. So the entries
survive the agent, but not the node. When that node's store is created again, the entries are rebuilt from the nodes'
own entries for their tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from di_store.base.errors import NodeUnavailable, StoreClosed, StoreError
from di_store.client.address import Address
from di_store.client.channel import Seconds
from di_store.client.objects import RemoteObjects
from di_store.cluster.directory import unavailable
from di_store.cluster.directory_entries import Entries, entries_in, kept_entries
from di_store.cluster.node import Node
from di_store.cluster.session_pool import LOOK_SECONDS, SessionPool
from di_store.runtime.deadline import Deadline

T = TypeVar("T")

NAME = "di-store/directory"
_ATTEMPTS = 1000  # each fails only if another process has changed an entry meanwhile


class StaticDirectory:
    """See the module, and `Directory`."""

    def __init__(self, peers: tuple[str, ...], sessions: SessionPool) -> None:
        """For these addresses. No call is made yet.

        Args:
            peers: the addresses, in the same order on all nodes. The first node has the entries.
            sessions: sessions to the nodes.
        """
        self._peers = peers
        self._sessions = sessions

    def lies_with(self, node: Node) -> bool:
        """Whether the entries lie in the store of this node."""
        return _place(node.address) == self._peers[0]

    def nodes(self, timeout: Seconds) -> list[Node]:
        """The nodes that answer now. Half of the call's time is left for the call to the node that is looked for."""
        rest = Deadline.of(timeout).rest()
        return self._sessions.all_at(list(self._peers), LOOK_SECONDS if rest is None else min(rest / 2, LOOK_SECONDS))

    def missing(self, nodes: list[Node]) -> list[str]:
        """As `Directory.missing`: the nodes that have not answered."""
        return sorted(Address.parse(each).node for each in set(self._peers) - {_place(node.address) for node in nodes})

    def read(self, key: str, timeout: Seconds) -> bytes | None:
        """As `Directory.read`."""
        return self._entries(timeout)[1].get(key)

    def listed(self, prefix: str, timeout: Seconds) -> dict[str, bytes]:
        """As `Directory.listed`."""
        return {key: entry for key, entry in self._entries(timeout)[1].items() if key.startswith(prefix)}

    def swap(self, key: str, old: bytes | None, new: bytes | None, timeout: Seconds) -> bool:
        """As `Directory.swap`."""
        deadline, tried = Deadline.of(timeout), False
        for _ in range(_ATTEMPTS):
            version, entries = self._entries(deadline.another())
            if entries.get(key) != old:
                return tried and entries.get(key) == new  # done by a call whose answer was lost
            changed = {**entries, key: new} if new is not None else {k: v for k, v in entries.items() if k != key}
            try:
                if self._publish(changed, version + 1, deadline.another()):
                    return True
            except NodeUnavailable as error:
                if not error.may_be_done:
                    raise
                tried = True
        raise unavailable("too many processes change the directory at once")

    def close(self) -> None:
        """As `Directory.close`. The sessions belong to the caller and stay open."""

    def _entries(self, timeout: Seconds) -> tuple[int, Entries]:
        """The version, and the entries."""
        deadline = Deadline.of(timeout)
        while True:
            found = self._ask(lambda objects, step: objects.newest(NAME, step, "read of the directory"), deadline)
            if found is not None and found.value is not None:
                return found.version, entries_in(found)
            # A new store, or one that was opened again from its disk and knows the number of a version alone: what the
            # nodes keep is all there is. Each must say it, or a name could be given twice.
            nodes = self.nodes(deadline.another())
            if len(nodes) < len(self._peers):
                if not deadline.pause():
                    raise unavailable(
                        f"the node that holds it was restarted, and {', '.join(self.missing(nodes))} have "
                        "not reported their tables: start them, or leave them out of --peers"
                    )
                continue
            entries: Entries = {}
            for node in nodes:
                try:
                    entries.update(kept_entries(self._sessions, node, deadline.another()))
                except StoreError as error:
                    raise unavailable(error.message) from None
            version = 1 if found is None else found.version + 1
            if self._publish(entries, version, deadline):
                return version, entries

    def _publish(self, entries: Entries, version: int, deadline: Deadline) -> bool:
        packed = msgspec.msgpack.encode(entries)
        return self._ask(
            lambda objects, step: objects.publish_at(NAME, packed, version, step, "change of the directory"), deadline
        )

    def _ask(self, call: Callable[[RemoteObjects, Deadline], T], deadline: Deadline) -> T:
        """Make a call of the store that is now at the first node's address."""
        for last in (False, True):
            try:
                step = deadline.another()
                return call(RemoteObjects(self._sessions.session(self._peers[0], step)), step)
            except StoreClosed as error:
                if last or self._sessions.closed:
                    raise unavailable(error.message) from None
            except StoreError as error:
                failed = unavailable(error.message)
                failed.may_be_done = getattr(error, "may_be_done", False)
                raise failed from None
        raise AssertionError


def _place(address: str) -> str:
    """The address in the form of the list of peers: without the name of a store."""
    where = Address.parse(address)
    return str(Address(where.host, where.port, ""))
