"""Sampling does not care about size: neither items nor capacity slow draws and updates; loaders keep batches ready.

How fast they are is measured by ``bench.scale``; the bounds on time here only tell growth with the logarithm from
growth with the size, which would be a hundredfold.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from pains import until

import di_store

BATCH, ROUNDS, CALLS = 256, 5, 20
TIMES = 10.0
"""Bound on a ratio of medians where the sizes differ by 100."""
EPISODE = 1_000
SAMPLERS = {"uniform": di_store.Uniform(), "prioritized": di_store.Prioritized(alpha=0.6, beta=0.4)}
VIEWS = {"step": di_store.Step(), "slice": di_store.Sequence(4, period=1, tail="drop")}


@contextmanager
def filled(items: int, capacity: int, sampler: str = "prioritized", view: str = "step") -> Iterator[di_store.Table]:
    """A table in a store of its own; its items have different priorities."""
    with di_store.open(memory=(64 << 20) + 200 * capacity) as store:
        table = store.create_table(
            "t",
            capacity=capacity,
            view=VIEWS[view],
            schema={"n": di_store.Spec((), "i8"), "x": di_store.Spec((4,), "f4")},
            sampler=SAMPLERS[sampler],
            lanes=1,
            seed=7,
        )
        with table.writer() as writer:
            for begin in range(0, 10 * items, EPISODE):
                if len(table) >= items:
                    break
                writer.extend({"n": np.arange(begin, begin + EPISODE), "x": np.zeros((EPISODE, 4), np.float32)})
                writer.end_episode()
        keys = table.keys()
        if len(keys) > items:
            table.delete(keys[items:])
        table.update_priorities(table.keys(), np.random.default_rng(0).random(items) + 0.1)
        yield table


def seconds_each(calls: list[Callable[[], object]]) -> list[float]:
    """Median time of each; they take turns, so that a slow moment of the machine meets all of them."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, taken in zip(calls, found, strict=True):
            for _ in range(CALLS):
                begin = time.perf_counter()
                call()
                taken.append(time.perf_counter() - begin)
    return [statistics.median(taken) for taken in found]


def updating(table: di_store.Table) -> Callable[[], object]:
    """Updates of items from all over the table."""
    keys = np.random.default_rng(1).permutation(table.keys())
    places, priorities = iter(range(1 << 30)), np.random.default_rng(2).random(BATCH) + 0.1

    def call() -> None:
        at = next(places) * BATCH % max(1, len(keys) - BATCH)
        assert table.update_priorities(keys[at : at + BATCH], priorities) == BATCH

    return call


@pytest.mark.parametrize(("sampler", "view"), [("uniform", "step"), ("prioritized", "step"), ("prioritized", "slice")])
def test_a_draw_costs_no_more_with_a_hundred_times_as_many_items(
    sampler: str, view: str, count: Callable[[int, int], int]
) -> None:
    """100,000 items by 1,000; in full 10,000,000 by 100,000."""
    small, large = count(1_000, 100_000), count(100_000, 10_000_000)
    with filled(small, small, sampler, view) as few, filled(large, large, sampler, view) as many:
        draws = seconds_each([lambda: few.sample(BATCH), lambda: many.sample(BATCH)])
        assert draws[1] <= TIMES * draws[0], draws
        updates = seconds_each([updating(few), updating(many)])
        assert updates[1] <= TIMES * updates[0], updates


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_hundred_times_the_capacity_costs_no_more_per_draw(sampler: str, count: Callable[[int, int], int]) -> None:
    """The same items in a larger table: the same draws, at about the same cost."""
    items = count(2_000, 100_000)
    with filled(items, items, sampler) as tight, filled(items, 100 * items, sampler) as wide:
        for _ in range(5):
            one, other = tight.sample(BATCH), wide.sample(BATCH)
            assert (one.data["n"] == other.data["n"]).all()
            assert (one.keys == other.keys).all()
        draws = seconds_each([lambda: tight.sample(BATCH), lambda: wide.sample(BATCH)])
        assert draws[1] <= TIMES * draws[0], draws
        updates = seconds_each([updating(tight), updating(wide)])
        assert updates[1] <= TIMES * updates[0], updates


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_memory_beside_the_rows_is_proportional(sampler: str, count: Callable[[int, int], int]) -> None:
    """An item costs the same 48 bytes, and its places in order and sampler, in a table of any capacity."""
    each = []
    for capacity in (count(10_000, 100_000), count(1_000_000, 10_000_000)):
        with di_store.open(memory=(64 << 20) + 200 * capacity) as store:
            before = store.stats()["meta"]
            store.create_table("t", capacity=capacity, schema={"x": 0.0}, sampler=SAMPLERS[sampler], lanes=1)
            each.append((store.stats()["meta"] - before - (1 << 16)) / (capacity + 1024))
    assert min(each) > 48
    assert max(each) < 48 + 8 + 24 + 8
    assert max(each) < 1.25 * min(each)


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_prefetch_keeps_the_requested_number_ready(prefetch: int) -> None:
    """No fewer in the end and never more, whatever was taken; none are counted once the loader is closed."""

    def drawn(table: Any) -> int:
        found = table.stats()["samples"]
        assert isinstance(found, int)
        return found

    with filled(1_000, 1_000) as table:
        with table.loader(32, prefetch=prefetch) as loader:
            batches = iter(loader)
            for taken in range(1, 2 * prefetch + 2):
                next(batches)

                def ready(most: int = (taken + prefetch) * 32) -> bool:
                    assert drawn(table) <= most
                    return drawn(table) == most

                until(ready, f"{prefetch} batches to be ready")
        assert drawn(table) == (2 * prefetch + 1) * 32
