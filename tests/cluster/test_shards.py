"""Tables in parts over three nodes: where rows go, how they are drawn, and what is refused."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from cluster.nodes import Node, attached, cluster_nodes
from cluster.shards import ROWS, SCHEMA, SURE, chi_square, filled, numbers, step, table_of
from di_store import cluster
from di_store.base.errors import EndOfData, StoreError, TableExists, TableNotFound, Timeout, WriterClosed
from di_store.cluster.directory import TableEntry, packed
from di_store.cluster.joining import STORE_ENV
from di_store.cluster.shards.division import shard_settings
from di_store.cluster.store import ClusterStore
from di_store.policy.limiters import Band
from di_store.replay.keys import shards_of
from di_store.runtime.deadline import Deadline


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with cluster_nodes(f"p-{uuid.uuid4().hex[:12]}", 3) as running:
        yield running


@pytest.fixture
def stores(nodes: list[Node]) -> Iterator[list[ClusterStore]]:
    with attached(nodes) as made:
        yield made
    with cluster.attach(nodes[0].name) as last:
        for name in tables_of(nodes):
            last.drop_table(name)
    assert not tables_of(nodes)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with much else to do, a shard may take more than a second to answer."""
    monkeypatch.setattr("di_store.cluster.shards.shard.LOOK_SECONDS", 20.0)
    monkeypatch.setattr("di_store.cluster.shards.mass.SHARD_SECONDS", 20.0)


def tables_of(nodes: list[Node]) -> set[str]:
    found: set[str] = set()
    for each in nodes:
        with di_store.attach(each.name) as plain:
            assert plain.check() == []
            found |= set(plain.stats()["tables"])
    return found


def test_every_row_is_stored_once_and_each_episode_in_one_shard(stores: list[ClusterStore]) -> None:
    """16 lanes of two writers on different nodes, with and without an axis of time."""
    view = di_store.Transition(n_step=2, obs=("n",))
    schema = {**SCHEMA, "reward": di_store.Spec((), "float32")}
    table = stores[0].create_table("t", shards="learners", **{**ROWS, "schema": schema}, view=view)
    near, far = table.writer(lanes=16), stores[1].table("t").writer(lanes=16)
    shards: set[int] = set()
    for number, writer in enumerate((near, far)):
        seen: dict[int, set[int]] = {}
        for episode in range(3):
            base = 10_000 * number + 1000 * episode
            for t in range(4):
                rows = {**step(base + 10 * np.arange(16) + t, t == 3), "reward": np.ones(16, np.float32)}
                items = writer.append(rows, next={"n": rows["n"] + 1})
                for lane, key in zip(items.lanes.tolist(), items.keys, strict=True):
                    seen.setdefault(lane, set()).add(int(key >> np.uint64(56)))
                assert (np.diff(items.lanes) >= 0).all()
        assert set(seen) == set(range(16))
        assert all(len(each) == 1 for each in seen.values()), "a lane has changed its shard"
        shards |= set.union(*seen.values())
        rows = {
            **step(500_000 + 100 * number + np.array([[0, 10, 20], [1, 11, 21]])),
            "reward": np.ones((2, 3), np.float32),
        }
        rows["terminated"][-1] = True
        writer.extend(rows, lane=[1, 5, 7], next={"n": rows["n"] + 1})
        writer.append({"n": 900_000 + number, "terminated": True, "reward": 1.0}, lane=3, next={"n": 1})
        writer.close()
        with pytest.raises(WriterClosed):
            writer.append(rows, lane=[1])
    assert shards == {0, 1, 2}
    batch = table.peek(table.keys())
    assert batch.live.all()
    wanted = {
        10_000 * w + 1000 * e + 10 * lane + t for w in (0, 1) for e in range(3) for lane in range(16) for t in range(4)
    }
    wanted |= {500_000 + 100 * w + 10 * at + t for w in (0, 1) for at in range(3) for t in (0, 1)} | {900_000, 900_001}
    assert sorted(numbers(batch)) == sorted(wanted)
    assert (batch.data["next_n"][batch.data["steps"] == 2] == numbers(batch)[batch.data["steps"] == 2] + 2).all()
    assert len(table) == len(wanted) == table.stats()["size"]


