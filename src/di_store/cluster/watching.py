"""The process that serves a store asks the directory whether other nodes have taken its tables over."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from di_store.base.errors import NodeUnavailable, StoreClosed
from di_store.client.sessions import Credentials
from di_store.cluster.cluster import Cluster
from di_store.cluster.node import Node
from di_store.cluster.rejoining import directory_of, has_directory
from di_store.cluster.session_pool import SessionPool
from di_store.cluster.taken_over import LOOK_SECONDS, ask
from di_store.runtime.background import look_again
from di_store.server.supervisor import Serving, credentials_of
from di_store.session import Session
from di_store.store.handle import Store
from di_store.store.local import session_of


@contextmanager
def watching(store: Store, address: str, serving: Serving) -> Iterator[None]:
    """While the block runs, a thread looks for tables of a served store that other nodes have taken over."""
    if not has_directory(serving):
        yield
        return
    sessions, session = SessionPool(Credentials(*credentials_of(serving))), session_of(store)
    cluster = Cluster(directory_of(serving, sessions), sessions, Node(session.uuid, socket.gethostname(), address))
    stopped = threading.Event()
    failed = "this node cannot check whether other nodes have taken over its tables:"
    given = partial(_look, session, cluster), stopped, LOOK_SECONDS, failed, (StoreClosed,)
    threading.Thread(target=look_again, args=given, name="di-store watch", daemon=True).start()
    try:
        yield
    finally:
        stopped.set()
        cluster.close()


def _look(session: Session, cluster: Cluster) -> None:
    with suppress(NodeUnavailable):  # who takes over needs the directory too
        ask(session, cluster)
