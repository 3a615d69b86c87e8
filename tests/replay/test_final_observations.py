"""The observation behind an episode's last step: in which forms it comes, and when what is missing of it follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import di_store

SPACES: dict[str, tuple[Any, Any]] = {
    "discrete": (gym.spaces.Discrete(10**9), lambda at: np.int64(at)),
    "multi": (gym.spaces.MultiDiscrete([100, 10_000]), lambda at: np.array([at % 7, at], np.int64)),
    "scalar": (gym.spaces.Box(-1, 1e9, (), np.float64), lambda at: np.float64(at)),
    "one below": (
        gym.spaces.Dict({"obs": gym.spaces.Box(-1, 1e9, (1,), np.float32)}),
        lambda at: {"obs": np.array([at], np.float32)},
    ),
    "named as its column": (
        gym.spaces.Dict({"obs": gym.spaces.Box(-1, 1e9, (1,), np.float32), "n": gym.spaces.Discrete(10**9)}),
        lambda at: {"obs": np.array([at], np.float32), "n": np.int64(at)},
    ),
    "nested": (
        gym.spaces.Dict(
            {"a": gym.spaces.Dict({"x": gym.spaces.Discrete(10**9)}), "b": gym.spaces.MultiDiscrete([9, 9])}
        ),
        lambda at: {"a": {"x": np.int64(at)}, "b": np.array([at % 9, at % 5], np.int64)},
    ),
}


class Counting(gym.Env[Any, Any]):  # type: ignore[misc,unused-ignore]
    """Counts its steps over all episodes, which are 3 steps long and truncated."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, space: str, lane: int) -> None:
        self.observation_space, self.make = SPACES[space]
        self.at, self.left = 1000 * lane, 3

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.at, self.left = self.at + 1, 3
        return self.make(self.at), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at, self.left = self.at + 1, self.left - 1
        return self.make(self.at), float(self.at), False, self.left == 0, {}


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def leaves(data: Any) -> list[Any]:
    """The arrays of a nested dict, by path."""
    return [leaf for _, each in sorted(data.items()) for leaf in leaves(each)] if isinstance(data, dict) else [data]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("space", SPACES)
def test_observations_of_all_vector_spaces_are_written(store: Any, space: str, mode: AutoresetMode) -> None:
    envs = SyncVectorEnv([lambda lane=lane: Counting(space, lane) for lane in range(3)], autoreset_mode=mode)
    schema = {"obs": envs.single_observation_space, "reward": 0.0, "terminated": False, "truncated": False}
    table = store.create_table("t", capacity=200, view=di_store.Transition(), lanes=3, schema=schema)
    obs, _ = envs.reset()
    with table.writer(lanes=3, autoreset=envs.metadata["autoreset_mode"]) as writer:
        for _ in range(20):
            following, reward, terminated, truncated, infos = envs.step(np.zeros(3, np.int64))
            step = {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated}
            writer.append(step, next={"obs": following}, final=infos.get("final_obs"))
            obs = following
    envs.close()
    assert len(table) == 3 * (20 if mode == AutoresetMode.SAME_STEP else 15)
    batch = table.peek(table.keys())
    make = SPACES[space][1]
    for row, at in enumerate(batch.data["reward"].astype(int).tolist()):
        for name, expected in (("obs", make(at - 1)), ("next_obs", make(at))):
            for found, wanted in zip(leaves(batch.data[name]), leaves(expected), strict=True):
                np.testing.assert_array_equal(found[row], wanted)


def ended(*flags: bool) -> dict[str, Any]:
    """What a step of some lanes has besides its observation."""
    none = np.zeros(len(flags), bool)
    return {"reward": np.zeros(len(flags), np.float32), "terminated": none, "truncated": np.array(flags)}


def dicts(*items: Any) -> Any:
    """An object array of them."""
    found = np.empty(len(items), object)
    found[:] = items
    return found


@pytest.mark.parametrize(
    ("final", "word"),
    [
        (dicts({"poz": np.float32(1)}, None), "poz"),
        (dicts({"pos": {"x": np.float32(1)}}, None), "obs/pos"),
        (dicts({"pos": np.float32(1)}, {"pos": np.float32(1), "n": np.int64(1)}), "some lanes"),
        (dicts({}, None), "obs/pos"),
        (dicts(np.float32(1), None), "one observation column"),
        ({"obs": {"poz": np.zeros(2, np.float32)}}, "obs/poz"),
        ({"obs": np.zeros(2, np.float32)}, "obs/pos"),
        ({"obs": {"pos": np.zeros(3, np.float32)}}, "obs/pos"),
        (5, "final="),
        (dicts(None), "each lane"),
    ],
    ids=str,
)
def test_final_observations_that_fit_nowhere_are_refused(store: Any, final: Any, word: str) -> None:
    table = store.create_table("t", capacity=20, view=di_store.Transition(), lanes=2)
    obs = {"pos": np.zeros(2, np.float32), "n": np.zeros(2, np.int64)}
    with table.writer(lanes=2, autoreset="same_step") as writer:
        writer.append({"obs": obs, **ended(False, False)})
        with pytest.raises((di_store.SchemaMismatch, ValueError, TypeError), match=word):
            writer.append({"obs": obs, **ended(True, True)}, next={"obs": obs}, final=final)
        assert len(table) == 0
        assert writer.append({"obs": obs, **ended(True, True)}).starts.tolist() == [0, 0]


