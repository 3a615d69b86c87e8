"""`reset`: the table begins anew, and every count with it, also while others hold draws."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from undelivered import holder

import di_store


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[Any]:
    with di_store.open(store_name(), memory="96MiB") as opened:
        yield opened


def totals(table: Any) -> tuple[int, int]:
    """Inserts and samples, which the limiter's own count must equal."""
    stats = table.stats()
    assert (stats["inserts"], stats["samples"]) == (stats["limiter"]["inserts"], stats["limiter"]["samples"])
    return stats["inserts"], stats["samples"]


@pytest.mark.parametrize("limiter", [di_store.MinSize(1), di_store.SamplesPerInsert(8, 2, 10.0), di_store.Queue(50)])
def test_counts_of_the_limiter_and_of_stats_agree_after_reset(store: Any, limiter: Any) -> None:
    table = store.create_table("t", capacity=50, limiter=limiter)
    keys = table.extend({"n": np.arange(20)})
    table.sample(7)
    table.update_priorities(keys, np.ones(20))
    assert totals(table) == (20, 7)
    table.reset()
    assert totals(table) == (0, 0)
    stats = table.stats()
    names = ("removed", "updates", "stale_updates", "evicted_for_room", "stale_dropped", "episodes_cut")
    assert [stats[name] for name in names] == [0] * len(names)
    table.extend({"n": np.arange(5)})
    table.sample(3)
    assert totals(table) == (5, 3)
    assert store.check() == []


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("n", [10, 2_000])  # few; more than one undo record holds
@pytest.mark.parametrize("end", ["back", "death"])
def test_draws_held_across_a_reset_are_not_counted(store: Any, queue: bool, n: int, end: str) -> None:
    options = {"limiter": di_store.Queue(n)} if queue else {"limiter": di_store.SamplesPerInsert(1, 1, float(n))}
    table = store.create_table("t", capacity=n, **options)
    table.extend({"n": np.arange(n)})
    process = holder(table, n)
    table.reset()
    assert totals(table) == (0, 0)
    table.extend({"n": np.arange(5)})
    if end == "back":
        os.kill(process.pid or 0, signal.SIGCONT)
        os.kill(process.pid or 0, signal.SIGINT)
    else:
        process.kill()
    process.join(60)
    assert table.sample(2, timeout=60).data["n"].max() < 5
    assert totals(table) == (5, 2)
    assert store.check() == []
    assert table.stats()["held_bytes"] == 0


def test_a_batch_drawn_before_a_reset_is_still_handed_out(store: Any) -> None:
    table = store.create_table("t", capacity=10)
    table.extend({"n": np.arange(10)})
    with table.loader(4, prefetch=1) as loader:
        next(loader)
        while table.stats()["samples"] < 8:
            pass
        table.reset()
        assert len(next(loader)) == 4
        assert totals(table) == (0, 0)
    assert totals(table) == (0, 0)
