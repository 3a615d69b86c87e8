"""Positions and keys of items, and what a table says of itself."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import di_store


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="128MiB", seed=3) as made:
        yield made


def table_of(store: Any, items: int, capacity: int = 1000, **options: Any) -> Any:
    table = store.create_table("t", capacity=capacity, schema={"x": 0}, **options)
    if items:
        table.extend({"x": np.arange(min(items, capacity))})
    for value in range(capacity, items):
        table.insert({"x": value})
    return table


def assert_lookup(table: Any) -> None:
    """`at` and `positions` agree with the listed keys, for every item and for gone ones."""
    keys = table.keys()
    places = np.arange(len(keys))
    np.testing.assert_array_equal(table.at(places), keys)
    np.testing.assert_array_equal(table.at(places - len(keys)), keys)
    np.testing.assert_array_equal(table.positions(keys[::-1]), places[::-1])
    for outside in (len(keys), [-len(keys) - 1], np.array([0, 2**63], np.uint64), 2**64, -(2**80)):
        with pytest.raises((ValueError, TypeError), match=r"the table has|whole numbers"):
            table.at(outside)


def test_positions_of_a_fifo_table_are_ring_indexes(store: Any) -> None:
    """The index of a ring of `capacity` places: the number of the insert, modulo the capacity."""
    table = table_of(store, 0, capacity=100)
    ring = np.zeros(100, np.uint64)
    for number in range(3_500):  # around the slots three times
        ring[number % 100] = table.insert({"x": number})[0]
        if number % 97 == 0:
            assert_lookup(table)
            filled = min(number + 1, 100)
            order = (np.arange(filled) + number + 1 - filled) % 100
            np.testing.assert_array_equal(table.at(np.arange(filled)), ring[order])
    assert table.positions(ring[:3]).tolist() == [0, 1, 2]
    old = ring[3]
    table.insert({"x": 0})
    assert table.positions([ring[0], old]).tolist() == [-1, 2]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_positions_are_right_after_removals_in_any_order(data: Any) -> None:
    remover = data.draw(st.sampled_from([di_store.Fifo(), di_store.Lifo(), di_store.Uniform(), di_store.MinHeap()]))
    with di_store.open(memory="32MiB", seed=1) as store:
        table = table_of(store, 10, capacity=40, remover=remover)
        for _ in range(data.draw(st.integers(1, 12))):
            step = data.draw(st.sampled_from(["insert", "delete", "resize", "reset", "draw"]))
            if step == "insert":
                for value in range(data.draw(st.integers(1, 30))):
                    table.insert({"x": value}, priority=float(value % 7))
            elif step == "delete" and len(table):
                table.delete(table.keys()[data.draw(st.integers(0, len(table) - 1)) :][:3])
            elif step == "resize":
                table.resize(data.draw(st.integers(5, 2_000)))
            elif step == "reset":
                table.reset()
            elif len(table):
                table.sample(3)
            assert_lookup(table)


def test_held_items_have_no_position(store: Any) -> None:
    """A drawn item at its use limit is not live: neither listed nor found, until it comes back."""
    table = table_of(store, 10, max_times_sampled=1)
    keys = table.keys()
    reader = table._backend.open().reader()
    draws = reader.begin()
    assert reader.draw(draws, 3) == 3
    held = set(keys.tolist()) - set(table.keys().tolist())
    assert len(held) == 3
    assert (table.positions(list(held)) == -1).all()
    assert held.isdisjoint(table.at(np.arange(len(table))).tolist())
    left = [key for key in keys.tolist() if key not in held]
    assert table.at(np.arange(len(left))).tolist() == left
    assert_lookup(table)
    reader.give_back(draws)
    assert table.at(np.arange(10)).tolist() == keys.tolist()


def test_many_keys_are_looked_up_at_once(store: Any) -> None:
    table = table_of(store, 6_000, capacity=5_000)
    assert_lookup(table)
    assert table.at([]).shape == (0,)
    assert table.at([[0, 1], [2, -1]]).tolist() == table.keys()[[0, 1, 2, -1]].tolist()
    assert table.at(0).shape == (1,)
    assert table.positions([]).tolist() == []


@pytest.mark.parametrize("positions", [1.5, [0.0], ["a"], [True], None, [[1], [1, 2]]])
def test_invalid_positions_are_refused(store: Any, positions: Any) -> None:
    with pytest.raises(TypeError, match="whole numbers"):
        table_of(store, 3).at(positions)


def test_an_empty_table_has_no_positions(store: Any) -> None:
    table = table_of(store, 0)
    assert table.positions([7]).tolist() == [-1]
    with pytest.raises(ValueError, match="has 0 items"):
        table.at(0)


def test_table_properties_equal_its_settings(store: Any) -> None:
    declared = {
        "obs": {"pixels": di_store.Spec((8, 8), "u1"), "state": di_store.Spec((3,), "bfloat16")},
        "tokens": di_store.Spec((None, 2), "i4", max=30),
        "reward": di_store.Spec((), "f4"),
        "terminated": di_store.Spec((), "?"),
    }
    view = di_store.Transition(n_step=2, obs=("obs",))
    sampler = di_store.Prioritized(alpha=0.5, beta=0.4, normalize="table")
    table = store.create_table("a", capacity=50, view=view, schema=declared, sampler=sampler)
    assert table.schema == declared
    assert (table.view, table.sampler, table.capacity) == (view, sampler, 50)
    table.configure(alpha=0.7, beta=0.9)
    table.resize(80)
    assert table.sampler == di_store.Prioritized(alpha=0.7, beta=0.9, normalize="table")
    assert table.capacity == 80
    again = store.create_table("b", capacity=50, view=table.view, schema=table.schema, sampler=table.sampler)
    assert again.schema == declared


def test_properties_of_an_undeclared_table_are_none(store: Any) -> None:
    table = store.create_table("t", capacity=None, max_bytes="1MiB")
    assert table.schema is None
    assert table.capacity is None
    table.insert({"x": 1, "y": {"z": np.zeros(3, np.float32)}})
    assert table.schema == {"x": di_store.Spec((), "i8"), "y": {"z": di_store.Spec((3,), "f4")}}
    values = store.create_table("o", capacity=5, view=di_store.Opaque())
    values.insert({"any": "thing"})
    assert values.schema is None


def test_lookups_in_a_closed_store_raise(store: Any) -> None:
    table = table_of(store, 3)
    store.close()
    for call in (lambda: table.at(0), lambda: table.positions([1]), lambda: table.schema, lambda: table.capacity):
        with pytest.raises(di_store.StoreClosed):
            call()


def test_items_know_their_episodes(store: Any) -> None:
    """The same numbers as in batches; after pickling too, and -1 for items that have gone."""
    step = {"obs": 0.0, "reward": 0.0, "terminated": False}
    view = di_store.Transition(n_step=2)
    one, other = (store.create_table(name, capacity=50, view=view) for name in ("one", "other"))
    numbers: dict[int, int] = {}
    with store.writer([one, other], lanes=2) as writer:
        for number in range(12):
            row = {name: np.repeat(value, 2) for name, value in step.items()}
            row["terminated"] = np.array([number % 3 == 2, number % 5 == 4])
            made = writer.append(row, next={"obs": np.zeros(2)})
            assert made["one"].episodes.tolist() == made["other"].episodes.tolist()
            numbers |= dict(zip(made["one"].keys.tolist(), made["one"].episodes.tolist(), strict=True))
        again = pickle.loads(pickle.dumps(made["one"]))
        assert again.episodes.tolist() == made["one"].episodes.tolist()
    assert len(set(numbers.values())) == 4 + 3
    batch = one.peek(list(numbers))
    assert batch.episodes.tolist() == list(numbers.values())
    with one.writer() as writer:
        writer.append(step)
        made = writer.end_episode(final={"obs": 1.0})
    one.reset()
    assert made.episodes.tolist() == [-1]
    assert di_store.Items(made.keys, made.lanes, made.starts).episodes.tolist() == [-1]
    with other.writer() as writer:
        assert writer.end_episode().episodes.tolist() == []


def test_items_do_not_keep_a_closed_store() -> None:
    store = di_store.open(memory="32MiB")
    table = store.create_table("t", capacity=10, schema={"x": 0})
    writer = table.writer()
    made = writer.append({"x": 1})
    writer.close()
    name = store.name
    store.close()
    del store, table, writer
    gc.collect()
    assert name not in [each.name for each in di_store.list_stores()]
    assert made.episodes.tolist() == [-1]


def test_positions_are_right_in_a_grown_table(store: Any) -> None:
    """New slots come behind those that were freed before: the slot after a slot is then not the next item's."""
    table = table_of(store, 1_500)
    table.resize(4_000)
    for begin in range(0, 3_000, 500):
        table.extend({"x": np.arange(begin, begin + 500)})
    assert len(table) == 4_000
    assert_lookup(table)
    keys = table.keys()
    for place in range(0, 4_000, 50):  # one by one: a single miss makes a call list all keys
        assert table.at(place).tolist() == [keys[place]]
