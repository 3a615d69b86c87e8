"""A table in parts when a node is lost: the other shards go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from cluster.nodes import Node, cluster_nodes
from cluster.shards import ROWS, SCHEMA, filled, numbers, step
from di_store.base.errors import NodeUnavailable
from di_store.cluster.store import ClusterStore
from di_store.replay.keys import shards_of

VIEW = di_store.Transition(n_step=2, obs=("n",))
COLUMNS = {**SCHEMA, "reward": di_store.Spec((), "float32")}


@pytest.fixture
def nodes(store_name: Callable[[], str]) -> Iterator[list[Node]]:
    with cluster_nodes(store_name(), 3) as running:
        yield running


def rows(numbers: Any, ends: bool = False) -> dict[str, Any]:
    given = step(numbers, ends)
    return {**given, "reward": np.ones(given["n"].shape, np.float32)}


def test_a_lost_node(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """Its lanes are told, and go elsewhere with their next episodes; draws go on; names can be given again."""
    assert all(len(each.nodes()) == 3 for each in stores)
    options: dict[str, Any] = {**ROWS, "schema": COLUMNS, "view": VIEW}
    table = stores[0].create_table("t", shards="learners", draw="mass", **options)
    local = stores[2].create_table("u", shards="learners", **ROWS)
    filled(stores[0], "v", [4, 4, 4], sampler=di_store.Prioritized(1.0))
    stores[1].close()
    places = [shard.uuid for shard in table._parts.shards]
    lost = places.index(nodes[1].connect().stats()["uuid"])
    others = {0, 1, 2} - {lost}
    writer = table.writer(lanes=16)
    lanes = writer._lanes.at == lost
    assert 0 < lanes.sum() < 16
    for t in range(4):
        writer.append(rows(1000 * np.arange(16) + t), next={"n": 1000 * np.arange(16) + t + 1})
    writer.flush()
    before = table.sample(200, timeout=60)
    assert set(shards_of(before.keys)) == {0, 1, 2}
    nodes[1].lose()

    began = time.monotonic()
    batches = [table.sample(100, timeout=20) for _ in range(20)]
    assert time.monotonic() - began < 20
    assert all(set(shards_of(each.keys)) == others for each in batches[-10:])
    size = sum(each["stats"]["size"] for each in table.stats()["shards"] if each["stats"] is not None)
    np.testing.assert_allclose(batches[-1].probabilities, 1 / size)
    assert table.update_priorities(before.keys, np.ones(200)) == np.isin(shards_of(before.keys), list(others)).sum()
    assert [each["error"] == "" for each in table.stats()["shards"]] == [at != lost for at in range(3)]
    assert table.peek(before.keys).live.tolist() == np.isin(shards_of(before.keys), list(others)).tolist()
    with table.loader(50, timeout=20) as loader:
        assert set(shards_of(next(loader).keys)) == others

    # the lanes of the lost shard
    now = rows(1000 * np.arange(16) + 4)
    with (
        pytest.warns(RuntimeWarning, match="is lost, and the episodes"),
        pytest.raises(NodeUnavailable, match="has written lanes") as failed,
    ):
        writer.append(now, next={"n": now["n"] + 1}, timeout=1)
    assert failed.value.written == np.flatnonzero(~lanes).tolist()  # type: ignore[attr-defined]
    last = rows(1000 * np.arange(16) + 5, True)
    assert set(writer.append(last, next={"n": last["n"] + 1}, timeout=20).lanes.tolist()) == set(np.flatnonzero(~lanes))
    assert writer._lanes.dropped == 2 * lanes.sum()
    for t in range(3):
        given = rows(1000 * np.arange(16) + 100 + t, t == 2)
        writer.append(given, next={"n": given["n"] + 1}, timeout=20)
    writer.close()
    found = table._parts.shards
    there = np.concatenate([numbers(found[at].table(60).peek(found[at].table(60).keys())) for at in others])
    first = {1000 * lane + t for lane in np.flatnonzero(~lanes).tolist() for t in range(6)}
    again = {1000 * lane + 100 + t for lane in range(16) for t in range(3)}
    assert sorted(there) == sorted(first | again), "an example spans what was lost, or rows are not there once"

    # other handles and draws
    late = stores[2].table("t", timeout=1)
    assert set(shards_of(late.sample(20, timeout=20).keys)) == others
    with late.writer(lanes=8) as second:
        assert set(second._lanes.at.tolist()) <= others
    for _ in range(6):
        try:
            local.insert(step(1), timeout=1)
        except NodeUnavailable:
            continue
    assert set(shards_of(local.sample(5, timeout=20).keys)) == {local._parts.own().number}
    with pytest.raises(NodeUnavailable):
        local.delete(np.array([lost << 56], np.uint64), timeout=1)
    for name in "tuv":
        stores[0].drop_table(name, timeout=1)
    assert not di_store.attach(stores[2].name).stats()["tables"]
    assert len(stores[0].create_table("t", shards="learners", **ROWS)._parts.shards) == 2
