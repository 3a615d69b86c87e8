"""`Group`: all answers of a prompt are one item, whoever wrote them."""

from __future__ import annotations

import multiprocessing as mp
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats

import di_store
from di_store import Group, Spec

PLAIN = {"group": Spec((), "i8"), "x": Spec((), "i8")}
REWARD = {**PLAIN, "reward": Spec((), "f4", late=True)}
TOKENS = {"prompt": Spec((), "i4"), "tokens": Spec((None,), "i4", 20)}


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB") as opened:
        yield opened
        assert opened.check() == []


def answers(group: int, xs: list[int]) -> dict[str, np.ndarray]:
    return {"group": np.full(len(xs), group), "x": np.array(xs)}


def test_a_group_is_one_item_of_a_batch(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=100, view=Group(3), schema=PLAIN, sampler=di_store.Fifo())
    keys = table.extend(answers(7, [1, 2]))
    assert (len(table), table.stats()["waiting"], table.keys().size) == (0, 1, 0)
    other = table.extend(answers(8, [10, 11, 12]))
    last = table.insert({"group": 7, "x": 3})
    assert (len(table), table.stats()["waiting"], table.stats()["inserts"]) == (2, 0, 2)
    batch = table.sample(2)
    assert batch.data["x"].tolist() == [[10, 11, 12]] * 2  # Fifo draws the oldest: that was complete first
    assert batch.keys.tolist() == [other[0]] * 2
    seen = table.peek(np.concatenate([last, other[1:2], keys]))  # an answer's key stands for its group
    assert seen.keys.tolist() == [keys[0], other[0], keys[0], keys[0]]
    assert seen.data["x"].tolist() == [[1, 2, 3], [10, 11, 12], [1, 2, 3], [1, 2, 3]]
    assert seen.data["group"].tolist() == [[7] * 3, [8] * 3, [7] * 3, [7] * 3]
    assert seen.episodes.shape == seen.starts.shape == (4, 3)
    assert seen.weights.shape == seen.versions.shape == seen.live.shape == (4,)
    table.extend(answers(7, [4, 5, 6]))  # the same value again: the next group
    assert table.peek(table.keys()).data["x"].tolist() == [[10, 11, 12], [1, 2, 3], [4, 5, 6]]
    assert table.at([0, -1]).tolist() == table.keys()[[0, -1]].tolist()


def test_answers_of_one_group_may_come_from_anywhere(store: di_store.Store) -> None:
    """Lanes, writers and processes each write some of a group's answers; their rows are of varying length."""
    table = store.create_table("t", capacity=50, view=Group(4, by="prompt"), schema=TOKENS)

    def write(first: int) -> None:
        with table.writer(lanes=2) as writer:
            for prompt in range(20):
                tokens = [np.arange(prompt % 5 + lane + first, dtype="i4") + prompt for lane in range(2)]
                writer.append({"prompt": np.full(2, prompt, "i4"), "tokens": tokens})

    party = mp.get_context("fork").Process(target=write, args=(3,))
    party.start()
    write(1)
    party.join(60)
    assert party.exitcode == 0
    assert (len(table), table.stats()["waiting"]) == (20, 0)
    batch = table.peek(table.keys())
    assert sorted(batch.data["prompt"][:, 0].tolist()) == list(range(20))
    assert (batch.data["prompt"] == batch.data["prompt"][:, :1]).all()
    tokens = batch.data["tokens"]
    assert tokens.lead == (20, 4)
    assert tokens.lengths.shape == (20, 4)
    for i, prompt in enumerate(batch.data["prompt"][:, 0].tolist()):
        got = sorted(tokens[4 * i + j].tolist() for j in range(4))
        assert got == sorted(list(range(prompt, prompt + prompt % 5 + k)) for k in (1, 2, 3, 4))
    for small in (table.sample(3), table.sample(3)):  # the second one knows how large its answers are
        assert small.data["tokens"].padded(to=20).shape == (3, 4, 20)


