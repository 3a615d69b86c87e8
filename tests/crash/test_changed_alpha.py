"""Another alpha between the check of a priority and its insertion: no priority gets in that no sampler can sum."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import di_store
from crash.zygote import Crew
from di_store import _core

LARGE = 1e150
"""Its power 0.6 can be summed, itself it cannot."""
ITEMS = 200
"""More than one hold of the table's lock takes."""
FIRST = 64
"""What the first one takes."""


def change_alpha_in_between(crew: Crew, name: str, call: str) -> Any:
    """A child makes the call and stops in the middle; `configure(alpha=)` comes in between. The table."""
    store = di_store.open(name, memory="32MiB", mode="x")
    sampler = di_store.Prioritized(alpha=0.6, beta=0.4)
    table = store.create_table("t", capacity=1_000, schema={"x": di_store.Spec((), "i8")}, sampler=sampler)
    child = crew.start(f"crash.test_changed_alpha:{call}", name)
    crew.until(lambda: child.stopped or child.status is not None, "the call to stop in the middle")
    assert child.stopped, child.printed()
    table.configure(alpha=1.0)
    child.signal(signal.SIGCONT)
    child.finish()
    assert store.check() == []
    return table


def test_a_single_priority_is_checked_again(crew: Crew, store_name: Callable[[], str]) -> None:
    table = change_alpha_in_between(crew, store_name(), "insert_one")
    assert table.stats()["inserts"] == len(table) == 1
    assert table.sample(4, timeout=60).probabilities.tolist() == [1.0] * 4


def insert_one(name: str) -> None:
    """In a child."""
    with di_store.attach(name, timeout=60) as store:
        table = store.table("t")
        _core.arm_fault("writer.chunk_opened:1:stop")
        with pytest.raises(ValueError, match=r"alpha=1.*nothing was written"):
            table.insert({"x": 1}, priority=LARGE)
        table.insert({"x": 1}, priority=2.0)


def test_the_rest_of_a_long_call_is_checked_again(crew: Crew, store_name: Callable[[], str]) -> None:
    table = change_alpha_in_between(crew, store_name(), "extend_many")
    assert table.stats()["inserts"] == len(table) == FIRST + 1
    assert np.isfinite(table.sample(100, timeout=60).weights).all()


def extend_many(name: str) -> None:
    """In a child."""
    with di_store.attach(name, timeout=60) as store:
        table = store.table("t")
        priorities = np.ones(ITEMS)
        priorities[-1] = LARGE
        _core.arm_fault("writer.between_slices:1:stop")
        with pytest.raises(ValueError, match=rf"alpha=1.*in the middle of the call.*{FIRST} of its {ITEMS} items"):
            table.extend({"x": np.arange(ITEMS)}, priority=priorities)
        table.insert({"x": 1}, priority=2.0)


def test_priorities_valid_for_the_new_alpha_are_kept(crew: Crew, store_name: Callable[[], str]) -> None:
    table = change_alpha_in_between(crew, store_name(), "extend_well")
    assert len(table) == ITEMS
    batch = table.peek(table.keys())
    assert batch.priorities.tolist() == [float(at + 1) for at in range(ITEMS)]


def extend_well(name: str) -> None:
    """In a child."""
    with di_store.attach(name, timeout=60) as store:
        _core.arm_fault("writer.between_slices:1:stop")
        assert len(store.table("t").extend({"x": np.arange(ITEMS)}, priority=np.arange(ITEMS) + 1.0)) == ITEMS
