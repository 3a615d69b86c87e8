"""The store of this machine as a node of a cluster. Local data is read in place, other data from its node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from di_store.base import config
from di_store.checkpoint.store.capture import Progress
from di_store.client.store import RemoteStore
from di_store.client.table import RemoteTable
from di_store.cluster.backups import Backups
from di_store.cluster.cluster import Cluster
from di_store.cluster.groups import GroupWeights
from di_store.cluster.node import Node
from di_store.cluster.objects import ClusterObjects
from di_store.cluster.push import Push
from di_store.cluster.shards.validate import check_draw, check_places, check_whole
from di_store.cluster.tables import ClusterTables
from di_store.cluster.taken_over import Watch
from di_store.objects.draft import Draft
from di_store.objects.refs import Ref
from di_store.objects.weights import Published
from di_store.observe.stats import StoreStats
from di_store.policy.options import CLUSTER_LANES
from di_store.policy.settings import Settings
from di_store.replay.mixture import MixtureBackend
from di_store.replay.table_backend import TableBackend
from di_store.replay.writer import WriterBackend
from di_store.runtime.deadline import Deadline
from di_store.session import Session
from di_store.store.backend import HERE, ImportChanges, Place, StoreBackend
from di_store.store.local import LocalStore

_NODES = "the name of a node, or a list of these"
COPIES = 2
"""Copies of durable tables if ``sync(copies=)`` is not given."""


class NodeStore(StoreBackend):
    """The store of this machine, and the others of its cluster.

    Attributes:
        session: session of the store of this machine.
        cluster: the nodes.
        push: sends objects to other nodes before they are read.
        tables: the tables of the cluster.
        backups: the copies of durable tables on other nodes.
    """

    lanes = CLUSTER_LANES

    def __init__(self, session: Session, cluster: Cluster, pickled: tuple[Any, ...]) -> None:
        self.session = session
        self.cluster = cluster
        self.push = Push(cluster)
        self.tables = ClusterTables(cluster, session)
        self.backups = Backups(cluster, session)
        self._own = LocalStore(session)
        self._pickled = pickled
        self._watch: Watch | None = None
        self._objects = ClusterObjects(cluster, session)
        self._groups = GroupWeights(cluster, session)
        self.put_now, self.get_now = self._own.put_now, self._own.get_now

    def watch(self) -> None:
        """Let handles of tables end when another node takes their tables over."""
        if self.session.arena.tiered:
            self._watch = Watch(self.session, self.cluster)

    def _begin_watch(self) -> None:
        if self._watch is not None:
            self._watch.begin()

    @property
    def name(self) -> str:
        return self._own.name

    @property
    def seed(self) -> int:
        return self._own.seed

    def shown(self) -> str:
        return f"{self.name!r} of a cluster"

    def ended(self) -> bool:
        return self._own.ended()

    def pickled(self) -> tuple[Any, ...]:
        return self._pickled

    def close(self) -> None:
        self._own.close()
        self.put_now, self.get_now = self._own.put_now, self._own.get_now
        self.cluster.close()

    # -- the store ----------------------------------------------------------------------------------------------

    def resize(self, memory: Any, disk_capacity: Any, write_budget: Any) -> None:
        self._own.resize(memory, disk_capacity, write_budget)

    def stats(self) -> StoreStats:
        return self._own.stats()

    def check(self, repair: bool) -> list[str]:
        return self._own.check(repair)

    def sync(self, copies: int | None, deadline: Deadline) -> None:
        self.backups.sync(COPIES if copies is None else copies, deadline.left)

    def checkpoint(self, path: str | os.PathLike[str], progress: Progress | None, deadline: Deadline) -> None:
        self._own.checkpoint(path, progress, deadline)

    # -- objects ------------------------------------------------------------------------------------------------

    def put(self, value: Any, raw: bytes | None, ttl: float, durability: str, copies: int, deadline: Deadline) -> Ref:
        ref = self._own.put(value, raw, ttl, durability, 1, deadline)
        if copies > 1:
            try:
                self._objects.put_copies(ref, value, copies, ttl, deadline.left)
            except BaseException:  # also Ctrl-C: nobody gets the ref
                self._own.delete([ref.raw])
                raise
        return ref

    def reserve(self, spec: Any, raw: bytes | None, ttl: float, deadline: Deadline) -> Draft:
        return self._own.reserve(spec, raw, ttl, deadline)

    def get(self, raw: bytes, copy: bool | None, deadline: Deadline) -> Any:
        return self._objects.get(raw, deadline, copy)

    def put_many(
        self, values: Sequence[Any], raws: Sequence[bytes | None], durability: str, deadline: Deadline
    ) -> list[Ref]:
        return self._own.put_many(values, raws, durability, deadline)

    def get_many(self, raws: list[bytes], copy: bool | None, deadline: Deadline) -> list[Any]:
        return self._objects.get_many(raws, deadline, copy)

    def wait(self, refs: list[Ref], num_returns: int, deadline: Deadline) -> tuple[list[Ref], list[Ref]]:
        return self._objects.wait(refs, num_returns, deadline.left)

    def contains(self, raw: bytes) -> bool:
        return self._objects.contains(raw)

    def delete(self, raws: list[bytes]) -> int:
        return self._objects.delete(raws)

    def keys(self, start: Ref | None, n: int) -> list[Ref]:
        return self._objects.keys(start, n)

    # -- weights ------------------------------------------------------------------------------------------------

    def publish(self, name: str, tree: Any, keep: int, group: Any, durability: str, deadline: Deadline) -> int:
        if group is None:
            self._groups.check_alone(name)
            return self._own.publish(name, tree, keep, None, durability, deadline)
        return self._groups.publish(name, tree, keep, group, deadline, durability)

    def latest(
        self, name: str, newer_than: int | None, version: int | None, group: Any, deadline: Deadline
    ) -> Published | None:
        if group is None:
            return self._own.latest(name, newer_than, version, None, deadline)
        return self._groups.latest(name, newer_than, version, deadline.left, group)

    # -- tables -------------------------------------------------------------------------------------------------

    def create_table(
        self, name: str, settings: Settings, place: Place, exist_ok: bool, deadline: Deadline
    ) -> TableBackend:
        self.session.check_writable()
        self.session.arena.enter()
        draw = check_draw(settings, place.shards, place.draw)
        self._begin_watch()
        return self.tables.create(name, settings, self._nodes_of(place, deadline), exist_ok, deadline, draw)

    def _nodes_of(self, place: Place, deadline: Deadline) -> list[Node]:
        """The nodes that get a shard."""
        node = place.node
        if place.shards is None:
            return [self.cluster.node(node, deadline)]
        if node == HERE:
            return check_places(list(self.cluster.nodes(deadline.another(), fresh=True)))
        every = [node] if isinstance(node, str) else config.listed("node", node, _NODES)
        return check_places([self.cluster.node(each, deadline) for each in every])

    def import_table(
        self,
        path: str | os.PathLike[str],
        name: str | None,
        changes: ImportChanges,
        allow_pickle: bool,
        deadline: Deadline,
    ) -> TableBackend:
        return self._own.import_table(path, name, changes, allow_pickle, deadline)

    def table(self, name: str, deadline: Deadline) -> TableBackend:
        self.session.arena.enter()
        self._begin_watch()
        return self.tables.open(name, deadline)

    def drop_table(self, name: str, deadline: Deadline) -> None:
        self.session.writable().enter()
        self.tables.drop(name, deadline)

    def writer(self, tables: list[TableBackend], lanes: int | None, autoreset: Any) -> WriterBackend:
        return self._store_of("writer", tables).writer(tables, lanes, autoreset)

    def mix(self, weights: dict[str, float], columns: tuple[str, ...] | None, seed: int | None) -> MixtureBackend:
        tables = [self.table(name, Deadline(0)) for name in weights]
        return self._store_of("mix", tables).mix(weights, columns, seed)

    def _store_of(self, call: str, tables: list[TableBackend]) -> StoreBackend:
        """The store of the node on which the tables lie."""
        check_whole(call, tables)
        far = next((each for each in tables if isinstance(each, RemoteTable)), None)
        return self._own if far is None else RemoteStore(far.session)
