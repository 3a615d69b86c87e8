"""Late columns: what `update` writes, who sees it, and which items wait for it."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pains import until

import di_store
from di_store import Spec, _core

REWARD = {"x": Spec((), "i8"), "reward": Spec((), "f4", late=True)}
WIDE = {"x": Spec((), "i8"), "logp": Spec((301,), "f4", late=True), "value": Spec((), "f8", late=True)}


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def rows(n: int, start: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.arange(start, start + n)}


def test_items_wait_until_their_late_columns_are_there(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=100, schema=WIDE, sampler=di_store.Fifo())
    keys = table.extend(rows(5))
    assert (len(table), table.stats()["waiting"], table.stats()["inserts"]) == (0, 5, 0)
    assert len(table.keys()) == 0
    with pytest.raises(di_store.Timeout, match="5 items wait for late columns"):
        table.sample(1, timeout=0)
    assert table.update(keys[[3]], {"value": np.float64([1.5])}) == 1
    assert len(table) == 0
    assert table.update(keys[[3, 1]], {"logp": np.full((2, 301), 2, "f4")}) == 2
    assert (len(table), table.stats()["waiting"], table.stats()["inserts"]) == (1, 4, 1)
    batch = table.sample(1)
    assert batch.keys[0] == keys[3]
    assert batch.data["value"][0] == 1.5
    assert (batch.data["logp"] == 2).all()
    assert table.update(keys, {"value": np.arange(5.0), "logp": np.zeros((5, 301), "f4")}) == 5
    assert table.keys().tolist() == keys[[3, 0, 1, 2, 4]].tolist()  # in the order in which they were complete
    assert table.peek(keys).data["value"].tolist() == [0, 1, 2, 3, 4]
    assert store.check() == []


def test_late_values_can_be_set_after_following_rows_are_gone(store: di_store.Store) -> None:
    """An item at the end of its chunk does not keep the next one: values for it are written all the same."""
    late = Spec((), "f4", late=True)
    table = store.create_table("t", capacity=100, schema={"x": Spec((16384,), "f4"), "reward": late})
    keys = table.extend({"x": np.zeros((100, 16384), "f4")})
    for left in range(99, 0, -1):
        table.delete(keys[left : left + 1])
        assert table.update(keys[:left], {"reward": np.full(left, left, "f4")}) == left
    assert store.check() == []


def test_a_late_column_may_come_with_its_step(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=100, schema=REWARD)
    with table.writer(lanes=3) as writer:
        made = writer.append({"x": np.arange(3), "reward": np.float32([1, 2, 3])})
        assert table.peek(made.keys).data["reward"].tolist() == [1, 2, 3]
        table.update(made.keys[:1], {"reward": np.float32([7])})
        assert table.peek(made.keys).data["reward"].tolist() == [7, 2, 3]
        writer.append({"x": np.arange(3)})
        assert (len(table), table.stats()["waiting"]) == (3, 3)
        with pytest.raises(di_store.SchemaMismatch, match="next= gives column 'reward', which is late"):
            writer.append({"x": np.arange(3)}, next={"reward": np.zeros(3, "f4")})


def test_late_values_are_shared_by_the_tables_of_a_stream(store: di_store.Store) -> None:
    """The pattern of a reward worker: it draws answers from one table, and the learner's table gets them then."""
    todo = store.create_table("todo", capacity=100, schema=REWARD, columns=("x",), sampler=di_store.Once(shuffle=False))
    learn = store.create_table("learn", capacity=100, schema=REWARD, limiter=di_store.Queue(100))
    with store.writer([todo, learn]) as writer:
        for x in range(10):
            writer.append({"x": x})
    assert [len(todo), len(learn)] == [10, 0]
    batch = todo.sample(4)
    assert todo.update(batch.keys, {"reward": batch.data["x"].astype("f4")}) == 4
    got = learn.sample(4)
    assert got.data["x"].tolist() == got.data["reward"].tolist() == [0, 1, 2, 3]
    assert len(learn) == 0
    look = todo
    store.drop_table("learn")
    assert look.update(look.keys(), {"reward": np.zeros(10, "f4")}) == 10
    assert store.check() == []


