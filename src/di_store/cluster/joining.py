"""Attaches a process to the store of its machine as a node of a cluster. The store names its cluster."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable

from di_store._core import Arena
from di_store.base.errors import NodeUnavailable, StoreError, StoreNotFound
from di_store.client.sessions import Credentials
from di_store.cluster.cluster import Cluster
from di_store.cluster.directory import Directory
from di_store.cluster.node_store import NodeStore
from di_store.cluster.own_stores import OwnStores
from di_store.cluster.session_pool import SessionPool
from di_store.cluster.static import StaticDirectory
from di_store.cluster.store import ClusterStore
from di_store.observe.machine import held_stores
from di_store.replay.table import Table
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import CALL_SECONDS, check_timeout
from di_store.server.membership import Membership, membership_of
from di_store.session import Session
from di_store.store.opening import check_name

STORE_ENV = "DI_STORE_NODE"
"""Name of the store that processes take, if several nodes of the cluster are on one machine."""

JOIN_SECONDS = 10.0
"""How long the agent of this machine may take to answer."""

LOAD_SECONDS = 30.0
"""How long the node of a table may take to answer when a handle of it is loaded from a pickle. That has no timeout, and
tasks and actors that begin together keep the processors busy."""

_loaded: OwnStores[Membership] = OwnStores()
"""By cluster, the store that tables and stores loaded from pickles in this process use."""


def attach(
    name: str | None = None, *, token: str | bytes | None = None, timeout: float | None = JOIN_SECONDS
) -> ClusterStore:
    """The store of this machine as a node of its cluster.

    Args:
        name: name of the store, as in `di-store serve NAME`; None: $DI_STORE_NODE, or the only node that is served on
            this machine.
        token: the token that the nodes were started with; None: DI_STORE_TOKEN from the environment, or the user's own
            file.
        timeout: seconds to wait for the agent of this machine; None: no limit.

    Raises:
        StoreNotFound: no store of a cluster is served on this machine. ValueError: several are served: name one.
        AccessDenied: no token is known, or the token is wrong. NodeUnavailable, Timeout: the agent of this machine does
        not answer.
    """
    seconds = check_timeout(timeout)
    session, _ = _found(name or os.environ.get(STORE_ENV), None)
    return joined(session, token, None, seconds)


def node_here(name: str | None = None, *, only: bool = False) -> ClusterStore | None:
    """As `attach`, for a cluster of any kind; None: there is no such node.

    Args:
        name: name of the store; None: this process's node of Ray, or the node that $DI_STORE_NODE names.
        only: if no name is given, take the only node of this machine, whatever serves it.

    Raises:
        StoreNotFound: the store that $DI_STORE_NODE names is no node. ValueError, AccessDenied, NodeUnavailable: as in
        `attach`. StoreError: the node belongs to a Ray cluster, and this process does not.
    """
    wanted = name
    if name is None:
        wanted = os.environ.get(STORE_ENV)
        if wanted is None and ((found := _of_ray()) is not None or not only):
            return found
    try:
        session, membership = _found(wanted, None)
    except StoreNotFound:
        if name is None and wanted is not None:
            raise
        return None
    if membership.kind == "ray":
        session.close()
        return load_store(membership)
    return joined(session, None, None)


def _of_ray() -> ClusterStore | None:
    """The store of this process's node of Ray, if it is in a Ray cluster in which stores are served."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    try:
        found: ClusterStore = importlib.import_module("di_store.cluster.ray").store(timeout=0)
        return found
    except NodeUnavailable:  # `up` was not called
        return None


def _found(name: str | None, wanted: Membership | None) -> tuple[Session, Membership]:
    """The store of this machine that is a node, of the cluster of `wanted` if given."""
    if name is not None:
        check_name(name)
        session = Session.attach(name)
        membership = membership_of(session)
        if membership is not None and wanted is not None and not membership.is_of(wanted):
            session.close()
            raise StoreNotFound(
                f"store {name!r} is a node of another cluster",
                remedy=f"set {STORE_ENV} to a store of the right cluster",
            )
        if membership is None:
            session.close()
            raise StoreNotFound(
                f"store {name!r} is not a node of a cluster", remedy="`di-store serve NAME --peers A,B,C` makes it one"
            )
        return session, membership
    found: dict[str, tuple[Session, Membership]] = {}
    for each, holders in held_stores().items():
        try:
            session = Session(Arena.attach(each, holders, CALL_SECONDS))
        except StoreError:
            continue  # it ends, or is of another version
        membership = membership_of(session)
        if membership is None or (wanted is not None and not membership.is_of(wanted)):
            session.close()
        else:
            found[each] = session, membership
    if len(found) == 1:
        return next(iter(found.values()))
    for session, _ in found.values():
        session.close()
    if found:
        raise _ambiguous({name: membership for name, (_, membership) in found.items()})
    raise StoreNotFound(
        "no store on this machine is a node of " + ("a cluster" if wanted is None else "that cluster"),
        remedy="`di-store serve NAME --peers A,B,C` makes one; di_store.connect() needs none",
    )


