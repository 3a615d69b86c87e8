"""Every store that a test opens is served by an agent: the same tests, another kind of store.

It is reached through the agent, over TCP or TLS; or it is the only node of a cluster, and its tables lie here.
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
from cluster.certificates import Authority
from di_store.client.session import RemoteSession
from di_store.client.store import RemoteStore
from di_store.client.table import RemoteTable
from di_store.cluster.joining import joined
from di_store.objects.weights import Weights
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
_cluster = False  # whether each store is a node
_certificate: list[str] = []
"""With TLS: paths of what every agent here has, its key, and whom clients trust."""


class Near:
    """A store of this process and its agent, in a thread."""

    def __init__(self, store: di_store.Store) -> None:
        self.store = store
        served = Served(store.name, TOKEN, "far", _served_tls())
        self.agent = Agent(served, socket.create_server(("127.0.0.1", 0), backlog=128))
        self._thread = threading.Thread(target=self.agent.serve, daemon=True)
        self._thread.start()
        self.handles = 0
        if _cluster:
            address = f"di-store://{self.agent.address}/{store.name}"
            membership = Membership("static", (address,), address, None, True)
            Weights(session_of(store)).publish(NAME, msgspec.msgpack.encode(membership), 1, 60, "memory")

    def connect(self) -> di_store.Store:
        """Another handle."""
        if _cluster:
            self.handles += 1
            return self._as_node()
        tls = _certificate[2] if _certificate else None
        session = RemoteSession.connect(f"di-store://{self.agent.address}/{self.store.name}", TOKEN, tls, True, 10)
        self.handles += 1
        return di_store.Store(FarStore(session, self))

    def _as_node(self) -> di_store.Store:
        store = joined(Session.attach(self.store.name), TOKEN, None)
        close, at = store.node.close, [self]

        def close_node() -> None:
            close()
            while at:
                at.pop().let_go()

        store.node.close = close_node  # type: ignore[method-assign]
        return store

    def let_go(self) -> None:
        """A handle was closed; the last one ends the agent and the store."""
        self.handles -= 1
        if not self.handles:
            _agents.pop(self.store.name, None)
            self.agent.stop()
            self._thread.join(30)
            self.store.close()


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
    near = _agents[store.name] = Near(store)
    return near.connect()


def attach_far(name: str, **options: Any) -> di_store.Store:
    """As `di_store.attach`."""
    return _agents[name].connect() if isinstance(name, str) and name in _agents else real_attach(name, **options)


def near_of(store: di_store.Store) -> Near:
    """The store's process and its agent."""
    return _agents[store.name]


def install(transport: str) -> None:
    """From now on all stores of this process are far, by "tcp" or "tls"; or nodes of a "cluster"."""
    global _cluster
    _cluster = transport == "cluster"
    if transport == "tls":
        authority = Authority(Path(tempfile.mkdtemp(dir=os.environ["DI_STORE_TEST_ROOT"])))
        _certificate[:] = [*authority.sign("agent"), authority.path]
    elif transport not in ("tcp", "cluster"):
        raise ValueError(f"DI_STORE_TEST_FAR must be tcp, tls or cluster, not {transport!r}")
    os.environ["DI_STORE_TOKEN"] = TOKEN.decode()  # of handles that are unpickled
    RemoteTable.export = export_there  # type: ignore[method-assign]
    di_store.open = open_far  # type: ignore[assignment]
    di_store.attach = attach_far  # type: ignore[assignment]
