"""A real etcd of three members as the directory: words, nodes with leases, members that are killed."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pytest
from cli_run import call, fails
from pains import stop, until

import di_store
from cluster.nodes import Etcd, Node, node
from cluster.test_cluster import TABLE
from di_store import cluster
from di_store.base.errors import NodeUnavailable, TableExists
from di_store.client.table import RemoteTable
from di_store.cluster import etcd as registering
from di_store.cluster import node as placed
from di_store.cluster.etcd import EtcdDirectory
from di_store.cluster.store import ClusterStore
from di_store.runtime.waits import logger

pytestmark = pytest.mark.extended
SECONDS = 60.0
NODE = placed.Node("ab" * 16, "machine", "di-store://127.0.0.1:7370/store")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    running = Etcd(tmp_path_factory.mktemp("etcd"), 3)
    try:
        EtcdDirectory(running.where).read("k", SECONDS)
        yield running
    finally:
        running.end()


@pytest.fixture
def directory(etcd: Etcd) -> EtcdDirectory:
    """One with a name of its own."""
    return EtcdDirectory(f"{etcd.where}/{uuid.uuid4().hex}")


@pytest.fixture(scope="module")
def nodes(etcd: Etcd) -> Iterator[list[Node]]:
    """Three; the last test of them loses two."""
    name = uuid.uuid4().hex[:12]
    with ExitStack() as running:
        yield [
            running.enter_context(node(f"e-{name}-{at}", "--join", f"etcd://{etcd.where}/{name}")) for at in range(3)
        ]


@contextmanager
def stopped(etcd: Etcd) -> Iterator[Callable[[], None]]:
    """All members are stopped. It gives what has them go on."""

    def go_on() -> None:
        for each in etcd.members:
            each.send_signal(signal.SIGCONT)

    try:
        for each in etcd.members:
            stop(each.pid)
        yield go_on
    finally:
        go_on()


def test_etcd_entries_are_read_and_written(directory: EtcdDirectory, etcd: Etcd) -> None:
    assert directory.read("table/a", SECONDS) is None
    assert directory.swap("table/a", None, b"first", SECONDS)
    assert not directory.swap("table/a", None, b"second", SECONDS)
    assert not directory.swap("table/a", b"other", b"second", SECONDS)
    assert directory.swap("table/a", b"first", b"\x00\xff", SECONDS)
    assert directory.swap("table/b/ä", None, b"", SECONDS)
    assert directory.swap("group/g", None, b"g", SECONDS)
    assert directory.listed("table/", SECONDS) == {"table/a": b"\x00\xff", "table/b/ä": b""}
    assert EtcdDirectory(f"{etcd.where}/other").listed("", SECONDS) == {}
    assert directory.swap("table/a", b"\x00\xff", None, SECONDS)
    assert directory.read("table/a", SECONDS) is None


def test_one_of_many_concurrent_swaps_wins(directory: EtcdDirectory) -> None:
    def count() -> None:
        done = 0
        while done < 10:
            known = directory.read("count", SECONDS)
            done += directory.swap("count", known, str(int(known or b"0") + 1).encode(), SECONDS)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert directory.read("count", SECONDS) == b"80"


def test_a_cluster_works_with_etcd(etcd: Etcd, nodes: list[Node], stores: list[ClusterStore]) -> None:
    table = stores[0].create_table("t", **TABLE)
    with pytest.raises(TableExists):
        stores[1].create_table("t", **TABLE)
    remote = stores[1].table("t")
    assert isinstance(remote._backend, RemoteTable)
    remote.extend({"x": np.zeros((3, 4), np.float32)})
    assert len(table) == 3
    assert stores[2].get(stores[1].put({"a": 1}, copies=2)) == {"a": 1}
    assert stores[1].latest("w", group="g") is None
    assert stores[0].publish("w", 1, group="g") == 1
    found = stores[1].latest("w", timeout=SECONDS, group="g")
    assert found is not None
    assert found.value == 1
    stores[2].drop_table("t")
    assert {each.address for each in stores[0].nodes()} == {each.address for each in nodes}
    ref = stores[1].put(1)
    with cluster.attach(nodes[0].name) as fresh, stopped(etcd) as go_on:  # it does not know yet where the object lies
        back = threading.Timer(2, go_on)
        back.start()
        assert fresh.get(ref, timeout=SECONDS) == 1
        back.join()


def test_a_node_with_an_expired_lease_is_listed_again(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease has ended while etcd was away: the node is listed when it answers again, and who asks waits for that."""
    where = f"{etcd.where}/{uuid.uuid4().hex}"
    monkeypatch.setattr(registering, "RENEW_SECONDS", 0.5)
    registration = registering.Registration(where, NODE)
    try:
        assert EtcdDirectory(where).nodes(SECONDS) == [NODE]
        registration._lease.revoke()
        with stopped(etcd) as go_on:

            def noticed(record: logging.LogRecord) -> bool:
                if "drops this node" in record.getMessage():
                    monkeypatch.setattr(registering, "RENEW_SECONDS", 10 * SECONDS)
                    go_on()
                return True

            logger.addFilter(noticed)
            try:
                assert EtcdDirectory(where).nodes(SECONDS) == [NODE]
            finally:
                logger.removeFilter(noticed)
    finally:
        registration.end()


