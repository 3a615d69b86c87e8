"""Nodes that are lost and come back at their addresses with new stores, as processes see it that knew the old ones."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from pains import Program

from cluster.nodes import Node, cluster_nodes
from cluster.test_cluster import TABLE
from di_store import cluster

CALLS = """
import sys
from di_store import cluster
from di_store.objects.refs import Ref
store = cluster.attach(sys.argv[1])
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


class Caller:
    """A process that makes the calls which a test tells it: it has connections of its own."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def call(self, text: str) -> str:
        """What a call of its store gives, as text; or the type of the error, and its text."""
        self._program.say(f"store.{text}")
        return self._program.line()


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with cluster_nodes(f"b-{uuid.uuid4().hex[:12]}", 3, "--memory", "64MiB") as running:
        yield running


@pytest.mark.parametrize("lost", [0, 2])  # the first one has the directory's words
def test_a_node_that_comes_back(nodes: list[Node], lost: int) -> None:
    """It is used as any other node, by who has spoken to the old store; that one's objects are gone."""
    node, place = nodes[lost], f"t{lost}"
    with Program(CALLS, nodes[1].name) as program:
        other = Caller(program)
        with cluster.attach(node.name) as store:
            old = store.put(1, copies=2)
            alone = store.put(2)
            store.create_table(place, **TABLE)
        assert other.call(f"get(Ref.parse('{old.id}'))") == "1"
        assert other.call(f"contains(Ref.parse('{alone.id}'))") == "True"
        assert other.call(f"table('{place}').name") == place
        node.restart()
        with cluster.attach(node.name) as store:
            new = store.put([2, 3])
            store.create_table(f"new-{place}", timeout=20, **TABLE)
        assert other.call(f"get(Ref.parse('{new.id}'), timeout=20)") == "[2, 3]"
        assert other.call(f"get(Ref.parse('{old.id}'), timeout=20)") == "1"
        assert "NodeUnavailable" in other.call(f"get(Ref.parse('{alone.id}'))")
        assert other.call(f"table('new-{place}', timeout=20).name") == f"new-{place}"
        assert other.call(f"create_table('on-{place}', capacity=3, node='{node.name}').name") == f"on-{place}"
        assert other.call("get(store.put(5, copies=3))") == "5"
