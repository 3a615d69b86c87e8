"""Every store that a test opens is served by an agent: the same tests, another kind of store.

It is reached through the agent, over TCP or TLS; or it is the only node of a cluster, and its tables lie here; or the
first of two nodes, and its tables lie in parts.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec

import di_store
from cluster import in_parts
from cluster.certificates import Authority
from di_store.client.session import RemoteSession
from di_store.client.store import RemoteStore
from di_store.client.table import RemoteTable
from di_store.cluster.joining import STORE_ENV, joined
from di_store.cluster.node_store import NodeStore
from di_store.objects.weights import Weights
from di_store.policy.options import LANES
from di_store.replay.table import backend_of
from di_store.runtime.deadline import Deadline
from di_store.server.membership import NAME, Membership
from di_store.server.server import Agent, Served
from di_store.session import Session
from di_store.store.handle import backend_of as store_backend_of
from di_store.store.local import session_of
from di_store.store.opening import attach as real_attach
from di_store.store.opening import open as real_open

TOKEN = b"a token of the tests"
_agents: dict[str, Near] = {}
_kind = ""  # as `install` got it
_certificate: list[str] = []
"""With TLS: paths of what every agent here has, its key, and whom clients trust."""


class Near:
    """A store of this process and its agent, in a thread."""

    def __init__(self, store: di_store.Store, other: Near | None = None) -> None:
        """For this store. `other`: the second node of its cluster."""
        self.store = store
        self.other = other
        served = Served(store.name, TOKEN, "far", _served_tls())
        self.agent = Agent(served, socket.create_server(("127.0.0.1", 0), backlog=128))
        self._thread = threading.Thread(target=self.agent.serve, daemon=True)
        self._thread.start()
        self.handles = 0
        if _kind == "cluster" or other is not None:
            join(self.nodes())

    def connect(self) -> di_store.Store:
        """Another handle."""
        if _kind in ("cluster", "sharded"):
            self.handles += 1
            return self._as_node()
        tls = _certificate[2] if _certificate else None
        session = RemoteSession.connect(f"di-store://{self.agent.address}/{self.store.name}", TOKEN, tls, True, 10)
        self.handles += 1
        return di_store.Store(FarStore(session, self))

    def _as_node(self) -> di_store.Store:
        store = joined(Session.attach(self.store.name), TOKEN, None)
        if self.other is not None:  # from here on both nodes have answered, also for calls that have no time for it
            store.node.cluster.directory.read("", 60)
        close, at = store.node.close, [self]

        def close_node() -> None:
            close()
            while at:
                at.pop().let_go()

        store.node.close = close_node  # type: ignore[method-assign]
        return store

    def nodes(self) -> list[Near]:
        """The nodes of the store's cluster. This one is the last."""
        return [self] if self.other is None else [self.other, self]

    def let_go(self) -> None:
        """A handle was closed; the last one ends the agent and the store."""
        self.handles -= 1
        if not self.handles:
            _agents.pop(self.store.name, None)
            self.end()

    def end(self) -> None:
        """End the agent, and the store."""
        self.agent.stop()
        self._thread.join(30)
        self.store.close()
        if self.other is not None:
            self.other.end()


def join(nodes: list[Near]) -> None:
    """Make these nodes one cluster. The directory lies in the store of the first one."""
    where = [f"di-store://{each.agent.address}/" for each in nodes]
    for each, address in zip(nodes, where, strict=True):
        membership = Membership("static", tuple(where), f"{address}{each.store.name}", None, True)
        Weights(session_of(each.store)).publish(NAME, msgspec.msgpack.encode(membership), 1, 60, "memory")


def _served_tls() -> ssl.SSLContext | None:
    if not _certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_certificate[0], _certificate[1])
    return context


class FarStore(RemoteStore):
    """A store that ends its agent, and whose files are read by a program on the machine of the store."""

    def __init__(self, session: RemoteSession, near: Near) -> None:
        super().__init__(session)
        self._at = [near]

    def close(self) -> None:
        super().close()
        while self._at:
            self._at.pop().let_go()

    def import_table(
        self, path: Any, name: str | None, changes: Any, allow_pickle: bool, deadline: Deadline
    ) -> RemoteTable:
        near = store_backend_of(_agents[self.name].store)
        made = near.import_table(path, name, changes, allow_pickle, deadline)
        return self.table(made.name, deadline)


def export_there(table: RemoteTable, path: Any, deadline: Deadline) -> Any:
    """By a program on the machine of the store."""
    return backend_of(_agents[table.session.name].store.table(table.name)).export(path, deadline)


def open_far(name: str | None = None, **options: Any) -> di_store.Store:
    """As `di_store.open`, through an agent."""
    mode = options.get("mode", "rw")
    if not isinstance(mode, str) or mode == "r" or (name is not None and not isinstance(name, str)):
        return real_open(name, **options)
    if name in _agents:
        real_open(name, **options).close()
        return _agents[name].connect()
    store = real_open(name, **options)
    near = _agents[store.name] = Near(store, _other(store.name, options) if _kind == "sharded" else None)
    return near.connect()


def _other(name: str, options: dict[str, Any]) -> Near:
    """The second node of a store's cluster, with a store like that."""
    os.environ[STORE_ENV] = name  # of handles that are unpickled: both are on this machine
    own = {"disk": tempfile.mkdtemp(dir=os.environ["DI_STORE_TEST_ROOT"])} if "disk" in options else {}
    return Near(real_open(f"{name}-2", **{**options, **own}))


def attach_far(name: str, **options: Any) -> di_store.Store:
    """As `di_store.attach`."""
    if not (isinstance(name, str) and name in _agents):
        return real_attach(name, **options)
    real_attach(name, **options).close()
    return _agents[name].connect()


def near_of(store: di_store.Store) -> Near:
    """The store's process and its agent."""
    return _agents[store.name]


def install(transport: str) -> None:
    """From now on all stores of this process are far, by "tcp" or "tls"; or nodes of a "cluster", or "sharded"."""
    global _kind
    _kind = transport
    if transport == "tls":
        authority = Authority(Path(tempfile.mkdtemp(dir=os.environ["DI_STORE_TEST_ROOT"])))
        _certificate[:] = [*authority.sign("agent"), authority.path]
    elif transport not in ("tcp", "cluster", "sharded"):
        raise ValueError(f"DI_STORE_TEST_FAR must be tcp, tls, cluster or sharded, not {transport!r}")
    if transport in ("cluster", "sharded"):
        NodeStore.lanes = LANES  # tests of small stores: a cluster's default of 1,024 would not fit
    if transport == "sharded":
        in_parts.install(lambda name: [near.agent.address for near in _agents[name].nodes()])
    os.environ["DI_STORE_TOKEN"] = TOKEN.decode()  # of handles that are unpickled
    RemoteTable.export = export_there  # type: ignore[method-assign]
    di_store.open = open_far  # type: ignore[assignment]
    di_store.attach = attach_far  # type: ignore[assignment]
