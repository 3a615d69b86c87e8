"""Workers killed while they lease, acknowledge and give back: no item is lost, none is delivered too often."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from leasing import LONG, PATIENCE, leased, take
from pains import until
from warm import WARM

import di_store
from crash import faults
from di_store import Group, Once, Prioritized, Queue, _core

ITEMS, BATCH = 80, 4
TABLES: dict[str, dict[str, Any]] = {
    "queue": {"limiter": Queue(ITEMS)},
    "uniform": {"max_times_sampled": 3},
    "prioritized": {"sampler": Prioritized(0.6), "max_times_sampled": 3},
    "epochs": {"sampler": Once(3)},
    "epochs with a limit": {"sampler": Once(2, False), "max_times_sampled": 2},
    "groups": {"view": Group(2, by="n"), "max_times_sampled": 2},
    "no limit": {},
    "no limit, newest": {"sampler": di_store.Lifo()},
}
TIMES = {"queue": 1, "uniform": 3, "prioritized": 3, "epochs": 3, "epochs with a limit": 2, "groups": 2}
"""How often each item is delivered in all; else as often as anybody asks."""
POINTS = (
    *sorted(point for point in faults.all_points() if "lease" in point),
    *("table.draw_item", "table.settle_item", "sample.before_copy", "sample.before_deliver"),
    *("undo.between", "undo.before_commit", "undo.after_commit", "lock.before_takeover", "table.rolled_back"),
    *("table.rebuild_middle", "reap.begun", "reap.draw_before_commit", "reap.before_free"),
)
DEATHS = ("sample.before_deliver:1", "undo.between:9", "undo.before_commit:5", "undo.after_commit:3")
"""Of the workers that leave something to repair."""
FEW, MANY = 12, 200
"""Calls of a worker."""
SCHEMA = {"n": di_store.Spec((), "i8")}


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened
        assert opened.check() == []


def work(store: str, calls: int, seed: int, fault: str, pipe: Any) -> None:
    """Lease, and acknowledge or give back; tell of acknowledgements before and after."""
    rng, batches = random.Random(seed), []
    _core.arm_fault(fault)  # also met while attaching, which settles deaths
    table = di_store.attach(store, timeout=PATIENCE).table("t")
    pipe.send(([], 0))
    with suppress(di_store.EndOfData):
        for _ in range(calls):
            if not batches or (len(batches) < 3 and rng.random() < 0.5):
                with suppress(di_store.Timeout):
                    least = rng.choice((1, None))  # in several steps, or in one hold of the table's lock
                    batches.append(table.sample(BATCH, min_n=least, linger=0, lease=LONG, timeout=0.05))
                continue
            batch = batches.pop(rng.randrange(len(batches)))
            if rng.random() < 0.3:
                assert table.give_back(batch) == len(batch)
                continue
            pipe.send((batch.keys.tolist(), None))
            counted = table.ack(batch if rng.random() < 0.5 else batch.keys)
            pipe.send((batch.keys.tolist(), counted))
    for batch in batches:
        table.give_back(batch)


class Workers:
    """What they have told of items of a table: acknowledged ones, and those of calls in which they were killed."""

    def __init__(self, store: di_store.Store, name: str) -> None:
        self.store = store.name
        self.table = store.create_table("t", capacity=ITEMS, schema=SCHEMA, **TABLES[name])
        size = 2 if name == "groups" else 1
        self.items: list[int] = self.table.extend({"n": np.arange(ITEMS).repeat(size)})[::size].tolist()
        self.times = TIMES.get(name)
        self.table.finish()
        self.sure: Counter[int] = Counter()
        self.unsure: Counter[int] = Counter()
        self.kills = 0
        self.running: list[tuple[Any, Any]] = []

    def start(self, calls: int, seed: int, fault: str = "") -> Any:
        """Another one; it has begun."""
        ours, theirs = WARM.Pipe()
        process: Any = WARM.Process(target=work, args=(self.store, calls, seed, fault, theirs), daemon=True)
        process.start()
        theirs.close()
        with suppress(EOFError):
            ours.recv()
        self.running.append((process, ours))
        return process

    def join(self) -> None:
        """Listen until all have ended."""
        for process, pipe in self.running:
            begun: list[int] = []
            with suppress(EOFError):
                while True:
                    begun, counted = pipe.recv()
                    if counted is not None:
                        assert counted == len(begun)
                        self.sure.update(begun)
                        begun = []
            self.unsure.update(begun)
            process.join(PATIENCE)
            assert process.exitcode in (0, -signal.SIGKILL)
            self.kills += process.exitcode != 0
        self.running = []

    def judge(self) -> None:
        """Let a last one work to the end. Each item came as often as it should, but for calls that nobody saw end."""
        self.start(FEW if self.times is None else 100 * MANY, 0)
        self.join()
        with suppress(di_store.EndOfData):
            self.table.give_back(take(self.table, 1))  # from now on this process has an eye on leases
        until(lambda: leased(self.table) == 0, "the leases of the dead to end")
        stats, found = self.table.stats(), self.table.peek(self.items).times_sampled.tolist()
        assert stats["held"] == 0
        assert stats["samples"] == stats["limiter"]["samples"]
        if self.times:
            found = [self.times] * ITEMS
            with pytest.raises(di_store.EndOfData):
                take(self.table, 1)
        else:
            assert self.table.keys().tolist() == self.items
            assert sorted(take(self.table, ITEMS).keys.tolist()) == sorted(self.items)
        assert sum(found) == stats["samples"]
        for key, times in zip(self.items, found, strict=True):
            assert self.sure[key] <= times <= self.sure[key] + self.unsure[key]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_fault_point_loses_no_item(
    store: di_store.Store, name: str, point: str, count: Callable[[int, int], int]
) -> None:
    """Also of a worker that comes after another death, and ends the leases of that one."""
    workers = Workers(store, name)
    for turn in range(30):
        if turn >= count(3, 30) and workers.kills >= 4:  # on a busy machine workers may draw nothing in their time
            break
        for fault in (f"{point}:{1 + turn % 2 * turn}", DEATHS[turn % len(DEATHS)]):
            workers.start(FEW, turn, fault)
            workers.join()
    assert workers.kills >= 4
    workers.judge()


@pytest.mark.parametrize("name", TABLES)
def test_a_kill_at_any_instruction_loses_no_item(
    store: di_store.Store, name: str, count: Callable[[int, int], int]
) -> None:
    """Of one worker while another one goes on, or of both."""
    workers, rng = Workers(store, name), random.Random(3)
    for turn in range(count(8, 300)):
        pair = [workers.start(MANY, 10 * turn + at) for at in range(2)]
        pair[0].join(rng.random() * 0.02)  # at any moment
        for worker in pair[: 1 + turn % 2]:
            if worker.is_alive():
                worker.kill()
        workers.join()
    workers.judge()