@pytest.mark.parametrize("flags", [(True, False, True), (False, True, False), (True, True, True)])
@pytest.mark.parametrize("ragged", [False, True])
def test_final_takes_the_form_of_next(store: Any, flags: tuple[bool, ...], ragged: bool) -> None:
    schema = {"obs": di_store.Spec((None,), "f4", max=3) if ragged else di_store.Spec((1,), "f4")}
    rest = {"reward": 0.0, "terminated": False, "truncated": False}
    table = store.create_table("t", capacity=20, view=di_store.Transition(), lanes=3, schema=schema | rest)
    rows = np.arange(3, dtype=np.float32)[:, None]
    with table.writer(lanes=3, autoreset="same_step") as writer:
        final = list(rows[np.array(flags)] + 10) if ragged else rows[np.array(flags)] + 10
        given = list(rows) if ragged else rows
        behind = list(rows + 5) if ragged else rows + 5
        writer.append({"obs": given, **ended(*flags)}, next={"obs": behind}, final={"obs": final})
        following = table.peek(table.keys()).data["next_obs"]
        found = [float(row[0]) for row in following]
        assert found == [lane + (10 if flag else 5) for lane, flag in enumerate(flags)]


@pytest.mark.parametrize("flagged", [True, False])
def test_a_partial_final_observation_can_be_completed(store: Any, flagged: bool) -> None:
    """`next` gives one part of it, `end_episode` the other."""
    table = store.create_table("t", capacity=20, view=di_store.Transition())
    steps = store.create_table("steps", capacity=20)
    with store.writer([table, steps]) as writer:
        for at in range(2):
            step = {"obs": {"a": np.float32(at), "b": np.float32(at)}, "reward": 0.0, "truncated": flagged and at == 1}
            writer.append(step, next={"obs": {"a": np.float32(at + 1)}})
        assert (len(table), len(steps)) == (1, 2)
        assert len(writer.end_episode({"obs": {"b": np.float32(2)}})["t"].keys) == 1
        writer.append({"obs": {"a": np.float32(7), "b": np.float32(7)}, "reward": 0.0, "truncated": False})
        assert (len(table), len(steps)) == (2, 3)
    assert table.peek(table.keys()).data["next_obs"]["a"].tolist() == [1, 2]
    assert table.peek(table.keys()).data["next_obs"]["b"].tolist() == [1, 2]
    assert table.peek(table.keys()).data["discount"].tolist() == pytest.approx([0.99, 0.99])


def test_a_missing_part_of_the_final_observation_is_handled(store: Any) -> None:
    """Nothing followed: a truncated episode makes no item that would need it, a terminated one repeats the last."""
    table = store.create_table("t", capacity=20, view=di_store.Transition(), lanes=2)
    obs = {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}
    part = {"obs": {"a": np.ones(2, np.float32)}}
    flags = {"terminated": np.array([True, False]), "truncated": np.array([False, True])}
    with table.writer(lanes=2) as writer:
        writer.append({"obs": obs, "reward": np.zeros(2), **flags}, next=part)
        assert writer.append({"obs": obs, "reward": np.zeros(2), **flags}).lanes.tolist() == [0]
    batch = table.peek(table.keys())
    assert batch.data["next_obs"]["b"].tolist() == [0, 0]
    assert batch.data["discount"].tolist() == [0, 0]