def test_streams_and_whole_items_can_be_written(stores: list[ClusterStore]) -> None:
    table = stores[2].create_table("t", shards="learners", **ROWS)
    with table.writer() as writer:
        keys = [writer.append(step(n)).keys for n in range(5)]
        writer.flush()
    assert len({int(shards_of(key)[0]) for key in keys}) == 1
    single = [table.insert(step(10 + n)) for n in range(40)]
    several = [table.extend(step(100 * m + np.arange(7))) for m in range(1, 4)]
    assert len({int(shards_of(key)[0]) for key in single}) == 3
    assert all(len(set(shards_of(each))) == 1 for each in several)
    every = np.concatenate([*keys, *single, *several])
    rng = np.random.default_rng(1)
    order = rng.permutation(len(every))
    batch = stores[0].table("t").peek(every[order])
    expected = [*range(5), *range(10, 50), *range(100, 107), *range(200, 207), *range(300, 307)]
    assert numbers(batch).tolist() == np.array(expected)[order].tolist()
    assert (batch.keys == every[order]).all()
    assert table.keys(3, 5).tolist() == table.keys()[3:8].tolist()


# --- draws ------------------------------------------------------------------------------------------------------------

SIZES = [5, 20, 35]
PRIORITIES = np.random.default_rng(2).uniform(0.1, 4, sum(SIZES))
SAMPLER = di_store.Prioritized(0.7, 0.5)
OF = np.repeat(np.arange(3), SIZES)


def chances_of(masses: Any, draw: str) -> Any:
    """P of each item, and the share of each shard."""
    sums = np.bincount(OF, masses)
    shares = sums / sums.sum() if draw == "mass" else np.full(3, 1 / 3)
    return masses / sums[OF] * shares[OF], shares


@pytest.mark.parametrize("draw", ["local", "mass"])
@pytest.mark.parametrize("sampler", [di_store.Uniform(), SAMPLER], ids=["uniform", "prioritized"])
def test_draws_follow_their_probabilities(stores: list[ClusterStore], draw: str, sampler: Any) -> None:
    """Through `sample` and loaders: all learners of a table in local draws, one in draws by mass."""
    filled(stores[0], "t", SIZES, PRIORITIES, draw=draw, sampler=sampler)
    chances, shares = chances_of(PRIORITIES**0.7 if sampler is SAMPLER else np.ones(60), draw)
    learners = [each.table("t") for each in stores] if draw == "local" else [stores[1].table("t")]
    drawn = []
    for learner in learners:
        batches = [learner.sample(1000, timeout=60) for _ in range(8)]
        with learner.loader(500, timeout=60) as loader:
            batches += [next(loader) for _ in range(4)]
        for batch in batches:
            np.testing.assert_allclose(batch.probabilities, chances[numbers(batch)], rtol=1e-9)
            assert batch.table_size == 60
        drawn += [numbers(batch) for batch in batches]
        if draw == "local":
            assert len(set(OF[np.concatenate([numbers(batch) for batch in batches])])) == 1
    assert chi_square(np.concatenate(drawn), chances) > SURE
    if draw == "mass":  # the number from each shard is chance too
        alone = [numbers(learners[0].sample(1, timeout=60))[0] for _ in range(200)]
        assert chi_square(OF[alone], shares) > SURE


@pytest.mark.parametrize("draw", ["local", "mass"])
def test_weights_are_those_of_one_table(stores: list[ClusterStore], draw: str) -> None:
    """(N P)^-beta over the largest: that of the batch with draws by mass, that of the table for all learners alike."""
    filled(stores[0], "t", SIZES, PRIORITIES, draw=draw, sampler=SAMPLER)
    chances, _ = chances_of(PRIORITIES**0.7, draw)
    means = []
    for store in stores:
        table = store.table("t")
        for beta in (None, 1.0, 0.0):
            batch = table.sample(400, timeout=60, beta=beta)
            mine = chances[numbers(batch)]
            least = chances.min() if draw == "local" else mine.min()
            np.testing.assert_allclose(batch.weights, (least / mine) ** (0.5 if beta is None else beta), rtol=1e-4)
        with table.loader(300, beta=1.0, timeout=60) as loader:
            batch = next(loader)
        least = chances.min() if draw == "local" else chances[numbers(batch)].min()
        np.testing.assert_allclose(batch.weights, least / chances[numbers(batch)], rtol=1e-4)
        peeked = table.peek(table.keys())
        np.testing.assert_allclose(peeked.probabilities, chances, rtol=1e-9)
        # beta=1: the mean over all learners of what one gives is that over the table, times what all divide by
        own = store.table("t")._backend.parts.own().number == OF if draw == "local" else np.ones(60, np.bool_)
        within = np.where(own, chances / chances[own].sum(), 0)
        means.append(float((within * chances.min() / chances * np.arange(60.0)).sum()))
    assert np.mean(means) == pytest.approx(60 * chances.min() * np.mean(np.arange(60.0)), rel=1e-9)


