"""The cluster as one process sees it: its directory, its nodes, and the sessions to them."""

from __future__ import annotations

import threading
import time

from di_store.base.errors import NodeUnavailable
from di_store.client.address import Address
from di_store.client.channel import Seconds
from di_store.cluster.directory import Directory, unavailable
from di_store.cluster.node import HERE, HOME_BYTES, Node, called
from di_store.cluster.session_pool import LOOK_SECONDS, SessionPool
from di_store.runtime.deadline import Deadline
from di_store.runtime.forks import in_child

FRESH_SECONDS = 1.0
"""How old the list of nodes may be if a call only looks for a node."""
STARTING_SECONDS = 5.0
"""How long ``node=`` waits for a node that nobody has seen: it may be starting, or its name is misspelt."""


class Cluster:
    """The nodes that this process knows. Thread-safe: the list of nodes is replaced as a whole."""

    def __init__(self, directory: Directory, sessions: SessionPool, here: Node, engine: bool = False) -> None:
        """Begin.

        Args:
            directory: the directory; closed with the cluster.
            sessions: sessions to all nodes; closed with the cluster.
            here: the node of this machine.
            engine: whether the agent of this machine copies large objects for its processes.
        """
        self.directory = directory
        self.sessions = sessions
        self.here = here
        self.engine = engine
        self._nodes: list[Node] = []
        self._known: dict[str, Node] = {here.uuid: here}  # all that were ever seen; threads only add to it
        self._homes: dict[bytes, Node] = {here.home: here}  # the same by `Node.home`
        self._looked = self._failed = float("-inf")  # when the last look ended, and the last one that failed
        self.begin()
        in_child(self, Cluster.begin)

    def begin(self) -> None:
        """Set the initial state, also in a forked child, where another thread of the parent may hold the lock."""
        self._looking = threading.Lock()

    def nodes(self, timeout: Seconds = LOOK_SECONDS, *, fresh: bool = False) -> list[Node]:
        """The nodes that answer. `fresh`: do not return the list of a second ago.

        Raises:
            NodeUnavailable: the directory does not answer in time.
        """
        asked, deadline = time.monotonic(), Deadline.of(timeout)
        if not fresh and asked - self._looked < FRESH_SECONDS:
            return self._nodes
        left, rest = deadline.left, deadline.rest()
        patience = -1.0 if left is None or rest is None else max(left, min(rest, LOOK_SECONDS))
        if not self._looking.acquire(timeout=patience):
            raise unavailable("another thread of this process still waits for its answer")
        try:  # threads that come meanwhile share one look
            if self._looked >= asked:
                return self._nodes
            if self._failed >= asked and deadline.left == 0:
                raise unavailable("another thread of this process asked it and got no answer")
            return self._look(deadline)
        finally:
            self._looking.release()

    def _look(self, deadline: Deadline) -> list[Node]:
        """Ask the directory, under `_looking`. The list from a call with little time is not kept for other calls."""
        rest = deadline.rest()
        try:
            found = self.directory.nodes(deadline)
        except NodeUnavailable:
            self._failed = time.monotonic()
            raise
        self._known.update((each.uuid, each) for each in found)
        self._homes.update((each.home, each) for each in found)
        if rest is None or rest >= 0.9 * LOOK_SECONDS or not self.directory.missing(found):
            self._nodes, self._looked = found, time.monotonic()
        return found

    def missing(self) -> list[str]:
        """HOST:PORT of the other nodes that did not answer the last time. Makes no call."""
        here = Address.parse(self.here.address).node
        return [each for each in self.directory.missing(self._nodes) if each != here]

    def last_seen(self) -> list[Node]:
        """All nodes but this one that answered the last time. Makes no call."""
        return [each for each in self._nodes if each.uuid != self.here.uuid]

    def others(self, timeout: Seconds = LOOK_SECONDS, *, fresh: bool = False) -> list[Node]:
        """All nodes but this one. `fresh` as in `nodes`."""
        return [each for each in self.nodes(timeout, fresh=fresh) if each.uuid != self.here.uuid]

    def node(self, text: str, timeout: Seconds) -> Node:
        """The node that ``node=`` names. Waits until it answers; for a node that was never seen, `STARTING_SECONDS`.

        Raises:
            NodeUnavailable: no such node answers in time. ValueError: there are several such nodes.
        """
        if text == HERE:
            return self.here
        deadline, starting = Deadline.of(timeout), Deadline(STARTING_SECONDS)
        while True:
            found: list[Node] | None = None
            try:
                found = self.nodes(deadline.another(), fresh=True)
                return called(found, text)
            except NodeUnavailable:
                known = [each for each in list(self._known.values()) if each.is_called(text)]
                if found is not None and deadline.left == 0 and known:
                    raise NodeUnavailable(f"node {known[-1].place} does not answer") from None
                if deadline.left == 0 or (found is not None and not known and starting.left == 0):
                    raise
            deadline.pause()

    def by_uuid(self, uuid: str, timeout: Seconds = LOOK_SECONDS) -> Node | None:
        """The node of a store; None: the node is not known. It may have left meanwhile: then the call to it fails."""
        try:
            self.nodes(timeout, fresh=uuid not in self._known)  # it may have another address by now
        except NodeUnavailable:
            if uuid not in self._known:
                raise
        return self._known.get(uuid)

    def awaited(self, uuid: str, deadline: Deadline) -> Node | None:
        """As `by_uuid`. If the node is not known, this waits as long as a silent node may be the one."""
        while (node := self.by_uuid(uuid, deadline.another())) is None and self.missing() and deadline.pause():
            pass
        return node

    def count_seen(self) -> int:
        """How many nodes were seen, some of which may be lost. Makes no call."""
        return len(self._known)

    def is_elsewhere(self, raw: bytes) -> bool:
        """Whether an object with such an id was put on another node that was seen. Makes no call."""
        return self.home_seen(raw) not in (None, self.here)

    def home_of(self, raw: bytes, timeout: float | None = LOOK_SECONDS, *, sure: bool = False) -> Node | None:
        """The node where an object with such an id was put; None: a program chose its id, or the node is not known.

        `sure`: ask nodes once more that did not answer a moment ago.

        Raises:
            NodeUnavailable: the node was not seen before, and the directory does not answer.
        """
        if (home := self.home_seen(raw)) is None:
            self.nodes(None if timeout is None else max(timeout, LOOK_SECONDS), fresh=sure and bool(self.missing()))
            home = self.home_seen(raw)
        return home

    def home_seen(self, raw: bytes) -> Node | None:
        """As `home_of`, among the nodes that were seen. Makes no call."""
        return self._homes.get(raw[:HOME_BYTES])

    def close(self) -> None:
        """Close the directory and all sessions."""
        self.directory.close()
        self.sessions.close()
