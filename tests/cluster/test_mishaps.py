"""What programs met that were unlucky: slow drops, forks beside calls, stopped nodes, interrupts, wrong tokens."""

from __future__ import annotations

import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from cli_run import fails
from pains import Program, until

import di_store
from cluster.nodes import Node, attached, cluster_nodes, free_ports, node, stopped
from cluster.test_cluster import LARGE, TABLE, local, same, tables_of
from di_store import cluster
from di_store.base.errors import (
    AccessDenied,
    NodeUnavailable,
    ObjectNotFound,
    StoreError,
    StoreFull,
    StoreNotFound,
    TableNotFound,
    Timeout,
)
from di_store.client.address import Address
from di_store.cluster import tables
from di_store.cluster.joining import STORE_ENV
from di_store.cluster.objects import ClusterObjects
from di_store.cluster.store import ClusterStore
from di_store.replay.table import backend_of
from di_store.runtime.deadline import Deadline


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with cluster_nodes(f"u-{uuid.uuid4().hex[:12]}", 3) as running:
        yield running


@pytest.fixture
def stores(nodes: list[Node]) -> Iterator[list[ClusterStore]]:
    with attached(nodes) as made:
        yield made


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1])
def test_a_slow_drop_spares_a_newer_table_of_that_name(stores: list[ClusterStore], nodes: list[Node], at: int) -> None:
    """One process has said that it drops, and is stopped; another one finishes that, and makes a new table."""
    stores[0].create_table("t", node=nodes[at].name, **TABLE)
    every = stores[0].node.tables
    entry = every._entry("t", Deadline(20))
    assert entry is not None
    dropped = msgspec.structs.replace(entry, dropped=True)
    assert stores[0].node.cluster.directory.swap("table/t", tables.packed(entry), tables.packed(dropped), 20)
    made = stores[1].create_table("t", node=nodes[at].name, **TABLE)
    made.extend({"x": np.zeros((5, 4), np.float32)})
    every._finish_drop("t", dropped, Deadline(20))
    assert len(stores[2].table("t")) == len(made) == 5
    stores[2].drop_table("t")
    assert not any(tables_of(each.name) for each in nodes)


