"""An agent that is stopped with a lock in hand, and a learner that confirms late: who else uses the store goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from cluster.nodes import Node, node
from pains import Program, status, until

import di_store

pytestmark = pytest.mark.filterwarnings("ignore:.*were evicted before capacity:RuntimeWarning")
Names = Callable[[], str]
ITEMS = 40

ROW_BYTES, CAPACITY, BATCH = 64 << 10, 640, 32  # 40 MiB of rows
LEARNER = """
import sys
import di_store
with di_store.connect(sys.argv[1]) as store:
    with store.table("t", timeout=60).loader(int(sys.argv[2]), prefetch=4) as loader:
        next(loader)
        print("drawn", flush=True)
        sys.stdin.readline()
        for _ in range(8):
            batch = next(loader)
            assert (batch.data["x"] == batch.data["n"][:, None]).all(), "rows that came after them"
print("whole")
"""


def numbers(first: int, count: int) -> np.ndarray:
    return np.arange(first, first + count)


@pytest.fixture
def stopping(store_name: Names) -> Iterator[Node]:
    """A node whose agent stops at its first draw, with the table's lock."""
    with node(store_name(), env={**os.environ, "DI_STORE_FAULT": "table.draw_item:1:stop"}) as running:
        yield running


def test_an_agent_stopped_with_a_lock_blocks_only_its_waiters(stopping: Node) -> None:
    """It holds up who needs this lock, who is told so; not the other tables, nor objects. Then each item comes once."""
    with di_store.attach(stopping.name) as near, stopping.connect() as far:
        queue = near.create_table("queue", capacity=100, limiter=di_store.Queue(100))
        queue.extend({"n": numbers(0, ITEMS)})
        other = near.create_table("other", capacity=100)
        agent, remote = stopping.agent, far.table("queue")
        with pytest.raises(di_store.Timeout, match="timed out"):
            remote.sample(4, timeout=0.5)
        until(lambda: status(agent)["State"].startswith("T"), "the agent to stop")
        with pytest.raises(di_store.Timeout) as caught:
            queue.sample(4, timeout=0.5)
        assert str(agent) in str(caught.value.culprit)
        assert "stopped" in str(caught.value.culprit)
        other.extend({"n": numbers(0, 10)}, timeout=60)
        assert len(other.sample(4, timeout=60)) == 4
        assert near.get(near.put("x", timeout=60)) == "x"
        os.kill(agent, signal.SIGCONT)
        found = [*remote.sample(4, timeout=60).data["n"]]
        queue.finish()
        with pytest.raises(di_store.EndOfData):
            while True:
                found += [*queue.sample(4, min_n=1, timeout=60).data["n"]]
        assert sorted(found) == list(range(ITEMS))
        assert near.check() == []


@pytest.mark.parametrize("stops", [False, pytest.param(True, marks=pytest.mark.long)], ids=["slow", "stopped"])
def test_a_learner_that_confirms_late_blocks_no_writer(store_name: Names, stops: bool) -> None:
    """What it has drawn holds no rows: others write over them, in a store that has no room for both, and draw.

    Draws that a stopped one has not fetched yet are given back after 30 s.
    """
    with node(store_name(), "--memory", "64MiB") as served, di_store.attach(served.name) as near:
        table = near.create_table("t", capacity=CAPACITY, lanes=1)
        write(table, 0)
        with Program(LEARNER, served.address, BATCH) as learner, served.connect() as far:
            assert learner.line() == "drawn"
            if stops:
                learner.signal(signal.SIGSTOP)
            until(partial(has_room, table), "no row to be held")
            remote = far.table("t")
            for first in range(0, 3 * CAPACITY, CAPACITY):
                write(table, first)
                batch = remote.sample(BATCH, timeout=60)
                assert (batch.data["x"] == batch.data["n"][:, None]).all()
                assert (batch.data["n"] >= first).all(), "rows of before are there"
            assert has_room(table)
            learner.signal(signal.SIGCONT)
            learner.say()
            assert learner.finish()[0].endswith("whole\n")
        assert near.check() == []


def has_room(table: di_store.Table) -> bool:
    """Whether all rows are written over, and none had to go early: if chunks are pinned, memory is short."""
    before = table.stats()["evicted_for_room"]
    write(table, 0)
    return table.stats()["evicted_for_room"] == before and len(table) == CAPACITY


def write(table: di_store.Table, first: int) -> None:
    """As many rows as the table holds, each full of its number."""
    with table.writer() as writer:
        for number in range(first, first + CAPACITY):
            writer.append({"n": number, "x": np.full(ROW_BYTES // 8, number)}, timeout=5)
