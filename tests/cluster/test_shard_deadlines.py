"""Calls of tables in parts whose agents are stopped, or whose nodes are lost: all shards share one deadline."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from pains import until

import di_store
from cluster.nodes import Node, cluster_nodes, stopped
from cluster.shards import ROWS, filled, step
from di_store import cluster
from di_store.base.errors import StoreError
from di_store.cluster.shards import sharded_table as tables
from di_store.cluster.shards import sharded_writer as writers
from di_store.cluster.shards.sharded_table import ShardedTable
from di_store.cluster.store import ClusterStore
from di_store.runtime.deadline import GRACE_SECONDS, Deadline

SECONDS = 1.0
MOST_SECONDS = 10 * (SECONDS + GRACE_SECONDS)
"""What a call may take on a machine that is busy with other things."""
LONG_SECONDS = 30.0
LANES = 48  # so many that each shard has some

Call = Callable[[], Any]
CALLS: dict[str, Callable[[Any, Any], Call]] = {
    "insert": lambda table, keys: lambda: inserted(table.insert, step(1)),
    "extend": lambda table, keys: lambda: inserted(table.extend, step(np.arange(3))),
    "sample": lambda table, keys: lambda: table.sample(300, timeout=SECONDS),
    "next": lambda table, keys: table.loader(300, timeout=SECONDS).__next__,
    "next now": lambda table, keys: table.loader(300, timeout=SECONDS, prefetch=0).__next__,
    "keys": lambda table, keys: lambda: table.keys(timeout=SECONDS),
    "evicted": lambda table, keys: lambda: table.evicted(timeout=SECONDS),
    "peek": lambda table, keys: lambda: table.peek(keys),
    "update": lambda table, keys: lambda: table.update(keys, {"n": np.ones(len(keys), np.int64)}, timeout=SECONDS),
    "update_priorities": lambda table, keys: lambda: table.update_priorities(keys, np.ones(len(keys)), timeout=SECONDS),
    "delete": lambda table, keys: lambda: table.delete(keys, timeout=SECONDS),
    "reset": lambda table, keys: lambda: table.reset(timeout=SECONDS),
    "resize": lambda table, keys: lambda: table.resize(6000, timeout=SECONDS),
    "configure": lambda table, keys: lambda: table.configure(limiter=di_store.MinSize(2), timeout=SECONDS),
    "finish": lambda table, keys: lambda: table.finish(timeout=SECONDS),
    "stats": lambda table, keys: table.stats,
    "len": lambda table, keys: lambda: len(table),
    "writer": lambda table, keys: lambda: table.writer(lanes=LANES),
    "append": lambda table, keys: written(table, lambda writer: writer.append(step(np.arange(LANES)), timeout=SECONDS)),
    "append some": lambda table, keys: written(table, appended_twice),
    "append rows": lambda table, keys: written(
        table, lambda writer: writer.extend(step(np.ones((3, LANES))), timeout=SECONDS)
    ),
    "end_episode": lambda table, keys: written(table, lambda writer: writer.end_episode(timeout=SECONDS)),
    "flush": lambda table, keys: written(table, lambda writer: writer.flush(timeout=SECONDS)),
    "close": lambda table, keys: written(table, lambda writer: writer.close(timeout=SECONDS)),
}

TELLING = ("insert", "sample", "next", "update_priorities", "stats", "append", "close")
"""Calls of `CALLS` that go different ways: `make test` has these."""


def inserted(insert: Callable[..., Any], value: Any) -> None:
    """Until it meets a shard that does not answer: the call goes to one."""
    for _ in range(40):
        began = time.monotonic()
        insert(value, timeout=SECONDS)
        assert time.monotonic() - began < MOST_SECONDS


def written(table: Any, call: Callable[[Any], Any]) -> Call:
    """A call of a writer of all shards, which has rows on their way by then."""
    writer = table.writer(lanes=LANES)
    writer.append(step(np.arange(LANES)))
    writer.flush()

    def made() -> None:
        writer.append(step(np.arange(LANES)))
        call(writer)

    return made


def appended_twice(writer: Any) -> None:
    """What a failed call leaves behind holds up the next one no longer."""
    with suppress(StoreError):
        writer.append(step(np.arange(LANES // 2)), lane=np.arange(LANES // 2), timeout=0)
    writer.append(step(np.arange(LANES)), timeout=0)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """Three; the last test loses two of them."""
    with cluster_nodes(f"d-{uuid.uuid4().hex[:12]}", 3, "--memory", "64MiB") as running:
        yield running


@pytest.fixture
def store(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterStore]:
    """The first node's. Calls without a timeout of their own have a second too."""
    monkeypatch.setattr(tables, "_CALL_SECONDS", SECONDS)
    monkeypatch.setattr(writers, "CONNECT_SECONDS", SECONDS)
    with cluster.attach(nodes[0].name) as made:
        until(lambda: len(made.nodes()) == len(nodes), "all nodes to be seen")
        yield made


def seconds_of(call: Call) -> float:
    began = time.monotonic()
    with suppress(StoreError):
        call()
    return time.monotonic() - began


