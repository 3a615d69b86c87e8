"""Checks arguments of calls on tables in parts."""

from __future__ import annotations

from collections.abc import Iterable

from di_store.base import config
from di_store.base.errors import NodeUnavailable
from di_store.cluster.node import Node
from di_store.cluster.shards.division import DRAWS, LOCAL, MASS, check_drawn_by_mass, check_parts
from di_store.cluster.shards.sharded_table import ShardedTable
from di_store.policy.settings import Settings
from di_store.replay.keys import MOST_SHARDS
from di_store.replay.table_backend import TableBackend


def check_draw(settings: Settings, shards: object, draw: object) -> str:
    """``draw=``, if it fits the other options.

    Raises:
        ValueError: the option does not fit. TypeError: it is no text.
    """
    if shards is None:
        if draw is not None:
            raise ValueError(f'draw={draw!r} says how a sharded table is drawn from: it needs shards="learners"')
        return LOCAL
    config.choice("shards", shards, ("learners",))
    wanted = config.choice("draw", LOCAL if draw is None else draw, DRAWS)
    check_parts(settings)
    if wanted == MASS:
        check_drawn_by_mass(settings)
    return wanted


def check_places(nodes: list[Node]) -> list[Node]:
    """The nodes, if each can have one shard of a table.

    Raises:
        ValueError: a node is named twice, or there are too many. NodeUnavailable: there is no such node.
    """
    if not nodes:
        raise NodeUnavailable("no node of the cluster answers")
    if len({each.uuid for each in nodes}) < len(nodes):
        raise ValueError(f"node={[each.place for each in nodes]} names a node twice: each has one shard")
    if len(nodes) > MOST_SHARDS:
        raise ValueError(
            f"a table in {len(nodes)} shards: at most {MOST_SHARDS} are possible, since one byte of a key "
            "holds the number of the shard; name fewer nodes with node="
        )
    return nodes


def check_whole(call: str, tables: Iterable[TableBackend]) -> None:
    """Refuse tables in parts in calls whose tables must lie on one node.

    Raises:
        ValueError: a table lies in parts.
    """
    for each in tables:
        if isinstance(each, ShardedTable):
            raise ValueError(
                f"store.{call}() with table {each.name!r}, which is sharded over several nodes: use its own "
                "table.writer(), table.sample() and table.loader()"
            )
