"""Groups of real nodes for tests: what a process of each machine says to its agent, and what lies in each store."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from pains import stop

import di_store
from cluster.nodes import Node, node
from di_store.client.store import RemoteStore

MIB = 1 << 20


class Member:
    """One node: its processes, its store as local processes see it, and calls to its agent."""

    def __init__(self, served: Node, local: di_store.Store, far: di_store.Store) -> None:
        self.served = served
        self.local = local
        self.weights = "w"
        self._far = far

    @property
    def address(self) -> str:
        return self.served.address

    def call(self, method: str, **arguments: Any) -> Any:
        """A call to the agent."""
        assert isinstance(self._far._backend, RemoteStore)
        return self._far._backend.session.channel.call(method, arguments)

    def spread(self, version: int, members: list[Member], *, epoch: int = 1, keep: int = 1) -> None:
        """Send a version that was published here."""
        addresses = [each.address for each in members]
        self.call("spread", name=self.weights, version=version, keep=keep, epoch=epoch, members=addresses)

    def state(self) -> dict[str, Any]:
        """What the agent says of the weights."""
        found: dict[str, Any] = self.call("spreading", name=self.weights)
        return found

    def stop(self) -> Callable[[], None]:
        """SIGSTOP to the agent; returns what lets it go on."""
        pid = self.served.agent
        stop(pid)
        return lambda: os.kill(pid, signal.SIGCONT)

    def newest(self) -> int:
        """The newest version that a local process sees."""
        found = self.latest()
        return 0 if found is None else found.version

    def publish(self, value: Any, keep: int = 1) -> int:
        """The next version, as a process of this machine publishes it."""
        return self.local.publish(self.weights, value, keep=keep)

    def latest(self, **options: Any) -> Any:
        """The newest version, as a process of this machine sees it."""
        return self.local.latest(self.weights, **options)

    def follow(self, sources: list[str]) -> None:
        """Get the newest version from one of these."""
        self.call("follow", name=self.weights, sources=sources)

    def clear(self) -> None:
        """Nothing of the weights is left, but for their name."""
        state = self.state()
        if state["members"]:
            self.spread(state["newest"], [], epoch=state["epoch"])
        self.follow([])
        self.publish(None)
        assert self.local.check() == []

    def under_way(self, version: int, least: int = 0) -> bool:
        """Whether more than so many MiB of a version have come, or all."""
        state = self.state()
        return bool(state["newest"] >= version or (state["version"] == version and state["have"] >= least * MIB))


def weights(version: int, size: int) -> dict[str, Any]:
    """A tree that no other version has."""
    data = np.arange(size // 8, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(version)
    return {"data": data, "version": version, "layers": [np.float32(version)] * 3}


def check(found: Any, version: int, size: int) -> None:
    """It is that version, and all of it."""
    assert found is not None
    assert found.version == version
    assert found.value["version"] == version
    assert np.array_equal(found.value["data"], weights(version, size)["data"]), "torn"


def wait_for(members: list[Member], version: int, size: int) -> None:
    """All of them have this version."""
    for each in members:
        check(each.latest(newer_than=version - 1, timeout=60), version, size)


@contextmanager
def group(names: Callable[[], str], count: int, *options: str, tls: str | None = None) -> Iterator[list[Member]]:
    """So many nodes; nothing of them is left."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            served = stack.enter_context(node(names(), *options))
            local = stack.enter_context(di_store.attach(served.name))
            found.append(Member(served, local, stack.enter_context(served.connect(tls=tls))))
        yield found
