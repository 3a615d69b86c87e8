"""A store that `di-store serve` serves in processes of its own, and certificates."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import di_store
from cluster.certificates import Authority
from cluster.nodes import Node, attached, cluster_nodes, served_again
from cluster.served import ServedStore, serving
from di_store.cluster.store import ClusterStore


@pytest.fixture
def serve(store_name: Callable[[], str]) -> Iterator[Callable[..., ServedStore]]:
    """`serve(*options, name=, listen=, token=, **environment)`: a store that is served until the test ends."""
    with ExitStack() as running:

        def start(*options: str, name: str | None = None, **given: Any) -> ServedStore:
            return running.enter_context(serving(name or store_name(), *options, **given))

        yield start


@pytest.fixture(scope="module")
def every() -> Iterator[list[Node]]:
    """Three nodes of one cluster."""
    with cluster_nodes(f"e-{uuid.uuid4().hex[:12]}", 3) as running:
        yield running


@pytest.fixture
def nodes(every: list[Node]) -> list[Node]:
    """All three, whichever the test before has lost."""
    return served_again(every)


@pytest.fixture
def stores(nodes: list[Node]) -> Iterator[list[ClusterStore]]:
    """A handle of the store of each of the test's `nodes`, as a node of their cluster, which has seen all of them."""
    with attached(nodes) as made:
        yield made


@pytest.fixture
def far(served: Node) -> Iterator[di_store.Store]:
    """A client of the test's `served`."""
    with served.connect() as store:
        yield store


@pytest.fixture
def near(served: Node) -> Iterator[di_store.Store]:
    """The store of the test's `served`, as processes of its machine have it."""
    with di_store.attach(served.name) as store:
        yield store


@pytest.fixture(scope="session")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two of them."""
    return Authority(tmp_path_factory.mktemp("ca")), Authority(tmp_path_factory.mktemp("other"))
