"""Many objects of a cluster at once, whose ids do not name their nodes: one call of each node reads or deletes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from cluster.nodes import Node, stopped
from cluster.served import noted_calls
from di_store.cluster.store import ClusterStore, stores_of
from di_store.protocol import handshake

IDS = [f"{number:040x}" for number in range(1, 91)]
VALUES: list[Any] = [np.arange(number) for number in range(90)]


@pytest.fixture
def stores(stores: list[ClusterStore]) -> Iterator[list[ClusterStore]]:
    """Handles of all nodes, each of which has a third of the objects."""
    for at, each in enumerate(stores):
        each.put_many(VALUES[at::3], ids=IDS[at::3])
    yield stores
    stores[0].delete(IDS)
    assert not any(store.keys() for store in stores_of(stores[0]))


def same(found: list[Any]) -> bool:
    pairs = zip(found, VALUES, strict=True)
    return all(np.array_equal(*pair) for pair in pairs) and not any(each.flags.writeable for each in found)


def test_a_read_asks_each_node_once(stores: list[ClusterStore], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = noted_calls(monkeypatch)
    assert same(stores[2].get_many(IDS))
    assert calls == ["get_many"] * 2
    assert len(stores[2].keys()) == 30  # they were not copied: another value may get the id
    with pytest.raises(di_store.ObjectNotFound):
        stores[2].get_many([*IDS, "f" * 40], timeout=0.1)


def test_a_delete_asks_each_node_once(stores: list[ClusterStore], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = noted_calls(monkeypatch)
    assert stores[1].delete([*IDS, "f" * 40]) == 90
    assert calls == ["delete_each"] * 2
    assert not any(store.keys() for store in stores_of(stores[1]))


def test_a_copy_counts_as_its_object(stores: list[ClusterStore]) -> None:
    stores[0].put("twice", id="e" * 40, copies=2)
    assert stores[1].delete([*IDS[:3], "e" * 40]) == 4


def test_objects_of_older_agents_are_read_one_by_one(
    stores: list[ClusterStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("di_store.client.objects.MANY_OBJECTS", handshake.NEWEST + 1)
    calls = noted_calls(monkeypatch)
    assert same(stores[2].get_many(IDS))
    assert stores[2].delete(IDS) == 90
    assert not {"get_many", "delete_each"} & set(calls)


def test_a_silent_node_without_the_objects_is_not_waited_for(stores: list[ClusterStore], nodes: list[Node]) -> None:
    with stopped(*nodes[1].pids):
        found = stores[2].get_many(IDS[::3] + IDS[2::3], timeout=None)
    assert [each.tolist() for each in found] == [each.tolist() for each in VALUES[::3] + VALUES[2::3]]
