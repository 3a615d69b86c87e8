"""The store of this machine as a node of a cluster. Local data is read in place, other data from its node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from di_store.base import config
from di_store.base.errors import NodeUnavailable, ObjectNotFound, StoreClosed
from di_store.client.store import RemoteStore
from di_store.client.table import RemoteTable, session_of
from di_store.cluster.backups import Backups
from di_store.cluster.cluster import Cluster
from di_store.cluster.groups import GroupWeights
from di_store.cluster.node import HERE, Node
from di_store.cluster.objects import ClusterObjects
from di_store.cluster.push import Push
from di_store.cluster.shards.validate import check_draw, check_places, check_whole
from di_store.cluster.tables import ClusterTables
from di_store.objects.refs import Ref, id_of, ids_of, listed
from di_store.objects.weights import Published
from di_store.policy.options import TableOptions, check_options, check_table_name
from di_store.replay.mixture import Mixture, Shares, flat_shares
from di_store.replay.table import Table
from di_store.replay.tables import seed_of
from di_store.replay.writer import Writer
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import check_timeout, countdown
from di_store.session import Session
from di_store.store.handle import Store

_NODES = "the name of a node, or a list of these"
LANES = 1024
"""Of a table whose `lanes=` is not given: hundreds of writers on other nodes have one each."""


class ClusterStore(Store):
    """A handle of the store of this machine, in a cluster; thread-safe. Made by `di_store.cluster.attach`.

    It has the methods of `Store`, and also reaches other nodes. `get` copies an object from its node, and keeps the
    copy for a while. `table` reads a local table in shared memory, and calls the node of any other table. Tables and
    refs may be pickled to any node.
    """

    def __init__(self, session: Session, cluster: Cluster, pickled: tuple[Any, ...]) -> None:
        super().__init__(session)
        self._pickled = pickled
        self._cluster = cluster
        self._all = ClusterObjects(cluster, session)
        self._everywhere = ClusterTables(cluster, session)
        self._groups = GroupWeights(cluster, session)
        self._push = Push(cluster)
        self._backups = Backups(cluster, session)

    def nodes(self) -> list[Node]:
        """The nodes of the cluster that answer."""
        self._session.arena.enter()
        return list(self._cluster.nodes(fresh=True))

    def sync(self, *, timeout: float | None = 600, copies: int = 2) -> None:
        """As `Store.sync`, for the store of this machine. Its durable tables are then also on the disks of other nodes.

        If this machine is lost, `di-store serve --rejoin` restores the tables from there (docs/cluster.md). A later
        call sends only what has changed. If a call is interrupted, the other nodes keep the previous state.

        Args:
            timeout: seconds; None: no limit.
            copies: number of nodes that have the tables on disk, including this one. 1: nothing is sent.

        Raises:
            As `Store.sync`. CapacityError: too few nodes with a disk answer. NodeUnavailable, Timeout: one of the nodes
            stopped answering. StoreFull: the filesystem of a node has no room.
        """
        wanted = config.count("copies", copies, minimum=1)
        self._backups.sync(wanted, check_timeout(timeout))

    def close(self) -> None:
        """As `Store.close`; the connections to other nodes are closed too."""
        super().close()
        self._cluster.close()

    def is_closed(self) -> bool:
        """Whether `close` was called, or the store was removed."""
        try:
            self._session.arena.enter()
        except StoreClosed:
            return True
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return self._pickled

    def __repr__(self) -> str:
        return f"<Store {self.name!r} of a cluster{' (closed)' if self._session.ended() else ''}>"

    # -- objects ------------------------------------------------------------------------------------------------

    def put(
        self,
        value: Any,
        *,
        id: str | None = None,
        ttl: float | None = None,
        durability: str = "memory",
        timeout: float | None = 60,
        copies: int = 1,
    ) -> Ref:
        """As `Store.put`. `copies`: number of nodes that hold the object when the call returns.

        Raises:
            CapacityError: the cluster has fewer nodes. NodeUnavailable: one of them does not answer.
        """
        if copies == 1:
            return super().put(value, id=id, ttl=ttl, durability=durability, timeout=timeout)
        wanted = config.count("copies", copies, minimum=1)
        left = countdown(check_timeout(timeout))
        ref = super().put(value, id=id, ttl=ttl, durability=durability, timeout=timeout)
        try:
            self._all.put_copies(ref, value, wanted, ttl, left())
        except BaseException:  # also Ctrl-C: nobody gets the ref
            super().delete(ref)
            raise
        return ref

    def get(self, ref: Ref | str, *, timeout: float | None = 0, copy: bool | None = None) -> Any:
        """As `Store.get`, from any node. An object of another node is copied here first, if there is room.

        Raises:
            ObjectNotFound: the object does not exist in time. NodeUnavailable: its node does not answer.
        """
        try:
            return super().get(ref, copy=copy)
        except ObjectNotFound:
            pass
        return self._all.get(id_of(ref), check_timeout(timeout), copy)

    def get_many(self, refs: Iterable[Ref | str], *, timeout: float | None = 0, copy: bool | None = None) -> list[Any]:
        """As `Store.get_many`, from any node."""
        return self._all.get_many([id_of(ref) for ref in listed(refs)], check_timeout(timeout), copy)

    def wait(
        self, refs: Iterable[Ref | str], num_returns: int = 1, timeout: float | None = 60
    ) -> tuple[list[Ref], list[Ref]]:
        """As `Store.wait`, for objects of any node."""
        return self._all.wait(refs, num_returns, timeout)

    def contains(self, ref: Ref | str) -> bool:
        """As `Store.contains`: whether the object is here, or on the node where it was put."""
        return self._all.contains(id_of(ref))

    def keys(self, start: Ref | str | None = None, n: int = 1000) -> list[Ref]:
        """As `Store.keys`, for objects that were put on this machine."""
        first = None if start is None else Ref(id_of(start))
        return self._all.keys(first, config.count("n", n, minimum=0))

    def delete(self, refs: Ref | str | Iterable[Ref | str]) -> int:
        """As `Store.delete`. Other nodes that have read an object may read it for another 50 s."""
        return self._all.delete(ids_of(refs))

    def join(self, group: str, *, timeout: float | None = 60) -> None:
        """Make this node a member of a group: objects put with ``send_ahead(group=)`` are copied into its store.

        Raises:
            NodeUnavailable: the directory does not answer in time.
        """
        self._session.arena.enter()
        self._push.join(group, check_timeout(timeout))

    def send_ahead(
        self, ref: Ref | str, *, group: str | Iterable[str] | None = None, node: str | Iterable[str] | None = None
    ) -> None:
        """Copy an object that was put here to other nodes, so that their first `get` reads memory.

        The call returns at once. The agents copy, and leave as much room free as `get` does. A copy stays as long as
        one that `get` made. If a copy fails (a node is away, the group is empty, the id was chosen by the program), the
        log says so, and `get` reads the object as usual.

        Args:
            ref: the object.
            group: names of groups whose members get a copy.
            node: names of machines, stores, or ``host:port``, as in `nodes`.

        Raises:
            ValueError: `group` is no name of a group.
        """
        raw = id_of(ref)
        groups, nodes = config.texts("group", group), config.texts("node", node)
        self._session.arena.enter()
        self._push.send(raw, groups, nodes)

    def store_of(self, ref: Ref | str, *, timeout: float | None = 5) -> Store | None:
        """The store where an object was put: this one, or one that is called through its agent; None: nobody knows it.

        Raises:
            NodeUnavailable: that node does not answer, or is gone.
        """
        raw, seconds = id_of(ref), check_timeout(timeout)
        self._session.arena.enter()
        home = self._cluster.home_of(raw, sure=True)
        if home is None:
            if silent := self._cluster.missing():
                raise NodeUnavailable(f"store_of: {', '.join(silent)} does not answer, and may have the object")
            return None
        if home.uuid == self._session.uuid:
            return self
        if home not in self._cluster.nodes():  # nobody has to wait for a node that did not answer a moment ago
            raise NodeUnavailable(f"node {home.name} ({home.address}) does not answer")
        with self._cluster.sessions.calling(home, seconds) as session:
            session.call("hello", timeout=seconds, what="store_of")
        return RemoteStore(session)

    # -- weights ------------------------------------------------------------------------------------------------

    def publish(
        self,
        name: str,
        tree: Any,
        *,
        keep: int = 1,
        group: Any = None,
        durability: str = "memory",
        timeout: float | None = 60,
    ) -> int:
        """As `Store.publish`. `group`: the group whose nodes receive the version; None: it stays here.

        The call returns once the version is in this store; the agents send it on. Only one process at a time publishes
        under a name of a group. If another process publishes under the name, it takes the name over, and the older
        publisher gets an error.

        Raises:
            StoreError: another process has taken the name over. NodeUnavailable: the directory does not answer.
            ValueError: the name belongs to another group, or it belongs to a group and `group` is not given.
        """
        if group is None:
            self._groups.check_alone(name)
            return super().publish(name, tree, keep=keep, durability=durability, timeout=timeout)
        return self._groups.publish(name, tree, keep, group, timeout, durability)

    def latest(
        self,
        name: str,
        *,
        newer_than: int | None = None,
        version: int | None = None,
        timeout: float | None = 0,
        group: Any = None,
    ) -> Published | None:
        """As `Store.latest`, from this machine's memory. `group`: makes this node a member of that group."""
        if group is None:
            return super().latest(name, newer_than=newer_than, version=version, timeout=timeout)
        return self._groups.latest(name, newer_than, version, timeout, group)

    # -- tables -------------------------------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        *,
        capacity: int | None,
        node: str | Sequence[str] = HERE,
        shards: str | None = None,
        draw: str | None = None,
        exist_ok: bool = False,
        timeout: float | None = 60,
        **options: Any,
    ) -> Table:
        """As `Store.create_table`. The name is unique in the cluster.

        Args:
            name: unique in the cluster.
            capacity: as there, for the whole table.
            node: node of the table's rows: "here", or a machine, a store or ``host:port`` of `nodes`. With `shards`:
                the nodes that get a shard, where the learners are; all nodes if not given.
            shards: None: the table lies on one node. "learners": it is split into parts, one on each node.
            draw: for a table in parts. "local" (None): a learner draws from its node's part. "mass": from all parts.
            exist_ok: return an equal table of that name, wherever it lies. If the node's store has such a table of its
                own, it becomes the cluster's.
            timeout: as there.
            options: as there; `lanes` is 1,024 if not given.

        Raises:
            As there. NodeUnavailable: the directory or the node does not answer, or there is no such node. ValueError:
            limits that a table in parts cannot keep.
        """
        check_table_name(name)
        self._session.check_writable()
        self._session.arena.enter()
        given = cast(TableOptions, {"lanes": LANES, "capacity": capacity, **options})
        settings = check_options(given, seed_of(self._session.seed, name))
        draw = check_draw(settings, shards, draw)
        deadline = Deadline.given(timeout)
        nodes = self._nodes_of(node, shards, deadline)
        return self._everywhere.create(name, settings, nodes, config.flag("exist_ok", exist_ok), deadline, draw)

    def _nodes_of(self, node: Any, shards: str | None, deadline: Deadline) -> list[Node]:
        """Those that get a shard."""
        if shards is None:
            return [self._cluster.node(node, deadline)]
        if node == HERE:
            return check_places(list(self._cluster.nodes(deadline.another(), fresh=True)))
        every = [node] if isinstance(node, str) else config.listed("node", node, _NODES)
        return check_places([self._cluster.node(each, deadline) for each in every])

    def table(self, name: str, timeout: float | None = 0) -> Table:
        """As `Store.table`, on any node.

        Raises:
            TableNotFound: the table does not exist in time. NodeUnavailable: its node does not answer, or is gone.
        """
        self._session.arena.enter()
        return self._everywhere.open(name, timeout)

    def drop_table(self, name: str, *, timeout: float | None = 60) -> None:
        """As `Store.drop_table`, on any node. A table whose node is gone is forgotten."""
        self._session.writable().enter()
        self._everywhere.drop(name, timeout)

    def writer(self, tables: Sequence[Table | str], *, lanes: int | None = None, autoreset: Any = None) -> Writer:
        """As `Store.writer`. The tables must lie on one node."""
        if isinstance(tables, (str, Table)):
            return super().writer(tables, lanes=lanes, autoreset=autoreset)
        every = config.listed("tables", tables, "a list of tables")
        every = [self.table(each) if isinstance(each, str) else each for each in every]
        check_whole("writer", every)
        if far := [each for each in every if isinstance(each, RemoteTable)]:
            return RemoteStore(session_of(far[0])).writer(every, lanes=lanes, autoreset=autoreset)
        return super().writer(every, lanes=lanes, autoreset=autoreset)

    def mix(self, weights: Shares, *, columns: str | Iterable[str] | None = None, seed: int | None = None) -> Mixture:
        """As `Store.mix`. The tables must lie on one node."""
        every = [self.table(name) for name in flat_shares(self.name, weights)]
        check_whole("mix", every)
        if far := [each for each in every if isinstance(each, RemoteTable)]:
            return RemoteStore(session_of(far[0])).mix(weights, columns=columns, seed=seed)
        return super().mix(weights, columns=columns, seed=seed)
