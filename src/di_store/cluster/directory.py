"""The directory of a cluster: its nodes, and entries that one process at a time may change.

Each entry stands for something unique: a table, the publisher of weights, a member of a group. No data pass through the
directory: calls on open tables and objects continue while it is unreachable.

Keys::

    table/<name>            a `TableEntry`
    group/<group>/<uuid>    a node that follows the group's weights
    owner/<name>            an `Owner`: who publishes these weights
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from di_store.base.errors import NodeUnavailable
from di_store.client.channel import Seconds
from di_store.cluster.node import Node

T = TypeVar("T")

TABLE = "table/"
"""The prefix of the keys of tables."""


class Directory(Protocol):
    """The interface of all kinds. Thread-safe.

    Every call ends at most one second after `timeout`; as a step of a longer call, within that call's deadline.

    Each raises:
        NodeUnavailable: the directory does not answer in time.
    """

    def nodes(self, timeout: Seconds) -> list[Node]:
        """The present nodes, as far as the directory knows."""

    def missing(self, nodes: list[Node]) -> list[str]:
        """HOST:PORT of the nodes of the cluster that are not in `nodes`. Makes no call."""

    def read(self, key: str, timeout: Seconds) -> bytes | None:
        """The entry under a key."""

    def swap(self, key: str, old: bytes | None, new: bytes | None, timeout: Seconds) -> bool:
        """Replace an entry if it still is `old`; None: no entry."""

    def listed(self, prefix: str, timeout: Seconds) -> dict[str, bytes]:
        """All entries whose keys begin with this prefix."""

    def close(self) -> None:
        """Close its connections."""


def call_name() -> str:
    """A unique name for a call."""
    return secrets.token_hex(8)


class TableEntry(msgspec.Struct, frozen=True):
    """A table of the cluster.

    Attributes:
        settings: settings of each shard, as text.
        shards: uuids of the nodes that have a shard, in shard order.
        draw: "local" or "mass".
        dropped: whether the table is being dropped: a process that finds this continues the drop.
        maker: unique name of the call that made the table, so that each call recognises its own entry. It also
            distinguishes the shards from other tables of that name.
    """

    settings: str
    shards: tuple[str, ...]
    draw: str = "local"
    dropped: bool = False
    maker: str = msgspec.field(default_factory=call_name)


class Owner(msgspec.Struct, frozen=True):
    """The publisher of weights.

    Attributes:
        uuid: the node.
        epoch: rises when another process takes over the name.
        group: the group whose nodes get the weights.
        maker: as in `TableEntry`.
    """

    uuid: str
    epoch: int
    group: str
    maker: str = msgspec.field(default_factory=call_name)


def packed(entry: msgspec.Struct) -> bytes:
    """The entry in the form that the directory stores."""
    return msgspec.msgpack.encode(entry)


def unpacked(entry: bytes, cls: Callable[..., T]) -> T:
    """The entry that `packed` packed.

    Raises:
        NodeUnavailable: another version of di-store wrote the entry.
    """
    try:
        return msgspec.msgpack.decode(entry, type=cls)  # type: ignore[no-any-return]
    except msgspec.MsgspecError as error:
        raise NodeUnavailable(
            f"this version of di-store cannot read the directory: {error}",
            remedy="use one version of di-store on all nodes",
        ) from None


def unavailable(why: str) -> NodeUnavailable:
    """The error of a directory that does not answer."""
    return NodeUnavailable(
        f"the directory of the cluster does not answer: {why}",
        remedy="open tables, writers and loaders keep working; only creating and finding others needs the directory",
    )
