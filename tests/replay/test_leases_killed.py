"""Processes killed while they take and end leases: nothing is lost, and nothing is drawn too often."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import _core

ITEMS = 12
LONG = 600.0
POINTS = (
    "undo.between",
    "undo.before_commit",
    "undo.after_commit",
    "table.draw_item",
    "table.take_copied",
    "table.settle_item",
    "sample.before_copy",
    "sample.before_deliver",
    "leases.made",
    "leases.linked",
    "leases.end_item",
)
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "prioritized": {"sampler": di_store.Prioritized(0.6)},
    "once": {"sampler": di_store.Once(None)},
    "queue": {"limiter": di_store.Queue(ITEMS)},
    "thrice": {"sampler": di_store.Fifo(), "max_times_sampled": 3},
}


def _work_and_die(table: Any, begun: Any, done: Any, point: str, loads: bool) -> None:
    """Acknowledge items, counting before and after, and give others back."""
    _core.arm_fault(point)
    loader = table.loader(3, prefetch=2, lease=LONG, timeout=0) if loads else None
    for _ in range(6):
        try:
            batch = table.sample(3, lease=LONG, timeout=0) if loader is None else next(loader)
        except di_store.Timeout:
            break
        for n in batch.data["n"][:2]:
            begun[n] += 1
        assert table.ack(batch.keys[:2]) == 2
        for n in batch.data["n"][:2]:
            done[n] += 1
        assert table.give_back(batch) == 1
    os._exit(0)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(("kind", "loads"), [*((kind, False) for kind in KINDS), ("once", True), ("queue", True)])
def test_a_kill_anywhere_gives_leases_back(kind: str, loads: bool, point: str) -> None:
    """Each item was drawn as often as it was acknowledged, and nobody holds one."""
    context = mp.get_context("fork")
    for count in (1, 2, 5, 20):
        with di_store.open(memory="64MiB", seed=count) as store:
            table = store.create_table("t", capacity=ITEMS, **KINDS[kind])
            table.extend({"n": np.arange(ITEMS)})
            begun, done = context.Array("i", ITEMS, lock=False), context.Array("i", ITEMS, lock=False)
            worker = context.Process(target=_work_and_die, args=(table, begun, done, f"{point}:{count}", loads))
            worker.start()
            worker.join(120)
            assert worker.exitcode in (0, -signal.SIGKILL)
            assert store.check() == []  # settles what the dead process left
            assert table.stats()["leased"]["items"] == 0
            _judge(table, list(begun), list(done))
            assert store.check() == []
            if worker.exitcode == 0:
                return


def _judge(table: Any, begun: list[int], done: list[int]) -> None:
    there = table.peek(table.keys())
    limit = table.stats()["max_times_sampled"]
    times = dict(zip(there.data["n"].tolist(), there.times_sampled.tolist(), strict=True))
    assert limit or len(times) == ITEMS
    uses = [times.get(n, limit) for n in range(ITEMS)]
    assert all(done[n] <= uses[n] <= begun[n] for n in range(ITEMS)), (begun, done, uses)
    assert table.stats()["samples"] == sum(uses)
    if times:
        assert sorted(table.sample(len(times), lease=LONG, timeout=60).data["n"].tolist()) == sorted(times)
