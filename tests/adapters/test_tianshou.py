"""di_store.adapters.tianshou beside Tianshou's own buffers: same adds and same seed, same batches."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tianshou", reason="runs with make adapters ADAPTER=tianshou")

import gymnasium
import torch
from adapter_pages import run_programs
from tianshou import data as theirs
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, CollectStats
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.torch_utils import policy_within_training_step

import di_store
from di_store.adapters import tianshou as ours

torch.set_num_threads(1)

OBSERVATIONS = {
    "box": lambda rng: rng.random(4, np.float32),
    "image": lambda rng: rng.integers(0, 255, (3, 4, 4), np.uint8),
    "number": lambda rng: np.int64(rng.integers(7)),
    "dict": lambda rng: Batch(state=rng.random(3), inner=Batch({"a key/that is no name": rng.random(2, np.float32)})),
    "text": lambda rng: str(rng.integers(100)),
}
KINDS = {
    "ReplayBuffer": {"size": 23},
    "PrioritizedReplayBuffer": {"size": 23, "alpha": 0.6, "beta": 0.4},
    "VectorReplayBuffer": {"total_size": 60, "buffer_num": 3},
    "PrioritizedVectorReplayBuffer": {"total_size": 60, "buffer_num": 3, "alpha": 0.6, "beta": 0.4},
}
OPTIONS = {
    "plain": {},
    "stacks": {"stack_num": 3},
    "available": {"stack_num": 3, "sample_avail": True},
    "ignores": {"ignore_obs_next": True},
    "ignores, stacks": {"ignore_obs_next": True, "stack_num": 2},
}


def both(kind: str, **options: Any) -> tuple[Any, Any]:
    return getattr(theirs, kind)(**KINDS[kind], **options), getattr(ours, kind)(**KINDS[kind], **options)


def equal(one: Any, other: Any, what: str = "") -> None:
    if isinstance(one, Batch):
        assert isinstance(other, Batch)
        assert set(one.get_keys()) == set(other.get_keys()), what
        for key in one.get_keys():
            equal(one[key], other[key], f"{what}.{key}")
        return
    assert type(one) is type(other), what
    if isinstance(one, np.ndarray):
        assert (one.shape, one.dtype) == (other.shape, other.dtype), what
        assert np.array_equal(one, other), what
    else:
        assert one == other, what


class Lanes:
    """Steps of some environments, whose episodes end, are cut off, or are given up without a word."""

    def __init__(self, lanes: int, make: Any) -> None:
        self.rng, self.make, self.count = np.random.default_rng(0), make, 0
        self.obs = [make(self.rng) for _ in range(lanes)]

    def step(self, lanes: list[int], following: bool = True) -> Batch:
        steps = []
        for lane in lanes:
            after, self.count = self.make(self.rng), self.count + 1
            terminated, truncated = self.rng.random() < 0.1, self.rng.random() < 0.1
            step = {"obs": self.obs[lane], "act": self.count, "rew": float(self.rng.random())}
            step |= {"terminated": terminated, "truncated": truncated, "info": {"env_id": lane, "n": self.count}}
            if following:
                step["obs_next"] = after
            steps.append(Batch(step))
            lost = self.rng.random() < 0.05
            self.obs[lane] = self.make(self.rng) if terminated or truncated or lost else after
        return Batch.stack(steps)


def batches(seed: int, count: int, *buffers: Any) -> list[Any]:
    drawn = []
    for buffer in buffers:
        np.random.seed(seed)
        drawn.append(buffer.sample(count))
    return drawn


def fill(pair: tuple[Any, Any], make: Any, times: int, following: bool = True, even: bool = False) -> None:
    """The same steps for both; of vectors, sometimes only of some environments, in any order."""
    number = getattr(pair[0], "buffer_num", None)
    lanes = Lanes(number or 1, make)
    for time in range(times):
        if number is None:
            step = lanes.step([0], following)
            results = [buffer.add(step, [0]) if time % 2 else buffer.add(step[0]) for buffer in pair]
        else:
            some = list(range(number))
            if not even and time % 3:
                some = lanes.rng.permutation(number)[: lanes.rng.integers(1, number + 1)].tolist()
            step = lanes.step(some, following)
            results = [buffer.add(step, None if even else some) for buffer in pair]
        for one, other in zip(*results, strict=True):
            equal(np.asarray(one), np.asarray(other))
        assert len(pair[0]) == len(pair[1])
        if time % 9 in (0, 4) and len(pair[0].sample_indices(0)):
            (one, places), (other, same) = batches(time, 16, *pair)
            assert np.array_equal(places, same)
            equal(one, other)
            if hasattr(pair[0], "update_weight"):
                for buffer in pair:
                    buffer.update_weight(places, one.rew)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_match_tianshou(kind: str, observation: str, option: str) -> None:
    """Bit for bit, before and after the rings are full; so are single entries and what follows them."""
    pair = both(kind, **OPTIONS[option])
    fill(pair, OBSERVATIONS[observation], 90)
    one, other = pair
    every = np.arange(one.maxsize)
    for index in (slice(None), slice(2, 9), np.array([3, 1]), every[::3], 5):
        equal(one[index], other[index])
    assert np.array_equal(one.prev(every), other.prev(every))
    assert np.array_equal(one.next(every), other.next(every))
    assert np.array_equal(one.unfinished_index(), other.unfinished_index())
    equal(one.get(every, "obs", stack_num=2), other.get(every, "obs", stack_num=2))
    equal(one.sample(0)[0], other.sample(0)[0])
    assert len(other.sample_indices(-1)) == 0
    with pytest.raises(IndexError):
        other[one.maxsize]
    for buffer in pair:
        buffer.reset()
        assert len(buffer) == len(buffer.unfinished_index()) == 0


@pytest.mark.parametrize("following", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_all_environments_at_once_are_added(kind: str, following: bool) -> None:
    """All at each step, as in most programs; without obs_next, batches have an empty one."""
    fill(both(kind), OBSERVATIONS["box"], 150, following, even=True)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_files_hold_the_steps(kind: str, tmp_path: Path) -> None:
    """Copies, pickles and HDF5 files hold the steps; files of either class load in the other, and go on the same."""
    pair = both(kind)

    def make(rng: Any) -> Any:  # Tianshou's files have no keys with a slash
        return Batch(state=rng.random(3), inner=Batch({"a key": rng.random(2, np.float32)}))

    fill(pair, make, 70)
    pair[1].save_hdf5(str(tmp_path / "ours"))
    pair[0].save_hdf5(str(tmp_path / "theirs"))
    made = type(pair[1])
    found = [
        copy.deepcopy(pair[1]),
        pickle.loads(pickle.dumps(pair[1])),
        made.load_hdf5(str(tmp_path / "ours")),
        made.load_hdf5(str(tmp_path / "theirs")),
        type(pair[0]).load_hdf5(str(tmp_path / "ours")),
    ]
    every = np.arange(pair[0].maxsize)
    for other in found:
        equal(pair[0][every], other[every])
        assert np.array_equal(other.unfinished_index(), pair[0].unfinished_index())
    for other in found[:2]:
        twin = copy.deepcopy(pair[0])
        fill((twin, other), make, 40)
    empty = pickle.loads(pickle.dumps(both(kind)[1]))
    assert len(empty) == 0
    fill((both(kind)[0], empty), OBSERVATIONS["box"], 30)


def test_a_buffer_is_updated_from_another_buffer() -> None:
    """The steps of another buffer, of either class, larger or smaller."""
    for make in (OBSERVATIONS["box"], OBSERVATIONS["text"]):
        for count in (7, 60):
            sources = both("ReplayBuffer")
            fill(sources, make, count)
            for source in sources:
                pair = theirs.ReplayBuffer(11), ours.ReplayBuffer(11)
                fill(pair, make, 5)
                assert np.array_equal(*(buffer.update(source) for buffer in pair))
                equal(pair[0][:], pair[1][:])
                fill(pair, make, 20)


def test_entries_behave_like_arrays() -> None:
    """Entries can be indexed, compared and computed with like arrays, and not assigned to."""
    one, other = pair = both("VectorReplayBuffer")
    fill(pair, OBSERVATIONS["image"], 60)
    assert (other.obs.shape, other.obs.dtype, len(other.obs)) == (one.obs.shape, one.obs.dtype, len(one.obs))
    for index in (3, slice(2, 5), [1, 2], np.array([[1, 2], [3, 4]]), (slice(3), 1), (..., 2), ([1, 2], 0, 1), ...):
        equal(one.obs[index], other.obs[index])
    assert np.all(other.obs == one.obs)
    assert np.array_equal(other.act.reshape(-1, 3) + 1, one.act.reshape(-1, 3) + 1)
    assert other.obs.mean() == one.obs.mean()
    assert "in a Di-store table" in repr(other.obs)
    equal(one.buffers[1].obs[:], other.buffers[1].obs[:])
    with pytest.raises(TypeError, match="cannot be changed"):
        other.obs[0] = 1
    other.info.n[0] = -5
    assert other.buffers[0].info.n[0] == -5


def test_assigned_rewards_are_kept() -> None:
    """Tianshou's multi-agent and on-policy code sets rewards and adds entries."""
    one, other = pair = both("ReplayBuffer")
    fill(pair, OBSERVATIONS["box"], 30)
    for buffer in pair:
        buffer._meta.rew = buffer.rew * 2
        buffer.set_array_at_key(np.arange(5.0), "advantage", np.arange(5), default_value=-1.0)
    fill(pair, OBSERVATIONS["box"], 6)
    equal(one[:], other[:])
    for buffer in pair:
        buffer.set_array_at_key(np.array([np.nan]), "advantage", [0])
        assert buffer.hasnull()
        buffer.dropnull()
    assert np.array_equal(one.obs, other.obs)


