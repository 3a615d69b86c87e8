"""Polls of `latest` through an agent: it tells of new versions, and a poll that finds nothing new asks nobody."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cluster.nodes import Node, cluster_nodes, node, stopped
from cluster.served import TOKEN, ServedStore, agent_here
from pains import Program, until

import di_store
from di_store import cluster
from di_store.client.known_versions import KnownVersions
from di_store.client.store import RemoteStore
from di_store.protocol import handshake
from di_store.server import version_watch

Names = Callable[[], str]
Serve = Callable[..., ServedStore]
POLLS = 2000

POLLING = """
import os, sys
import di_store
with di_store.connect(sys.argv[1]) as store:
    version = 0
    def poll():
        global version
        while (new := store.latest(sys.argv[2], newer_than=version)) is None:
            pass
        assert new.version > version
        version = new.version
        print(version, flush=True)
    poll()
    for _ in range(1000):
        store.latest(sys.argv[2], newer_than=version)
    child = os.fork()
    poll()
    if child:
        assert os.waitpid(child, 0)[1] == 0
    else:
        os._exit(0)
"""


class Reader:
    """Polls as an actor does. `asked`: how many calls its process has made."""

    def __init__(self, store: di_store.Store, name: str = "w") -> None:
        assert isinstance(store._backend, RemoteStore)
        self.store, self.name, self.version = store, name, 0
        self.client = store._backend.session.channel.client

    @property
    def asked(self) -> int:
        return self.client._request

    def poll(self) -> bool:
        """Whether there was a newer version."""
        found = self.store.latest(self.name, newer_than=self.version)
        if found is not None:
            assert found.version > self.version, "an older version after a newer one"
            self.version = found.version
        return found is not None

    def is_told(self) -> bool:
        """Whether a poll was answered without a question."""
        before = self.asked
        return not self.poll() and self.asked == before

    def begin(self) -> None:
        """Poll until the agent tells."""
        until(self.is_told, "the agent to tell of versions")


@pytest.fixture(scope="module")
def served() -> Iterator[Node]:
    with node(f"v-{uuid.uuid4().hex[:12]}") as found:
        yield found


@pytest.fixture
def name() -> str:
    """Of weights that no other test publishes."""
    return uuid.uuid4().hex


def test_polling_latest_makes_no_calls(served: Node, near: di_store.Store, name: str) -> None:
    """Each poll of thousands used to be a call. A new version is fetched by one."""
    near.publish(name, 1)
    with served.connect() as far:
        reader = Reader(far, name)
        assert reader.poll()
        reader.begin()
        for number in range(2, 12):
            before, began = reader.asked, time.monotonic()
            for _ in range(POLLS):
                assert not reader.poll()
            beats = 2 + int(time.monotonic() - began)
            assert reader.asked - before <= beats
            assert near.publish(name, number) == number
            until(reader.poll, "the new version")
            assert reader.version == number
            reader.begin()


def test_other_arguments_of_latest_keep_their_meaning(served: Node, near: di_store.Store, name: str) -> None:
    near.publish(name, 1, keep=2)
    near.publish(name, 2, keep=2)
    with served.connect() as far:
        reader = Reader(far, name)
        assert reader.poll()
        reader.begin()
        found = [far.latest(name), far.latest(name, version=1), far.latest(name, newer_than=1)]
        assert [each and each.value for each in found] == [2, 1, 2]
        assert far.latest(name, newer_than=2, timeout=0.01) is None
        assert far.latest("other", newer_than=0) is None
        for bad in (-2, 2**63, "1", 1.5):
            with pytest.raises((ValueError, TypeError), match="newer_than"):
                far.latest(name, newer_than=bad)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="not both"):
            far.latest(name, newer_than=2, version=2)
        threading.Timer(0.2, lambda: near.publish(name, 3)).start()
        late = far.latest(name, newer_than=2, timeout=60)
        assert late is not None
        assert late.version == 3


def test_own_versions_are_known_at_once(served: Node, name: str) -> None:
    """Also by another handle of the process; and what it has got by another call."""
    with served.connect() as far, served.connect() as other:
        reader = Reader(far, name)
        for number in range(1, 50):
            assert other.publish(name, number) == number
            assert reader.poll()
            assert reader.version == number
            reader.begin()


def test_polled_versions_never_go_back_despite_kills(
    served: Node, near: di_store.Store, name: str, count: Callable[[int, int], int]
) -> None:
    """No older version comes after a newer one, and each newest one comes, by whichever agent."""
    near.publish(name, 0)
    with served.connect() as far:
        reader = Reader(far, name)
        assert reader.poll()
        for _ in range(count(3, 20)):
            reader.begin()
            served.kill_agent()
            newest = near.publish(name, 0)
            until(lambda newest=newest: reader.poll() and reader.version == newest, "the version")  # type: ignore[misc]


def test_a_silent_agent_is_asked_again(served: Node, near: di_store.Store, name: str) -> None:
    """What an agent that is stopped has said counts for a while; then polls ask it, as if it had never told."""
    near.publish(name, 0)
    with served.connect() as far:
        reader = Reader(far, name)
        assert reader.poll()
        reader.begin()
        with stopped(served.agent):
            near.publish(name, 0)
            until(lambda: not reader.poll() and reader.client.quiet, "a poll that asks the agent")
        until(reader.poll, "the version")
        assert reader.version == 2
        reader.begin()


def test_versions_heard_before_a_pause_are_not_trusted(served: Node, near: di_store.Store, name: str) -> None:
    """A process that was stopped itself, or whose thread had no turn, does not take old words for new ones."""
    near.publish(name, 0)
    with served.connect() as far:
        reader = Reader(far, name)
        assert reader.poll()
        reader.begin()
        reader.client.known_versions.end()
        until(lambda: not reader.client.known_versions._reported, "the end of the connection")
        known = KnownVersions(reader.client)
        known._reported, known._newest, known._since = frozenset([name]), {name: 1}, time.monotonic()
        assert known.is_newest(name, 1)
        known._since -= 3.0
        assert not known.is_newest(name, 1)


def test_polling_a_closed_handle_raises(served: Node, near: di_store.Store, name: str) -> None:
    near.publish(name, 0)
    with served.connect(), served.connect() as far:
        reader = Reader(far, name)
        assert reader.poll()
        reader.begin()
        far.close()
        with pytest.raises(di_store.StoreClosed):
            reader.poll()


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_a_client_that_stops_polling_leaves_nothing(serve: Serve, authorities: Any, tls: bool) -> None:
    certificate, key = authorities[0].sign("good")
    served = serve(*(("--tls-cert", certificate, "--tls-key", key) if tls else ()))
    connect: Callable[..., di_store.Store] = served.connect
    options = {"tls": authorities[0].path} if tls else {}
    served.connect = lambda **more: connect(**options, **more)  # type: ignore[method-assign]
    with di_store.attach(served.name) as near, served.leaves_nothing():
        near.publish("w", 0)
        with served.connect() as far:
            reader = Reader(far)
            assert reader.poll()
            reader.begin()
            assert near.publish("w", 0) == 2
            until(reader.poll, "the new version")
            reader.begin()


def test_a_process_and_its_forked_child_can_poll(served: Node, near: di_store.Store, name: str) -> None:
    with Program(POLLING, served.address, name) as program:
        near.publish(name, 0)
        assert program.line() == "1"
        near.publish(name, 0)
        assert [program.line() for _ in range(2)] == ["2", "2"]
        program.finish()


def test_the_agent_reports_new_versions_at_once(store_name: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not only as often as it says that nothing is."""
    monkeypatch.setattr(version_watch, "TELL_SECONDS", 3600.0)
    with di_store.open(store_name(), memory="64MiB") as near, agent_here(near) as agent:
        near.publish("w", 0)
        with di_store.connect(f"di-store://{agent.address}", token=TOKEN) as far:
            reader = Reader(far)
            assert reader.poll()
            reader.begin()
            told = reader.client.known_versions._newest
            near.publish("w", 0)
            until(lambda: told["w"] == 2, "word of the new version")
            assert reader.poll()


