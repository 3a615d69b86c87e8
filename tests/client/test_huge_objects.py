"""Objects and weights of more than 4 GiB: lengths of 32 bits would lose the front of them, or all.

They need 10 GiB of free memory: two copies at a time.
"""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.nodes import attached, cluster_nodes, node
from pains import until

import di_store

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]
Names = Callable[[], str]
GIB = 1 << 30
BYTES = 4 * GIB + 4096
FREE_BYTES = 10 * GIB
MEMORY = ("--memory", "6GiB")
PART = 1 << 24
SMALL = np.arange(100_000, dtype=np.float32)


@pytest.fixture(autouse=True)
def _room() -> None:
    free = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    assert int(free.split()[1]) * 1024 >= FREE_BYTES, f"these tests need {FREE_BYTES // GIB} GiB of free memory"


def huge() -> np.ndarray[Any, Any]:
    """Bytes of numbers that differ: none of a part is at another one's place."""
    return np.arange(BYTES // 8).view(np.uint8)


def is_whole(value: Any) -> bool:
    """Whether it is what `huge` makes, or that in a tree with a small array behind it."""
    if isinstance(value, dict):
        return list(value) == ["huge", "small"] and np.array_equal(value["small"], SMALL) and is_whole(value["huge"])
    if value.dtype != np.uint8 or value.shape != (BYTES,):
        return False
    numbers = value.view(np.int64)
    return all(
        np.array_equal(numbers[at : at + PART], np.arange(at, min(at + PART, len(numbers))))
        for at in range(0, len(numbers), PART)
    )


def reads_whole(address: str, ref: di_store.Ref) -> bool:
    """Whether a client of its own gets it whole."""
    with di_store.connect(address) as store:
        return is_whole(store.get(ref, timeout=300))


@contextmanager
def gives_back(*stores: di_store.Store) -> Iterator[None]:
    """What is put in the block is deleted there, and its memory is free again on each of these nodes."""
    before = [each.stats()["live"] for each in stores]
    yield
    until(
        lambda: all(each.stats()["live"] < was + GIB for each, was in zip(stores, before, strict=True)),
        "the memory to come back",
    )
    assert all(each.check() == [] for each in stores)


@pytest.mark.parametrize("tree", [False, True], ids=["array", "tree"])
def test_a_huge_object_goes_from_client_to_client(store_name: Names, tree: bool) -> None:
    apart = ProcessPoolExecutor(1, mp.get_context("spawn"))
    with apart, node(store_name(), *MEMORY) as served, served.connect() as store:
        for _ in range(2):  # the memory is enough for one
            with gives_back(store):
                ref = store.put({"huge": huge(), "small": SMALL} if tree else huge(), timeout=300)
                assert store.stats()["live"] >= BYTES
                assert apart.submit(reads_whole, served.address, ref).result()
                assert store.delete([ref]) == 1
                assert not store.contains(ref)


def test_a_huge_object_goes_from_node_to_node(store_name: Names) -> None:
    """It is copied there, under its id, and deleted on both."""
    with cluster_nodes(store_name(), 2, *MEMORY) as nodes, attached(nodes) as (home, other), gives_back(home, other):
        ref = home.put({"huge": huge(), "small": SMALL}, timeout=300)
        for _ in range(2):  # of the home, then of the copy
            assert is_whole(other.get(ref, timeout=300))
        assert other.stats()["live"] >= BYTES
        assert other.delete([ref]) == 1
        assert not home.contains(ref)


def test_huge_weights_reach_a_group(store_name: Names) -> None:
    with cluster_nodes(store_name(), 2, *MEMORY) as nodes, attached(nodes) as (learner, actor):
        assert actor.latest("w", group="g") is None
        assert learner.publish("w", huge(), group="g", timeout=300) == 1
        found = actor.latest("w", timeout=300, group="g")
        assert found is not None
        assert is_whole(found.value)
