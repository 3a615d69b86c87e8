"""Writers of tables in parts do what one of a whole table does; agents are killed, nodes stopped and lost."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pains import until

import di_store
from cluster.nodes import Node, cluster_nodes, stopped
from cluster.shards import ROWS, SCHEMA, filled, numbers, step, table_of
from di_store import cluster
from di_store.base.errors import NodeUnavailable, StoreClosed, WriterClosed
from di_store.cluster.store import ClusterStore
from di_store.replay.keys import shards_of
from di_store.runtime.deadline import Deadline

LANES = 48  # so many that each shard has some
VIEW = di_store.Transition(n_step=2, obs=("n",))
COLUMNS = {**SCHEMA, "reward": di_store.Spec((), "float32")}


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """Three; the last test loses one of them."""
    with cluster_nodes(f"l-{uuid.uuid4().hex[:12]}", 3) as running:
        yield running


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with much else to do, a shard may take more than a second to answer."""
    monkeypatch.setattr("di_store.cluster.shards.shard.LOOK_SECONDS", 20.0)
    monkeypatch.setattr("di_store.cluster.shards.mass.SHARD_SECONDS", 20.0)


@pytest.fixture(autouse=True)
def _no_table_is_left(nodes: list[Node], stores: list[ClusterStore]) -> Iterator[None]:
    yield
    for each in (nodes[0], nodes[2]):
        with di_store.attach(each.name) as plain, cluster.attach(each.name) as last:
            for name in plain.stats()["tables"]:
                last.drop_table(name)


def rows(numbers: Any, ends: bool = False) -> dict[str, Any]:
    given = step(numbers, ends)
    return {**given, "reward": np.ones(given["n"].shape, np.float32)}


Calls = Iterator[tuple[str, dict[str, Any]]]


