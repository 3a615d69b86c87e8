"""Inserts of one item and updates that the core does by itself: they do what the longer way does.

The longer way is taken for arguments of rarer types, such as a timeout of np.float64 or keys in a list.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import Group, Opaque, Queue, Spec, Step, StoreError, Transition

LONG = np.float64(60)
SCHEMA = {"x": Spec((2,), "f4"), "n": Spec((), "i8"), "r": Spec((), "f4", late=True)}
ROW = {"x": np.ones(2, np.float32), "n": 3}


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    """A small store."""
    with di_store.open(memory="64MiB") as made:
        yield made


@pytest.fixture
def table(store: di_store.Store) -> di_store.Table:
    """A table that has taken an insert and an update, so that later ones are done at once."""
    made = store.create_table("t", capacity=1000, schema=SCHEMA)
    made.update(made.insert(ROW), {"r": np.zeros(1, np.float32)})
    return made


def outcome(call: Callable[[], Any]) -> Any:
    """What comes out of a call: its result, or its error's type and text."""
    try:
        return call()
    except (StoreError, ValueError, TypeError) as error:
        return type(error), str(error)


WRONG_ROWS = [
    {"x": np.ones(2)},
    {"x": np.ones(3), "n": 1},
    {"x": np.ones(2, np.int64), "n": 1.5},
    {"x": np.ones(2), "n": 1, "more": 2},
    {"x": np.ones(2), "n": 1, "r": np.zeros(2)},
    {"x": np.ones(2), "n": {"a": 1}},
    {},
    [1],
    None,
]


@pytest.mark.parametrize("value", WRONG_ROWS, ids=str)
def test_wrong_rows_raise_the_same_errors_in_the_fast_path(table: di_store.Table, value: Any) -> None:
    error = outcome(lambda: table.insert(value))
    assert isinstance(error, tuple)
    assert error == outcome(lambda: table.insert(value, timeout=LONG))
    assert len(table) == 1


WRONG_VALUES = [
    {"r": np.zeros(2, np.float32)},
    {"r": "text"},
    {"x": np.zeros((1, 2), np.float32)},
    {"q": np.zeros(1)},
    {"r": np.zeros(1), "q": {}},
    {"r": {"a": np.zeros(1)}},
    {},
    None,
]


@pytest.mark.parametrize("values", WRONG_VALUES, ids=str)
def test_wrong_values_raise_the_same_errors_in_the_fast_path(table: di_store.Table, values: Any) -> None:
    keys = table.keys()
    error = outcome(lambda: table.update(keys, values))
    assert isinstance(error, tuple)
    assert error == outcome(lambda: table.update(keys, values, timeout=LONG))
    assert table.peek(keys).data["r"] == 0


@pytest.mark.parametrize(
    "option", [{"row": 1}, {"row": -2}, {"row": 0.5}, {"row": None}, {"timeout": -1}, {"timeout": "1"}], ids=str
)
def test_wrong_options_raise_the_same_errors_in_the_fast_path(table: di_store.Table, option: dict[str, Any]) -> None:
    keys, values = table.keys(), {"r": np.ones(1, np.float32)}
    error = outcome(lambda: table.update(keys, values, **option))
    assert isinstance(error, tuple)
    assert error == outcome(lambda: table.update(list(keys), values, **option))


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1"])
def test_wrong_timeouts_of_an_insert_are_refused(table: di_store.Table, timeout: Any) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        table.insert(ROW, timeout=timeout)
    assert len(table) == 1


@pytest.mark.parametrize(
    "value",
    [2.0, 2, True, [2.0], [[2.0]], np.float32(2), np.float64(2), np.full(1, 2.0), np.full(1, 2, np.float32)],
    ids=repr,
)
def test_values_of_one_key_are_updated(table: di_store.Table, value: Any) -> None:
    keys = table.keys()
    found = []
    for given in (keys, [int(key) for key in keys]):
        table.update(given, {"r": 1.0})
        found.append((outcome(lambda given=given: table.update(given, {"r": value})), table.peek(keys).data["r"]))
    assert found[0] == found[1]


def test_many_keys_are_updated(table: di_store.Table) -> None:
    keys = np.concatenate([table.keys(), table.extend({"x": np.ones((99, 2), np.float32), "n": np.ones(99, np.int64)})])
    gone = int(keys[50])
    table.delete(keys[50:51])
    assert table.update(keys, {"r": np.arange(100, dtype=np.float32)}) == 99
    data = table.peek(keys)
    assert np.array_equal(data.data["r"][data.live], np.delete(np.arange(100), 50))
    assert table.update(np.array([gone], np.uint64), {"r": np.ones(1, np.float32)}) == 0


def test_inserted_priorities_are_stored(store: di_store.Store) -> None:
    table = store.create_table("p", capacity=10, schema={"x": Spec((), "f4")}, sampler=di_store.Prioritized(alpha=1))
    keys = [table.insert({"x": 0.0}, priority=given)[0] for given in (None, 2, 0.5, np.float32(4), np.array(3.0))]
    assert table.peek(keys).priorities.tolist() == [1, 2, 0.5, 4, 3]
    for wrong in (-1, float("nan"), "a", [1, 2]):
        error = outcome(lambda wrong=wrong: table.insert({"x": 0.0}, priority=wrong))  # type: ignore[misc]
        assert isinstance(error, tuple)
        assert error == outcome(lambda wrong=wrong: table.insert({"x": 0.0}, priority=wrong, timeout=LONG))  # type: ignore[misc]
    assert len(table) == 5


