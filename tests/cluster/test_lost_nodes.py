"""What is lost with a node, and what is not; nodes with too little room; several nodes on one machine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from pains import until

import di_store
from cluster.nodes import Node, stop
from cluster.test_cluster import LARGE, TABLE, local, same
from di_store import cluster
from di_store.base.errors import CapacityError, NodeUnavailable, StoreClosed, StoreNotFound, TableExists
from di_store.cluster.joining import STORE_ENV
from di_store.cluster.store import ClusterStore
from di_store.replay.keys import shards_of


def test_an_object_too_large_to_copy_is_read_into_the_process(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """It is read into the process, as `connect` would."""
    with di_store.attach(nodes[1].name) as plain:
        plain.resize(memory="32MiB")
    ref = stores[0].put(np.tile(LARGE, 2))
    assert same(stores[1].get(ref), np.tile(LARGE, 2))
    assert not local(stores[1], ref)
    with di_store.attach(nodes[1].name) as plain:
        plain.resize(memory="512MiB")


def test_copies_survive_a_lost_node(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """`copies=2` outlives one node."""
    ref = stores[0].put({"w": LARGE}, copies=2)
    assert sum(local(each, ref) for each in stores) == 2
    there = stores[0].put(1, copies=3)
    assert all(local(each, there) for each in stores)
    with pytest.raises(CapacityError, match="3 nodes"):
        stores[0].put(1, copies=4)
    with pytest.raises(ValueError, match="copies"):
        stores[0].put(1, copies=0)
    stores[0].close()
    nodes[0].lose()
    for each in stores[1:]:
        assert same(each.get(ref, timeout=20)["w"], LARGE)


def test_tables_of_a_lost_node_raise_and_can_be_dropped(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """Its table is gone and says so, the others go on; the name is free after it was dropped."""
    stores[1].create_table("lost", **TABLE)
    kept = stores[0].create_table("kept", **TABLE)
    remote = stores[2].table("lost")
    assert len(stores[0].nodes()) == 3
    ref = stores[1].put(LARGE)
    stores[1].close()
    nodes[1].lose()
    began = time.monotonic()
    for call in (lambda: remote.sample(1, timeout=1), lambda: stores[0].table("lost", timeout=1)):
        with pytest.raises((NodeUnavailable, StoreClosed)):
            call()
    with pytest.raises(NodeUnavailable):
        stores[0].get(ref, timeout=1)
    assert time.monotonic() - began < 150
    kept.extend({"x": np.zeros((3, 4), np.float32)})
    assert len(stores[2].table("kept")) == 3
    with pytest.raises(TableExists):
        stores[0].create_table("lost", **TABLE)
    stores[0].drop_table("lost", timeout=2)
    stores[0].create_table("lost", **TABLE)


def test_open_handles_work_while_the_directory_is_away(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """What is open goes on; names cannot be given; when it is back, tables of other nodes are known as before."""
    table = stores[1].create_table("stays", **TABLE)
    remote = stores[2].table("stays")
    stores[0].close()
    nodes[0].lose()
    table.extend({"x": np.zeros((3, 4), np.float32)})
    assert len(remote) == 3
    with pytest.raises(NodeUnavailable, match="directory"):
        stores[1].create_table("u", timeout=0.5, **TABLE)
    assert len(stores[1].table("stays", timeout=0.5)) == 3
    nodes[0].restart()
    assert len(stores[2].table("stays", timeout=20)) == 3
    with pytest.raises(TableExists):
        stores[2].create_table("stays", timeout=20, **TABLE)


def test_a_sharded_table_opens_whole_while_the_directory_is_away(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """Whoever opens it on a node that has a part gets the whole table, not that part."""
    made = stores[1].create_table("parts", shards="learners", **TABLE)
    stores[0].close()
    nodes[0].lose()
    found = stores[1].table("parts", timeout=0.5)
    assert type(found) is type(made)
    keys = []
    for _ in range(12):
        with suppress(NodeUnavailable):  # once, from the part that is lost
            keys.append(found.insert({"x": np.zeros(4, np.float32)}, timeout=1))
    assert len(set(shards_of(np.concatenate(keys)).tolist())) == 2, "those of the nodes that live"


def test_an_agent_is_killed_while_a_table_is_dropped(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """Its part is dropped by the next one: else the name could not be given again."""
    stores[0].create_table("dropped", shards="learners", **TABLE)
    agent, away = nodes[1].agent, stores[1].node.cluster.here
    sessions = stores[0].node.cluster.sessions
    stop(agent)
    dropping = threading.Thread(target=stores[0].drop_table, args=("dropped",), kwargs={"timeout": 60})
    dropping.start()
    until(lambda: sessions._sessions[away.address].channel._busy, "the call to be on its way")
    os.kill(agent, signal.SIGKILL)
    dropping.join()
    assert len(stores[0].create_table("dropped", shards="learners", **TABLE)) == 0


def test_the_store_is_chosen_or_the_error_names_all(
    nodes: list[Node], store_name: Callable[[], str], monkeypatch: Any
) -> None:
    monkeypatch.delenv(STORE_ENV, raising=False)
    with pytest.raises(ValueError, match="on this machine") as found:
        cluster.attach()
    assert nodes[0].name in str(found.value)
    monkeypatch.setenv(STORE_ENV, nodes[1].name)
    with cluster.attach() as store:
        assert store.name == nodes[1].name
    with di_store.open(store_name(), memory="16MiB") as plain, pytest.raises(StoreNotFound, match="not a node"):
        cluster.attach(plain.name)
