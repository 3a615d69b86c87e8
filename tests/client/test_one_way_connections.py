"""A connection that lets bytes through in one direction only: calls end in time, rows and draws exist once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
from cluster.nodes import Node, node

import di_store
from di_store.base.errors import NodeUnavailable, Timeout
from di_store.client.address import Address

LONG_SECONDS = 12.0
"""Of a call with a timeout of 0.2 s: the deadline and one second, with room for a busy machine."""
ROWS, MORE = 100, 5


class Way:
    """A port that leads to another one.

    Attributes:
        port: of this machine.
    """

    def __init__(self, listener: socket.socket, port: int) -> None:
        self.port: int = listener.getsockname()[1]
        self._to = port
        self._listener = listener
        self._open = {"there": threading.Event(), "back": threading.Event()}
        self._sockets: list[socket.socket] = []
        self.heal()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, direction: str) -> None:
        """From now on nothing arrives ``"there"``, or nothing comes ``"back"``. No end is told."""
        self._open[direction].clear()

    def heal(self) -> None:
        """What was on its way arrives."""
        for each in self._open.values():
            each.set()

    def reset(self) -> None:
        """What was on its way is lost, with its connections. New ones get through."""
        broken, self._sockets = self._sockets, []
        for each in broken:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.heal()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here = self._listener.accept()[0]
                there = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += [here, there]
                for source, to, direction in ((here, there, "there"), (there, here, "back")):
                    threading.Thread(target=self._pass_on, args=(source, to, direction), daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket, direction: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._open[direction].wait()
                to.sendall(data)
        for each in (source, to):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def way_to(served: Node) -> Iterator[Way]:
    """One to the agent of a node; it is whole again at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        way = Way(listener, Address.parse(served.address).port)
        yield way
        way.reset()


@pytest.fixture(scope="module")
def served() -> Iterator[Node]:
    with node(f"way-{time.time_ns()}") as running:
        yield running


def in_time(call: Callable[[], Any]) -> None:
    """A call that cannot be made, with a timeout of 0.2 s."""
    began = time.monotonic()
    with pytest.raises((NodeUnavailable, Timeout), match=r"127\.0\.0\.1"):
        call()
    assert time.monotonic() - began < LONG_SECONDS


@pytest.mark.parametrize("end", ["heal", "reset"])
@pytest.mark.parametrize("direction", ["there", "back"])
def test_a_connection_broken_in_one_direction_loses_no_row(
    served: Node, store_name: Callable[[], str], direction: str, end: str
) -> None:
    name = store_name()
    with way_to(served) as way, di_store.connect(f"di-store://127.0.0.1:{way.port}") as store:
        ref = store.put(np.arange(100_000))
        queue = store.create_table(name, capacity=1000, limiter=di_store.Queue(1000))
        with queue.writer() as writer:
            for number in range(ROWS):
                writer.append({"n": number, "terminated": False, "truncated": False})
            writer.flush()
            found = queue.sample(10, timeout=60).data["n"].tolist()
            way.lose(direction)
            for number in range(ROWS, ROWS + MORE):  # they are sent behind the call
                writer.append({"n": number, "terminated": False, "truncated": False})
            calls: list[Callable[[], Any]] = [
                lambda: queue.sample(10, timeout=0.2),
                lambda: store.get(ref, timeout=0.2),
                lambda: store.publish(name, np.zeros(4), timeout=0.2),
            ]
            with ThreadPoolExecutor() as threads:
                ended = threads.map(in_time, calls)
                in_time(lambda: writer.flush(timeout=0.2))  # a writer is for its thread
                list(ended)
            getattr(way, end)()
            writer.flush(timeout=60)
            assert store.get(ref, timeout=60)[-1] == 99_999
            until = time.monotonic() + 60
            while len(found) < ROWS + MORE and time.monotonic() < until:
                with suppress(Timeout):
                    found += queue.sample(5, timeout=1).data["n"].tolist()
            assert found == list(range(ROWS + MORE))
        store.drop_table(name)