def test_finished_transitions_are_inserted(store: di_store.Store) -> None:
    schema = {"obs": Spec((), "f4"), "reward": Spec((), "f4")}
    table = store.create_table("n", capacity=10, view=Transition(n_step=3), schema=schema)
    value = {"obs": 1.0, "reward": 2.0, "next_obs": 3.0, "discount": 0.5}
    keys = [table.insert(given)[0] for given in (value, value, {**value, "steps": 2})]
    data = table.peek(keys).data
    assert data["steps"].tolist() == [3, 3, 2]
    assert data["next_obs"].tolist() == [3, 3, 3]
    del value["discount"]
    assert outcome(lambda: table.insert(value)) == outcome(lambda: table.insert(value, timeout=LONG))
    assert len(table) == 3


@pytest.mark.parametrize("view", [Step(), Transition()], ids=str)
def test_inserted_items_carry_the_version_of_the_weights(store: di_store.Store, view: Any) -> None:
    table = store.create_table(
        "v", capacity=10, view=view, weights="policy", schema={"obs": Spec((), "f4"), "reward": Spec((), "f4")}
    )
    value = {"obs": 1.0, "reward": 2.0}
    if isinstance(view, Transition):
        value |= {"next_obs": 3.0, "discount": 0.5}
    keys = [table.insert(value)[0], table.insert(value)[0]]
    for _ in range(2):
        store.publish("policy", 0, keep=2)
        store.latest("policy")
        keys.append(table.insert(value)[0])
    assert table.peek(keys).versions.tolist() == [-1, -1, 1, 2]


def test_inserted_rows_form_groups(store: di_store.Store) -> None:
    schema = {"x": Spec((), "f4"), "group": Spec((), "i8"), "r": Spec((), "f4", late=True)}
    table = store.create_table("g", capacity=10, view=Group(2), schema=schema, limiter=Queue(10))
    for group in range(3):
        keys = [table.insert({"x": float(answer), "group": group}) for answer in range(2)]
        for answer, key in enumerate(keys):
            assert table.update(key, {"r": np.full(1, 10 * group + answer, np.float32)}) == 1
    assert table.sample(3).data["r"].tolist() == [[0, 1], [10, 11], [20, 21]]


def test_a_queue_that_is_full_makes_inserts_wait(store: di_store.Store) -> None:
    table = store.create_table("q", capacity=4, schema={"x": Spec((), "f4")}, limiter=Queue(2))
    for value in (0.0, 1.0):
        table.insert({"x": value})
    with pytest.raises(di_store.Timeout, match="insert into table 'q'"):
        table.insert({"x": 2.0}, timeout=0.01)
    thread = threading.Thread(target=lambda: table.insert({"x": 2.0}, timeout=60), daemon=True)
    thread.start()
    assert table.sample(3, timeout=60).data["x"].tolist() == [0, 1, 2]
    thread.join(60)
    assert not thread.is_alive()


class Inside:
    """A value that inserts into the table while it is read."""

    def __init__(self, table: di_store.Table) -> None:
        self.table = table

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.table.insert(ROW)
        return np.ones(2, np.float32)


def test_an_insert_inside_an_insert_is_refused(table: di_store.Table) -> None:
    error = outcome(lambda: table.insert({"x": Inside(table), "n": 1}))
    assert "during another insert" in str(error)
    assert table.insert(ROW).size == 1


def test_several_threads_can_insert(table: di_store.Table) -> None:
    def insert() -> None:
        for _ in range(200):
            table.insert({"x": [1.0, 2.0], "n": 1})  # a list: converting it lets other threads run
            table.update(table.insert(ROW), {"r": [1.0]})

    threads = [threading.Thread(target=insert, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert table.stats()["inserts"] + table.stats()["waiting"] == 801


def test_a_forked_child_inserts_too(table: di_store.Table) -> None:
    """Into chunks of its own: the parent goes on in its own ones."""
    if (child := os.fork()) == 0:
        ok = table.update(table.insert({**ROW, "n": 7}), {"r": np.ones(1, np.float32)}) == 1
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert table.update(table.insert({**ROW, "n": 8}), {"r": np.ones(1, np.float32)}) == 1
    assert table.peek(table.keys()).data["n"].tolist() == [3, 7, 8]


def test_items_evicted_for_room_are_warned_of(store: di_store.Store) -> None:
    schema = {"x": Spec((None,), "u1", max=1 << 20)}
    table = store.create_table("w", capacity=1000, schema=schema, max_bytes=4 << 20)
    small, large = {"x": np.zeros(8, np.uint8)}, {"x": np.zeros(1 << 19, np.uint8)}
    table.insert(small)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(600):
            table.insert(large)
    assert [str(each.filename) for each in told] == [__file__]


@pytest.mark.parametrize("view", [Step(), Opaque()], ids=str)
def test_a_closed_table_refuses(store: di_store.Store, view: Any) -> None:
    table = store.create_table("c", capacity=10, view=view)
    table.insert(ROW)
    table.insert(ROW)
    store.close()
    for call in (lambda: table.insert(ROW), lambda: table.update(np.zeros(1, np.uint64), {"r": 1.0})):
        with pytest.raises(di_store.StoreClosed):
            call()
