"""The cluster as one process sees it: its directory, its nodes, and the links to them."""

from __future__ import annotations

import threading
import time

from di_store.cluster.directory import Directory
from di_store.cluster.links import LOOK_SECONDS, Links
from di_store.cluster.node import HERE, Node, called

FRESH_SECONDS = 1.0
"""How old the list of nodes may be where a call only looks for one."""


class Cluster:
    """Thread-safe. The list of nodes is replaced as a whole."""

    def __init__(self, directory: Directory, links: Links, here: str | None) -> None:
        """Begin.

        Args:
            directory: of its kind; closed with the cluster.
            links: to all nodes; closed with the cluster.
            here: uuid of the store on this machine; None: there is none.
        """
        self.directory = directory
        self.links = links
        self.here = here
        self._nodes: list[Node] = []
        self._known: dict[str, Node] = {}  # all that were ever seen; threads only add to it
        self._looked = float("-inf")
        self._looking = threading.Lock()

    def nodes(self, timeout: float | None = LOOK_SECONDS, *, fresh: bool = False) -> list[Node]:
        """Those that are there. `fresh`: not those of a second ago."""
        asked = time.monotonic()
        if not fresh and asked - self._looked < FRESH_SECONDS:
            return self._nodes
        with self._looking:  # threads that come meanwhile share one look
            if self._looked < asked:
                found = self.directory.nodes(timeout)
                self._known.update((each.uuid, each) for each in found)
                self._nodes, self._looked = found, time.monotonic()
            return self._nodes

    def others(self, timeout: float | None = LOOK_SECONDS) -> list[Node]:
        """All nodes but this one."""
        return [each for each in self.nodes(timeout) if each.uuid != self.here]

    def node(self, text: str, timeout: float | None) -> Node:
        """The node that ``node=`` means.

        Raises:
            NodeUnavailable: there is none. ValueError: there are several.
        """
        every = self.nodes(timeout, fresh=True)
        if text != HERE:
            return called(every, text)
        return called(every, self.here or HERE)

    def by_uuid(self, uuid: str, timeout: float | None = LOOK_SECONDS) -> Node | None:
        """The node of a store; None: nobody has seen it. It may be gone meanwhile: the call to it says so."""
        if uuid not in self._known:
            self.nodes(timeout, fresh=True)
        return self._known.get(uuid)

    def home_of(self, raw: bytes) -> Node | None:
        """Where an object with such an id was put; None: its id was chosen, or nobody has seen the node."""
        for look in (False, True):
            if look:
                self.nodes()
            for each in list(self._known.values()):
                if raw.startswith(each.home):
                    return each
        return None

    def close(self) -> None:
        """End the directory and all links."""
        self.directory.close()
        self.links.close()
