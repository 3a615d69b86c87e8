"""Leases of a table in parts: a draw leases items of one shard, and calls by keys reach all shards."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from leasing import LONG, PATIENCE, keys_of, leased, take
from pains import until
from warm import WARM

import di_store
from cluster.nodes import Node, served_again, stopped
from cluster.shards import ROWS, filled
from di_store import cluster
from di_store.base.errors import NodeUnavailable, StoreClosed
from di_store.cluster.store import ClusterStore
from di_store.replay.keys import shards_of
from di_store.replay.lease import ANY_LEASE, Lease


@pytest.fixture
def table(stores: list[ClusterStore]) -> Iterator[di_store.Table]:
    """Of four items in each shard, to be done once."""
    options = {**ROWS, "max_times_sampled": 1, "sampler": di_store.Fifo()}
    yield filled(stores[0], "t", [4, 4, 4], **options)[0]
    stores[0].drop_table("t")


def test_each_node_leases_items_of_its_own_shard(
    nodes: list[Node], stores: list[ClusterStore], table: di_store.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DI_STORE_NODE", nodes[0].name)  # of the lease that is unpickled
    far = stores[1].table("t")
    batch, other = take(table, 3), take(far, 2)
    assert len(set(shards_of(batch.keys))) == len(set(shards_of(other.keys))) == 1
    assert set(shards_of(batch.keys)) != set(shards_of(other.keys))
    assert leased(table) == 5
    assert batch.lease is not None
    assert batch.lease.extend(LONG) == 3
    assert (far.ack(batch), table.ack(batch)) == (3, 0)
    assert table.give_back(pickle.loads(pickle.dumps(other.lease))) == 2
    assert keys_of(take(far, 2)) == keys_of(other)
    again = take(far, 2)
    assert table.ack(np.concatenate([batch.keys, other.keys, again.keys])) == 4, "those that are leased now"
    assert leased(table) == 0


def _lease_and_wait(name: str, pipe: Any) -> None:
    with cluster.attach(name) as store:
        pipe.send(take(store.table("u"), 2, timeout=120).keys)
        pipe.recv()


def test_leases_on_another_node_end_with_the_handle(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """The process's own node has no shard: the draws are made by the agent of one that has."""
    where = [each.name for each in nodes[1:]]
    table = stores[1].create_table("u", shards="learners", node=where, **{**ROWS, "max_times_sampled": 1})
    for _ in range(8):
        table.extend({"n": np.arange(4), "terminated": np.zeros(4, np.bool_)})
    ours, theirs = WARM.Pipe()
    process = WARM.Process(target=_lease_and_wait, args=(nodes[0].name, theirs))  # type: ignore[attr-defined]
    process.start()
    keys = ours.recv()
    with stores[0].table("u").loader(2, prefetch=1, lease=LONG, timeout=PATIENCE) as loader:
        batch = next(loader)
        assert leased(table) == 6
    assert leased(table) == 4
    assert table.ack(batch) == 2
    ours.send("end")
    process.join(120)
    until(lambda: leased(table) == 0, "the leases to end")
    assert table.ack(keys) == 0
    stores[1].drop_table("u")


def test_a_loader_leases_items_of_its_nodes_shard(stores: list[ClusterStore], table: di_store.Table) -> None:
    with table.loader(2, prefetch=1, lease=LONG, timeout=PATIENCE) as loader:
        batch = next(loader)
        assert len(set(shards_of(batch.keys))) == 1
        assert leased(table) == 4
    assert leased(table) == 2
    assert batch.lease is not None
    assert batch.lease.extend(LONG) == 2
    assert (stores[1].table("t").ack(batch), table.ack(batch)) == (2, 0)


CALLS: dict[str, Callable[[di_store.Table, Any], int]] = {
    "ack": lambda table, lease: table.ack(lease, timeout=5),
    "give_back": lambda table, lease: table.give_back(lease, timeout=5),
    "extend": lambda _, lease: lease.extend(LONG, timeout=5),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_reaches_its_shard_counts(
    nodes: list[Node], stores: list[ClusterStore], table: di_store.Table, name: str
) -> None:
    """A node is stopped: the error has the keys of its items, whose leases stay."""
    call, batches = CALLS[name], [take(each.table("t"), 2) for each in stores]
    every = Lease(table._backend, ANY_LEASE, np.concatenate([each.keys for each in batches]))
    told = f"^{name} failed for 2 of 6 keys .*"
    with stopped(*nodes[1].pids), pytest.raises((NodeUnavailable, di_store.Timeout), match=told) as caught:
        call(table, every)
    assert sorted(caught.value.keys.tolist()) == keys_of(batches[1])
    assert [call(table, each.lease) for each in batches] == ([2, 2, 2] if name == "extend" else [0, 2, 0])


def test_the_leases_of_a_lost_node_are_named_and_the_others_count(
    nodes: list[Node], stores: list[ClusterStore], table: di_store.Table
) -> None:
    """Also once another store has taken the node's place."""
    batches = [take(each.table("t"), 2) for each in stores]
    keys = np.concatenate([each.keys for each in batches])
    stores[1].close()
    nodes[1].lose()
    told = r"^ack failed for 2 of 6 keys \(error\.keys\): (?!ack failed)"
    for done in (4, 0):
        before = leased(table)
        with pytest.raises((NodeUnavailable, StoreClosed), match=told) as caught:
            table.ack(keys, timeout=5)
        assert sorted(caught.value.keys.tolist()) == keys_of(batches[1])
        assert before - leased(table) == done
        served_again(nodes)
    assert len(take(table, 2)) == 2
    assert table.give_back(batches[2]) == 0


def test_draws_over_all_shards_have_no_leases(stores: list[ClusterStore]) -> None:
    table, keys = filled(stores[0], "m", [4, 4, 4], draw="mass")
    with pytest.raises(ValueError, match=r'lease=5.* with draw="mass"'):
        table.sample(1, lease=5)
    with pytest.raises(ValueError, match=r'lease=5.* with draw="mass"'):
        table.loader(1, lease=5)
    assert table.ack(keys) == 0
    stores[0].drop_table("m")
