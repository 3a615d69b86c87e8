"""Chooses nodes to which objects are sent ahead of their first `get`. The agents carry the bytes.

A `put` never fails because of this: an object that was not sent ahead is copied when it is read.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable

from di_store.base.errors import StoreError
from di_store.cluster.cluster import Cluster
from di_store.cluster.groups import JOINED_SECONDS, MEMBERS_SECONDS
from di_store.cluster.members import check_group, join, members
from di_store.cluster.node import Node
from di_store.cluster.session_pool import LOOK_SECONDS
from di_store.runtime.forks import in_child
from di_store.runtime.waits import logger

AWAY_SECONDS = 5.0
"""For how long a directory that did not answer is not asked again, so that not every `put` waits for it."""


class Push:
    """Implements `join` and `send_ahead` of a `ClusterStore`. Thread-safe: its state is replaced as a whole."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._joined: set[str] = set()  # groups; grows under _joining
        self._known: dict[str, tuple[float, list[Node]]] = {}  # by group: until when they count, and its members
        self._said: set[str] = set()  # what the log has a line of already
        self.begin()
        in_child(self, Push.begin)

    def begin(self) -> None:
        """Set the initial state, also in a forked child, where another thread of the parent may hold the lock."""
        self._joining = threading.Lock()
        self._staying = False  # whether the thread lives that keeps this node a member; under _joining

    # -- a member -----------------------------------------------------------------------------------------------

    def join(self, group: str, timeout: float | None) -> None:
        """Make this node a member of a group.

        Raises:
            NodeUnavailable: the directory does not answer. ValueError: `group` is no name of a group.
        """
        check_group(group)
        join(self._cluster, group, timeout)
        with self._joining:
            self._joined.add(group)
            if not self._staying:
                threading.Thread(target=_stay, args=(weakref.ref(self),), name="di-store member", daemon=True).start()
                self._staying = True

    def is_over(self) -> bool:
        """Whether the store was closed."""
        return self._cluster.sessions.closed

    def join_again(self) -> None:
        """Join the groups again, since the directory may have been rebuilt."""
        with self._joining:
            groups = sorted(self._joined)
        try:
            for group in groups:
                join(self._cluster, group, LOOK_SECONDS)
        except StoreError as error:  # the members that others know go on getting objects
            if not self.is_over():
                logger.warning("groups %s: %s", ", ".join(groups), error.message)

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, raw: bytes, groups: Iterable[str], nodes: Iterable[str]) -> None:
        """Have an object of this store sent to the members of these groups and to these nodes.

        Raises:
            ValueError: a name that cannot be a group's.
        """
        for group in groups:
            check_group(group)
        if not raw.startswith(self._cluster.here.home):
            self._say("objects with an id of your own, or on another node, are not sent ahead")
            return
        try:
            wanted = {each.uuid: each.address for each in [*self._members(groups), *self._called(nodes)]}
            if wanted:
                arguments = {"id": raw, "members": list(wanted.values()), "own": self._cluster.here.address}
                agent = self._cluster.sessions.of(self._cluster.here, LOOK_SECONDS)
                agent.call("send_ahead", arguments, timeout=LOOK_SECONDS, what="send_ahead")
        except StoreError as error:
            logger.warning("object %s is not sent ahead: %s", raw.hex(), error.message)

    def _members(self, groups: Iterable[str]) -> list[Node]:
        found = []
        for group in groups:
            until, known = self._known.get(group, (float("-inf"), []))
            if time.monotonic() > until:
                until, known = self._look(group, known)
                self._known[group] = until, known
            found += known
        return found

    def _look(self, group: str, known: list[Node]) -> tuple[float, list[Node]]:
        """The members, from the directory; if it does not answer, the members known so far."""
        try:
            found, has_any = members(self._cluster, group, LOOK_SECONDS)
        except StoreError as error:
            logger.warning("group %r: %s", group, error.message)
            return time.monotonic() + AWAY_SECONDS, known
        if not has_any:
            self._say(f"group {group!r} has no members: objects for it are not sent ahead")
        return time.monotonic() + MEMBERS_SECONDS, found

    def _called(self, names: Iterable[str]) -> list[Node]:
        found = []
        for name in names:
            every = [each for each in self._cluster.nodes() if each.is_called(name)]
            if not every:
                self._say(f"the cluster has no node {name!r}: objects for it are not sent ahead")
            found += [each for each in every if each.uuid != self._cluster.here.uuid]
        return found

    def _say(self, text: str) -> None:
        """Log one line, the first time only."""
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)


def _stay(reference: weakref.ref[Push]) -> None:
    """Keep the node a member while its store is open and in use."""
    while True:
        time.sleep(JOINED_SECONDS)
        sending = reference()
        if sending is None or sending.is_over():
            return
        sending.join_again()
        del sending