def test_an_agent_of_protocol_1_is_asked(store_name: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "NEWEST", 1)
    with di_store.open(store_name(), memory="64MiB") as near, agent_here(near) as agent:
        near.publish("w", 0)
        with di_store.connect(f"di-store://{agent.address}", token=TOKEN) as far:
            reader = Reader(far)
            assert reader.poll()
            before = reader.asked
            assert not any(reader.poll() for _ in range(100))
            assert reader.asked == before + 100
            near.publish("w", 0)
            assert reader.poll()


@pytest.mark.parametrize(
    "known", [None, [], {"w": "1"}, {1: 1}, {"w": True}, {"": 1}, {f"{n}": 1 for n in range(1001)}]
)
def test_odd_calls_are_refused(served: Node, known: Any) -> None:
    with served.connect() as far:
        assert isinstance(far._backend, RemoteStore)
        with pytest.raises((TypeError, ValueError)):
            far._backend.session.call("watch_versions", {"known": known})
        assert far._backend.session.call("watch_versions", {"known": {"w": -1}}) == {"w": 0}


def test_polling_works_on_a_cluster_store(store_name: Names) -> None:
    """A handle that `store_of` gives polls as a connected one does."""
    with (
        cluster_nodes(store_name(), 2, "--memory", "64MiB") as nodes,
        cluster.attach(nodes[0].name) as first,
        cluster.attach(nodes[1].name) as second,
    ):
        far = second.store_of(first.put(np.ones(3)))
        assert far is not None
        reader = Reader(far)
        for number in range(1, 5):
            first.publish("w", number)
            until(reader.poll, "the version")
            assert reader.version == number
            reader.begin()
