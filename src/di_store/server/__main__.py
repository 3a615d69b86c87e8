"""The agent's process. The supervisor starts the agent, and writes its orders to the agent's stdin."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable

import msgspec

from di_store.base.errors import StoreClosed, StoreError
from di_store.client.address import client_context
from di_store.server.orders import Orders, server_context
from di_store.server.server import Agent, Served
from di_store.session import Session
from di_store.store.handle import Store
from di_store.store.local import LocalStore

MOST_DESCRIPTORS = 65_536
LAST_SECONDS = 10.0
"""How long an agent whose supervisor has gone may take to end."""
SWITCH_SECONDS = 0.03
"""How often a thread that waits for the interpreter asks for it. With Python's 5 ms the threads of a few hundred
clients would do little else. The running thread gives it up at its next message anyway."""


def _orders() -> Orders | None:
    """The orders from the supervisor, which may come long after the start of this process.

    None: the supervisor has ended.
    """
    size = sys.stdin.buffer.read(4)
    text = sys.stdin.buffer.read(int.from_bytes(size, "little"))
    if len(size) < 4 or len(text) < int.from_bytes(size, "little"):
        return None
    return msgspec.msgpack.decode(text, type=Orders)


def _until_closed(end: Callable[[], None]) -> None:
    """Call `end` when stdin is closed: the supervisor has ended, and nobody else would end an agent that hangs."""
    descriptor = sys.stdin.fileno()
    while os.read(descriptor, 1):
        pass
    end()
    threading.Event().wait(LAST_SECONDS)
    os._exit(1)  # as safe for the store as any kill


def _metrics(store: str, descriptor: int, tls: ssl.SSLContext | None) -> contextlib.AbstractContextManager[object]:
    """Answers scrapes of Prometheus. The agent does, as it may be killed; the store ends with its supervisor."""
    from di_store.observe.metrics_server import MetricsServer, own_report

    own = Store(LocalStore(Session.attach(store, readonly=True)))
    return MetricsServer(own_report(own), socket.socket(fileno=descriptor), tls)


def _allow_descriptors() -> None:
    """Raise the limit on file descriptors to the needs of the connections: the usual 1,024 are too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def main() -> int:
    """Serve until the supervisor ends, or until SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor
    orders = _orders()
    if orders is None:
        return 0
    _allow_descriptors()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        tls = None if orders.certificate is None else server_context(orders.certificate, orders.key)
        peers = None if tls is None else client_context(orders.authority or True)
        served = Served(
            orders.store,
            orders.token,
            orders.node,
            tls,
            orders.allow_pickle,
            own_process=True,
            address=orders.address,
            peers=peers,
            bulk=orders.bulk,
        )
        agent = Agent(served, socket.socket(fileno=orders.descriptor))
        metrics = contextlib.nullcontext() if orders.metrics is None else _metrics(orders.store, orders.metrics, tls)
    except (StoreError, ValueError, OSError) as error:
        print(f"di-store: the agent cannot start: {error}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop_soon())
    threading.Thread(target=_until_closed, args=(agent.stop_soon,), daemon=True).start()
    try:
        with metrics:
            agent.serve()
    except StoreClosed:
        pass  # the store was removed by force
    finally:
        agent.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