@pytest.mark.parametrize("ragged", [False, True])
def test_in_same_step_mode_the_final_observation_may_come_later(store: Any, ragged: bool) -> None:
    """Same-step mode, the final observation in a call of its own: what `next` gave need not be repeated."""
    schema = {"obs": di_store.Spec((None,), "f4", max=4) if ragged else di_store.Spec((2,), "f4")}
    rest = {"reward": 0.0, "terminated": False, "truncated": False}
    table = store.create_table("t", capacity=100, view=di_store.Transition(), lanes=1, schema=schema | rest)

    def obs(at: int) -> Any:
        return [np.full(at % 4 if ragged else 2, at, np.float32)]

    none = ended(False)
    with table.writer(lanes=1, autoreset="same_step") as writer:
        writer.append({"obs": obs(1), **none}, next={"obs": obs(2)})
        for first in (10, 20, 30):
            writer.append(ended(True), next={"obs": obs(first)})
            if first == 10:
                writer.end_episode({"obs": obs(5)})
            elif first == 20:
                writer.end_episode(discard=True)
            with pytest.raises(ValueError, match="end_episode"):
                writer.append({"obs": obs(first + 9), **none})
            writer.append(none, next={"obs": obs(first + 1)})
    batch = table.peek(table.keys())
    pairs = [(a[0], b[0]) for a, b in zip(batch.data["obs"], batch.data["next_obs"], strict=True) if len(a) and len(b)]
    expected = [(1, 2), (2, 5), (10, 11), (20, 21), (30, 31)]
    assert pairs == [(a, b) for a, b in expected if not ragged or (a % 4 and b % 4)]


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "c16", "i4"])
@pytest.mark.parametrize("most", [4, None])
def test_a_repeated_observation_equals_the_stored_one_by_value(store: Any, kind: str, most: int | None) -> None:
    """0.0 is -0.0, a NaN is itself, and no other number equals another: in fixed, small, wide and ragged columns."""
    spec = di_store.Spec
    schema = {"obs": {"one": spec((), kind), "wide": spec((40, 3), kind), "some": spec((None,), kind, max=most)}}
    rest = {"reward": spec((), "f4"), "note": spec((None,), "i4", max=most)}
    rest |= {"terminated": spec((), "?"), "truncated": spec((), "?")}
    table = store.create_table("t", capacity=20, view=di_store.Transition(), schema=schema | rest, max_bytes="4MiB")

    def obs(number: float) -> dict[str, Any]:
        value = np.array(number).astype(kind)
        return {"obs": {"one": value, "wide": np.full((40, 3), value), "some": np.full(3, value)}}

    row = {"reward": 0.0, "note": [7], "terminated": False, "truncated": False}
    nothing = 0.0 if kind == "i4" else np.nan
    with table.writer() as writer:
        for number, again in ((0.0, -0.0), (-0.0, 0.0), (nothing, nothing)):
            writer.append({**obs(1), **row}, next=obs(number))
            for name in ("one", "wide", "some"):
                with pytest.raises(ValueError, match=f"obs/{name}"):
                    writer.append({"obs": {**obs(again)["obs"], name: obs(3)["obs"][name]}, **row})
            writer.append({**obs(again), **row}, next=obs(number))
            assert len(writer.end_episode(obs(again)).keys) == (most is None)
    assert len(table) == 6
    assert store.check() == []


def test_flags_and_discount_are_taken_from_the_step_itself(store: Any) -> None:
    """They are looked at as a step is written: what `next` told of them cannot stand for it."""
    table = store.create_table("t", capacity=20, view=di_store.Transition())
    row = {"obs": 0.0, "reward": 0.0, "terminated": False, "truncated": False, "discount": 1.0}
    with table.writer() as writer:
        writer.append(row, next={"obs": 1.0, "terminated": True, "truncated": False, "discount": 0.0})
        for left_out in ("terminated", "truncated", "discount"):
            short = row | {"obs": 1.0, "terminated": True, "discount": 0.0}
            del short[left_out]
            for call in (lambda s: writer.append(s), lambda s: writer.extend({n: [v] * 30 for n, v in s.items()})):
                with pytest.raises(di_store.SchemaMismatch, match=left_out):
                    call(short)


def test_a_final_observation_may_give_columns_stored_once_per_sequence(store: Any) -> None:
    """Such columns lie among the values of varying length, and this one takes its room there like any other."""
    spec = di_store.Spec
    schema = {"obs": spec((), "f4"), "state": spec((64,), "f4"), "terminated": spec((), "?")}
    table = store.create_table("t", capacity=500, view=di_store.Sequence(16, first=("state",)), schema=schema)
    zeros, flags = np.zeros(4, np.float32), np.zeros(4, bool)
    with table.writer(lanes=4) as writer:
        for at in range(400):
            state = np.full((4, 64), at, np.float32)
            writer.append({"obs": zeros + at, "state": state, "terminated": flags})
            if at % 2:
                writer.end_episode({"obs": zeros, "state": np.full((4, 64), -7, np.float32)})
    assert store.check() == []
    found = table.peek(table.keys()).data
    assert np.array_equal(found["state"][:, 0], found["obs"][:, 0])
    assert np.array_equal(found["state"].min(1), found["state"].max(1))
