"""di_store.adapters.dopamine beside Dopamine's own replay buffer: same transitions and same seed, same batches."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("dopamine.jax.replay_memory.replay_buffer", reason="runs with make adapters ADAPTER=dopamine")

import jax
from adapter_pages import run_programs
from dopamine.jax.replay_memory import accumulator, elements, replay_buffer, samplers

import di_store
from di_store.adapters import dopamine as ours

KINDS = {"dopamine": replay_buffer.ReplayBuffer, "ours": ours.ReplayBuffer}
OBSERVATIONS = {
    "image": lambda rng: rng.integers(0, 255, (5, 4), np.uint8),
    "floats": lambda rng: rng.random((3, 1)),
    "number": lambda rng: np.float32(rng.random()),
}


def distribution(kind: str, seed: int = 0) -> Any:
    if kind == "prioritized":
        return samplers.PrioritizedSamplingDistribution(seed, priority_exponent=0.5, max_capacity=64)
    return samplers.UniformSamplingDistribution(seed)


def made(kind: str, *, stack: int = 4, horizon: int = 3, sampler: str = "uniform", **options: Any) -> Any:
    options = {"batch_size": 6, "max_capacity": 20, **options}
    return KINDS[kind](accumulator.TransitionAccumulator(stack, horizon, 0.9), distribution(sampler), **options)


def both(**options: Any) -> list[Any]:
    return [made(kind, **options) for kind in KINDS]


def equal(one: Any, other: Any) -> None:
    """The same tree of arrays, types included."""
    leaves, tree = jax.tree_util.tree_flatten(one)
    others, same = jax.tree_util.tree_flatten(other)
    assert tree == same
    for leaf, found in zip(map(np.asarray, leaves), map(np.asarray, others), strict=True):
        assert (leaf.shape, leaf.dtype) == (found.shape, found.dtype)
        assert np.array_equal(leaf, found)


def same_contents(theirs: Any, mine: Any) -> None:
    assert theirs.add_count == mine.add_count
    assert [*theirs._memory] == [*mine._memory]
    for key, element in theirs._memory.items():
        equal(element.unpack() if element.is_compressed else element, mine._memory[key])


class Steps:
    """Transitions of episodes that end in all ways, some at once."""

    def __init__(self, make: Any = OBSERVATIONS["image"], seed: int = 0) -> None:
        self.rng, self.make, self.count = np.random.default_rng(seed), make, 0

    def next(self) -> Any:
        self.count += 1
        chance = 0.6 if self.count % 50 > 40 else 0.1
        terminal, ended = self.rng.random() < chance, self.rng.random() < chance
        return elements.TransitionElement(
            self.make(self.rng), int(self.rng.integers(9)), float(self.rng.random()), bool(terminal), bool(ended)
        )


def fill(buffers: list[Any], steps: Steps, count: int, **kwargs: Any) -> None:
    for _ in range(count):
        step = steps.next()
        for buffer in buffers:
            buffer.add(step, **kwargs)


@pytest.mark.parametrize("make", OBSERVATIONS.values(), ids=OBSERVATIONS)
@pytest.mark.parametrize(("stack", "horizon"), [(1, 1), (4, 1), (1, 3), (3, 5)])
def test_the_same_elements_and_batches(make: Any, stack: int, horizon: int) -> None:
    pair, steps = both(stack=stack, horizon=horizon), Steps(make)
    for _ in range(40):
        fill(pair, steps, 7)
        if pair[0].add_count:
            equal(*[buffer.sample() for buffer in pair])
            equal(*[buffer.sample(1) for buffer in pair])
            (one, drawn), (other, found) = (buffer.sample(11, with_sample_metadata=True) for buffer in pair)
            equal(one, other)
            assert np.array_equal(drawn.keys, found.keys)
        same_contents(*pair)


def test_the_same_batches_with_priorities() -> None:
    pair, steps = both(sampler="prioritized"), Steps()
    rng = np.random.default_rng(0)
    for _ in range(30):
        fill(pair, steps, 5, priority=float(rng.random()))
        if not pair[0].add_count:
            continue
        (one, drawn), (other, found) = (buffer.sample(9, with_sample_metadata=True) for buffer in pair)
        equal(one, other)
        assert np.array_equal(drawn.probabilities, found.probabilities)
        priorities = rng.random(9)
        for buffer in pair:
            buffer.update(drawn.keys, priorities=priorities)


def test_actions_and_rewards_keep_their_types() -> None:
    pair = both(stack=1, horizon=1)
    for number in range(9):
        step = elements.TransitionElement(
            np.ones(2), np.arange(3, dtype=np.float32) * number, np.float32(number), np.bool_(number == 5)
        )
        for buffer in pair:
            buffer.add(step)
    equal(*[buffer.sample(40) for buffer in pair])
    pair = both(stack=1, horizon=1)
    for reward in (1, 2, 2.5, 3, True):  # numpy finds one type for all
        for buffer in pair:
            buffer.add(elements.TransitionElement(np.ones(2), 0, reward, False))
    assert np.array_equal(*[np.sort(buffer.sample(40).reward) for buffer in pair])


def test_short_episodes_have_more_observations_than_elements() -> None:
    pair, rng = both(stack=2, horizon=9, max_capacity=30), np.random.default_rng(0)
    for number in range(600):
        ended = number % 11 == 10 or (number < 300 and number % 11 > 7)
        step = elements.TransitionElement(rng.random(3), 0, 1.0, False, ended)
        for buffer in pair:
            buffer.add(step)
    assert pair[0].add_count > 30
    same_contents(*pair)
    equal(*[buffer.sample() for buffer in pair])


def test_each_observation_is_stored_once() -> None:
    buffer, steps = made("ours", max_capacity=500), Steps()
    fill([buffer], steps, 300)
    frames = np.concatenate(buffer.to_state_dict()["memory"]["frames"])
    assert len(frames) <= 300
    assert len(np.unique(frames.reshape(len(frames), -1), axis=0)) == len(frames)


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_a_restored_checkpoint_gives_the_same_batches(tmp_path: Path, sampler: str) -> None:
    buffer, steps = made("ours", sampler=sampler), Steps()
    other = made("ours", sampler=sampler)
    fill([buffer], steps, 133, priority=1.0)
    buffer.save(str(tmp_path), 7)
    other.load(str(tmp_path), 7)
    copies = [other, copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))]
    for _ in range(10):
        batch = buffer.sample()
        for each in copies:
            equal(batch, each.sample())
            assert each.add_count == buffer.add_count
        fill([buffer, *copies], steps, 9, priority=2.0)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(("stack", "horizon"), [(1, 1), (4, 2), (2, 6)])
def test_a_checkpoint_of_dopamine_is_loaded(tmp_path: Path, compress: bool, stack: int, horizon: int) -> None:
    theirs = made("dopamine", stack=stack, horizon=horizon, compress=compress, max_capacity=50)
    steps = Steps()
    fill([theirs], steps, 200)
    theirs.save(str(tmp_path), 1)
    mine = made("ours", stack=stack, horizon=horizon, max_capacity=50)
    mine.load(str(tmp_path), 1)
    for _ in range(10):
        same_contents(theirs, mine)
        equal(theirs.sample(), mine.sample())
        fill([theirs, mine], steps, 9)


def test_an_empty_buffer_can_be_checkpointed(tmp_path: Path) -> None:
    pair, steps = both(), Steps()
    for number, buffer in enumerate(pair):
        buffer.save(str(tmp_path / str(number)), 1)
    mine = [made("ours"), made("ours")]
    for number, buffer in enumerate(mine):
        buffer.load(str(tmp_path / str(number)), 1)
    fill([*pair, *mine], steps, 60)
    for buffer in mine:
        same_contents(pair[0], buffer)


def test_a_smaller_buffer_keeps_what_it_loads() -> None:
    theirs, steps = made("dopamine"), Steps()
    fill([theirs], steps, 100)
    pair = both(max_capacity=8)
    for buffer in pair:
        buffer.from_state_dict(copy.deepcopy(theirs.to_state_dict()))
    for _ in range(20):
        fill(pair, steps, 3)
        same_contents(*pair)


def test_a_cleared_buffer_starts_empty() -> None:
    pair, steps = both(), Steps()
    for _ in range(3):
        fill(pair, steps, 60)
        same_contents(*pair)
        for buffer in pair:
            buffer.clear()
        assert len(pair[1]._memory) == 0


class Halved(accumulator.TransitionAccumulator):
    """An accumulator of another kind, whose elements may be anything."""

    def accumulate(self, transition: Any) -> Any:
        for element in super().accumulate(transition):
            yield element.replace(reward=element.reward / 2, action={"a": element.action, "b": np.ones(2)})


def test_elements_of_another_accumulator_are_stored(tmp_path: Path) -> None:
    def another(kind: str) -> Any:
        return KINDS[kind](Halved(2, 3, 0.9), distribution("uniform"), batch_size=6, max_capacity=20, compress=False)

    pair, steps = [another(kind) for kind in KINDS], Steps()
    for _ in range(20):
        fill(pair, steps, 7)
        if pair[0].add_count:
            equal(*[buffer.sample() for buffer in pair])
    same_contents(*pair)
    pair[1].save(str(tmp_path / "mine"), 1)
    pair[0].save(str(tmp_path / "theirs"), 1)
    loaded = [another("ours"), another("ours"), pickle.loads(pickle.dumps(pair[1]))]
    loaded[0].load(str(tmp_path / "mine"), 1)
    loaded[1].load(str(tmp_path / "theirs"), 1)
    for each in loaded:
        same_contents(pair[0], each)
    fill([*pair, *loaded], steps, 20)
    for each in loaded:
        same_contents(pair[0], each)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="max_capacity=0"):
        made("ours", max_capacity=0)
    buffer, steps = made("ours", stack=1, horizon=1), Steps()
    with pytest.raises(ValueError, match="the buffer is empty"):
        buffer.sample()
    fill([buffer], steps, 20)
    with pytest.raises(ValueError, match="size=0"):
        buffer.sample(0)
    before = buffer.add_count
    for wrong in (np.zeros((5, 5), np.uint8), np.zeros((5, 4), np.float32)):
        with pytest.raises(ValueError, match=r"the first one was uint8\[5, 4\]"):
            buffer.add(elements.TransitionElement(wrong, 0, 0.0, False))
    assert buffer.add_count == before
    with pytest.raises(ValueError, match="not an array of numbers"):
        made("ours").add(elements.TransitionElement(np.array(["text"]), 0, 0.0, False))
    with pytest.raises(KeyError):
        buffer._memory[before + 1]


def test_a_buffer_larger_than_the_machine_is_refused() -> None:
    buffer = made("ours", stack=1, horizon=1, max_capacity=10**6)
    with pytest.raises(di_store.CapacityError, match="lower max_capacity="):
        for _ in range(2):
            buffer.add(elements.TransitionElement(np.zeros((300, 300)), 0, 0.0, False))


def trained(kind: Any, seed: int) -> Any:
    """The weights of Dopamine's DQN after a short run."""
    import gin
    import gymnasium

    # Imported by Dopamine for Atari games; not a requirement of its package.
    sys.modules.setdefault("baselines", types.ModuleType("baselines"))
    common = types.ModuleType("baselines.common")
    common.atari_wrappers = None  # type: ignore[attr-defined]
    sys.modules.setdefault("baselines.common", common)
    from dopamine.jax.agents.dqn import dqn_agent

    gin.clear_config()
    gin.parse_config(["ReplayBuffer.max_capacity = 300", "ReplayBuffer.batch_size = 16"])
    replay_buffer.ReplayBuffer = kind
    agent = dqn_agent.JaxDQNAgent(
        num_actions=2,
        observation_shape=(4, 1),
        observation_dtype=np.float64,
        stack_size=1,
        network=functools.partial(
            dqn_agent.networks.ClassicControlDQNNetwork, min_vals=(-9.0,) * 4, max_vals=(9.0,) * 4
        ),
        update_horizon=2,
        min_replay_history=50,
        epsilon_fn=dqn_agent.identity_epsilon,
        seed=seed,
    )
    env = gymnasium.make("CartPole-v1")
    action = agent.begin_episode(env.reset(seed=seed)[0])
    for _ in range(400):
        obs, reward, terminated, truncated, _ = env.step(int(action))
        if terminated or truncated:
            agent.end_episode(reward, terminated)
            action = agent.begin_episode(env.reset()[0])
        else:
            action = agent.step(reward, obs)
    assert isinstance(agent._replay, kind)
    return agent.online_params


def test_dqn_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_buffer, "ReplayBuffer", replay_buffer.ReplayBuffer)
    equal(trained(KINDS["dopamine"], 3), trained(KINDS["ours"], 3))


def test_programs_of_the_page_run(tmp_path: Path) -> None:
    run_programs("dopamine", tmp_path)