def test_weights_are_relative_to_the_largest_of_the_table(stores: list[ClusterStore]) -> None:
    sampler = di_store.Prioritized(0.7, 0.5, normalize="table")
    filled(stores[0], "t", SIZES, PRIORITIES, draw="mass", sampler=sampler)
    chances, _ = chances_of(PRIORITIES**0.7, "mass")
    batch = stores[1].table("t").sample(3, timeout=60)
    np.testing.assert_allclose(batch.weights, (chances.min() / chances[numbers(batch)]) ** 0.5, rtol=1e-4)
    assert stores[1].table("t").sampler == sampler


def test_weights_are_unbiased_while_masses_move(stores: list[ClusterStore], monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner's masses are of before others changed them: the weights are those of how it has drawn by these."""
    _, keys = filled(stores[0], "t", SIZES, PRIORITIES, draw="mass", sampler=SAMPLER)
    learner = stores[1].table("t")
    monkeypatch.setattr("di_store.cluster.shards.mass.FRESH_SECONDS", 1e9)
    learner.sample(1, timeout=60)
    _, shares = chances_of(PRIORITIES**0.7, "mass")
    now = np.where(OF == 0, 50.0, 0.2) * PRIORITIES
    assert stores[0].table("t").update_priorities(keys, now) == 60
    masses = now**0.7
    chances = masses / np.bincount(OF, masses)[OF] * shares[OF]
    assert np.abs(chances / (masses / masses.sum()) - 1).max() > 1, "nothing has moved"
    values = np.arange(60.0) ** 2
    found, drawn = [], []
    for _ in range(40):
        batch = learner.sample(1000, timeout=60, beta=1.0)
        mine = numbers(batch)
        np.testing.assert_allclose(batch.probabilities, chances[mine], rtol=1e-9)
        np.testing.assert_allclose(batch.weights * chances[mine], chances[mine].min(), rtol=1e-4)
        found.append(values[mine] / batch.probabilities)
        drawn.append(mine)
    estimate = np.concatenate(found)
    error = estimate.std() / np.sqrt(len(estimate))
    assert abs(estimate.mean() - values.sum()) < 5 * error
    assert error < 0.02 * values.sum(), "the estimate says nothing"
    assert chi_square(np.concatenate(drawn), chances) > SURE


def test_priority_masses_are_refreshed(stores: list[ClusterStore], monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that has drawn hears of new masses within a second; here, with less patience, at once."""
    _, keys = filled(stores[0], "t", SIZES, PRIORITIES, draw="mass", sampler=SAMPLER)
    learner = stores[1].table("t")
    learner.sample(1, timeout=60)
    monkeypatch.setattr("di_store.cluster.shards.mass.FRESH_SECONDS", 0.0)
    with learner.loader(300, prefetch=3, timeout=60) as loader:
        assert all(set(shards_of(next(loader).keys)) == {0, 1, 2} for _ in range(8)), "a shard that was not asked"
    now = np.where(OF == 1, 0.0, 1.0)
    assert learner.update_priorities(keys, now) == 60
    assert chi_square(numbers(learner.sample(2000, timeout=60)), now / 40) > SURE
    learner.update_priorities(keys, np.zeros(60))
    with pytest.raises(Timeout, match="priorities are 0"):
        learner.sample(1, timeout=0.1)


def test_a_node_without_a_shard_draws_from_one(nodes: list[Node], stores: list[ClusterStore]) -> None:
    """It draws from one of the others, always the same."""
    table = stores[0].create_table("t", shards="learners", node=[nodes[0].name, nodes[1].name], **ROWS)
    for shard in table._backend.parts.shards:
        table_of(shard).extend(step(np.arange(10) + 100 * shard.number))
    third = [stores[2].table("t") for _ in range(3)]
    assert len({int(number) // 100 for each in third for number in numbers(each.sample(20, timeout=60))}) == 1


def test_each_shard_has_its_share_of_the_limits(stores: list[ClusterStore]) -> None:
    table = stores[0].create_table("t", shards="learners", limiter=di_store.MinSize(30), max_bytes="3MiB", **ROWS)
    assert table.capacity == 9000
    with di_store.attach(stores[1].name) as plain:
        own = plain.table("t").stats()
        assert (own["capacity"], own["max_bytes"], own["limiter"]["min_size"]) == (3000, 1 << 20, 10)
    whole = table._backend.settings
    assert shard_settings(whole, 3, 2, "local").seed == whole.seed + 2
    stores[2].table("t").resize(900)
    table.configure(limiter=di_store.MinSize(3))
    assert table.stats()["limiter"]["min_size"] == 3
    assert table.stats()["capacity"] == 900


def test_a_queue_gives_each_item_once(stores: list[ClusterStore]) -> None:
    """Each learner the items of its shard, in their order."""
    table = stores[0].create_table("t", shards="learners", limiter=di_store.Queue(300), **ROWS)
    with table.writer(lanes=16) as writer:
        for t in range(10):
            writer.append(step(100 * np.arange(16) + t))
    table.finish()
    seen: list[int] = []
    for store in stores:
        mine: list[int] = []
        with store.table("t").loader(7, timeout=60) as loader:
            for batch in loader:
                mine += numbers(batch).tolist()
        for lane in {n // 100 for n in mine}:
            assert [n % 100 for n in mine if n // 100 == lane] == list(range(10))
        seen += mine
    assert sorted(seen) == sorted(100 * lane + t for lane in range(16) for t in range(10))


def test_draws_by_mass_wait_for_items(stores: list[ClusterStore]) -> None:
    table = stores[0].create_table("t", shards="learners", draw="mass", limiter=di_store.MinSize(60), **ROWS)
    with pytest.raises(Timeout, match="0 of min_size=60"):
        table.sample(1, timeout=0.1)
    table_of(table._backend.parts.shards[0]).extend(step(np.arange(59)))
    with pytest.raises(Timeout, match="59 of min_size=60"):
        stores[1].table("t").sample(1, timeout=0.1)
    threading.Timer(0.2, table_of(table._backend.parts.shards[0]).extend, (step(np.arange(5)),)).start()
    assert set(shards_of(stores[2].table("t").sample(50, timeout=60).keys)) == {0}
    small = stores[1].create_table(
        "u", shards="learners", draw="mass", limiter=di_store.MinSize(60), **{**ROWS, "capacity": 90}
    )
    table_of(small._backend.parts.shards[1]).extend(step(np.arange(30)))
    assert set(shards_of(small.sample(5, timeout=60).keys)) == {1}
    table.reset()
    table.finish()
    with pytest.raises(EndOfData):
        table.sample(1, timeout=60)


def test_two_creators_make_one_table(stores: list[ClusterStore]) -> None:
    for turn in range(6):
        made: list[Any] = []

        def make(store: ClusterStore, made: list[Any] = made, turn: int = turn) -> None:
            try:
                made.append(
                    store.create_table(f"t{turn}", shards="learners", draw="mass", exist_ok=turn % 2 == 0, **ROWS)
                )
            except TableExists as error:
                made.append(error)

        threads = [threading.Thread(target=make, args=(each,)) for each in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tables = [each for each in made if isinstance(each, di_store.Table)]
        assert len(tables) == (3 if turn % 2 == 0 else 1), made
        tables[0].insert(step(turn))
        assert [len(each) for each in (*tables, stores[1].table(f"t{turn}"))] == [1] * (len(tables) + 1)
    for other, match in (
        ({"draw": "local", "shards": "learners"}, "draw='local' was given, the table has 'mass'"),
        ({}, "3 shards"),
        ({"draw": "mass", "shards": "learners", "sampler": di_store.Prioritized(0.5)}, "sampler"),
    ):
        with pytest.raises(TableExists, match=match):
            stores[0].create_table("t0", exist_ok=True, **ROWS, **other)


def test_opening_a_half_made_table_completes_it(stores: list[ClusterStore]) -> None:
    """The process that was to make the table has died after its word, or in the middle of the shards."""
    made = stores[0].create_table("u", shards="learners", **ROWS)
    uuids = tuple(shard.uuid for shard in made._backend.parts.shards)
    entry = TableEntry(made._backend.settings.to_text(), uuids, "mass")
    directory = stores[0].node.cluster.directory
    assert directory.swap("table/t", None, packed(entry), 20)
    table = stores[1].table("t")
    table.insert(step(1))
    assert [len(each.table("t")) for each in stores] == [1, 1, 1]
    every, begun = stores[0].node.tables, TableEntry(made._backend.settings.to_text(), uuids)
    assert directory.swap("table/v", None, packed(begun), 20)
    (node,) = (each for each in stores[0].node.cluster.nodes() if each.uuid == uuids[1])
    di_store.Table(every._make(node, "v", begun, Deadline(20))).extend(step(np.arange(3)))
    assert len(stores[1].create_table("v", exist_ok=True, shards="learners", **ROWS)) == 3
    assert [len(each.table("v")) for each in stores] == [3, 3, 3]


def test_a_shard_that_does_not_fit_leaves_nothing(nodes: list[Node], stores: list[ClusterStore]) -> None:
    with di_store.attach(nodes[2].name) as plain:
        plain.create_table("t", capacity=5)
        with pytest.raises(TableExists, match="already has its own table"):
            stores[0].create_table("t", shards="learners", exist_ok=True, **ROWS)
        plain.drop_table("t")
    with pytest.raises(di_store.CapacityError):
        stores[0].create_table("t", shards="learners", **{**ROWS, "capacity": 10**8})
    assert not tables_of(nodes)
    with pytest.raises(TableNotFound):
        stores[1].table("t")


def _there(name: str, sent: bytes, answer: Any) -> None:
    os.environ[STORE_ENV] = name
    table = pickle.loads(sent)
    answer.put((type(table._backend).__name__, len(table), numbers(table.sample(5, timeout=60)).tolist()))


def test_a_sharded_table_can_be_pickled(nodes: list[Node], stores: list[ClusterStore]) -> None:
    table, _ = filled(stores[0], "t", [2, 3, 4])
    answer = mp.get_context("spawn").Queue()
    child = mp.get_context("spawn").Process(target=_there, args=(nodes[2].name, pickle.dumps(table), answer))
    child.start()
    kind, size, drawn = answer.get(timeout=60)
    child.join()
    assert (kind, size) == ("ShardedTable", 9)
    own = next(each for each in table._backend.parts.shards if each.uuid == stores[2].node.cluster.here.uuid)
    assert set(drawn) <= set(numbers(table_of(own).peek(table_of(own).keys())).tolist())


def test_drop_removes_all_shards(nodes: list[Node], stores: list[ClusterStore]) -> None:
    table = stores[0].create_table("t", shards="learners", draw="mass", **ROWS)
    writer = stores[1].table("t").writer(lanes=8)
    writer.append(step(np.arange(8)))
    writer.flush()
    table.sample(5, timeout=60)
    stores[2].drop_table("t")
    assert not tables_of(nodes)
    for call in (lambda: table.sample(1, timeout=5), lambda: len(table), lambda: table.insert(step(1), timeout=5)):
        with pytest.raises(TableNotFound):
            call()
    with pytest.raises(TableNotFound):
        for _ in range(3):
            writer.append(step(np.arange(8)))
            writer.flush()


def test_calls_by_key_find_the_right_shard(stores: list[ClusterStore]) -> None:
    """Each key finds its shard, from any handle; those that are gone are not counted."""
    late = {**SCHEMA, "score": di_store.Spec((), "float32", late=True)}
    table, keys = filled(stores[0], "t", [3, 4, 5], schema=late, sampler=di_store.Prioritized(1.0))
    gone = stores[1].table("t").evicted()
    far = stores[2].table("t")
    assert far.update(keys[::2], {"score": np.arange(6.0, dtype=np.float32)}) == 6
    assert far.delete(keys[[0, 5]]) == 2
    assert sorted(gone) == sorted(keys[[0, 5]].tolist())
    batch = table.peek(keys)
    assert batch.live.tolist() == [n not in (0, 5) for n in range(12)]
    assert batch.data["score"][2::2].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert far.update_priorities(keys, np.arange(12.0)) == 10
    with pytest.raises(ValueError, match="12 keys but 3"):
        far.update_priorities(keys, np.ones(3))
    with pytest.raises(ValueError, match="priority nan"):
        far.update_priorities(keys[:2], [1.0, np.nan])
    for call in (table.delete, table.peek):
        with pytest.raises(ValueError, match="do not belong to any of the"):
            call(np.array([1 << 60], np.uint64))
    table.configure(alpha=0.5, beta=0.9)
    assert table.sampler == di_store.Prioritized(0.5, 0.9)
    assert (table.schema is not None, table.view) == (True, di_store.Step())
    table.reset()
    assert len(far) == 0


def test_opaque_and_ragged_values_work_in_shards(stores: list[ClusterStore]) -> None:
    opaque = stores[0].create_table("t", shards="learners", draw="mass", capacity=300, view=di_store.Opaque(), lanes=8)
    with opaque.writer(lanes=8) as writer:
        writer.append([("first", lane) for lane in range(8)])
        items = writer.extend([[("row", t, lane) for lane in (2, 4)] for t in range(2)], lane=[2, 4])
    assert sorted(opaque.peek(items.keys).data) == [("row", t, lane) for t in range(2) for lane in (2, 4)]
    assert {value[0] for value in opaque.sample(200, timeout=60).data} == {"first", "row"}
    schema = {"text": di_store.Spec((None,), "uint8", max=20), "n": di_store.Spec((), "int64")}
    ragged = stores[1].create_table("u", shards="learners", draw="mass", capacity=300, schema=schema, lanes=8)
    with ragged.writer(lanes=8) as writer:
        for t in range(4):
            text = [np.full(lane + t, lane, np.uint8) for lane in range(8)]
            writer.append({"text": text, "n": np.arange(8) + 10 * t})
    batch = ragged.sample(100, timeout=60)
    assert batch.data["text"].lengths.tolist() == (numbers(batch) % 10 + numbers(batch) // 10).tolist()
    keys = np.random.default_rng(0).permutation(ragged.keys())
    peeked = ragged.peek(keys)
    assert [set(row) <= {n % 10} for row, n in zip(peeked.data["text"], numbers(peeked), strict=True)] == [True] * 32


def test_out_overwrites_a_batch(stores: list[ClusterStore]) -> None:
    for name, draw in (("t", "mass"), ("u", "local")):
        table, _ = filled(stores[0], name, SIZES, draw=draw)
        batch = table.sample(50, timeout=60)
        data = batch.data["n"]
        again = table.sample(50, timeout=60, out=batch)
        assert np.shares_memory(again.data["n"], data)
        assert (numbers(table.peek(again.keys)) == data).all()
        assert list(table.sample(4, timeout=60, columns="n").data) == ["n"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"shards": None, "draw": "mass"}, 'needs shards="learners"'),
    ({"shards": "some"}, "shards"),
    ({"draw": "mass", "limiter": di_store.SamplesPerInsert(8, 10, 0.1)}, "chance decides how many draws"),
    ({"draw": "mass", "limiter": di_store.Queue(10)}, "chance decides how many draws"),
    ({"draw": "mass", "sampler": di_store.Once()}, "no[ne]* across shards"),
    ({"draw": "mass", "sampler": di_store.Fifo()}, "no[ne]* across shards"),
    ({"draw": "mass", "max_times_sampled": 3}, "more draws than it has left"),
    ({"view": di_store.Group(2, by="n")}, "never be complete"),
    ({"limiter": di_store.Pace("policy", 4), "draw": "local"}, "each shard would count its own draws"),
    ({"limiter": Band(1, 1.0, -1.0, 2.0)}, "too narrow"),
]


@pytest.mark.parametrize(("options", "match"), REFUSED, ids=lambda value: str(value)[:40])
def test_impossible_options_are_refused(stores: list[ClusterStore], options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        stores[0].create_table("t", **{**ROWS, "shards": "learners", **options})


def test_calls_that_need_one_table_are_refused(nodes: list[Node], stores: list[ClusterStore], tmp_path: Any) -> None:
    table, keys = filled(stores[0], "t", [1, 2, 3], draw="mass")
    for call, match in (
        (lambda: stores[1].writer(["t"]), "sharded over several nodes"),
        (lambda: stores[1].mix({"t": 1}), "sharded over several nodes"),
        (lambda: table.sample(2, replace=False), "replace=False"),
        (lambda: table.loader(2, replace=False), "replace=False"),
        (lambda: table.configure(limiter=di_store.SamplesPerInsert(1, 2, 3)), "only MinSize"),
        (lambda: stores[0].create_table("u", node=[nodes[1].name] * 2, shards="learners", **ROWS), "twice"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    with di_store.attach(nodes[0].name) as plain, pytest.raises(ValueError, match="belong to another store"):
        plain.writer([table])
    for call in (lambda: table.at([0]), lambda: table.positions(keys), lambda: table.export(tmp_path / "x")):
        with pytest.raises(StoreError, match="3 shards"):
            call()
    with pytest.raises(TypeError, match="node="):
        stores[0].create_table("u", node=[nodes[0].name], **ROWS)
    assert isinstance(stores[0].create_table("u", node=[nodes[0].name], shards="learners", **ROWS), di_store.Table)
