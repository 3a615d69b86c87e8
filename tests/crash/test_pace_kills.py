"""Workers and publishers killed beside a `Pace`: no draw passes that has no room, and no room is lost."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from leasing import LONG, PATIENCE, leased
from pains import until
from warm import WARM

import di_store
from di_store import Pace, _core

BATCH, AHEAD, PROMPTS = 6, 1, 80
POINTS = (
    *("leases.end_item", "weights.announced", "heap.publish_before_seal", "heap.publish_sealed", "heap.published"),
    *("table.draw_item", "table.settle_item"),
    *("sample.before_copy", "sample.before_deliver", "undo.between", "undo.before_commit", "undo.after_commit"),
    *("table.rebuild_middle", "reap.begun", "reap.draw_before_commit"),
)
DEATHS = ("sample.before_deliver:1", "undo.between:9", "leases.end_item:2", "heap.published:1")
"""Of the workers that leave something to repair."""


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened
        assert opened.check() == []


def work(store: str, calls: int, seed: int, fault: str, pipe: Any) -> None:
    """Lease, publish, and end leases in every way; tell before and after what changes the room for good."""
    rng = random.Random(seed)
    _core.arm_fault(fault)
    own = di_store.attach(store, timeout=PATIENCE)
    table, batches = own.table("t"), []
    pipe.send(None)
    for _ in range(calls):
        choice = rng.random()
        if choice < 0.15:
            pipe.send(("version", 1))
            own.publish("policy", {"w": np.zeros(2)})
            pipe.send(("done", 0))
        elif choice < 0.6 or not batches:
            with suppress(di_store.Timeout):
                batches.append(table.sample(rng.randrange(1, 5), lease=LONG, timeout=0.02))
        else:
            batch = batches.pop(rng.randrange(len(batches)))
            if choice < 0.75:
                table.give_back(batch)
            elif choice < 0.9:
                table.ack(batch, counts=False)
            else:
                pipe.send(("draws", len(batch)))
                assert table.ack(batch) == len(batch)
                pipe.send(("done", 0))


class Told:
    """The least and the most versions and draws that count."""

    def __init__(self) -> None:
        self.least, self.most, self.kills = {"version": 0, "draws": 0}, {"version": 0, "draws": 0}, 0

    def listen(self, process: Any, pipe: Any) -> None:
        """Until the worker has ended."""
        begun: Any = None
        with suppress(EOFError):
            while True:
                match pipe.recv():
                    case ("done", _):
                        self.least[begun[0]] += begun[1]
                    case (what, n):
                        begun = what, n
                        self.most[what] += n
        process.join(PATIENCE)
        assert process.exitcode in (0, -signal.SIGKILL)
        self.kills += process.exitcode != 0


def start(store: di_store.Store, calls: int, seed: int, fault: str = "") -> Any:
    ours, theirs = WARM.Pipe()
    process: Any = WARM.Process(target=work, args=(store.name, calls, seed, fault, theirs), daemon=True)
    process.start()
    theirs.close()
    with suppress(EOFError):
        ours.recv()
    return process, ours


def judge(store: di_store.Store, table: di_store.Table, told: Told) -> None:
    """What the table counts is what the workers have done, and the room that is left is drawn to the last item."""
    with suppress(di_store.Timeout):
        table.give_back(table.sample(1, lease=LONG, timeout=0))  # from now on this process has an eye on leases
    until(lambda: leased(table) == 0, "the leases of the dead to end")
    limiter = table.stats()["limiter"]
    versions, draws = limiter["inserts"], limiter["samples"]
    assert told.least["version"] <= versions <= told.most["version"]
    assert told.least["draws"] <= draws <= told.most["draws"]
    allowed = (versions + 1 + AHEAD) * BATCH
    assert draws <= allowed
    got = 0
    with suppress(di_store.Timeout):
        while True:
            got += len(table.sample(PROMPTS, timeout=0))
    assert got == allowed - draws
    store.publish("policy", None)
    assert len(table.sample(PROMPTS, timeout=PATIENCE)) == BATCH


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_fault_point_keeps_the_count(
    store: di_store.Store, point: str, count: Callable[[int, int], int]
) -> None:
    table = store.create_table("t", capacity=PROMPTS, limiter=Pace("policy", BATCH, AHEAD))
    table.extend({"n": np.arange(PROMPTS)})
    told = Told()
    for turn in range(40):
        if turn >= count(3, 30) and told.kills >= 4:
            break
        for fault in (f"{point}:{1 + turn % 4}", DEATHS[turn % len(DEATHS)]):
            told.listen(*start(store, 60, turn, fault))
    assert told.kills >= 4
    judge(store, table, told)


def test_a_kill_at_any_instruction_keeps_the_count(store: di_store.Store, count: Callable[[int, int], int]) -> None:
    table = store.create_table("t", capacity=PROMPTS, limiter=Pace("policy", BATCH, AHEAD))
    table.extend({"n": np.arange(PROMPTS)})
    told, rng = Told(), random.Random(5)
    for turn in range(count(8, 200)):
        pair = [start(store, 200, 10 * turn + at) for at in range(2)]
        pair[0][0].join(rng.random() * 0.02)  # at any moment
        for process, _ in pair[: 1 + turn % 2]:
            if process.is_alive():
                process.kill()
        for process, pipe in pair:
            told.listen(process, pipe)
    judge(store, table, told)