@pytest.mark.parametrize(
    "name", [name if name in TELLING else pytest.param(name, marks=pytest.mark.extended) for name in CALLS]
)
def test_a_call_ends_by_its_deadline_and_a_second(store: ClusterStore, nodes: list[Node], name: str) -> None:
    """Two of three agents are stopped."""
    keys = filled(store, "t", [100, 100, 100], draw="mass")[1]
    call = CALLS[name](store.table("t"), keys)
    with stopped(nodes[1].agent, nodes[2].agent):
        took = seconds_of(call)
    del call
    store.drop_table("t", timeout=60)
    assert took < MOST_SECONDS


def test_priority_updates_do_not_wait_for_a_silent_shard(store: ClusterStore, nodes: list[Node]) -> None:
    """One that has answered a moment ago, and is stopped by now: the call has a minute, and does not wait for that."""
    table, keys = filled(store, "t", [100, 100, 100], draw="mass")
    table.stats()
    with stopped(nodes[2].agent):
        assert table.update_priorities(keys, np.ones(len(keys)), timeout=4 * LONG_SECONDS) == 200
    assert table.update_priorities(keys, np.ones(len(keys)), timeout=LONG_SECONDS) in (200, 300)
    store.drop_table("t", timeout=60)


def test_a_table_is_opened_without_shards_that_do_not_answer(store: ClusterStore, nodes: list[Node]) -> None:
    """However many they are; calls open them later, within their own deadlines."""
    filled(store, "t", [1, 1, 1], draw="mass")
    of_others = np.array([1 << 56 | 99_999, 2 << 56 | 99_999], np.uint64)  # none of them is there
    with stopped(nodes[1].agent, nodes[2].agent):
        took = seconds_of(lambda: store.table("t", timeout=SECONDS))
        table = store.table("t", timeout=0)
        later = seconds_of(lambda: table.delete(of_others, timeout=SECONDS))
    assert table.delete(of_others, timeout=60) == 0
    store.drop_table("t", timeout=60)
    assert max(took, later) < MOST_SECONDS


def test_a_silent_shard_leaves_time_for_the_others(store: ClusterStore, nodes: list[Node]) -> None:
    """None lies here, and the first one's node, which is known, does not answer. The call does not need its minute."""
    places = [nodes[1].name, nodes[2].name]
    store.create_table("t", shards="learners", node=places, draw="mass", **ROWS).insert(step(1))
    with stopped(nodes[1].agent):
        assert seconds_of(lambda: store.table("t", timeout=60)) < LONG_SECONDS
        assert isinstance(store.table("t", timeout=60)._backend, ShardedTable)
    store.drop_table("t", timeout=60)


def test_one_answering_shard_is_enough_to_open(store: ClusterStore, nodes: list[Node]) -> None:
    """None answers for a while, then the last one does. The first one's node stays silent."""
    places = [nodes[1].name, nodes[2].name]
    store.create_table("late", shards="learners", node=places, draw="mass", **ROWS).insert(step(1))
    agent = nodes[2].agent
    goes_on = threading.Timer(3 * GRACE_SECONDS, os.kill, (agent, signal.SIGCONT))
    try:
        with stopped(nodes[1].agent, agent):
            goes_on.start()
            assert isinstance(store.table("late", timeout=LONG_SECONDS)._backend, ShardedTable)
            goes_on.join()
    finally:
        store.drop_table("late", timeout=60)


def test_a_late_step_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle connection of it may have broken."""
    monkeypatch.setattr("di_store.runtime.deadline.GRACE_SECONDS", grace := 1000.0)
    call = Deadline(5000.0)
    call.count(5000.0 + grace / 2)
    assert not call.step(1).is_hopeless(0.0)
    assert call.is_hopeless(0.0)


def test_the_grace_period_is_divided_among_the_remaining_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("di_store.runtime.deadline.GRACE_SECONDS", grace := 1000.0)
    call = Deadline(5.0)
    first = call.step(4)
    assert (first.timeout, first.grace, first.began) == (5.0, grace / 4, call.began)
    call.count(5.0 + grace / 2)
    third, last = call.step(2), call.step(1)
    assert third.left == last.left == 0
    assert third.rest() == pytest.approx(grace / 4, abs=20)
    assert last.rest() == pytest.approx(grace / 2, abs=20)
    assert not last.over()
    call.count(5.0 + grace)
    assert call.step(3).late()
    assert call.step(3).rest() == 0
    assert Deadline(None).step(3).rest() is None


def test_a_part_of_a_step_ends_with_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("di_store.runtime.deadline.GRACE_SECONDS", grace := 1000.0)
    call = Deadline(500.0)
    assert (call.sooner(100.0).timeout, call.sooner(100.0).grace) == (100.0, grace)
    call.count(470.0)
    assert call.sooner(100.0).timeout == pytest.approx(30, abs=20)
    call.count(500.0 + grace / 2)
    late = call.sooner(100.0)
    assert (late.timeout, late.left) == (0, 0)
    assert late.grace == pytest.approx(grace / 2, abs=20)
    assert Deadline(None).sooner(1.0).timeout == 1.0


@pytest.mark.extended
def test_calls_end_in_time_with_lost_nodes(store: ClusterStore, nodes: list[Node]) -> None:
    """The last test: nothing listens where two of three were."""
    keys = filled(store, "t", [100, 100, 100], draw="mass")[1]
    calls = {name: made(store.table("t"), keys) for name, made in CALLS.items()}
    for node in nodes[1:]:
        node.lose()
    took = {name: seconds_of(call) for name, call in calls.items()}
    assert not {name: seconds for name, seconds in took.items() if seconds > MOST_SECONDS}
