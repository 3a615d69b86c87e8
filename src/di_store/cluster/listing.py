"""Lists a served store in a directory that does not look for nodes itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from di_store.cluster.node import Node
from di_store.session import Session


@contextmanager
def listed(join: str | None, store: str, address: str) -> Iterator[None]:
    """List a store in etcd while the block runs. For other kinds of ``--join``, or None, does nothing.

    Raises:
        NodeUnavailable: no member of etcd answers. StoreError: the package etcd3gw is missing.
    """
    kind, _, where = (join or "").partition("://")
    if kind != "etcd":
        yield
        return
    from di_store.cluster.etcd import Registration  # a package that only this kind needs

    session = Session.attach(store)
    uuid = session.uuid
    session.close()
    registration = Registration(where, Node(uuid, socket.gethostname(), address))
    try:
        yield
    finally:
        registration.end()