@pytest.mark.parametrize("view", [di_store.Sequence(4, period=2), di_store.Episode(7)], ids=["sequence", "episode"])
def test_late_values_of_multi_row_items_can_be_set(
    store: di_store.Store, view: di_store.Sequence | di_store.Episode
) -> None:
    table = store.create_table("t", capacity=100, view=view, schema={**REWARD, "terminated": Spec((), "?")})
    with table.writer() as writer:
        made = [writer.append({"x": i, "terminated": i == 6}).keys for i in range(7)]
    keys = np.concatenate(made)
    assert len(table) == 0
    time_rows = 4 if isinstance(view, di_store.Sequence) else 7
    values = np.arange(len(keys) * time_rows, dtype="f4").reshape(len(keys), time_rows) + 1
    assert table.update(keys, {"reward": values}, row=None) == len(keys)
    assert len(table) == len(keys)
    batch = table.peek(keys)
    expected = {int(x): 0.0 for x in range(7)}
    for item, starts in enumerate(batch.starts.tolist()):
        for at in range(time_rows):
            if starts + at < 7:
                expected[starts + at] = float(values[item, at])
    for item, start in enumerate(batch.starts.tolist()):
        length = int(batch.data["lengths"][item])
        assert batch.data["reward"][item, :length].tolist() == [expected[start + at] for at in range(length)]
        assert (batch.data["reward"][item, length:] == 0).all()
    table.update(keys[:1], {"reward": np.float32([99])}, row=-1)
    length = int(batch.data["lengths"][0])
    assert table.peek(keys[:1]).data["reward"][0, length - 1] == 99
    for beyond in (7, 2**63 - 1, -(2**63)):
        with pytest.raises(ValueError, match=f"row={beyond}: an item has"):
            table.update(keys[:1], {"reward": np.float32([1])}, row=beyond)
    with pytest.raises(ValueError, match="an item has"):
        table.update(keys[:1], {"reward": np.float32([1])}, row=2**63)


def test_the_limiter_counts_items_that_wait_as_inserted(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=10, schema=REWARD, limiter=di_store.Queue(3))
    keys = np.concatenate([table.insert({"x": x}) for x in range(3)])
    with pytest.raises(di_store.Timeout, match="3 items wait for late columns"):
        table.insert({"x": 3}, timeout=0)
    table.update(keys[1:2], {"reward": np.float32([1])})
    assert table.sample(1).data["x"].tolist() == [1]
    table.insert({"x": 3}, timeout=0)
    with pytest.raises(di_store.Timeout):
        table.insert({"x": 4}, timeout=0)
    table.delete(keys[:1])
    table.insert({"x": 4}, timeout=0)


def test_the_oldest_waiting_item_is_evicted_if_none_is_complete(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=4, schema=REWARD)
    keys = np.concatenate([table.insert({"x": x}) for x in range(6)])
    assert table.stats()["waiting"] == 4
    assert table.update(keys, {"reward": np.zeros(6, "f4")}) == 4
    assert sorted(table.peek(table.keys()).data["x"].tolist()) == [2, 3, 4, 5]
    table.extend(rows(2, 6))
    assert (len(table), table.stats()["waiting"]) == (2, 2)
    table.resize(1)
    assert (len(table), table.stats()["waiting"]) == (0, 1)
    table.reset()
    assert (len(table), table.stats()["waiting"]) == (0, 0)
    assert table.insert({"x": 1, "reward": 2.0}).size == len(table) == 1
    assert store.check() == []


