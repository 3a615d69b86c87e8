"""The parts of the demo, against the real environments and the real store."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any, cast

import numpy as np
import pytest
import torch

import di_store
from di_store.demo import DemoConfig
from di_store.demo.actor import POLICY, Report, epsilon_at
from di_store.demo.envs import MODES, EnvLanes, EnvShape, env_shape
from di_store.demo.fleet import ActorState, FleetMember
from di_store.demo.job import create_replay, room_for_weights
from di_store.demo.learner import Learner
from di_store.demo.metrics import Metrics
from di_store.demo.networks import as_input, build_network
from di_store.demo.screen import actor_cells, curve

QBERT = "ALE/Qbert-v5"
SMALL_AND_LARGE = ["CartPole-v1", pytest.param(QBERT, marks=pytest.mark.extended)]


# The parts


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"seconds": 0}, "--seconds"),
        ({"seconds": float("nan")}, "--seconds"),
        ({"actors": 0}, "--actors"),
        ({"envs_per_actor": 0}, "--envs-per-actor"),
        ({"autoreset": "never"}, "--autoreset"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], option: str) -> None:
    with pytest.raises(ValueError, match=option):
        DemoConfig(**options)


def test_exploration_decays_and_differs_by_actor() -> None:
    config = DemoConfig(env="CartPole-v1", actors=3)
    first = [epsilon_at(config, index, 0) for index in range(3)]
    last = [epsilon_at(config, index, 10**9) for index in range(3)]
    assert first == [1.0, 1.0, 1.0]
    assert last[0] > last[1] > last[2] == pytest.approx(config.recipe.epsilon_final)


@pytest.mark.parametrize("autoreset", sorted(MODES))
@pytest.mark.parametrize("env", SMALL_AND_LARGE)
def test_the_learner_sees_the_policys_frame_stacks(env: str, autoreset: str) -> None:
    """Every stored item, read back, holds the very stack the actor's policy acted on, although frames go in singly."""
    config = DemoConfig(env=env, autoreset=autoreset, envs_per_actor=3, memory="96MiB")
    shape = env_shape(config)
    turns, rng = (700 if config.pixels else 200), np.random.default_rng(5)
    seen_by_key: dict[int, np.ndarray] = {}
    actions_by_key: dict[int, int] = {}
    ends = 0
    with di_store.open(memory=config.memory) as store:
        replay = create_replay(config, shape, store)
        replay.configure(limiter=di_store.MinSize(1))  # no learner samples while the rows go in
        lanes = EnvLanes(config, 3, seed=1)
        # Per lane, what the policy saw and did in each row of the running episode.
        rows: dict[int, list[tuple[np.ndarray, int]]] = defaultdict(list)
        with replay.writer(lanes=3, autoreset=lanes.autoreset) as writer:
            for _ in range(turns):
                actions = rng.integers(shape.actions, size=3)
                for lane in np.flatnonzero(~lanes.resetting):
                    rows[int(lane)].append((lanes.seen[lane].copy(), int(actions[lane])))
                stepped = lanes.step(actions)
                items = writer.append(stepped.step, next=stepped.next, final=stepped.final)
                for key, lane, start in zip(items.keys, items.lanes, items.starts, strict=True):
                    seen_by_key[int(key)], actions_by_key[int(key)] = rows[int(lane)][int(start)]
                for lane in np.flatnonzero(stepped.step["terminated"] | stepped.step["truncated"]):
                    rows[int(lane)] = []
                    ends += 1
        lanes.close()
        assert ends > 0, "no episode ended, so nothing was tested"
        keys = np.array(sorted(seen_by_key), np.uint64)
        batch = replay.peek(keys)
        assert batch.live.all()
        np.testing.assert_array_equal(batch.data["obs"], np.stack([seen_by_key[int(key)] for key in keys]))
        np.testing.assert_array_equal(batch.data["action"], [actions_by_key[int(key)] for key in keys])
        if config.pixels:
            assert np.abs(batch.data["reward"]).max() <= config.recipe.n_step
            assert batch.data["obs"].shape[1:] == (4, 84, 84)


def test_a_lost_life_sets_the_discount_to_zero() -> None:
    """A lost life gives `discount` 0 in that row, once per life, and the episode goes on."""
    config = DemoConfig(env=QBERT)
    lanes, rng = EnvLanes(config, 1, seed=4), np.random.default_rng(1)
    lost = 0
    while True:
        stepped = lanes.step(rng.integers(6, size=1))
        lost += int(stepped.step["discount"][0] == 0)
        if stepped.step["terminated"][0]:
            break
    lanes.close()
    assert lost == 4
    assert len(stepped.returns) == 1


class _Batch:
    """What the learner reads of a batch."""

    def __init__(self, shape: EnvShape, count: int) -> None:
        rng = np.random.default_rng(0)
        self.data = {
            "obs": rng.normal(size=(count, *shape.obs_shape)).astype(np.float32),
            "next_obs": rng.normal(size=(count, *shape.obs_shape)).astype(np.float32),
            "action": rng.integers(shape.actions, size=count),
            "reward": rng.normal(size=count).astype(np.float32),
            "discount": rng.choice([0.0, 0.97], size=count).astype(np.float32),
        }
        self.weights = rng.uniform(0.1, 1.0, size=count).astype(np.float32)