def test_incomplete_groups_are_evicted_first(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=3, view=Group(2), schema=PLAIN)
    dead = table.insert({"group": 0, "x": 0})
    why = r"1 groups are not complete: the oldest has 1 of 2 answers, see table\.incomplete\(\)"
    with pytest.raises(di_store.Timeout, match=why):
        table.sample(1, timeout=0)
    for group in (1, 2):
        table.extend(answers(group, [group, group]))
    assert (len(table), table.stats()["waiting"], table.stats()["groups_dropped"]) == (2, 1, 0)
    table.extend(answers(3, [3, 3]))  # the capacity is short: the one that began first goes, though it is not complete
    assert (len(table), table.stats()["waiting"], table.stats()["groups_dropped"]) == (3, 0, 1)
    assert table.delete(dead) == 0
    table.insert({"group": 4, "x": 4})
    assert (len(table), table.stats()["waiting"]) == (2, 1)  # group 1 has left: it was complete before this one began
    assert table.peek(table.keys()).data["x"][:, 0].tolist() == [2, 3]
    table.extend(answers(5, [5, 5]))
    table.extend(answers(6, [6, 6]))
    assert table.peek(table.keys()).data["x"][:, 0].tolist() == [5, 6]
    table.insert({"group": 4, "x": 4})
    assert table.peek(table.keys()).data["x"][:, 0].tolist() == [5, 6, 4]
    table.resize(1)
    assert table.peek(table.keys()).data["x"].tolist() == [[4, 4]]
    table.resize(100)
    table.extend(answers(9, [9]))
    assert table.delete(table.extend(answers(4, [0]))) == 1
    table.reset()
    assert (len(table), table.stats()["waiting"], table.stats()["groups_dropped"]) == (0, 0, 0)


def test_groups_are_evicted_whole_when_bytes_run_short(store: di_store.Store) -> None:
    """Chunks are freed though the answers of a group lie in several: nothing of a group stays behind."""
    schema = {**PLAIN, "wide": Spec((4096,), "u1")}
    table = store.create_table("t", capacity=None, max_bytes="2MiB", view=Group(4), schema=schema, lanes=4)
    with table.writer(lanes=4) as writer, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # items were evicted before capacity
        for group in range(400):
            wide = np.full((4, 4096), group % 251, "u1")
            writer.append({"group": np.full(4, group), "x": np.arange(4) + group, "wide": wide})
        assert table.stats()["evicted_for_room"] > 200
    held = table.peek(table.keys())
    assert 40 < len(held) < 140
    assert held.data["group"][:, 0].tolist() == list(range(400 - len(held), 400))
    assert (held.data["wide"] == (held.data["group"] % 251)[:, :, None]).all()
    assert table.stats()["used_bytes"] <= 2 << 20


def test_a_queue_gives_each_group_once(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=4, view=Group(2), schema=PLAIN, limiter=di_store.Queue(2))
    for group in (1, 2):
        table.extend(answers(group, [group, 10 * group]))
    with pytest.raises(di_store.Timeout, match="2 items wait to be sampled"):
        table.insert({"group": 3, "x": 3}, timeout=0)
    assert table.sample(1).data["x"].tolist() == [[1, 10]]
    for group in (3, 4, 5):  # groups in progress hold up nobody
        table.extend(answers(group, [group]), timeout=0)
    assert (table.stats()["groups_dropped"], table.stats()["waiting"]) == (0, 3)
    table.extend(answers(6, [6]), timeout=0)  # the capacity is short: the oldest that lacks answers goes
    assert (table.stats()["groups_dropped"], table.stats()["waiting"], len(table)) == (1, 3, 1)
    table.extend(answers(5, [50]), timeout=0)
    with pytest.raises(
        di_store.Timeout, match=r"size=2.* and 2 groups are not complete: the oldest has 1 of 2 answers"
    ):
        table.insert({"group": 6, "x": 60}, timeout=0)
    assert table.sample(2).data["x"].tolist() == [[2, 20], [5, 50]]
    table.extend(answers(6, [60]), timeout=0)
    assert table.sample(1).data["x"].tolist() == [[6, 60]]
    assert (len(table), table.stats()["waiting"], table.stats()["groups_dropped"]) == (0, 1, 1)


def test_groups_waiting_for_late_values_block_writers(store: di_store.Store) -> None:
    """A slow reward worker: nothing leaves a queue that only waits for late values."""
    table = store.create_table("t", capacity=3, view=Group(2), schema=REWARD, limiter=di_store.Queue(2))
    keys = [table.extend(answers(group, [group, group])) for group in (1, 2)]
    with pytest.raises(di_store.Timeout, match=r"size=2.* and 2 groups are not complete: 2 wait for late columns"):
        table.insert({"group": 3, "x": 3}, timeout=0)
    table.update(keys[1], {"reward": np.zeros(2, "f4")})
    assert table.sample(1).data["x"].tolist() == [[2, 2]]
    table.extend({**answers(3, [3, 3]), "reward": np.ones(2, "f4")}, timeout=0)
    assert table.sample(1).data["x"].tolist() == [[3, 3]]
    assert (table.stats()["gathered"], table.stats()["groups_dropped"]) == (1, 0)