def test_update_refuses_bad_arguments(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=4, schema=REWARD)
    keys = table.insert({"x": 1})
    with pytest.raises(di_store.SchemaMismatch, match=r"column 'x' is not late.*late=True"):
        table.update(keys, {"x": np.zeros(1, "i8")})
    with pytest.raises(di_store.SchemaMismatch, match="not in the schema"):
        table.update(keys, {"rewards": np.zeros(1, "f4")})
    with pytest.raises(di_store.SchemaMismatch, match="shape"):
        table.update(keys, {"reward": np.zeros(2, "f4")})
    with pytest.raises(ValueError, match="row=None"):
        table.update(keys, {"reward": np.zeros((1, 1), "f4")}, row=None)
    with pytest.raises(TypeError, match="row="):
        table.update(keys, {"reward": np.zeros(1, "f4")}, row=0.5)  # type: ignore[arg-type]
    assert table.update(np.zeros(0, np.uint64), {"reward": np.zeros(0, "f4")}) == 0
    assert table.stats()["waiting"] == 1
    late = {"late": True}
    for view, schema in (
        (di_store.Transition(), {"obs": Spec((2,), "f4"), "reward": Spec((), "f4", **late)}),
        (di_store.Transition(), {"obs": Spec((2,), "f4", **late), "reward": Spec((), "f4")}),
        (di_store.Sequence(2, first=("s",)), {"x": Spec((), "f4"), "s": Spec((3,), "f4", **late)}),
        (di_store.Episode(2, bootstrap=("x",)), {"x": Spec((), "f4", **late)}),
    ):
        with pytest.raises(ValueError, match="is late, and"):
            store.create_table("u", capacity=4, view=view, schema=schema)
    with pytest.raises(ValueError, match="fixed shape"):
        store.create_table("u", capacity=4, schema={"t": Spec((None,), "f4", 5, late=True)})
    with pytest.raises(ValueError, match="at most 16"):
        store.create_table("u", capacity=4, schema={f"c{i}": Spec((), "f4", late=True) for i in range(17)})
    with pytest.raises(di_store.SchemaMismatch, match="late"):
        plain = store.create_table("u", capacity=4, schema={"reward": Spec((), "f4")})
        store.writer([table, plain]).append({"x": 1, "reward": 1.0})


def test_the_late_declaration_is_stored_with_the_table(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=4, schema=WIDE)
    again = pickle.loads(pickle.dumps(table))
    assert again.schema == table.schema == WIDE
    with pytest.raises(di_store.TableExists, match="late"):
        store.create_table("t", capacity=4, schema={**WIDE, "value": Spec((), "f8")}, exist_ok=True)


def test_a_waiting_learner_is_woken(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=4, schema=REWARD)
    keys = table.insert({"x": 1})
    got: list[di_store.Batch] = []
    learner = threading.Thread(target=lambda: got.append(table.sample(1, timeout=60)))
    learner.start()
    until(lambda: store.stats()["waiters"], "the learner to wait")
    table.update(keys, {"reward": np.float32([4])})
    learner.join(60)
    assert got[0].data["reward"].tolist() == [4]


def _hammer(table: di_store.Table, keys: np.ndarray, first: int, stop: mp.synchronize.Event) -> None:
    value = first
    while not stop.is_set():
        value += 2
        table.update(keys, {"logp": np.full((len(keys), 301), value, "f4")})


def test_no_value_is_torn(store: di_store.Store) -> None:
    """Two processes update the same rows, through two tables; readers see one update's values."""
    a = store.create_table("a", capacity=64, schema=WIDE, columns=("x", "logp"))
    b = store.create_table("b", capacity=64, schema=WIDE, columns=("x", "logp"))
    with store.writer([a, b]) as writer:
        made = [writer.append({"x": x, "logp": np.zeros(301, "f4"), "value": 0.0}) for x in range(40)]
    context = mp.get_context("fork")
    stop = context.Event()
    for_a = np.concatenate([each["a"].keys for each in made])
    for_b = np.concatenate([each["b"].keys for each in made])
    parties = [
        context.Process(target=_hammer, args=(table, keys, first, stop))
        for first, table, keys in ((0, a, for_a), (1, b, for_b))
    ]
    for party in parties:
        party.start()
    try:
        seen = set()
        deadline = time.monotonic() + 60
        while len(seen) < 200 and time.monotonic() < deadline:
            logp = a.sample(600).data["logp"]  # too large to be copied under the lock
            assert (logp == logp[:, :1]).all()
            seen |= set(logp[:, 0].tolist())
    finally:
        stop.set()
        for party in parties:
            party.join(60)
    assert len({int(each) % 2 for each in seen}) == 2, "both processes were seen"
    assert store.check() == []


