"""Versions of weights with numbers from elsewhere, as other machines published them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from foreign_values import arena_of, reserved
from hypothesis import given, settings
from hypothesis import strategies as st
from pains import Program

import di_store


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB") as opened:
        yield opened
        assert opened.check() == []


def readable(store: di_store.Store, upto: int) -> dict[int, int]:
    """What each number gives."""
    found = {number: store.latest("w", version=number) for number in range(1, upto + 1)}
    return {number: each.value for number, each in found.items() if each is not None}


def test_a_number_above_the_newest_is_taken(store: di_store.Store) -> None:
    arena = arena_of(store)
    assert arena.publish("w", "one", 1, at=1) == 1
    assert arena.publish("w", "again", 1, at=1) == 0
    assert arena.publish("w", "five", 1, at=5) == 5
    assert arena.publish("w", "four", 1, at=4) == 0
    assert store.publish("w", "six") == 6
    assert readable(store, 8) == {6: "six"}


def test_a_draft_stays_if_its_number_is_taken(store: di_store.Store) -> None:
    store.publish("w", 1)
    draft = reserved(store, {"w": np.full(1000, 2)}, named=False)
    assert draft.publish("w", 1, at=1) == 0
    assert draft.publish("w", 1, at=3) == 3
    assert store.latest("w").value["w"][0] == 2  # type: ignore[union-attr]
    del draft
    assert (store.stats()["objects"], store.stats()["pinned"]) == (1, 0)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_the_newest_versions_stay_readable(calls: list[tuple[int, int]]) -> None:
    """The newest `keep`, and after a gap only what is above it."""
    with di_store.open(memory="16MiB") as store:
        arena, newest, there = arena_of(store), 0, list[int]()
        for ahead, keep in calls:  # 0: the next number, as publish() gives; else so many above the newest
            number = newest + max(ahead, 1)
            assert arena.publish("w", number, keep, at=number if ahead else 0) == number
            there = [number] if ahead > 1 else [each for each in (*there, number) if each > number - keep]
            newest = number
            assert readable(store, newest + 1) == {each: each for each in there}
            assert store.stats()["objects"] == len(there)
        assert store.check() == []


def test_a_far_version_number_is_accepted(store: di_store.Store) -> None:
    """Numbers of publishers that have run for years: what is older goes, and at once."""
    for number in range(5):
        store.publish("w", number, keep=5)
    arena = arena_of(store)
    assert arena.publish("w", "far", 3, at=2**40) == 2**40
    assert store.stats()["objects"] == 1
    assert [store.publish("w", number, keep=3) for number in range(4)] == [2**40 + 1 + each for each in range(4)]
    assert store.stats()["objects"] == 3


PUBLISH = """
import sys, numpy as np, di_store
from foreign_values import reserved
store = di_store.attach(sys.argv[1], timeout=60)
reserved(store, {"w": np.full(1000, 2)}, named=False).publish("w", 2, at=int(sys.argv[2]))
"""


@pytest.mark.parametrize("at", [3, 4, 9, 2**40])
@pytest.mark.parametrize("fault", ["heap.publish_before_seal", "heap.publish_sealed", "heap.pinned", "heap.published"])
def test_a_killed_publisher_blocks_no_later_version(store: di_store.Store, fault: str, at: int) -> None:
    """Whatever it got done, the next version is published, and of older ones nothing stays."""
    for _ in range(2):
        store.publish("w", {"w": np.full(1000, 1)}, keep=2)
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with Program(
        PUBLISH, store.name, str(at), env={**os.environ, "DI_STORE_FAULT": f"{fault}:1", "PYTHONPATH": path}
    ) as child:
        assert os.WIFSIGNALED(os.waitpid(child.pid, 0)[1])
    found = store.latest("w")
    assert found is not None
    assert (found.version, int(found.value["w"][0])) in ((2, 1), (at, 2))
    published = found.version == at
    del found
    assert store.check() == []
    assert store.publish("w", {"w": np.full(1000, 3)}, keep=2) == (at + 1 if published else 3)
    assert store.publish("w", {"w": np.full(1000, 3)}, keep=1) == (at + 2 if published else 4)
    if not published:  # a version that was sealed and not announced goes with the one that takes its number
        assert arena_of(store).publish("w", {"w": np.full(1000, 4)}, 1, at=max(at, 5)) == max(at, 5)
    assert (store.stats()["objects"], store.stats()["pinned"], store.stats()["pending"]) == (1, 0, 0)