def _ambiguous(found: dict[str, Membership]) -> ValueError:
    """The error if a name is needed; `found`: the nodes of this machine, by name."""
    clusters: dict[str, list[str]] = {}
    for name, membership in sorted(found.items()):
        clusters.setdefault(membership.cluster, []).append(name)
    if len(clusters) == 1:
        return ValueError(
            f"several nodes of a cluster are on this machine: give one of {sorted(found)}, or {STORE_ENV}"
        )
    nodes = "; ".join(f"{names} of {cluster}" for cluster, names in clusters.items())
    return ValueError(f"nodes of {len(clusters)} clusters are on this machine: {nodes}: give one, or {STORE_ENV}")


def joined(
    session: Session, token: str | bytes | None, directory: Directory | None, timeout: float | None = JOIN_SECONDS
) -> ClusterStore:
    """A store as a node of its cluster.

    Args:
        session: session of the store.
        token: as in `attach`.
        directory: None: a directory of the kind named in the store.
        timeout: seconds to wait for the agent of this machine.
    """
    membership = membership_of(session)
    if membership is None:
        raise NodeUnavailable(
            f"store {session.name!r} is no longer in a cluster",
            remedy="`di-store serve NAME --peers A,B,C` makes it a node",
        )
    sessions = SessionPool(Credentials(token, membership.tls, membership.allow_pickle))
    sessions.versions = session.versions
    try:
        here = sessions.node_at(membership.address, timeout)  # so that a wrong token is refused at once
        cluster = Cluster(directory or _directory(membership, sessions), sessions, here, membership.engine)
    except BaseException:  # also Ctrl-C: no handle is returned that would end them
        sessions.close()
        session.close()
        raise
    session.abroad = lambda table: (load_table, (membership, table))
    sessions.abroad = session.abroad
    node = NodeStore(session, cluster, (load_store, (membership,)))
    if membership.kind != "ray":  # there no node takes over another one
        node.watch()
    return ClusterStore(node)


def _directory(membership: Membership, sessions: SessionPool) -> Directory:
    if membership.kind == "static":
        return StaticDirectory(membership.peers, sessions)
    if membership.kind == "etcd":
        from di_store.cluster.etcd import EtcdDirectory  # a package that only this kind needs

        return EtcdDirectory(membership.peers[0])
    raise StoreError(
        f"this store is a node of a cluster of kind {membership.kind!r}",
        remedy="use di_store.cluster.ray.store() in tasks and actors of Ray",
    )


def _own_store(membership: Membership) -> ClusterStore:
    session, _ = _found(os.environ.get(STORE_ENV), membership)
    return joined(session, None, None)


LOADERS: dict[str, Callable[[Membership], ClusterStore]] = {"static": _own_store, "etcd": _own_store}
"""By kind of directory: the function that gives a process the store of its machine. Ray's is added when it is
imported."""


def load_store(membership: Membership) -> ClusterStore:
    """Unpickle a store, on any node: it becomes the store of that machine. All handles loaded in a process are one."""

    def load(_: float | None) -> ClusterStore:
        if membership.kind not in LOADERS:
            importlib.import_module(f"di_store.cluster.{membership.kind}")
        return LOADERS[membership.kind](membership)

    return _loaded.get(membership, None, load)


def load_table(membership: Membership, name: str) -> Table:
    """Unpickle a table, on any node.

    Raises:
        TableNotFound: the table was dropped. NodeUnavailable, Timeout: its node does not answer.
    """
    return Table(load_store(membership).node.table(name, Deadline.patient(LOAD_SECONDS)))
