"""What cannot be written declares no columns: the table takes the next, right one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import Episode, SchemaMismatch, Sequence, Step, Store, Transition

OBS = np.zeros(3, np.float32)
MANY = {f"x{number}": 1.0 for number in range(257)}
STEP = {"obs": OBS, "reward": 1.0, "terminated": False}
FINISHED = {**STEP, "next_obs": OBS, "discount": 0.9}


@pytest.fixture
def store() -> Iterator[Store]:
    with di_store.open(memory="64MiB") as made:
        yield made


def _insert(store: Store, value: Any) -> None:
    store.table("t").insert(value)


def _extend(store: Store, value: Any) -> None:
    store.table("t").extend({name: [leaf, leaf] for name, leaf in value.items()})


def _append(store: Store, value: Any) -> None:
    with store.table("t").writer() as writer:
        writer.append(value)


@pytest.mark.parametrize("write", [_insert, _extend, _append])
def test_a_first_item_with_too_many_columns_declares_nothing(store: Store, write: Callable[[Store, Any], None]) -> None:
    table = store.create_table("t", capacity=10, view=Step())
    with pytest.raises(ValueError, match="257 columns: at most 256"):
        write(store, MANY)
    write(store, STEP)
    assert set(table.sample(1).data) == set(STEP)


@pytest.mark.parametrize("write", [_insert, _extend])
@pytest.mark.parametrize(
    "wrong",
    [
        {"obs": OBS, "reward": 1.0, "done": True},
        {"obs": OBS, "reward": 1.0, "terminated": True, "truncated": False},
        {**FINISHED, "next_obs": np.zeros(4, np.float32)},
        {**FINISHED, "steps": 1.5},
    ],
)
def test_a_wrong_first_transition_declares_nothing(
    store: Store, write: Callable[[Store, Any], None], wrong: dict[str, Any]
) -> None:
    table = store.create_table("t", capacity=10, view=Transition())
    with pytest.raises((SchemaMismatch, ValueError)):
        write(store, wrong)
    write(store, FINISHED)
    assert table.sample(1).data["next_obs"].shape == (1, 3)


@pytest.mark.parametrize("view", [Sequence(4), Episode(4)])
def test_a_wrong_first_sequence_declares_nothing(store: Store, view: Any) -> None:
    table = store.create_table("t", capacity=10, view=view)
    with pytest.raises(SchemaMismatch):
        table.insert({"obs": np.zeros((4, 3)), "reward": np.zeros(3), "a": np.zeros(4)})
    with pytest.raises(SchemaMismatch):
        table.extend({"obs": np.zeros((2, 9, 3)), "a": np.zeros((2, 9))})
    table.insert({"obs": np.zeros((4, 2)), "reward": np.zeros(4)})
    assert table.sample(1).data["obs"].shape == (1, 4, 2)


def test_a_step_refused_by_one_table_declares_nothing_in_others(store: Store) -> None:
    one = store.create_table("one", capacity=10)
    two = store.create_table("two", capacity=10, view=Transition())
    with pytest.raises(ValueError, match="reward"), store.writer([one, two]) as writer:
        writer.append({"obs": OBS, "terminated": False})
    one.insert({"anything": 1})
    two.insert(FINISHED)
    assert set(one.sample(1).data) == {"anything"}


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (Transition(frame_stack={"obs": 257}), "frame_stack of 257 rows: at most 256"),
        (Sequence(4, frame_stack={"obs": 1_000}), "frame_stack of 1000 rows: at most 256"),
        (Episode(2_000_000), "lower n_step, burn_in"),
        (Sequence(400_000, cross_episodes=True), "lower n_step, burn_in"),
    ],
)
def test_views_beyond_the_cores_limits_are_refused_before_creation(store: Store, view: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        store.create_table("t", capacity=10, view=view)
    assert "t" not in store.stats()["tables"]
    store.create_table("t", capacity=10, view=Transition(frame_stack={"obs": 256}))


def test_an_id_given_twice_to_put_many_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="is given 2 times"):
        store.put_many([1, 2], ids=["ab" * 20, "ab" * 20])
    assert not store.contains("ab" * 20)
    assert isinstance(store.put_many([1, 2], ids=["ab" * 20, "cd" * 20])[0], di_store.Ref)