@pytest.mark.parametrize("mark", ["obs", "obs_next", "rew", "info", "nan priority", "infinite priority"])
@pytest.mark.parametrize("kind", KINDS)
def test_hasnull_matches_tianshou(kind: str, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Tianshou's while a marked step is there. If there never was one, no step is read."""
    pair = both(kind)
    lanes = Lanes(getattr(pair[0], "buffer_num", 1), OBSERVATIONS["box"])
    numbers = list(range(len(lanes.obs)))
    size, found = pair[0].maxsize // len(numbers), set()
    for time in range(3 * size):
        step = lanes.step(numbers)
        step.info = Batch(value=np.zeros(len(numbers)))
        if time == size // 2 and mark in step.get_keys():
            (step.info.value if mark == "info" else step[mark])[-1] = np.nan
        for buffer in pair:
            places = buffer.add(step, numbers)[0]
            if time == size // 2 and "priority" in mark and hasattr(buffer, "update_weight"):
                buffer.update_weight(places, np.full(len(places), np.nan if mark.startswith("nan") else np.inf))
        with monkeypatch.context() as patch:
            if time < size // 2:
                patch.setattr(type(pair[1]._rows), "read", None)
            answers = {buffer.hasnull() for buffer in pair}
        if time == size // 2:
            answers |= {copy.deepcopy(buffer).hasnull() for buffer in pair}
        assert len(answers) == 1
        found |= answers
    assert found == {False, "priority" not in mark or "Prioritized" in kind}
    for buffer in pair:
        buffer.reset()
        buffer.add(step, numbers)
        assert buffer.hasnull() == (mark == "infinite priority" and "Prioritized" in kind)


@pytest.mark.parametrize("priority", [np.nan, np.inf, None])
def test_impossible_draws_are_refused(priority: float | None) -> None:
    for buffer in both("PrioritizedVectorReplayBuffer"):
        places = buffer.add(Lanes(3, OBSERVATIONS["box"]).step([0, 1, 2]))[0]
        if priority is None:
            buffer.reset()
        else:
            buffer.update_weight(places, np.full(3, priority))
        with pytest.raises(ValueError if priority is None else AssertionError):
            buffer.sample(4)


def test_save_only_last_obs_is_supported() -> None:
    rng = np.random.default_rng(0)
    for kind in ("ReplayBuffer", "VectorReplayBuffer"):
        one, other = both(kind, save_only_last_obs=True, stack_num=4)
        for _ in range(40):
            frames, n = rng.integers(0, 255, (3, 5, 6, 6), np.uint8), 3 if "Vector" in kind else 1
            step = Batch(obs=frames[:n, :4], act=np.ones(n), rew=np.ones(n), terminated=rng.random(n) < 0.2)
            step.truncated, step.obs_next = np.zeros(n, bool), frames[:n, 1:]
            for buffer in (one, other):
                buffer.add(step, list(range(n)))
        equal(one[:], other[:])
        assert other.obs.shape == (other.maxsize, 6, 6)


def test_bad_steps_are_refused_and_not_counted() -> None:
    """Refused with a sentence, and nothing is counted."""
    _, buffer = both("VectorReplayBuffer")
    lanes = Lanes(3, OBSERVATIONS["dict"])
    step = lanes.step([0, 1, 2])
    buffer.add(step)
    worse = copy.deepcopy(step)
    worse.obs.pop("state")
    with pytest.raises(ValueError, match=r"obs has the keys .*and the first step"):
        buffer.add(worse)
    worse = copy.deepcopy(step)
    worse.obs.state = np.zeros((3, 9))
    with pytest.raises(ValueError):
        buffer.add(worse)
    with pytest.raises(ValueError, match="a step needs obs"):
        buffer.add(Batch(obs=np.zeros((3, 2))))
    assert len(buffer) == 3
    with pytest.raises(ValueError, match="buffer_ids is"):
        ours.ReplayBuffer(3).add(step, [0])


def test_one_environment_may_be_given_twice() -> None:
    one, other = pair = both("VectorReplayBuffer")
    lanes = Lanes(3, OBSERVATIONS["box"])
    for some in ([1, 1], [0, 2, 0], [2], [0, 1, 2]):
        step = lanes.step(some)
        for found, same in zip(*(buffer.add(step, some) for buffer in pair), strict=True):
            assert np.array_equal(found, same)
    equal(one[:], other[:])


def test_a_buffer_larger_than_memory_is_refused() -> None:
    buffer = ours.ReplayBuffer(1_000_000)
    step = Lanes(1, lambda rng: np.zeros((4_000, 4_000), np.uint8)).step([0])[0]
    with pytest.raises(di_store.CapacityError, match=r"1,000,000 steps need .*lower size="):
        buffer.add(step)
    assert len(buffer) == 0


def trained(kind: str, module: Any) -> list[torch.Tensor]:
    envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(3)])
    np.random.seed(0)
    torch.manual_seed(0)
    envs.seed(0)
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=4, action_shape=2, hidden_sizes=[32]),
        action_space=envs.action_space[0],
        observation_space=envs.observation_space[0],
        eps_training=0.2,
    )
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), n_step_return_horizon=3, target_update_freq=20)
    buffer = getattr(module, kind)(**KINDS[kind] | {"total_size": 300})
    collector = Collector[CollectStats](algorithm, envs, buffer, exploration_noise=True)
    with policy_within_training_step(policy):
        collector.reset()
        collector.collect(n_step=99)
    parameters = OffPolicyTrainerParams(
        training_collector=collector,
        test_collector=None,
        max_epochs=1,
        epoch_num_steps=600,
        collection_step_num_env_steps=9,
        batch_size=16,
        update_step_num_gradient_steps_per_sample=0.3,
        show_progress=False,
        verbose=False,
    )
    algorithm.run_training(parameters)
    return [*algorithm.policy.state_dict().values()]


@pytest.mark.parametrize("kind", ["VectorReplayBuffer", "PrioritizedVectorReplayBuffer"])
def test_training_gives_the_same_weights_as_tianshou(kind: str) -> None:
    """DQN with n-step returns ends with the same weights."""
    for one, other in zip(trained(kind, theirs), trained(kind, ours), strict=True):
        assert torch.equal(one, other)


def test_programs_of_the_page_run(tmp_path: Path) -> None:
    run_programs("tianshou", tmp_path)