def test_learner_is_a_weighted_double_dqn() -> None:
    config, shape = DemoConfig(env="CartPole-v1"), EnvShape((4,), "float32", 2)
    torch.manual_seed(0)
    learner = Learner(build_network(config, shape), config.recipe)
    with torch.no_grad():
        for parameter in learner.target.parameters():
            parameter.add_(0.02)  # so that it matters which network chooses and which one values
    batch: Any = _Batch(shape, 64)
    with torch.no_grad():
        online = {name: learner.network(as_input(batch.data[name])).numpy() for name in ("obs", "next_obs")}
        target = learner.target(as_input(batch.data["next_obs"])).numpy()
    row = np.arange(64)
    goal = batch.data["reward"] + batch.data["discount"] * target[row, online["next_obs"].argmax(1)]
    error = np.abs(goal - online["obs"][row, batch.data["action"]])
    huber = np.where(error < 1, 0.5 * error**2, error - 0.5)
    update = learner.update(batch)
    np.testing.assert_allclose(update.priorities, error + config.recipe.priority_floor, rtol=1e-4)
    assert update.loss == pytest.approx(float((batch.weights * huber).mean()), rel=1e-4)
    for _ in range(150):
        later = learner.update(batch)
    assert later.loss < update.loss / 2


def test_the_target_network_follows_and_beta_rises() -> None:
    config, shape = DemoConfig(env="CartPole-v1"), EnvShape((4,), "float32", 2)
    learner = Learner(build_network(config, shape), config.recipe)
    batch: Any = _Batch(shape, 8)
    assert learner.beta == pytest.approx(config.recipe.beta_first)
    learner.update(batch)
    pairs = list(zip(learner.network.parameters(), learner.target.parameters(), strict=True))
    assert not all(torch.equal(ours, target) for ours, target in pairs)
    while learner.updates % config.recipe.target_every:
        learner.update(batch)
    assert all(torch.equal(ours, target) for ours, target in pairs)
    learner.updates = 2 * config.recipe.beta_updates
    assert learner.beta == 1.0


@pytest.mark.memory_only
def test_capacity_follows_memory() -> None:
    """--memory too small for the usual capacity gives a smaller table; far too small is refused."""
    config = DemoConfig(env=QBERT)
    shape = EnvShape((84, 84), "uint8", 6)
    with di_store.open(memory="128MiB") as store:
        create_replay(config, shape, store)
    with di_store.open(memory="16MiB") as store, pytest.raises(di_store.CapacityError):
        create_replay(config, shape, store)


def test_table_leaves_room_for_weights() -> None:
    """A table that takes what --memory leaves still lets the learner publish while the version before is there."""
    config, shape = DemoConfig(env=QBERT), EnvShape((84, 84), "uint8", 6)
    learner = Learner(build_network(config, shape), config.recipe)
    with di_store.open(memory="100MiB") as store:
        with room_for_weights(config, store, learner):
            create_replay(config, shape, store)
        versions = [store.publish(POLICY, learner.network.state_dict()) for _ in range(3)]
        assert versions == [1, 2, 3]


class _Process:
    """What the screen reads of an actor's process."""

    pid, exitcode = 7, 3

    def join(self, timeout: float) -> None:
        """It has ended."""


def _member(state: ActorState, reported: float) -> FleetMember:
    process, control = _Process(), None
    report = Report(steps=1_000, epsilon=0.5, version=3, waiting=0.25, returns=[])
    return FleetMember(0, cast(Any, process), cast(Any, control), state, report, reported, "exit status 3")


@pytest.mark.parametrize(
    ("state", "silent_seconds", "cells"),
    [
        (ActorState.RUNNING, 0.0, ("pid 7", "1,000 steps", "epsilon 0.50", "policy 3", "waits  25%")),
        (ActorState.RUNNING, 1e6, ("pid 7", "1,000 steps", "no report for 1,000,000 s")),
        (ActorState.ENDED, 1e6, ("ended", "1,000 steps")),
        (ActorState.DEAD, 1e6, ("died: exit status 3", "1,000 steps")),
    ],
    ids=["running", "silent", "ended", "dead"],
)
def test_the_screen_row_of_an_actor_shows_no_stale_figures(
    state: ActorState, silent_seconds: float, cells: tuple[str, ...]
) -> None:
    now = time.monotonic()
    assert actor_cells(_member(state, now - silent_seconds), now) == ("actor 0", *cells)


def test_returns_are_recorded_by_step() -> None:
    """The chart's running mean, the screen's curve, and the mean at the start follow the steps of the episodes."""
    metrics = Metrics()
    for steps in range(1, 101):
        metrics.add_returns([float(steps)], steps=steps * 10)
    assert [episode.steps for episode in metrics.episodes] == [steps * 10 for steps in range(1, 101)]
    assert metrics.first_mean_return == 10.5
    assert (metrics.running_means()[0], metrics.running_means()[-1]) == (1.0, 90.5)
    assert curve(metrics)[0] == "▁"
    assert curve(metrics)[-1] == "█"
    assert list(curve(metrics)) == sorted(curve(metrics))
    assert curve(Metrics()) == "-"
