"""Writers: lanes, priorities, several tables over one stream, waiting, repeating, closing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def rows(table: Any, name: str = "n") -> list[Any]:
    """One column of all items, oldest first."""
    found: list[Any] = table.peek(table.keys()).data[name].tolist()
    return found


def test_one_writer_fills_two_tables(store: Any) -> None:
    steps = store.create_table("steps", capacity=100, sampler=di_store.Prioritized(1.0))
    pairs = store.create_table("pairs", capacity=100, view=di_store.Sequence(2), sampler=di_store.Prioritized(1.0))
    with store.writer([steps, "pairs"]) as writer:
        items = [writer.append({"n": n}, priority={"steps": n + 1.0, "pairs": 9.0}) for n in range(4)]
    assert [len(each["steps"].keys) for each in items] == [1] * 4
    assert [len(each["pairs"].keys) for each in items] == [0, 1, 0, 1]
    assert steps.peek(steps.keys()).priorities.tolist() == [1, 2, 3, 4]
    assert pairs.peek(pairs.keys()).priorities.tolist() == [9, 9]
    assert rows(pairs) == [[0, 1], [2, 3]]
    stored = steps.stats()["bytes_stored"]
    assert stored == pairs.stats()["bytes_stored"], "the same chunks"
    with pytest.raises(ValueError, match="nobody"), store.writer([steps, pairs]) as writer:
        writer.append({"n": 1}, priority={"nobody": 1.0})
    for wrong in ([], [steps, steps], [5]):
        with pytest.raises((ValueError, TypeError)):
            store.writer(wrong)


def test_a_stream_has_the_columns_of_all_its_tables(store: Any) -> None:
    spec = di_store.Spec
    one = store.create_table("one", capacity=10, schema={"a": spec((), "f4"), "b": spec((), "i8")})
    two = store.create_table("two", capacity=10, schema={"b": spec((), "i8"), "c": spec((3,), "u1")})
    other = store.create_table("other", capacity=10, schema={"b": spec((), "f4")})
    with store.writer([one, two]) as writer:
        writer.append({"a": 1.0, "b": 2, "c": np.zeros(3, np.uint8)})
        with pytest.raises(di_store.SchemaMismatch, match="'c'"):
            writer.append({"a": 1.0, "b": 2})
    assert sorted(one.sample(1).data) == ["a", "b"]
    assert sorted(two.sample(1).data) == ["b", "c"]
    with pytest.raises(di_store.SchemaMismatch, match="'b'"):
        store.writer([one, other])


def test_an_undeclared_table_takes_all_columns_of_its_stream(store: Any) -> None:
    one = store.create_table("one", capacity=10, schema={"a": di_store.Spec((), "f8")})
    two = store.create_table("two", capacity=10)
    with store.writer([one, two]) as writer:
        writer.append({"a": 1.0, "b": 2})
    assert two.sample(1).data["a"].dtype == np.float64, "as the other table declares it"
    assert sorted(two.sample(1).data) == ["a", "b"]
    assert sorted(one.sample(1).data) == ["a"]


def test_priorities_by_lane_and_by_step(store: Any) -> None:
    table = store.create_table("t", capacity=100, sampler=di_store.Prioritized(1.0))
    with table.writer(lanes=3) as writer:
        items = writer.append({"n": np.arange(3)}, priority=np.array([1.0, 2.0, 3.0]))
        assert table.peek(items.keys).priorities.tolist() == [1, 2, 3]
        items = writer.extend({"n": np.zeros((2, 3), int)}, priority=np.arange(6.0).reshape(2, 3))
        assert sorted(table.peek(items.keys).priorities.tolist()) == [0, 1, 2, 3, 4, 5]
        items = writer.append({"n": np.arange(3)})
        assert table.peek(items.keys).priorities.tolist() == [5, 5, 5], "the largest ever given"
        with pytest.raises(ValueError, match="priority"):
            writer.append({"n": np.arange(3)}, priority=np.arange(2.0))
        with pytest.raises(TypeError, match="priority"):
            table.insert({"n": 1}, priority={"t": 1.0})
    beside = store.create_table("beside", capacity=100, sampler=di_store.Prioritized(1.0))
    with store.writer([table, beside], lanes=2) as writer:
        for given in ([7.0, 8.0], (7.0, 8.0)):
            items = writer.append({"n": np.arange(2)}, priority=given)
            assert table.peek(items["t"].keys).priorities.tolist() == [7, 8], "as many tables, but by lane"
            assert beside.peek(items["beside"].keys).priorities.tolist() == [7, 8]
    with store.writer([table, beside], lanes=3) as writer, pytest.raises(ValueError, match="priority"):
        writer.append({"n": np.arange(3)}, priority=[7.0, 8.0])


def test_items_are_ordered_by_lane_then_start(store: Any) -> None:
    table = store.create_table("t", capacity=100)
    with table.writer(lanes=3) as writer:
        items = writer.extend({"n": np.arange(12).reshape(4, 3)})
    assert items.lanes.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert items.starts.tolist() == 3 * [0, 1, 2, 3]
    assert (items.keys.dtype, items.lanes.dtype, items.starts.dtype) == (np.uint64, np.int32, np.int64)
    assert table.peek(items.keys).data["n"].tolist() == [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]


def test_a_refused_call_may_be_repeated(store: Any) -> None:
    table = store.create_table("t", capacity=4, limiter=di_store.Queue(2))
    with table.writer(lanes=2) as writer:
        writer.append({"n": np.array([0, 1])})
        with pytest.raises(di_store.Timeout) as caught:
            writer.append({"n": np.array([2, 3])}, timeout=0.01)
        assert "Queue" in caught.value.reason
        assert rows(table) == [0, 1]
        table.sample(1)
        assert writer.append({"n": np.array([2, 3])}, timeout=60).starts.tolist() == [1, 1]
        assert table.sample(3, timeout=60).data["n"].tolist() == [1, 2, 3]


def test_append_waits_for_a_learner(store: Any) -> None:
    table = store.create_table("t", capacity=100, limiter=di_store.SamplesPerInsert(1.0, 2, 0.0))
    done = threading.Event()

    def write() -> None:
        with table.writer() as writer:
            for n in range(20):
                writer.append({"n": n}, timeout=60)
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(17):
        table.sample(1, timeout=60)
    assert done.wait(60)
    thread.join()
    assert table.stats()["inserts"] == 20


def test_store_full_only_when_every_item_is_pinned(store: Any) -> None:
    table = store.create_table("t", capacity=10, schema={"x": di_store.Spec((1 << 20,), "u1")}, lanes=1)
    row = {"x": np.zeros(1 << 20, np.uint8)}
    with table.writer() as writer:
        for _ in range(100):
            writer.append(row, timeout=60)
    assert len(table) == 10
    assert table.stats()["evicted_for_room"] == 0


@pytest.mark.parametrize("lanes", [1, 2, 64, 300])
def test_more_lanes_than_declared_keep_the_capacity(store: Any, lanes: int) -> None:
    """They take smaller chunks, so that the table holds its capacity all the same."""
    schema = {"x": di_store.Spec((100,), "f4")}
    table = store.create_table("t", capacity=1_000, lanes=2, schema=schema)
    with table.writer(lanes=lanes) as writer:
        for number in range(2_000 // lanes + 5):
            writer.append({"x": np.full((lanes, 100), number, np.float32)}, timeout=10)
    assert len(table) == 1_000
    assert table.stats()["evicted_for_room"] == 0


def test_a_queue_above_its_size_says_it_is_full(store: Any) -> None:
    table = store.create_table("t", capacity=5, limiter=di_store.Queue(2))
    table.extend({"n": np.arange(5)}, timeout=60)
    with pytest.raises(di_store.Timeout) as caught:
        table.insert({"n": 5}, timeout=0)
    assert "full: 5 items" in caught.value.reason


def test_close_ends_open_episodes(store: Any) -> None:
    view = di_store.Transition(n_step=3)
    table = store.create_table("t", capacity=100, view=view)
    writer = table.writer()
    for n in range(5):
        writer.append({"obs": np.float32(n), "reward": 1.0}, next={"obs": np.float32(n + 1)})
    assert len(table) == 3
    writer.close()
    writer.close()
    assert rows(table, "steps") == [3, 3, 3, 2, 1]
    with pytest.raises(di_store.WriterClosed):
        writer.append({"obs": np.float32(0), "reward": 1.0})


def test_an_error_in_the_with_block_is_not_hidden(store: Any) -> None:
    table = store.create_table("t", capacity=10, view=di_store.Sequence(2), limiter=di_store.Queue(1))

    def interrupted() -> None:
        with table.writer() as writer:
            writer.extend({"n": np.arange(2)})
            writer.append({"n": 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert len(table) == 1, "the last item could not pass, and close did not wait for it"


def test_discard_withdraws_an_episode(store: Any) -> None:
    table = store.create_table("t", capacity=100, view=di_store.Episode(5))
    with table.writer() as writer:
        writer.append({"n": 1})
        writer.end_episode(discard=True)
        writer.append({"n": 2})
    assert [row[0] for row in rows(table)] == [2]


@pytest.mark.parametrize("discarded", [1, 2, 3, 5, 40])
@pytest.mark.parametrize("tail", ["pad", "drop", "shift"])
def test_a_discarded_episode_ends_the_run_that_crosses_episodes(store: Any, tail: Any, discarded: int) -> None:
    """What lies in front of it gets its tail, whose rows are still there; the next episode begins a new run."""
    view = di_store.Sequence(4, tail=tail, cross_episodes=True)
    table = store.create_table("t", capacity=100, view=view, lanes=1)
    value = np.zeros(10_000)  # so that few rows fit a chunk, and those not needed any more go
    with table.writer() as writer:
        for n in range(6):
            writer.append({"n": n, "value": value, "truncated": n in (2, 5)})
        for n in range(discarded):
            writer.append({"n": 100 + n, "value": value, "truncated": False})
        crossing = [[4, 5, 100, 101]] + [list(range(at, at + 4)) for at in range(102, 97 + discarded, 4)]
        left = {"pad": [[4, 5, 0, 0]], "shift": [[2, 3, 4, 5]], "drop": []}[tail] if discarded < 2 else []
        assert len(writer.end_episode(discard=True).keys) == len(left)
        for n in range(7, 11):
            writer.append({"n": n, "value": value, "truncated": False})
    assert rows(table) == [[0, 1, 2, 3], *(crossing if discarded > 1 else left), [7, 8, 9, 10]]


@pytest.mark.parametrize("discards", [True, False])
def test_rows_in_front_of_an_open_episode_stay_for_their_tail(store: Any, discards: bool) -> None:
    view = di_store.Sequence(20, period=18, tail="shift", cross_episodes=True)
    table = store.create_table("t", capacity=100, view=view, lanes=1, remover=di_store.Uniform())  # 8 rows a chunk
    with table.writer() as writer:
        for n in range(37):
            writer.append({"n": n, "truncated": n == 24})
        writer.end_episode(discard=discards)
    assert rows(table) == [list(range(20)), list(range(5, 25) if discards else range(17, 37))]


def test_lanes_are_given_by_number_array_or_mask(store: Any) -> None:
    table = store.create_table("t", capacity=100)
    with table.writer(lanes=4) as writer:
        writer.append({"n": np.arange(4)})
        assert writer.append({"n": 9}, lane=2).lanes.tolist() == [2]
        assert writer.append({"n": np.array([7, 8])}, lane=[3, 0]).lanes.tolist() == [0, 3]
        mask = np.array([True, False, True, False])
        assert writer.append({"n": np.array([5, 6])}, lane=mask).starts.tolist() == [2, 2]
        for wrong in (4, [0, 0], np.ones(3, bool)):
            with pytest.raises((ValueError, IndexError)):
                writer.append({"n": np.zeros(2, int)}, lane=wrong)


@pytest.mark.parametrize("mode", ["later", 5])
def test_an_unknown_autoreset_mode_is_refused(store: Any, mode: Any) -> None:
    with pytest.raises(ValueError, match="autoreset"):
        store.create_table("t", capacity=1).writer(autoreset=mode)


def test_values_are_cast_within_their_kind(store: Any) -> None:
    spec = di_store.Spec
    schema = {"f": spec((), "f8"), "i": spec((), "i2"), "b": spec((), "?"), "reward": spec((), "f4")}
    table = store.create_table("t", capacity=10, schema=schema)
    with table.writer() as writer:
        writer.append({"f": 1.5, "i": 7, "b": True, "reward": 1})
        writer.append({"f": np.float32(2.5), "i": np.int64(8), "b": np.bool_(False), "reward": np.float64(2)})
        for wrong in ({"i": 1.5}, {"i": 70_000}, {"f": 1}, {"b": 1}):
            with pytest.raises(di_store.SchemaMismatch, match=next(iter(wrong))):
                writer.append({"f": 1.0, "i": 1, "b": True, "reward": 0, **wrong})
    assert rows(table, "f") == [1.5, 2.5]
    assert rows(table, "i") == [7, 8]
    assert rows(table, "reward") == [1, 2]