def test_stats_say_what_groups_wait_for(store: di_store.Store) -> None:
    """Groups that lack answers wait for no update, and those that wait for one count as inserted."""
    table = store.create_table("t", capacity=8, view=Group(2), schema=REWARD, limiter=di_store.Queue(1))
    table.extend({"group": np.array([7]), "x": np.array([0])})
    limiter = table.stats()["limiter"]
    assert limiter["sample_reason"].endswith("and 1 groups are not complete")
    assert limiter["insert_reason"] == ""
    table.extend({"group": np.array([8, 8]), "x": np.array([0, 1])})
    limiter = table.stats()["limiter"]
    assert limiter["sample_reason"].endswith("and 2 groups are not complete: 1 wait for late columns (table.update)")
    assert limiter["insert_reason"].startswith("full: 1 items wait")
    with pytest.raises(di_store.Timeout, match="full: 1 items wait"):
        table.insert({"group": 9, "x": 0}, timeout=0)


def test_samples_per_insert_counts_groups(store: di_store.Store) -> None:
    limiter = di_store.SamplesPerInsert(2, min_size=2, tolerance=0.5)
    table = store.create_table("t", capacity=10, view=Group(3), schema=PLAIN, limiter=limiter)
    for group in range(3):
        table.extend(answers(group, [0, 1, 2]))
    assert table.stats()["limiter"]["inserts"] == 3
    with pytest.raises(di_store.Timeout, match="samples_per_insert: 3 inserts for 0 samples"):
        table.insert({"group": 3, "x": 0}, timeout=0)
    assert len(table.sample(4)) == 4
    table.insert({"group": 3, "x": 0}, timeout=0)


def test_versions_priorities_and_uses_belong_to_the_group(store: di_store.Store) -> None:
    schema = {**PLAIN, "version": Spec((), "i8")}
    table = store.create_table("t", capacity=20, view=Group(2), schema=schema, sampler=di_store.Prioritized(1.0))
    keys = [
        table.extend({**answers(g, [g, g]), "version": np.array([5 + g, 9 - g])}, priority=[g, 2 * g])
        for g in (1, 2, 3)
    ]
    batch = table.peek([k[0] for k in keys])
    assert batch.versions.tolist() == [6, 7, 6]
    assert batch.priorities.tolist() == [2, 4, 6]
    assert batch.probabilities.tolist() == pytest.approx([2 / 12, 4 / 12, 6 / 12])
    assert table.update_priorities([keys[0][1], keys[1][0], keys[2][0]], [1.0, 0.0, 0.0]) == 3
    drawn = table.sample(40, beta=0.5)
    assert drawn.data["x"].tolist() == [[1, 1]] * 40
    assert drawn.weights.tolist() == [1.0] * 40
    assert table.peek(keys[0][1:]).times_sampled.tolist() == [40]
    twice = store.create_table("u", capacity=4, view=Group(2), schema=PLAIN, max_times_sampled=2)
    twice.extend(answers(1, [1, 2]))
    held = twice.sample(2)
    assert held.times_sampled.tolist() == [1, 2]
    assert len(twice) == 0


def test_stale_groups_are_removed_whole(store: di_store.Store) -> None:
    schema = {**PLAIN, "version": Spec((), "i8")}
    table = store.create_table(
        "t", capacity=20, view=Group(2), schema=schema, weights="w", max_staleness=1, sampler=di_store.Fifo()
    )
    for _ in range(3):
        store.publish("w", None)
    table.extend({**answers(1, [1, 1]), "version": np.array([3, 1])})  # as old as its oldest answer
    table.extend({**answers(2, [2, 2]), "version": np.array([2, 3])})
    assert table.sample(1).data["x"].tolist() == [[2, 2]]
    assert (table.stats()["stale_dropped"], len(table)) == (1, 1)


