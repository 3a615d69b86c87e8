"""Vector environments that restart by themselves, against single environments stepped by hand.

Observations spell (lane, episode, step), actions are a function of the observation, so that the multiset of
transitions is known without any store: it must be what the table holds, and what a learner samples.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import di_store

FULL = os.environ.get("DI_STORE_TEST_SCALE", "small") == "full"
GAMMA = 0.5


class Spelling(gym.Env[Any, Any]):  # type: ignore[misc,unused-ignore]
    """An environment whose observation is (lane, episode, step); episodes end by a fixed rule."""

    observation_space = gym.spaces.Box(-1, 10_000, (3,), np.float32)
    action_space = gym.spaces.Discrete(1_000)

    def __init__(self, lane: int) -> None:
        self.lane, self.episode, self.at = lane, -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episode += 1
        self.at = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action == policy(self.seen()), "the store's test must act on what it saw"
        self.at += 1
        ends = self.at >= 1 + (self.lane * 7 + self.episode * 5) % 9
        kind = (self.lane + self.episode) % 3
        return self.seen(), float(self.at + self.lane), ends and kind != 1, ends and kind != 0, {}

    def seen(self) -> Any:
        return np.array([self.lane, self.episode, self.at], dtype=np.float32)


def policy(obs: Any) -> int:
    """The action, from the observation alone."""
    return int(obs[0] * 31 + obs[1] * 17 + obs[2]) % 1_000


def reset_obs(environment: Spelling) -> Any:
    return environment.reset()[0]


def by_hand(lane: int, rows: int, n_step: int, stack: int) -> Counter[Any]:
    """Transitions of one environment after `rows` steps, the unfinished tail bootstrapped by the last observation."""
    environment = Spelling(lane)
    found: Counter[Any] = Counter()
    done = 0
    while done < rows:
        frames, rewards, terminated, ended = [reset_obs(environment)], [], False, False
        while not ended and done < rows:
            obs, reward, terminated, truncated, _ = environment.step(policy(frames[-1]))
            frames.append(obs)
            rewards.append(reward)
            ended = terminated or truncated
            done += 1
        found.update(transitions(frames, rewards, terminated, n_step, stack))
    return found


def transitions(frames: list[Any], rewards: list[float], terminated: bool, n_step: int, stack: int) -> list[Any]:
    """All n-step transitions of one episode, in the form of `spelled`."""
    found = []
    for start in range(len(rewards)):
        stop = min(start + n_step, len(rewards))
        reward = sum(GAMMA**i * rewards[start + i] for i in range(stop - start))
        ends = terminated and stop == len(rewards)
        discount = 0.0 if ends else GAMMA ** (stop - start)
        found.append(
            (
                spelled([frames[max(0, start - i)] for i in range(stack - 1, -1, -1)]),
                policy(frames[start]),
                round(reward, 4),
                spelled([frames[max(0, stop - i)] for i in range(stack - 1, -1, -1)]),
                round(discount, 4),
                stop - start,
                ends,
            )
        )
    return found


def spelled(frames: Any) -> tuple[int, ...]:
    """Stacked frames, hashable."""
    return tuple(int(value) for value in np.asarray(frames).ravel())


def read(batch: Any, at: int) -> Any:
    """One transition of a batch, in the same form."""
    data = batch.data
    return (
        spelled(data["obs"][at]),
        int(data["action"][at]),
        round(float(data["reward"][at]), 4),
        spelled(data["next_obs"][at]),
        round(float(data["discount"][at]), 4),
        int(data["steps"][at]),
        bool(data["terminated"][at]),
    )


STYLES = ["next", "short", "late", "short late", "bare", "masks", "bare masks"]
"""How observations are given: `next` with each row; `short`: not again as the next row's; `late`: final ones by
`end_episode`; `bare`: by the rows alone; `masks`: a call for some lanes, another one for the others."""


def run(table: Any, mode: AutoresetMode, lanes: int, style: str, steps: int) -> list[int]:
    """`steps` steps of a vector environment through a writer; how many rows every lane really took."""
    rng = np.random.default_rng(steps)
    envs = SyncVectorEnv([lambda lane=lane: Spelling(lane) for lane in range(lanes)], autoreset_mode=mode)
    obs, _ = envs.reset()
    rows = [0] * lanes
    ended = np.zeros(lanes, bool)
    with table.writer(lanes=lanes, autoreset=envs.metadata["autoreset_mode"]) as writer:
        for _ in range(steps):
            actions = np.array([policy(each) for each in obs])
            real = ~ended if mode == AutoresetMode.NEXT_STEP else np.ones(lanes, bool)
            rows = [count + int(took) for count, took in zip(rows, real, strict=True)]
            following, reward, terminated, truncated, infos = envs.step(actions)
            step = {"action": actions, "reward": reward, "terminated": terminated, "truncated": truncated}
            options = {"next": {"obs": following}}
            if "bare" in style or (style == "late" and mode == AutoresetMode.NEXT_STEP):
                del options["next"]
            if "short" not in style or rows == [1] * lanes:  # else `next` gave it with the last call
                step = {"obs": obs, **step}
            if mode == AutoresetMode.SAME_STEP and "late" not in style:
                options["final"] = infos.get("final_obs")
            for mask in [rng.random(lanes) < 0.5] if "masks" in style else []:
                append_some(writer, mask, step, options)
                append_some(writer, ~mask, step, options)
            if "masks" not in style:
                writer.append(step, **options)
            ended = terminated | truncated
            if "late" in style and ended.any():  # the final observation in a call of its own
                final = infos["final_obs"] if mode == AutoresetMode.SAME_STEP else following
                writer.end_episode({"obs": np.stack(final[ended])}, lane=np.flatnonzero(ended))
            obs = following
        finish(writer, mode, obs, ended)
    envs.close()
    return rows


def append_some(writer: Any, mask: Any, step: Any, options: Any) -> None:
    """The rows of some lanes."""
    if not mask.any():
        return
    given = {"final": options["final"]} if "final" in options else {}
    if "next" in options:
        given["next"] = {"obs": options["next"]["obs"][mask]}
    writer.append({name: leaf[mask] for name, leaf in step.items()}, lane=mask, **given)


def finish(writer: Any, mode: AutoresetMode, obs: Any, ended: Any) -> None:
    """The last observation of the lanes that are in the middle of an episode, or whose final one is still to come."""
    open_lanes = np.flatnonzero(~ended) if mode == AutoresetMode.SAME_STEP else np.arange(len(ended))
    if len(open_lanes):
        writer.end_episode({"obs": obs[open_lanes]}, lane=open_lanes)


FEW = [(1, STYLES[:4]), (3, STYLES), (64, STYLES[:5])]
RUNS = [(lanes, style) for lanes, styles in FEW for style in styles]
if FULL:
    RUNS = list(itertools.product([1, 2, 3, 17, 64], STYLES))


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize(("lanes", "style"), RUNS)
def test_transitions_equal_single_environments(
    lanes: int, mode: AutoresetMode, n_step: int, stack: int, style: str
) -> None:
    steps = 300 if FULL else 60 if lanes < 64 else 20
    view = di_store.Transition(n_step=n_step, gamma=GAMMA, frame_stack={"obs": stack} if stack > 1 else None)
    with di_store.open(memory="128MiB") as store:
        table = store.create_table("t", capacity=2 * steps * lanes, view=view, sampler=di_store.Once(), lanes=lanes)
        rows = run(table, mode, lanes, style, steps)
        expected = sum((by_hand(lane, count, n_step, stack) for lane, count in enumerate(rows)), Counter())
        peeked = table.peek(table.keys())
        assert Counter(read(peeked, at) for at in range(len(table))) == expected
        sampled = table.sample(len(table), timeout=60)
        assert Counter(read(sampled, at) for at in range(len(table))) == expected


def test_autoreset_none_equals_single_environments() -> None:
    """`autoreset=None` over one environment, observations given as `next`."""
    environment = Spelling(5)
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=1_000, view=di_store.Transition(n_step=3, gamma=GAMMA))
        obs = reset_obs(environment)
        with table.writer() as writer:
            for _ in range(60):
                action = policy(obs)
                following, reward, terminated, truncated, _ = environment.step(action)
                step = {"obs": obs, "action": action, "reward": reward, "terminated": terminated}
                writer.append({**step, "truncated": truncated}, next={"obs": following})
                obs = reset_obs(environment) if terminated or truncated else following
        batch = table.peek(table.keys())
        assert Counter(read(batch, at) for at in range(len(table))) == by_hand(5, 60, 3, 1)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_extend_handles_autoreset_rows(mode: AutoresetMode, given: bool) -> None:
    """`extend` with dropped rows in the middle of a call, at its begin and at its end."""
    lanes, rng = 3, np.random.default_rng(7)
    envs = SyncVectorEnv([lambda lane=lane: Spelling(lane) for lane in range(lanes)], autoreset_mode=mode)
    obs, _ = envs.reset()
    rows, ended = [0] * lanes, np.zeros(lanes, bool)
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=1_000, view=di_store.Transition(n_step=3, gamma=GAMMA), lanes=lanes)
        with table.writer(lanes=lanes, autoreset=mode) as writer:
            for _ in range(20):
                steps, behind, finals = [], [], []
                for _ in range(rng.integers(1, 8)):
                    actions = np.array([policy(each) for each in obs])
                    real = ~ended if mode == AutoresetMode.NEXT_STEP else np.ones(lanes, bool)
                    rows = [count + int(took) for count, took in zip(rows, real, strict=True)]
                    following, reward, terminated, truncated, infos = envs.step(actions)
                    flags = {"terminated": terminated, "truncated": truncated}
                    steps.append({"obs": obs, "action": actions, "reward": reward, **flags})
                    behind.append(following)
                    finals.append(infos.get("final_obs", np.full(lanes, None)))
                    obs, ended = following, terminated | truncated
                joined = {name: np.stack([step[name] for step in steps]) for name in steps[0]}
                options = {"next": {"obs": np.stack(behind)}} if given else {}
                if mode == AutoresetMode.SAME_STEP:
                    options["final"] = np.stack(finals)
                writer.extend(joined, **options)
            finish(writer, mode, obs, ended)
        batch = table.peek(table.keys())
        expected = sum((by_hand(lane, count, 3, 1) for lane, count in enumerate(rows)), Counter())
        assert Counter(read(batch, at) for at in range(len(table))) == expected
    envs.close()


WHOLE = [
    di_store.Sequence(4, period=2, bootstrap=("obs",)),
    di_store.Sequence(4, period=4, tail="shift", bootstrap=("obs",)),
    di_store.Sequence(4),
    di_store.Sequence(4, bootstrap=("obs",), cross_episodes=True),
    di_store.Episode(12, bootstrap=("obs",)),
]


@pytest.mark.parametrize("style", STYLES if FULL else ["next", "late", "bare", "bare masks"])
@pytest.mark.parametrize("view", WHOLE, ids=str)
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_sequences_and_episodes_equal_single_environments(mode: AutoresetMode, view: Any, style: str) -> None:
    """All steps are there, in their order, and behind the last one what the environment returned with it."""
    more = 1 if view.bootstrap else 0
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=1_000, view=view, lanes=3)
        rows = run(table, mode, 3, style, 60)
        batch = table.peek(table.keys())
        seen: Counter[Any] = Counter()
        for at in range(len(table)):
            length = int(np.asarray(batch.data["mask"][at]).sum())
            obs = np.asarray(batch.data["obs"][at])[: length + more]
            follows = (np.diff(obs, axis=0) == (0, 0, 1)).all(axis=1)
            if getattr(view, "cross_episodes", False):
                begins = (np.diff(obs, axis=0)[:, 1] == 1) & (obs[1:, 2] == 0) & (obs[1:, 0] == obs[0, 0])
                follows[: length - 1] |= begins[: length - 1]
            assert follows.all(), "steps are missing or doubled, or of two episodes"
            seen.update(spelled(each) for each in obs[:length])
        assert len(seen) == sum(rows), "every real row is in some sequence"


def test_missing_observation_parts_come_from_the_dropped_row() -> None:
    """`next` gives one part; the other one is that of the dropped row, and so it is for a lane that is named alone."""
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=100, view=di_store.Transition(gamma=1.0), lanes=2)
        steps = store.create_table("steps", capacity=100, lanes=2)
        with store.writer([table, steps], lanes=2, autoreset="next_step") as writer:
            for n in range(6):
                at = np.array([n, 10 + n], np.float32)
                rest = {"reward": at, "terminated": np.zeros(2, bool), "truncated": np.array([n == 1, n == 3])}
                step = {"obs": {"a": at, "b": at}, **rest}
                for lane in range(2):
                    one = {"obs": {"a": at[lane], "b": at[lane]}} | {name: leaf[lane] for name, leaf in rest.items()}
                    items = writer.append(one, next={"obs": {"a": at[lane] + 1}}, lane=lane)
                    made = items["t"].keys
                    assert len(items["steps"].keys) == int(n not in ((2, 4)[lane],)), step
                    assert table.peek(made).data["next_obs"]["a"].tolist() == ([at[lane]] if len(made) else [])
        batch = table.peek(table.keys()).data
        pairs = sorted(zip(batch["obs"]["b"].tolist(), batch["next_obs"]["b"].tolist(), strict=True))
        assert pairs == [(0, 1), (1, 2), (3, 4), (4, 5), (10, 11), (11, 12), (12, 13), (13, 14)]
        assert batch["next_obs"]["a"].tolist() == batch["next_obs"]["b"].tolist()


def test_a_reset_that_is_given_up_does_not_end_a_run_across_episodes() -> None:
    """The first observation of an episode was known; `end_episode` drops it before the episode has a step."""
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=100, view=di_store.Sequence(4, cross_episodes=True))
        with table.writer(autoreset="same_step") as writer:
            for n in range(8):
                ended = n % 2 == 1
                step = {"obs": np.float32(n), "terminated": ended, "truncated": False}
                final = {"obs": np.float32(100 + n)} if ended else None
                writer.append(step, next={"obs": np.float32(50 + n if ended else n + 1)}, final=final)
                if ended:
                    writer.end_episode()
        assert table.peek(table.keys()).data["obs"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
