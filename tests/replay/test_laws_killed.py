"""Processes killed in draws by keys, and up to a budget: each such draw counts whole, or not at all."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from leasing import LONG

import di_store
from di_store import _core

ITEMS, BATCH = 12, 3
POINTS = (
    *("undo.between", "undo.before_commit", "undo.after_commit", "table.draw_item", "table.take_drawn"),
    *("table.take_copied", "table.settle_item", "sample.before_copy", "sample.before_deliver"),
    *("leases.made", "leases.linked", "leases.end_item"),
)
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "prioritized": {"sampler": di_store.Prioritized(0.6, 0.4)},
    "once": {"sampler": di_store.Once(None)},
    "queue": {"limiter": di_store.Queue(ITEMS)},
    "thrice": {"sampler": di_store.Fifo(), "max_times_sampled": 3},
    "groups": {"view": di_store.Group(2, by="n"), "max_times_sampled": 2},
}
SIZE = 5
"""Of an item, for budgets. A budget lets two of the three items through that a call draws."""
WAYS: dict[str, Callable[[Any, Any], di_store.Batch]] = {
    "at once": lambda table, keys: table.sample(keys=keys, probabilities=np.ones(BATCH), timeout=0),
    "in steps": lambda table, keys: table.sample(keys=keys, columns="n", timeout=0),
    "leased": lambda table, keys: table.sample(keys=keys, lease=LONG, timeout=0),
    "budget": lambda table, keys: table.sample(BATCH, budget=("size", 2 * SIZE), timeout=0),
    "leased budget": lambda table, keys: table.sample(BATCH, budget=("size", 2 * SIZE), lease=LONG, timeout=0),
}


def _numbers(batch: di_store.Batch) -> list[int]:
    found: np.ndarray[Any, Any] = batch.data["n"]
    return list((found if found.ndim == 1 else found[:, 0]).tolist())


def _draw_and_die(table: Any, keys: Any, way: str, begun: Any, done: Any, point: str) -> None:
    """Draw items, each as often as the others, and tell before and after."""
    _core.arm_fault(point)
    for turn in range(8):
        chosen = np.arange(turn * BATCH, (turn + 1) * BATCH) % ITEMS
        begun[:] = [1 if "budget" in way or n in chosen else 0 for n in range(ITEMS)]
        try:
            batch = WAYS[way](table, keys[chosen])
        except (di_store.Timeout, di_store.ObjectNotFound):  # all are used up
            break
        if batch.lease is not None:
            assert table.give_back(batch.keys[1:]) == len(batch) - 1
            assert table.ack(batch) == 1
        for n in _numbers(batch)[: 1 if batch.lease is not None else None]:
            done[n] += 1
        begun[:] = [0] * ITEMS
    os._exit(0)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *(("uniform", "at once"), ("prioritized", "in steps"), ("once", "at once"), ("once", "leased")),
        *(("queue", "in steps"), ("thrice", "at once"), ("thrice", "leased"), ("groups", "in steps")),
        *(("groups", "leased"), ("thrice", "budget"), ("once", "budget"), ("queue", "leased budget")),
    ],
)
def test_a_kill_anywhere_leaves_a_draw_whole_or_undone(kind: str, way: str, point: str) -> None:
    context = mp.get_context("fork")
    for count in (1, 2, 5, 20):
        with di_store.open(memory="64MiB", seed=count) as store:
            answers = 2 if kind == "groups" else 1
            table = store.create_table("t", capacity=ITEMS, lanes=1, **KINDS[kind])
            numbers = np.arange(ITEMS).repeat(answers)
            keys = table.extend({"n": numbers, "size": np.full(len(numbers), SIZE)})[::answers]
            begun, done = context.Array("i", ITEMS, lock=False), context.Array("i", ITEMS, lock=False)
            worker = context.Process(target=_draw_and_die, args=(table, keys, way, begun, done, f"{point}:{count}"))
            worker.start()
            worker.join(120)
            assert worker.exitcode in (0, -signal.SIGKILL)
            assert store.check() == []  # settles what the dead process left
            _judge(table, way, list(begun), list(done))
            assert store.check() == []
            if worker.exitcode == 0:
                return


def _judge(table: Any, way: str, begun: list[int], done: list[int]) -> None:
    there = table.peek(table.keys())
    stats = table.stats()
    limit = stats["max_times_sampled"]
    times = dict(zip(_numbers(there), there.times_sampled.tolist(), strict=True))
    assert limit or len(times) == ITEMS
    more = [times.get(n, limit) - done[n] for n in range(ITEMS)]
    assert all(0 <= more[n] <= begun[n] for n in range(ITEMS)), (begun, done, times)
    assert sum(more) in ((0, 1) if "leased" in way else (0, 2) if way == "budget" else (0, BATCH))
    assert stats["samples"] == stats["limiter"]["samples"] == sum(done) + sum(more)
    assert (stats["leased"]["items"], stats["held"]) == (0, 0)
    if times:
        assert sorted(_numbers(table.sample(len(times), lease=LONG, timeout=60))) == sorted(times)
