"""Every table that a test makes is a table in parts, over two nodes of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec

import di_store
from di_store.cluster.node_store import NodeStore
from di_store.cluster.shards import lanes, parts
from di_store.cluster.shards.division import LOCAL, MASS, check_drawn_by_mass
from di_store.cluster.shards.shard import Shard
from di_store.cluster.shards.sharded_table import ShardedTable
from di_store.policy.limiters import Band, Limiter, Queue, SamplesPerInsert, Stack
from di_store.policy.settings import Settings
from di_store.replay.table_backend import TableBackend
from di_store.runtime.deadline import Deadline
from di_store.store.backend import Place

SHARDS = 2
real_create = NodeStore.create_table
real_live = parts.Parts.live
real_resize, real_configure = ShardedTable.resize, ShardedTable.configure


def install(nodes: Callable[[str], list[str]]) -> None:
    """From now on. `nodes`: addresses of the nodes of that store's cluster.

    Its own is the last one: the number of its shard, which is in each key, is not 0.
    """

    def create(
        self: NodeStore, name: str, settings: Settings, place: Place, exist_ok: bool, deadline: Deadline
    ) -> TableBackend:
        if place != Place():
            return real_create(self, name, settings, place, exist_ok, deadline)
        draw = draw_of(settings)
        return real_create(
            self, name, whole(settings, draw), Place(nodes(self.name), "learners", draw), exist_ok, deadline
        )

    NodeStore.create_table = create  # type: ignore[method-assign]
    ShardedTable.resize, ShardedTable.configure = resize, configure  # type: ignore[method-assign]
    lanes.chosen, parts.chosen = in_turn, the_last  # type: ignore[attr-defined]
    parts.Parts.live = live  # type: ignore[method-assign]


def draw_of(settings: Settings) -> str:
    """Draws over all shards, if such a table may have them."""
    try:
        check_drawn_by_mass(settings)
    except ValueError:
        return LOCAL
    return MASS


def whole(settings: Settings, draw: str) -> Settings:
    """The settings of a table each of whose shards holds what the test's table holds."""
    return msgspec.structs.replace(
        settings,
        capacity=None if settings.capacity is None else settings.capacity * SHARDS,
        max_bytes=None if settings.max_bytes is None else settings.max_bytes * SHARDS,
        lanes=settings.lanes * SHARDS,
        limiter=settings.limiter if draw == MASS else multiplied(settings.limiter),
    )


def resize(self: ShardedTable, capacity: int, deadline: Deadline) -> None:
    """As `ShardedTable.resize`, of each shard."""
    real_resize(self, capacity * SHARDS, deadline)


def configure(self: ShardedTable, changes: dict[str, Any], deadline: Deadline) -> None:
    """As `ShardedTable.configure`, with the limiter of each shard."""
    limiter = changes["limiter"]
    if limiter is not None and not self.parts.by_mass:
        changes = {**changes, "limiter": multiplied(limiter)}
    real_configure(self, changes, deadline)


def multiplied(limiter: Limiter) -> Limiter:
    """The limiter of a table whose shards have this one."""
    if isinstance(limiter, SamplesPerInsert):
        return replace(limiter, min_size=limiter.min_size * SHARDS)
    if isinstance(limiter, Band):
        return Band(limiter.min_size * SHARDS, limiter.ratio, limiter.low * SHARDS, limiter.high * SHARDS)
    if isinstance(limiter, (Queue, Stack)):
        return type(limiter)(limiter.size * SHARDS)
    return di_store.MinSize(limiter.n * SHARDS)


def in_turn(key: bytes, uuids: Iterable[str]) -> str:
    """In place of chance: the first lane goes to the shard of this store, the second one to the other."""
    every = list(uuids)[::-1]
    return every[int.from_bytes(key[8:12], "little") % len(every)]


def the_last(key: bytes, uuids: Iterable[str]) -> str:
    """In place of chance, for inserts: a test knows their order."""
    return list(uuids)[-1]


def live(self: parts.Parts) -> list[Shard]:
    """With draw="local" all lanes go to the shard that this process draws from."""
    return real_live(self) if self.by_mass else [self.own()]
