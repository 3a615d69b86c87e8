"""Notebooks show stores and tables of a cluster as they show those of one machine."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from cluster.nodes import Node, cluster_nodes
from di_store.cluster.store import ClusterStore


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with cluster_nodes(f"n-{uuid.uuid4().hex[:12]}", 2) as running:
        yield running


def test_a_cluster_and_its_tables_are_shown(stores: list[ClusterStore]) -> None:
    here, there = stores
    whole = here.create_table("parts", capacity=1_000, shards="learners")
    whole.insert({"x": 1})
    there.create_table("far", capacity=50).insert({"x": 1})
    assert "<td>memory</td>" in here._repr_html_()
    for table, capacity in ((whole, "1,000"), (here.table("far"), "50")):
        shown = table._repr_html_()
        assert f"<td>1 of {capacity}</td>" in shown
        assert "<td>x</td><td>int64</td>" in shown
    there.drop_table("far")
