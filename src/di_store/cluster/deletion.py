"""One call of `Store.delete` in a cluster: it asks all nodes concerned at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from di_store.base.errors import NodeUnavailable, Timeout
from di_store.cluster.at_once import at_once
from di_store.cluster.cluster import Cluster
from di_store.cluster.node import Node
from di_store.cluster.node_objects import NodeObjects, mark_of
from di_store.runtime import waits
from di_store.session import Session


class Deletion:
    """The state of one call. The call's threads add to its results. A node that does not answer is not asked again."""

    def __init__(
        self, cluster: Cluster, session: Session, nodes: NodeObjects, get: Callable[[bytes, float, None], Any]
    ) -> None:
        """`get`: reads an object of any node, as `Store.get`."""
        self._cluster = cluster
        self._get = get
        self._session = session
        self._nodes = nodes
        self._lock = threading.Lock()
        self._gone = 0  # how many objects were deleted, under the lock
        self._copied: list[bytes] = []  # objects of which other nodes have copies
        self._lost: list[bytes] = []  # objects whose home does not answer
        self._silent: dict[str, str] = {}  # nodes that may still have objects, as errors call them, by uuid

    def run(self, raws: list[bytes]) -> int:
        """Delete objects here, on the nodes where they were put, and on the nodes with copies from `put_copies`.

        Returns how many existed.

        Raises:
            NodeUnavailable: some nodes were not reached; all others have deleted their objects.
        """
        arena, me = self._session.writable(), self._session.uuid
        own: list[bytes] = []
        elsewhere: dict[str, tuple[Node, list[bytes]]] = {}
        anywhere: list[bytes] = []  # their ids were chosen, or nobody knows their nodes
        for raw, home in zip(raws, self._homes(raws), strict=True):
            if home is None:
                anywhere.append(raw)
            elif home.uuid == me:
                own.append(raw)
            else:
                elsewhere.setdefault(home.uuid, (home, []))[1].append(raw)
        self._copied = [raw for raw in own if arena.contains(mark_of(raw), waits.CALL_SECONDS)]
        self._count(arena.delete(own, waits.CALL_SECONDS))
        list(at_once([partial(self._at_home, *each) for each in elsewhere.values()]))
        if anywhere:
            others = self._cluster.others()
            self._silent.update((each, each) for each in self._cluster.missing())
            self._on_all(others, anywhere)
        if self._lost:
            self._on_all(self._cluster.last_seen(), self._lost)
        self._all_copies()
        if self._silent:
            which = ", ".join(sorted(set(self._silent.values())))
            raise NodeUnavailable(
                f"delete: {which} does not answer, and may still have objects; all other nodes have deleted theirs",
                remedy="delete them again when that node is back; if the node is lost, its objects are lost too",
            )
        return self._gone

    def copies_of(self, raw: bytes, timeout: float | None = None, away: set[str] | None = None) -> None:
        """Delete the copies that `put_copies` made, and finally the note that lists them.

        Args:
            raw: the object's id.
            timeout: seconds that each node has; None: as long as `NodeObjects.patiently` allows.
            away: nodes that are not asked, by uuid; nodes that do not answer are added.
        """
        away = set() if away is None else away
        for uuid in self._get(mark_of(raw), 0, None):
            if uuid in away or (node := self._cluster.by_uuid(uuid)) is None:
                continue
            try:
                self._nodes.delete(node, [raw], timeout)
            except (NodeUnavailable, Timeout):  # gone with its node, or it stays there
                away.add(uuid)
        home = self._cluster.home_of(raw)
        if home is not None and home.uuid != self._session.uuid:
            self._nodes.delete(home, [mark_of(raw)], timeout)
        else:
            self._session.writable().delete([mark_of(raw)], waits.CALL_SECONDS)

    def _homes(self, raws: list[bytes]) -> list[Node | None]:
        """The nodes where the objects were put, as far as known.

        Nodes that did not answer a moment ago are asked once more.
        """
        if any(self._cluster.home_seen(raw) is None for raw in raws):
            self._cluster.nodes(fresh=bool(self._cluster.missing()))
        return [self._cluster.home_seen(raw) for raw in raws]

    def _at_home(self, node: Node, raws: list[bytes]) -> None:
        """Delete objects here and on the nodes where they were put."""
        try:
            marked = [raw for raw in raws if self._nodes.patiently(node, partial(self._nodes.has, node, mark_of(raw)))]
            gone = self._nodes.delete(node, raws)
        except (NodeUnavailable, Timeout):  # it alone knew on which nodes copies lie
            self._note_silent(node)
            self._lost += raws
            return
        self._session.writable().delete(raws, waits.CALL_SECONDS)
        self._copied += marked
        self._count(gone)

    def _on_all(self, nodes: list[Node], raws: list[bytes]) -> None:
        """Delete objects here and on all of these nodes, each of which may have any of them."""
        arena = self._session.writable()
        found = {raw for raw in raws if arena.delete([raw], waits.CALL_SECONDS)}

        def ask(node: Node) -> None:
            try:
                found.update(self._nodes.delete_each(node, raws))
            except (NodeUnavailable, Timeout):
                self._note_silent(node)

        list(at_once([partial(ask, each) for each in nodes if each.uuid not in self._silent]))
        self._count(len(found))

    def _all_copies(self) -> None:
        away = set(self._silent)
        for raw in self._copied:
            self.copies_of(raw, away=away)

    def _note_silent(self, node: Node) -> None:
        if not self._nodes.is_replaced(node):
            self._silent[node.uuid] = node.place

    def _count(self, gone: int) -> None:
        with self._lock:
            self._gone += gone
