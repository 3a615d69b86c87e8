"""Handles of the stores of other nodes. They are made at first use and shared by all calls of this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from di_store.base.errors import NodeUnavailable, StoreClosed, StoreError
from di_store.client.address import Address
from di_store.client.channel import Seconds
from di_store.client.session import RemoteSession
from di_store.client.sessions import Credentials, Sessions
from di_store.cluster.node import Node
from di_store.runtime.deadline import Deadline

LOOK_SECONDS = 0.8
"""How long a node that is not needed for the call may take to answer: calls without time left look too, and end within
a second."""
PATIENCE_SECONDS = 0.05
"""The same, of one that did not answer the last time."""


class _Look:
    """A question to a node whether it answers. One thread answers it."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.found: Node | None = None  # set before `ended`; None: it does not answer


class SessionPool(Sessions):
    """The handles, by address. Thread-safe, as `Sessions`."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__(credentials)
        self.abroad: Callable[[str], tuple[Any, ...]] | None = None
        """How tables that are reached through a channel pickle, as `Session.abroad`."""
        self.versions: dict[str, int] | None = None
        """Versions of weights: `Session.versions` of the store of this machine."""
        self._replaced: set[str] = set()  # UUIDs, which are never used again: threads only add to it

    def begin(self) -> None:
        """As `Sessions.begin`."""
        super().begin()
        self._looks: dict[str, _Look] = {}

    def at(self, address: str) -> RemoteSession:
        """As `Sessions.at`."""
        session = super().at(address)
        session.abroad, session.near_versions = self.abroad, self.versions
        return session

    def session(self, address: str, timeout: Seconds, what: str | None = None) -> RemoteSession:
        """The session with the store that is now served at an address. `what`: name of the call, for errors.

        Raises:
            As `di_store.connect`.
        """
        deadline = Deadline.of(timeout)
        while True:
            session = self.at(address)
            known = session.channel.client.agent != b""
            try:
                session.meet(deadline, what)
                return session
            except StoreClosed:
                if not known or self.closed:
                    raise
                # what this process knew of the address is a store that is gone

    def greeted(self, address: str, timeout: Seconds) -> RemoteSession:
        """The session with the store that is now served at an address, and has just answered.

        Raises:
            As `di_store.connect`.
        """
        deadline = Deadline.of(timeout)
        session = self.session(address, deadline)
        try:
            session.call("hello", timeout=deadline, what=f"lookup of {address}")
            return session
        except StoreClosed:  # another store has taken the place of the one that was known
            return self.session(address, deadline)

    def node_at(self, address: str, timeout: float | None) -> Node:
        """The node that is now served at an address."""
        return _node_of(self.session(address, timeout))

    def of(self, node: Node, timeout: Seconds, what: str | None = None) -> RemoteSession:
        """The session with the store of a node. `what`: name of the call, for errors.

        Raises:
            NodeUnavailable: the node does not answer in time, or another store has taken its place.
        """
        deadline = Deadline.of(timeout)
        session = self.session(node.address, deadline, what)
        if session.channel.welcome.uuid != node.uuid:
            # The known store may be the one that is gone, with `node` in its place: only a call tells.
            session = self.greeted(node.address, deadline)
            if session.channel.welcome.uuid != node.uuid:
                raise self._gone(node)
        return session

    @contextlib.contextmanager
    def calling(self, node: Node, timeout: Seconds, what: str | None = None) -> Iterator[RemoteSession]:
        """As `of`, for the calls in the block: if a call finds another store, the node counts as lost."""
        session = self.of(node, timeout, what)
        try:
            yield session
        except StoreClosed:
            if session.ended() or not session.is_over():
                raise
            raise self._gone(node) from None

    def is_replaced(self, node: Node) -> bool:
        """Whether a call has found another store in the node's place, so that the node will not come back.

        Makes no call.
        """
        return node.uuid in self._replaced

    def _gone(self, node: Node) -> NodeUnavailable:
        """The error of a node that will not come back."""
        self._replaced.add(node.uuid)
        return NodeUnavailable(
            f"node {node.name} ({Address.parse(node.address).node}) is gone, and the data in its memory is lost",
            remedy="drop_table() removes tables that were stored there",
        )

    def all_at(self, addresses: list[str], seconds: float) -> list[Node]:
        """The nodes at these addresses that answer within this many seconds. All are asked at once.

        A node that was silent the last time gets `PATIENCE_SECONDS`, so that dead nodes do not delay every call.
        """
        looks: list[tuple[float | None, _Look]] = []
        for address in addresses:
            with self._lock:
                look = self._looks.get(address)
                silent = look is not None and look.found is None
                if look is None or look.ended.is_set():
                    look = self._looks[address] = _Look()
                    threading.Thread(target=self._look, args=(address, look, seconds), daemon=True).start()
            looks.append((PATIENCE_SECONDS if silent else None, look))
        deadline = Deadline(seconds)
        for patience, look in looks:
            look.ended.wait(deadline.left if patience is None else patience)
        return [look.found for _, look in looks if look.found is not None]

    def _look(self, address: str, look: _Look, seconds: float) -> None:
        try:
            look.found = _node_of(self.greeted(address, seconds))
        except (StoreError, OSError):
            pass
        finally:
            look.ended.set()


def _node_of(session: RemoteSession) -> Node:
    welcome, where = session.channel.welcome, session.channel.address
    return Node(welcome.uuid, welcome.node, str(Address(where.host, where.port, welcome.store)))