def test_a_lost_node_is_no_longer_listed(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """After its lease; one that ends by itself at once; a stopped agent does not count."""
    stores[0].close()
    nodes[0].lose()
    until(lambda: len(stores[1].nodes()) == 2, "the lease to end")
    nodes[2].process.send_signal(signal.SIGINT)
    nodes[2].process.wait(30)
    assert len(stores[1].nodes()) == 1


def test_a_slow_member_is_waited_for(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer each time, as long as the call may take."""
    monkeypatch.setattr(registering, "ASK_SECONDS", 0.1)
    host, _, port = etcd.where.partition(",")[0].partition(":")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_relay, args=(listening, (host, int(port)), 0.5), daemon=True).start()
        slow = EtcdDirectory(f"127.0.0.1:{listening.getsockname()[1]}/{uuid.uuid4().hex}")
        assert slow.read("k", SECONDS) is None


def _relay(listening: socket.socket, to: tuple[str, int], delay: float) -> None:
    """Passes on what clients say, and each answer after `delay` seconds."""

    def passes(source: socket.socket, drain: socket.socket, seconds: float) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                threading.Event().wait(seconds)  # the member's slowness
                drain.sendall(data)

    with suppress(OSError):  # until the test closes the socket
        while True:
            client, _ = listening.accept()
            member = socket.create_connection(to)
            for pair in ((client, member, 0.0), (member, client, delay)):
                threading.Thread(target=passes, args=pair, daemon=True).start()


def test_wrong_etcd_addresses_are_refused_in_time(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to do, in time."""
    monkeypatch.setattr(registering, "START_SECONDS", 2.0)
    began = time.monotonic()
    for status, join, text in (
        (1, "etcd://127.0.0.1:1", "no member of etcd answers"),
        (2, "etcd://127.0.0.1:a", "give etcd://HOST:PORT"),
        (2, "zookeeper://127.0.0.1:1", "give one of ray://..., etcd://..."),
    ):
        told = fails(status, "serve", "--memory", "16MiB", "--listen", "127.0.0.1:0", "--join", join, by=call)
        assert text in told
    assert time.monotonic() - began < 3 * SECONDS


def test_a_killed_etcd_minority_changes_nothing(tmp_path: Any) -> None:
    """With two of three all goes on, and no word is swapped twice; with one of three calls say so in time."""
    running = Etcd(tmp_path, 3)
    try:
        directory = EtcdDirectory(running.where)
        assert directory.swap("count", None, b"0", SECONDS)
        killer = threading.Timer(0.2, running.kill, (0,))
        killer.start()
        for number in range(200):
            assert directory.swap("count", str(number).encode(), str(number + 1).encode(), SECONDS)
        killer.join()
        assert directory.read("count", SECONDS) == b"200"
        running.kill(1)
        with pytest.raises(NodeUnavailable, match="no member of etcd answers"):
            directory.swap("count", b"200", b"201", 0.5)
    finally:
        running.end()


def test_a_store_of_another_cluster_kind_is_refused(etcd: Etcd) -> None:
    with di_store.open(memory="16MiB") as plain, pytest.raises(di_store.StoreNotFound, match="not a node"):
        cluster.attach(plain.name)
