"""Groups of nodes: joining a group, staying a member, and listing the members."""

from __future__ import annotations

from typing import Any

from di_store.base import config
from di_store.base.errors import shown
from di_store.client.channel import Seconds
from di_store.cluster.cluster import Cluster
from di_store.cluster.node import Node


def check_group(group: Any) -> None:
    """Raise ValueError unless this can be the name of a group."""
    if not config.is_name(group, 100) or "/" in group:
        raise ValueError(f"group={shown(group)}: a group's name is 1 to 100 bytes of text without '/'")


def join(cluster: Cluster, group: str, timeout: float | None) -> None:
    """Have the directory list this node as a member.

    Raises:
        NodeUnavailable: the directory does not answer.
    """
    cluster.directory.swap(f"group/{group}/{cluster.here.uuid}", None, b"", timeout)


def members(cluster: Cluster, group: str, timeout: Seconds, *, fresh: bool = False) -> tuple[list[Node], bool]:
    """The other nodes of the group that answer, in the same order everywhere; and whether the group has any member.

    Args:
        cluster: cluster of this node.
        group: name of the group.
        timeout: seconds.
        fresh: also nodes that joined within the last second.

    Raises:
        NodeUnavailable: the directory does not answer.
    """
    prefix = f"group/{group}/"
    uuids = {key[len(prefix) :] for key in cluster.directory.listed(prefix, timeout)}
    there = [each for each in cluster.others(timeout, fresh=fresh) if each.uuid in uuids]
    return sorted(there, key=lambda node: node.uuid), bool(uuids)