def stepped(rng: np.random.Generator, mode: str) -> Calls:
    """As a vector environment of 12 lanes that resets itself: the value of a lane counts the steps of its episode."""
    value, over = 1000 * np.arange(12), np.zeros(12, np.bool_)
    for _ in range(40):
        ends = (rng.random(12) < 0.25) & ~over
        options: dict[str, Any] = {"priority": rng.uniform(0.5, 2, 12)}
        if mode == "same_step":
            final = [{"n": v + 1} if e else None for v, e in zip(value.tolist(), ends, strict=True)]
            options["final"] = np.array(final, object)
        yield "append", {"step": rows(value, ends), **options}
        begins = over | ends if mode == "same_step" else over
        value = np.where(begins, value // 20 * 20 + 20, value + 1)
        over = ends if mode == "next_step" else np.zeros(12, np.bool_)


def by_hand(rng: np.random.Generator) -> Calls:
    """Some lanes at a time, in all forms that the arguments have."""
    value = 1000 * np.arange(12)
    for turn in range(40):
        some = np.sort(rng.choice(12, rng.integers(1, 13), replace=False))
        ends = rng.random(len(some)) < 0.25
        options: dict[str, Any] = {"lane": some, "priority": [None, 1.5, rng.random(len(some))][turn % 3]}
        if turn % 2:
            options |= {"lane": np.isin(np.arange(12), some), "next": {"n": value[some] + 1}}
        elif ends.any():
            options["final"] = {"n": value[some][ends] + 1}
        yield "append", {"step": rows(value[some], ends), **options}
        value[some] = np.where(ends, value[some] // 20 * 20 + 20, value[some] + 1)
        if turn % 5 == 4:
            two = rng.permutation(12)[:2]
            block = value[two] + np.arange(3)[:, None]
            options = {"lane": two, "priority": [rng.random((3, 2)), rng.random(3), 2.0][turn % 3]}
            yield "extend", {"steps": rows(block), "next": {"n": block + 1}, **options}
            yield "end_episode", {"lane": int(two[0]), "discard": turn % 2 == 0}
            yield "end_episode", {"lane": two[1:], "final": {"n": value[two[1:]] + 3}}
            value[two] = value[two] // 20 * 20 + 20


@pytest.mark.parametrize("end", ["flush", "close", "extend"])
def test_first_rows_of_a_shard_are_drawn_once_they_are_there(
    stores: list[ClusterStore], patient: None, end: str
) -> None:
    """Also if this process has learned a moment ago that the shard was empty."""
    table = stores[0].create_table("t", shards="learners", draw="mass", **ROWS)
    writer = table.writer(lanes=16)
    drawn: set[int] = set()
    for lane in range(16):
        rows = {"n": np.array([lane]), "terminated": np.zeros(1, np.bool_)}
        keys = table.extend(rows) if end == "extend" else writer.append(rows, lane=[lane]).keys
        if (shard := int(shards_of(keys)[0])) in drawn:
            continue
        if end != "extend":
            getattr(writer, end)()
        drawn.add(shard)
        assert set(shards_of(table.sample(200, timeout=60).keys).tolist()) == drawn
        writer = table.writer(lanes=16) if end == "close" else writer
    assert len(drawn) == 3
    writer.close()


@pytest.mark.parametrize("mode", [None, "next_step", "same_step"])
def test_a_sharded_writer_writes_the_same_rows_as_a_plain_one(stores: list[ClusterStore], mode: str | None) -> None:
    options: dict[str, Any] = {**ROWS, "schema": COLUMNS, "view": VIEW, "sampler": di_store.Prioritized(1.0)}
    options["initial_priority"] = 1.0  # "max" is the largest of a shard
    parts = stores[0].create_table("t", shards="learners", **options)
    whole = stores[0].create_table("whole", **options)
    writers = [each.writer(lanes=12, autoreset=mode) for each in (whole, parts)]
    assert len(set(writers[1]._backend._lanes.at.tolist())) > 1
    made = 0
    for method, given in by_hand(np.random.default_rng(3)) if mode is None else stepped(np.random.default_rng(4), mode):
        one, other = (getattr(writer, method)(**given) for writer in writers)
        assert one.lanes.tolist() == other.lanes.tolist()
        assert one.starts.tolist() == other.starts.tolist()
        left, right = whole.peek(one.keys), parts.peek(other.keys)
        assert left.live.all()
        for name, values in left.data.items():
            assert np.array_equal(values, right.data[name]), (method, name)
        assert np.array_equal(left.priorities, right.priorities)
        made += len(one.keys)
    for writer in writers:
        writer.close()
    assert len(parts) == len(whole) >= made > 100


def test_rows_carry_the_version_of_the_weights(stores: list[ClusterStore]) -> None:
    """That this process last got on its machine, into whatever shard they go."""
    options: dict[str, Any] = {**ROWS, "weights": "policy", "max_staleness": 1}
    table = stores[0].create_table("t", shards="learners", **options)
    with table.writer(lanes=LANES) as writer:
        for version in (1, 2):
            stores[0].publish("policy", {"w": np.zeros(3)})
            assert stores[0].latest("policy").version == version  # type: ignore[union-attr]
            items = writer.append(step(np.arange(LANES)))
            assert set(shards_of(items.keys)) == {0, 1, 2}
            assert set(table.peek(items.keys).versions) == {version}
    single = [table.insert(step(1)) for _ in range(20)]
    assert set(table.peek(np.concatenate(single)).versions) == {2}


def test_rows_are_written_once_despite_a_killed_agent(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """Also those that were on their way, and only once."""
    table = stores[0].create_table("t", shards="learners", draw="mass", **ROWS)
    assert len(stores[0].nodes()) == 3
    with table.writer(lanes=LANES) as writer:
        for t in range(60):
            if t == 30:
                nodes[1].kill_agent()
            writer.append(step(100 * np.arange(LANES) + t))
        writer.flush()
        assert writer._backend._lanes.dropped == 0
    batch = table.peek(table.keys())
    assert sorted(numbers(batch)) == sorted(100 * lane + t for lane in range(LANES) for t in range(60))
    assert set(shards_of(batch.keys)) == {0, 1, 2}
    until(lambda: set(shards_of(table.sample(300, timeout=60).keys)) == {0, 1, 2}, "all shards to be drawn from")


def test_a_stopped_node_blocks_no_writer(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """Its shard is left out after a second, and comes back with it. A call of it alone ends by its deadline."""
    assert len(stores[0].nodes()) == 3
    table, _ = filled(stores[0], "t", [20, 20, 20], draw="mass")
    at = [shard.uuid for shard in table._backend.parts.shards].index(stores[1].node.cluster.here.uuid)
    table.sample(10, timeout=60)
    with stopped(*nodes[1].pids):
        until(lambda: at not in shards_of(table.sample(50, timeout=20).keys), "its share to be 0")
        began = time.monotonic()
        for _ in range(20):
            assert at not in shards_of(table.sample(50, timeout=20).keys)
        assert time.monotonic() - began < 10
    until(lambda: at in shards_of(table.sample(50, timeout=20).keys), "its shard to be back")


def test_writers_of_a_closed_store_raise(nodes: list[Node], stores: list[ClusterStore]) -> None:
    filled(stores[0], "t", [2, 2, 2], draw="mass")
    store = cluster.attach(nodes[1].name)
    table = store.table("t")
    loader, writer = table.loader(2, timeout=60), table.writer(lanes=8)
    next(loader)
    writer.append(step(np.arange(8)))
    store.close()
    table._backend.parts.answers.forget()
    began = time.monotonic()
    for call in (
        lambda: table.sample(1),
        lambda: len(table),
        lambda: table.insert(step(1)),
        lambda: next(loader),
        lambda: writer.append(step(np.arange(8))),
    ):
        with pytest.raises((StoreClosed, WriterClosed)):
            call()
    assert time.monotonic() - began < 30, "it waits for shards that a closed store cannot reach"


def test_a_creator_that_lost_a_race_opens_the_table(
    stores: list[ClusterStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look and its own word another process has made the table."""
    made = stores[0].create_table("t", shards="learners", **ROWS)
    made.insert(step(1))
    late = stores[1].node.tables
    looks, entry = iter([None]), late._entry

    def look(name: str, timeout: float | None) -> Any:
        return None if next(looks, ...) is None else entry(name, timeout)

    monkeypatch.setattr(late, "_entry", look)
    assert len(stores[1].create_table("t", shards="learners", exist_ok=True, **ROWS)) == 1


@pytest.mark.usefixtures("patient")
def test_several_threads_see_all_shards(stores: list[ClusterStore]) -> None:
    """One thread's question may be on its way when another one asks."""
    table, _ = filled(stores[0], "t", [1, 2, 3])
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.extend(len(table) for _ in range(30))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [6] * 120


def test_a_late_call_does_not_ask_for_long_whether_a_shard_is_lost(
    nodes: list[Node], stores: list[ClusterStore]
) -> None:
    """It ends by its deadline and a second. What it has asked is known to the next one."""
    table = stores[0].create_table("t", shards="learners", **ROWS)
    parts, why = table._backend.parts, NodeUnavailable("it does not answer")
    shard = next(each for each in parts.shards if each.uuid == stores[1].node.cluster.here.uuid)
    assert len(table) == 0
    with stopped(*nodes[1].pids):
        assert not parts.is_lost(shard, why, Deadline(0.5).step(100))
        until(lambda: parts.is_lost(shard, why, Deadline(0.5).step(100)), "the shard to be known as silent")


def test_leased_items_of_a_process_are_summed_over_the_nodes(stores: list[ClusterStore], nodes: list[Node]) -> None:
    """Processes of different nodes may have the same pid: here it is one process."""
    filled(stores[0], "t", [5, 5, 5])
    with di_store.attach(nodes[0].name) as one, di_store.attach(nodes[1].name) as two:
        for number, near in enumerate((one, two), 1):
            near.table("t").sample(number, lease=600)
        leased = stores[0].table("t").stats()["leased"]
        assert (leased["items"], list(leased["holders"].values())) == (3, [3])
    stores[0].drop_table("t")


def test_lanes_of_a_lost_node_move_to_other_shards(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """Its lanes are told, and go elsewhere with their next episodes; draws go on; names can be given again."""
    assert all(len(each.nodes()) == 3 for each in stores)
    options: dict[str, Any] = {**ROWS, "schema": COLUMNS, "view": VIEW}
    table = stores[0].create_table("t", shards="learners", draw="mass", **options)
    local = stores[2].create_table("u", shards="learners", **ROWS)
    lost = [shard.uuid for shard in table._backend.parts.shards].index(stores[1].node.cluster.here.uuid)
    others = {0, 1, 2} - {lost}
    stores[1].close()
    writer = table.writer(lanes=LANES)
    for t in range(4):
        now = 1000 * np.arange(LANES) + t
        writer.append(rows(now), next={"n": now + 1})
    writer.flush()
    before = table.sample(200, timeout=60)
    assert set(shards_of(before.keys)) == {0, 1, 2}
    nodes[1].lose()
    _draws_go_on(table, before, lost)
    _lanes_move(table, writer, lost)

    late = stores[2].table("t", timeout=1)
    assert set(shards_of(late.sample(50, timeout=20).keys)) == others
    with late.writer(lanes=LANES) as second:
        assert set(second._backend._lanes.at.tolist()) == others
    inserts = 0
    while inserts < 8:
        try:
            assert shards_of(local.insert(step(1), timeout=0.1))[0] in others
            inserts += 1
        except NodeUnavailable:
            assert inserts < 8
    assert set(shards_of(local.sample(5, timeout=20).keys)) == {local._backend.parts.own().number}
    with pytest.raises(NodeUnavailable):
        local.delete(np.array([lost << 56], np.uint64), timeout=0.1)
    for name in "tu":
        stores[0].drop_table(name, timeout=1)
    with di_store.attach(stores[2].name) as plain:
        assert not plain.stats()["tables"]
    assert len(stores[0].create_table("t", shards="learners", **ROWS)._backend.parts.shards) == 2
    stores[0].drop_table("t")


def _draws_go_on(table: Any, before: Any, lost: int) -> None:
    """From the others, with probabilities of what is left."""
    there = shards_of(before.keys) != lost
    began = time.monotonic()
    batches = [table.sample(100, timeout=20) for _ in range(20)]
    assert time.monotonic() - began < 20
    assert all(lost not in shards_of(each.keys) for each in batches[-10:])
    told = table.stats()["shards"]
    assert [each["error"] == "" for each in told] == [at != lost for at in range(3)]
    size = sum(each["stats"]["size"] for each in told if each["stats"] is not None)
    np.testing.assert_allclose(batches[-1].probabilities, 1 / size)
    assert len(table) == size
    assert table.update_priorities(before.keys, np.ones(200)) == there.sum()
    assert table.peek(before.keys).live.tolist() == there.tolist()
    with table.loader(50, timeout=20) as loader:
        assert lost not in shards_of(next(loader).keys)


def _lanes_move(table: Any, writer: Any, lost: int) -> None:
    """With their next episode. What the lost shard's lanes write until then is in none."""
    gone = writer._backend._lanes.at == lost
    lanes, kept = 1000 * np.arange(LANES), np.flatnonzero(~gone)
    with (
        pytest.warns(RuntimeWarning, match="is lost; the open episodes"),
        pytest.raises(NodeUnavailable, match="has already written lanes") as failed,
    ):
        writer.append(rows(lanes + 4), next={"n": lanes + 5}, timeout=0.5)
    assert failed.value.written == kept.tolist()  # type: ignore[attr-defined]
    items = writer.append(rows(lanes + 5, True), next={"n": lanes + 6}, timeout=20)
    assert set(items.lanes.tolist()) == set(kept.tolist())
    assert writer._backend._lanes.dropped == 2 * gone.sum()
    for t in range(100, 103):
        writer.append(rows(lanes + t, t == 102), next={"n": lanes + t + 1}, timeout=20)
    writer.close()
    assert len(set(writer._backend._lanes.at.tolist()) - {lost}) == 2
    found = [table_of(table._backend.parts.shards[at]) for at in range(3) if at != lost]
    there = np.concatenate([numbers(each.peek(each.keys())) for each in found])
    first = {1000 * lane + t for lane in kept.tolist() for t in range(6)}
    again = {1000 * lane + t for lane in range(LANES) for t in range(100, 103)}
    assert sorted(there) == sorted(first | again), "an example spans what was lost, or rows are not there once"
