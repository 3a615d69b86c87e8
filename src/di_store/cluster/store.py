"""The handle of the store of this machine as a node of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from di_store.base import config
from di_store.base.errors import NodeUnavailable, StoreClosed
from di_store.client.store import RemoteStore
from di_store.cluster.node import Node
from di_store.cluster.node_store import NodeStore
from di_store.objects.refs import Ref, id_of
from di_store.runtime.waits import check_timeout
from di_store.store.handle import Store


class ClusterStore(Store):
    """A handle of the store of this machine, in a cluster; thread-safe. Made by `di_store.cluster.attach`.

    It is a `Store` with additional calls for clusters. `get` copies an object from its node, and keeps the copy for a
    while. `table` reads a local table in shared memory, and calls the node of any other table. Tables and refs may be
    pickled to any node.

    Attributes:
        node: the store as a node.
    """

    def __init__(self, node: NodeStore) -> None:
        super().__init__(node)
        self.node = node

    def nodes(self) -> list[Node]:
        """The nodes of the cluster that answer."""
        self.node.session.arena.enter()
        return list(self.node.cluster.nodes(fresh=True))

    def is_closed(self) -> bool:
        """Whether `close` was called, or the store was removed."""
        try:
            self.node.session.arena.enter()
        except StoreClosed:
            return True
        return False

    def join(self, group: str, *, timeout: float | None = 60) -> None:
        """Make this node a member of a group: objects put with ``send_ahead(group=)`` are copied into its store.

        Raises:
            NodeUnavailable: the directory does not answer in time.
        """
        self.node.session.arena.enter()
        self.node.push.join(group, check_timeout(timeout))

    def send_ahead(
        self, ref: Ref | str, *, group: str | Iterable[str] | None = None, node: str | Iterable[str] | None = None
    ) -> None:
        """Copy an object that was put here to other nodes, so that their first `get` reads memory.

        The call returns at once. The agents copy, and leave as much room free as `get` does. A copy stays as long as a
        copy made by `get`. If a copy fails (a node is unreachable, the group is empty, the program chose the id), a
        line is logged, and `get` reads the object as usual.

        Args:
            ref: the object.
            group: names of groups whose members get a copy.
            node: names of machines, stores, or ``host:port``, as in `nodes`.

        Raises:
            ValueError: `group` is no name of a group.
        """
        raw = id_of(ref)
        groups, nodes = config.texts("group", group), config.texts("node", node)
        self.node.session.arena.enter()
        self.node.push.send(raw, groups, nodes)

    def store_of(self, ref: Ref | str, *, timeout: float | None = 5) -> Store | None:
        """The store where an object was put: this one, or another one through its agent; None: it is not known.

        Raises:
            NodeUnavailable: that node does not answer, or is lost.
        """
        raw, seconds = id_of(ref), check_timeout(timeout)
        self.node.session.arena.enter()
        home = self.node.cluster.home_of(raw, sure=True)
        if home is None:
            if silent := self.node.cluster.missing():
                raise NodeUnavailable(f"store_of: {', '.join(silent)} does not answer, and may have the object")
            return None
        if home.uuid == self.node.session.uuid:
            return self
        if home not in self.node.cluster.nodes():  # nobody has to wait for a node that did not answer a moment ago
            raise NodeUnavailable(f"node {home.name} ({home.address}) does not answer")
        with self.node.cluster.sessions.calling(home, seconds) as session:
            session.call("hello", timeout=seconds, what="store_of")
        return Store(RemoteStore(session))


def stores_of(store: ClusterStore, timeout: float = 10) -> Iterator[Store]:
    """The stores of all nodes: this one, and the others through their agents, each of which has so many seconds.

    Raises:
        NodeUnavailable: a node does not answer in time.
    """
    yield store
    cluster = store.node.cluster
    others = cluster.others(timeout, fresh=True)
    if silent := cluster.missing():
        raise NodeUnavailable(f"{', '.join(silent)} does not answer, and may have objects")
    for node in others:
        with cluster.sessions.calling(node, timeout) as session:
            yield Store(RemoteStore(session))
