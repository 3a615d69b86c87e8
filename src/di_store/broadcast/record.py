"""The state that an agent's successor needs. It lies in the store, as weights of a name that no user can publish.

One value holds all names. It changes by compare and swap: read version n, publish the changed value as version n + 1,
and begin again if n + 1 exists already. So two agents of one store never lose each other's changes, and a kill at any
line leaves the old value or the new one.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from di_store.base.errors import ObjectNotFound, StoreError, Timeout
from di_store.objects.weights import RESERVED
from di_store.session import Session

RECORD = f"{RESERVED}groups"
MOST_NAMES = 256
"""The most names of weights that are sent to groups: as many as a store has."""


class Known(msgspec.Struct, array_like=True, frozen=True):
    """The state of one name.

    Attributes:
        epoch: the highest epoch of any note, or of the process that publishes here.
        keep: number of newest versions that stay readable.
        chain: nodes to ask for the newest version, the publisher first; empty: no nodes.
        place: place of this node in the chain; the chain's length: not in it.
        members: nodes to tell of new versions, if the publisher is on this node; otherwise empty.
        own: address of this node, as the members reach it.
        joined: nodes that joined after the publisher listed the members, in this order; they are told of versions too.
        joins: how many nodes have joined in total. So the number shows which nodes a list of members may lack.
    """

    epoch: int = 0
    keep: int = 1
    chain: list[str] = []
    place: int = 0
    members: list[str] = []
    own: str = ""
    joined: list[str] = []
    joins: int = 0

    @property
    def told(self) -> list[str]:
        """All nodes that are to be told of new versions."""
        return list(dict.fromkeys([*self.members, *self.joined]))

    def replaced(self) -> Known:
        """The state once the publisher is on another node.

        Joined nodes stay: they may know a later publisher that begins here.
        """
        return msgspec.structs.replace(self, members=[], own="")

    def joined_since(self, joins: int) -> list[str]:
        """All nodes that joined after the first `joins` nodes; the list may also contain earlier ones."""
        later = max(0, self.joins - joins)
        return self.joined[len(self.joined) - later :] if later < len(self.joined) else self.joined


class Groups(msgspec.Struct):
    """The state of all names. A restored copy of a store has another uuid, and begins with no state."""

    uuid: str
    names: dict[str, Known]


class BroadcastRecord:
    """The record of one store. Thread-safe: it has no state of its own."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def read(self) -> dict[str, Known]:
        """The state by name."""
        return self._read()[1].names

    def known(self, name: str) -> Known:
        """The state of one name."""
        return self.read().get(name, Known())

    def update(self, name: str, change: Callable[[Known], Known]) -> Known:
        """Change the state of one name. Returns the new state.

        Raises:
            The error of `change`. StoreFull: no room; nothing was changed.
        """
        while True:
            version, groups = self._read()
            before = groups.names.get(name, Known())
            after = change(before)
            if after == before:
                return after
            names = {**groups.names, name: after}
            if len(names) > MOST_NAMES:
                raise StoreError(
                    f"weights of {len(names)} names are sent to groups; at most {MOST_NAMES} are possible",
                    remedy="reuse names",
                )
            data = msgspec.msgpack.encode(Groups(groups.uuid, names))
            if self._session.arena.publish(RECORD, data, 1, at=version + 1):
                return after

    def _read(self) -> tuple[int, Groups]:
        arena = self._session.arena
        while True:
            version = arena.newest(RECORD)
            fresh = Groups(self._session.uuid, {})
            if version < 1:
                return 0, fresh
            try:
                found = arena.latest(RECORD, version, None)
            except ObjectNotFound:
                if arena.newest(RECORD) == version:
                    return version, fresh
                continue  # replaced meanwhile
            except Timeout:
                continue  # a lock was held
            try:
                groups = msgspec.msgpack.decode(found, type=Groups)
            except (msgspec.DecodeError, TypeError):
                return version, fresh
            return version, groups if groups.uuid == fresh.uuid else fresh