def test_an_interrupted_create_leaves_nothing(
    stores: list[ClusterStore], nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = tables.keep_entry
    for at in (0, 1):
        calls = iter([KeyboardInterrupt()])

        def interrupt(*given: Any, calls: Iterator[BaseException] = calls, **named: Any) -> None:
            for error in calls:
                raise error
            keep(*given, **named)

        with monkeypatch.context() as patched:
            patched.setattr(tables, "keep_entry", interrupt)
            with pytest.raises(KeyboardInterrupt):
                stores[0].create_table("t", node=nodes[at].name, **TABLE)
        assert not any(tables_of(each.name) for each in nodes)
        stores[0].create_table("t", **TABLE)
        stores[0].drop_table("t")


def test_exist_ok_works_beside_concurrent_drops(stores: list[ClusterStore], nodes: list[Node]) -> None:
    """`exist_ok=True` beside drops: it gives a table, whatever happens, and at the end nothing is left."""
    ended = threading.Event()
    failed: list[BaseException] = []

    def drop(store: ClusterStore) -> None:
        while not ended.is_set():
            try:
                store.drop_table("t")
            except TableNotFound:
                pass
            except BaseException as error:
                failed.append(error)
                return

    droppers = [threading.Thread(target=drop, args=(each,)) for each in stores[1:]]
    for thread in droppers:
        thread.start()
    try:
        for _ in range(60):
            identity = backend_of(stores[0].create_table("t", exist_ok=True, **TABLE)).identity
            assert identity
    finally:
        ended.set()
        for thread in droppers:
            thread.join()
    assert not failed
    with pytest.raises((TableNotFound, StoreError)):
        while True:
            stores[0].drop_table("t")
    assert not any(tables_of(each.name) for each in nodes)


def test_odd_node_names_are_refused(stores: list[ClusterStore]) -> None:
    with pytest.raises(TypeError, match="node=5"):
        stores[0].create_table("t", node=5, **TABLE)  # type: ignore[arg-type]
    stores[2].close()
    for call in (
        lambda: stores[2].create_table("t", **TABLE),
        lambda: stores[2].drop_table("t"),
        lambda: stores[2].publish("w", 1, group="g"),
        lambda: stores[2].latest("w", group="g"),
    ):
        with pytest.raises(di_store.StoreClosed):
            call()


# --- objects ----------------------------------------------------------------------------------------------------------


def test_keys_lists_only_own_objects(stores: list[ClusterStore]) -> None:
    """So that to delete them all deletes nothing of others."""
    ours = [stores[0].put(number) for number in range(5)]
    theirs = [stores[1].put(LARGE[:300_000]), stores[1].put(1, copies=3)]
    for ref in theirs:
        stores[0].get(ref)
    assert set(stores[0].keys()) == set(ours)
    assert len(stores[0].keys(n=2)) == 2
    assert set(stores[0].keys(start=stores[0].keys(n=2)[-1])) == set(stores[0].keys()[2:])
    assert stores[0].delete(stores[0].keys()) == 5
    assert same(stores[1].get(theirs[0]), LARGE[:300_000])
    assert stores[2].delete(theirs) == 2
    assert not any(local(each, theirs[1]) for each in stores)


def test_deleting_an_object_deletes_its_copies(stores: list[ClusterStore]) -> None:
    """60 times three copies of 10 MB, deleted by any node: no store, which has 512 MiB, fills up."""
    for turn in range(60):
        ref = stores[turn % 3].put(LARGE[:10_000_000], copies=3)
        assert stores[(turn // 3) % 3].delete(ref) == 1
        assert not any(local(each, ref) for each in stores)


def test_a_failed_copy_leaves_no_other_copy(stores: list[ClusterStore], nodes: list[Node]) -> None:
    """None of them stays."""
    before = [each.stats()["objects"] for each in stores]
    with stopped(*nodes[2].pids), pytest.raises((NodeUnavailable, di_store.Timeout, di_store.CapacityError)):
        stores[0].put(1, copies=3, timeout=1)
    until(lambda: [each.stats()["objects"] for each in stores] <= before, "the copies to go")


def test_a_copy_is_read_while_the_home_is_stopped(stores: list[ClusterStore], nodes: list[Node]) -> None:
    ref = stores[1].put(LARGE, copies=2)
    with stopped(*nodes[1].pids):
        for timeout in (0, 2):
            assert same(stores[0].get(ref, timeout=timeout), LARGE)


def test_a_silent_home_is_asked_again_after_the_others(
    stores: list[ClusterStore], nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, asked = stores[1].put(LARGE), []
    read, search = ClusterObjects._from, ClusterObjects._holder
    monkeypatch.setattr(ClusterObjects, "_from", lambda *each: (asked.append(each[1]), read(*each))[1])
    monkeypatch.setattr(ClusterObjects, "_holder", lambda *each: (asked.append(None), search(*each))[1])
    with stopped(*nodes[1].pids), pytest.raises((NodeUnavailable, Timeout)):
        stores[0].get(ref, timeout=0)
    home = stores[0].node.cluster.home_of(ref.raw)
    assert asked == [home, None, home]


def test_copies_leave_room_for_puts(store_name: Callable[[], str]) -> None:
    with (
        cluster_nodes(store_name(), 2, "--memory", "128MiB") as (one, two),
        cluster.attach(one.name) as here,
        cluster.attach(two.name) as there,
    ):
        refs = [there.put(LARGE) for _ in range(4)]
        for ref in refs:
            assert same(here.get(ref), LARGE)
        assert sum(local(here, ref) for ref in refs) == 3
        here.put(LARGE, timeout=0)
        with pytest.raises(StoreFull):
            here.put(LARGE, timeout=0)


def test_waiting_for_objects_of_a_stopped_node_ends_in_time(stores: list[ClusterStore], nodes: list[Node]) -> None:
    """What is there is found, and the wait ends in time (bound: ten times that)."""
    near, far = stores[0].put(1), stores[1].put(2)
    with stopped(*nodes[1].pids):
        began = time.monotonic()
        assert stores[0].wait([far, near], 1, timeout=1) == ([near], [far])
        assert stores[0].wait([far, near], 2, timeout=1) == ([near], [far])
        with pytest.raises(ObjectNotFound):
            stores[0].get(bytes(20).hex(), timeout=0)
        assert time.monotonic() - began < 40


# --- processes --------------------------------------------------------------------------------------------------------

FORK = """
import os, sys, threading
from di_store import cluster
store = cluster.attach(sys.argv[1])
ended = threading.Event()
def call():
    while not ended.is_set():
        store.nodes()
        store.publish("forked", 1, group="g")
threads = [threading.Thread(target=call) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(20):
    child = os.fork()
    if not child:
        try:
            assert len(store.nodes()) == 3
            store.latest("forked", group="g")
            assert store.get(store.put(1)) == 1
        finally:
            os._exit(0)
    os.waitpid(child, 0)
ended.set()
print("done", flush=True)
"""


def test_a_fork_during_calls_leaves_no_held_lock(nodes: list[Node]) -> None:
    """No child waits for a lock that a thread of its parent held."""
    with Program(FORK, nodes[0].name) as child:
        assert child.line() == "done"


def test_a_wrong_token_is_refused(nodes: list[Node]) -> None:
    with pytest.raises(AccessDenied, match="token"):
        cluster.attach(nodes[0].name, token="another one")


def test_a_node_of_another_cluster_is_refused(
    stores: list[ClusterStore], store_name: Callable[[], str], monkeypatch: Any
) -> None:
    sent = pickle.dumps(stores[0])
    with cluster_nodes(store_name(), 1) as (other,):
        monkeypatch.setenv(STORE_ENV, other.name)
        with pytest.raises(StoreNotFound, match="another cluster"):
            pickle.loads(sent)


def test_a_former_node_is_refused(store_name: Callable[[], str]) -> None:
    name = store_name()
    with cluster_nodes(name, 1) as (running,), di_store.attach(running.name):
        running.end()
        with node(running.name), pytest.raises(StoreNotFound, match="not a node of a cluster"):
            cluster.attach(running.name)


def test_a_node_is_served_only_once(nodes: list[Node]) -> None:
    """Another agent of it would be what processes here, and the directory, take for the node."""
    running = nodes[0]

    def refused(options: tuple[str, ...]) -> str:
        return fails(1, "serve", running.name, "--listen", "127.0.0.1:0", *options)

    others: list[tuple[str, ...]] = [(), ("--peers", "127.0.0.1:7390,127.0.0.1:7391"), ("--join", "etcd://127.0.0.1:9")]
    with ThreadPoolExecutor(3) as programs:  # each looks for a while whether the first one ends
        every = list(programs.map(refused, others))
    for told in every:
        assert f"{running.name!r} is a node of a cluster already, at {Address.parse(running.address).node}" in told
        assert "end that `di-store serve` first" in told
    with cluster.attach(running.name) as store:
        assert [each.address for each in store.nodes()] == [each.address for each in nodes]


def test_a_node_missing_in_its_own_list_warns(store_name: Callable[[], str], tmp_path: Path) -> None:
    """Others would find nothing there: it says so as it starts."""
    with node(store_name(), "--peers", "127.0.0.1:1", log=tmp_path / "log"):
        assert "none of --peers 127.0.0.1:1 has the port of di-store://127.0.0.1:" in (tmp_path / "log").read_text()
    (place,) = (f"127.0.0.1:{port}" for port in free_ports(1))
    with node(store_name(), "--listen", place, "--peers", place, log=tmp_path / "well"):
        assert "--peers" not in (tmp_path / "well").read_text()


def test_a_name_belongs_to_one_group(stores: list[ClusterStore]) -> None:
    name = uuid.uuid4().hex
    stores[0].publish(name, 1, group="one")
    with pytest.raises(ValueError, match="group 'one' already"):
        stores[0].publish(name, 2, group="two")
    assert stores[0].publish(name, 2, group="one") == 2


def test_a_replaced_publisher_publishes_nothing_more(stores: list[ClusterStore]) -> None:
    """The older publisher is refused before anybody sees its version."""
    name = uuid.uuid4().hex
    stores[0].publish(name, "one", group="g")
    for other in (stores[1], cluster.attach(stores[0].name)):
        newest = other.publish(name, "two", group="g")
        for _ in range(3):
            with pytest.raises(StoreError, match="another process"):
                stores[0].publish(name, "stale", group="g")
        for each in stores:
            found = each.latest(name, version=newest)
            assert found is None or found.value == "two"
        assert other.publish(name, "three", group="g") == newest + 1