def test_a_group_is_complete_with_its_last_late_value(store: di_store.Store) -> None:
    """A group goes on with the last late value of its last answer, by whatever table and process it comes."""
    todo = store.create_table("todo", capacity=64, schema=REWARD, columns=("x",), sampler=di_store.Once(shuffle=False))
    train = store.create_table("train", capacity=8, view=Group(2), schema=REWARD)
    with store.writer([todo, train]) as one, store.writer([todo, train]) as other:
        for group in range(4):
            mine = one.append({"group": group, "x": 2 * group})["train"]
            other.append({"group": group, "x": 2 * group + 1})
    assert (len(todo), len(train), train.stats()["waiting"], train.stats()["gathered"]) == (8, 0, 4, 4)
    with pytest.raises(di_store.Timeout, match="4 wait for late columns"):
        train.sample(1, timeout=0)

    def work() -> None:
        batch = todo.sample(7)
        assert todo.update(batch.keys, {"reward": batch.data["x"].astype("f4")}) == 7

    party = mp.get_context("fork").Process(target=work)
    party.start()
    party.join(60)
    assert party.exitcode == 0
    assert (len(train), train.stats()["gathered"]) == (3, 1)
    keys = train.keys()
    batch = train.peek(keys)
    assert batch.data["reward"].tolist() == batch.data["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert train.update(mine.keys, {"reward": np.float32([60])}) == 1  # by an answer's key: that answer
    assert train.update(todo.keys()[-1:] + 2**40, {"reward": np.zeros(1, "f4")}) == 0
    assert len(train) == 3
    assert todo.update(todo.keys()[-1:], {"reward": np.float32([70])}) == 1
    assert train.peek(mine.keys).data["reward"].tolist() == [[60, 70]]
    assert train.update(keys, {"reward": np.arange(6, dtype="f4").reshape(3, 2)}, row=None) == 3
    assert train.update(keys[:1], {"reward": np.float32([9])}, row=-1) == 1
    assert train.peek(keys).data["reward"].tolist() == [[0, 9], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="row=2: an item has 2 rows"):
        train.update(keys[:1], {"reward": np.float32([9])}, row=2)


def test_each_consumer_waits_for_its_own_columns(store: di_store.Store) -> None:
    """The pattern of docs/tables.md: one stream, a table for each consumer, each with the columns that it needs."""
    schema = {**REWARD, "logp": Spec((), "f4", late=True)}
    judge = store.create_table("judge", capacity=64, schema=schema, columns=("x",), sampler=di_store.Once())
    refer = store.create_table("refer", capacity=64, view=Group(2), schema=schema, columns=("x", "reward"))
    train = store.create_table("train", capacity=64, view=Group(2), schema=schema)
    with store.writer([judge, refer, train]) as writer:
        for x in range(4):
            writer.append({"group": x // 2, "x": x})
    assert [len(judge), len(refer), len(train)] == [4, 0, 0]
    batch = judge.sample(4)
    judge.update(batch.keys, {"reward": batch.data["x"].astype("f4")})
    assert [len(judge), len(refer), len(train)] == [4, 2, 0]
    groups = refer.peek(refer.keys())
    assert sorted(groups.data) == ["reward", "x"]
    refer.update(groups.keys, {"logp": -groups.data["reward"]}, row=None)
    assert [len(judge), len(refer), len(train)] == [4, 2, 2]
    got = train.peek(train.keys()).data
    assert got["logp"].tolist() == (-got["x"]).tolist()


def test_batches_of_groups_have_the_documented_shape(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=64, view=Group(4), schema={**PLAIN, "wide": Spec((600,), "f4")})
    for group in range(8):
        table.extend({**answers(group, [group] * 4), "wide": np.full((4, 600), group, "f4")})
    batch = table.sample(16)
    assert batch.data["wide"].shape == (16, 4, 600)
    again = table.sample(16, out=batch)
    assert again is batch
    assert (batch.data["wide"] == batch.data["x"][:, :, None]).all()
    assert list(table.sample(2, columns=("x",)).data) == ["x"]
    distinct = table.sample(8, replace=False)
    assert sorted(distinct.data["x"][:, 0].tolist()) == list(range(8))
    small = table.sample(2, replace=False)
    assert small.keys[0] != small.keys[1]
    for each, _ in zip(table.loader(5), range(3), strict=False):
        assert each.data["wide"].shape == (5, 4, 600)
    twin = store.create_table("u", capacity=64, view=Group(4), schema={**PLAIN, "wide": Spec((600,), "f4")})
    twin.extend({**answers(1, [100] * 4), "wide": np.full((4, 600), 100, "f4")})
    mixed = store.mix({"t": 1, "u": 1}).sample(10)
    assert ((mixed.data["x"] == 100).all(axis=1) == (mixed.source == 1)).all()
    gone = table.peek(np.array([2**40, table.keys()[0]], np.uint64))
    assert gone.live.tolist() == [False, True]
    assert gone.data["x"].tolist() == [[0] * 4, [table.peek(table.keys()[:1]).data["x"][0, 0]] * 4]
    assert table.stats()["bytes_logical"] == 8 * 4 * (600 * 4 + 16)


def test_groups_of_one_table_are_drawn_uniformly(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=64, view=Group(3), schema=PLAIN)
    for group in range(20):
        table.extend(answers(group, [group] * 3))
    small = np.concatenate([table.sample(16).data["x"][:, 0] for _ in range(300)])  # under the lock
    large = table.sample(4800).data["x"][:, 0]
    for drawn in (small, large):
        assert stats.chisquare(np.bincount(drawn, minlength=20)).pvalue > 1e-5


@pytest.mark.parametrize("size", [1, 2, 7, 64, 256])
def test_groups_of_any_size(store: di_store.Store, size: int) -> None:
    table = store.create_table("t", capacity=5, view=Group(size), schema=PLAIN, sampler=di_store.Fifo())
    for first in range(0, 12, 4):  # several groups side by side, of one call each round
        for answer in range(size):
            table.extend({"group": np.arange(first, first + 4), "x": np.full(4, answer)})
    assert len(table) == 5
    batch = table.peek(table.keys())
    assert batch.data["x"].tolist() == [list(range(size))] * 5
    assert batch.data["group"][:, 0].tolist() == [7, 8, 9, 10, 11]
    assert table.sample(70).data["x"].shape == (70, size)
    assert table.stats()["evicted_for_room"] == 0


def test_needed_memory_fits_the_requested_groups(store: di_store.Store) -> None:
    """needed_memory() is enough for `capacity` groups that several lanes write, in whatever order they complete."""
    schema = {**PLAIN, "wide": Spec((4000,), "u1")}
    for remover in (di_store.Fifo(), di_store.Uniform()):
        chosen = {"capacity": 500, "view": Group(8), "schema": schema, "lanes": 16, "remover": remover}
        with di_store.open(memory=di_store.needed_memory(**chosen)) as small:
            table = small.create_table("t", **chosen)
            rng = np.random.default_rng(3)
            with table.writer(lanes=16) as writer:
                for block in range(100):  # 16 groups at a time, their answers in any order
                    todo = rng.permutation(np.repeat(np.arange(16), 8)).reshape(8, 16)
                    for row in todo:
                        group = block * 16 + row
                        writer.append({"group": group, "x": group, "wide": np.zeros((16, 4000), "u1")})
            counts = table.stats()
            assert (counts["size"], counts["evicted_for_room"]) == (500, 0)
            assert small.check() == []


def test_a_call_with_more_rows_than_group_places_is_refused(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=2, view=Group(4), schema=PLAIN)
    nine = {"group": np.arange(9), "x": np.arange(9)}
    told = "capacity=2 groups of 4 rows"
    with pytest.raises(ValueError, match=f"9 rows into a table of {told}"):
        table.extend(nine)
    with table.writer(lanes=9) as writer, pytest.raises(ValueError, match=f"9 lanes of table 't', whose {told}"):
        writer.append(nine)
    with table.writer() as writer, pytest.raises(ValueError, match=f"9 items of table 't', whose {told}"):
        writer.extend(nine)
    assert table.extend({name: leaf[:8] for name, leaf in nine.items()}).size == 8


def test_impossible_group_options_are_refused(store: di_store.Store) -> None:
    for size in (0, 257, -1):
        with pytest.raises(ValueError, match="size="):
            Group(size)
    with pytest.raises(TypeError, match="size="):
        Group(2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="by="):
        Group(2, by="")
    with pytest.raises(ValueError, match="no column 'group', which Group"):
        store.create_table("t", capacity=4, view=Group(2), schema={"x": Spec((), "i8")})
    for wrong in (Spec((2,), "i8"), Spec((), "f4"), Spec((None,), "i8", 3)):
        with pytest.raises(ValueError, match="one whole number a row"):
            store.create_table("t", capacity=4, view=Group(2), schema={"group": wrong})
    with pytest.raises(ValueError, match="is late, and Group reads it as by"):
        store.create_table("t", capacity=4, view=Group(2), schema={"group": Spec((), "i8", late=True)})
    with pytest.raises(ValueError, match="places for answers"):
        store.create_table("t", capacity=2**27, view=Group(4), schema=PLAIN)
    table = store.create_table("t", capacity=4, view=Group(2), schema=PLAIN)
    with pytest.raises(ValueError, match="holds fewer"):
        table.extend(answers(1, list(range(9))))
    with pytest.raises(di_store.SchemaMismatch, match="group"):
        table.insert({"x": 1})
    with pytest.raises(ValueError, match="export\\(\\) writes no groups"):
        table.export("/tmp/groups.npz")
    undeclared = store.create_table("u", capacity=4, view=Group(2), max_bytes="1MiB")
    with pytest.raises(ValueError, match="no column 'group'"):
        undeclared.insert({"x": 1})
    undeclared.extend(answers(1, [1, 2]))
    assert undeclared.sample(1).data["x"].tolist() == [[1, 2]]