def _die_in_update(table: di_store.Table, keys: np.ndarray, point: str) -> None:
    _core.arm_fault(point)
    table.update(keys, {"reward": np.arange(len(keys), dtype="f4") + 1})
    os._exit(0)


@pytest.mark.parametrize("point", ["late.before_show", "late.item_went_on", "undo.between", "undo.before_commit"])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_kill_inside_update_leaves_old_or_new(store: di_store.Store, point: str, count: int) -> None:
    a = store.create_table("a", capacity=64, schema=REWARD)
    b = store.create_table("b", capacity=64, schema=REWARD)
    with store.writer([a, b]) as writer:
        made = [writer.append({"x": x}) for x in range(10)]
    for_a = np.concatenate([each["a"].keys for each in made])
    party = mp.get_context("fork").Process(target=_die_in_update, args=(a, for_a, f"{point}:{count}"))
    party.start()
    party.join(60)
    assert party.exitcode == -signal.SIGKILL
    b.update(b.keys(), {"reward": np.zeros(len(b.keys()), "f4")})  # takes both locks, and recovers both tables
    values, live = a.peek(for_a).data["reward"].tolist(), set(a.keys().tolist())
    for key, value in zip(for_a.tolist(), values, strict=True):
        assert key in live or value == 0
    for table in (a, b):
        assert table.stats()["waiting"] + len(table) == 10
    assert len(a) == len(b)
    assert a.update(for_a, {"reward": np.arange(10, dtype="f4")}) == 10
    assert [len(a), len(b)] == [10, 10]
    assert a.peek(for_a).data["reward"].tolist() == list(range(10))
    assert store.check() == []


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["insert", "give", "update", "delete", "sample"]), st.integers(0, 30)), max_size=60
)


@given(
    OPERATIONS, st.integers(1, 12), st.sampled_from([di_store.Uniform(), di_store.Prioritized(0.6), di_store.Fifo()])
)
@settings(max_examples=60, deadline=None)
def test_late_columns_equal_the_model(
    operations: list[tuple[str, int]], capacity: int, sampler: di_store.Sampler
) -> None:
    with di_store.open(memory="32MiB") as store:
        table = store.create_table("t", capacity=capacity, schema=REWARD, sampler=sampler)
        live: dict[int, float] = {}  # by key, in order
        waiting: dict[int, int] = {}
        known: list[int] = []
        for operation, number in operations:
            if operation in ("insert", "give"):
                while len(live) + len(waiting) >= capacity:
                    (live if live else waiting).pop(next(iter(live or waiting)))
                value = {"x": number} | ({"reward": float(number)} if operation == "give" else {})
                key = int(table.insert(value)[0])
                known.append(key)
                if operation == "give":
                    live[key] = float(number)
                else:
                    waiting[key] = number
            elif operation == "update" and known:
                some = [known[number % len(known)], known[(number * 7) % len(known)]]
                there = table.update(np.array(some, np.uint64), {"reward": np.float32([number, number + 1])})
                assert there == sum(key in live or key in waiting for key in some)
                for key, value in zip(some, (number, number + 1), strict=True):
                    if waiting.pop(key, None) is not None or key in live:
                        live[key] = float(value)
            elif operation == "delete" and known:
                key = known[number % len(known)]
                assert table.delete(np.array([key], np.uint64)) == (key in live or key in waiting)
                live.pop(key, None)
                waiting.pop(key, None)
            elif operation == "sample" and live:
                batch = table.sample(3)
                for key, reward in zip(batch.keys.tolist(), batch.data["reward"].tolist(), strict=True):
                    assert live[key] == reward
            assert table.keys().tolist() == list(live)
            assert table.stats()["waiting"] == len(waiting)
        assert store.check() == []
