"""di_store.adapters.sb3 in the places of Stable-Baselines3's own classes, and with what these write."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="runs with make adapters ADAPTER=sb3")

import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common import buffers as sb3
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.save_util import save_to_pkl
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as Sb3HerReplayBuffer

import di_store
import di_store.adapters.sb3 as ours
from di_store.adapters.sb3 import HerReplayBuffer, ReplayBuffer, RolloutBuffer

pytestmark = pytest.mark.extended
BOX = spaces.Box(-1, 1, (4,), np.float32)


def _pair() -> tuple[Any, Any]:
    """Ours and SB3's with the same steps."""
    given: Any = (30, BOX, spaces.Discrete(3), "cpu")
    return _filled(ReplayBuffer(*given), 20, 1), _filled(sb3.ReplayBuffer(*given), 20, 1)


def _filled(buffer: Any, steps: int, n_envs: int) -> Any:
    rng, obs = np.random.default_rng(0), np.zeros((n_envs, 4), np.float32)
    for step in range(steps):
        after = rng.random((n_envs, 4)).astype("f4")
        done = np.array([step % 5 == 4] * n_envs)
        infos = [{"TimeLimit.truncated": step % 10 == 9}] * n_envs
        buffer.add(obs, after, rng.integers(0, 3, (n_envs, 1)), rng.random(n_envs), done, infos)
        obs = after
    return buffer


def test_timeout_flags_may_be_arrays() -> None:
    """As SB3's own tests extend a buffer by another one's arrays."""
    mine, theirs = _pair()
    infos = [[{"TimeLimit.truncated": each}] for each in theirs.timeouts.copy()]
    arrays = theirs.observations, theirs.next_observations, theirs.actions, theirs.rewards, theirs.dones
    given = [each.copy() for each in arrays]  # theirs is overwritten while it reads
    for buffer in (mine, theirs):
        buffer.extend(*given, infos)
    np.testing.assert_array_equal(mine.timeouts, theirs.timeouts)
    np.testing.assert_array_equal(mine.dones, theirs.dones)
    np.testing.assert_array_equal(mine.observations, theirs.observations)


def test_n_step_buffer_has_its_own_class() -> None:
    options: Any = {"n_envs": 2}
    for given in ({}, {"n_steps": 5, "gamma": 0.9}):
        mine = _filled(ours.NStepReplayBuffer(40, BOX, spaces.Discrete(3), "cpu", **options, **given), 30, 2)
        theirs = _filled(sb3.NStepReplayBuffer(40, BOX, spaces.Discrete(3), "cpu", **options, **given), 30, 2)
        assert isinstance(mine, sb3.NStepReplayBuffer)
        assert (mine.n_steps, mine.gamma) == (theirs.n_steps, theirs.gamma)
        for buffer in (mine, pickle.loads(pickle.dumps(mine))):
            np.random.seed(3)
            one = buffer.sample(50)
            np.random.seed(3)
            for left, right in zip(one, theirs.sample(50), strict=True):
                np.testing.assert_allclose(left, right, rtol=1e-6)


@pytest.mark.parametrize("optimized", [False, True])
def test_a_pickled_sb3_buffer_can_be_converted(optimized: bool, tmp_path: Path) -> None:
    given: dict[str, Any] = {"buffer_size": 100, "learning_starts": 1_000, "device": "cpu", "seed": 0}
    if optimized:  # SB3 refuses it together with timeouts
        given["optimize_memory_usage"], given["replay_buffer_kwargs"] = True, {"handle_timeout_termination": False}
    theirs = DQN("MlpPolicy", "CartPole-v1", **given)
    theirs.learn(130)
    theirs.save_replay_buffer(tmp_path / "buffer")
    model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=ReplayBuffer, **given)
    model.load_replay_buffer(tmp_path / "buffer")
    mine, other = model.replay_buffer, theirs.replay_buffer
    assert type(mine) is ReplayBuffer
    assert other is not None
    assert (mine.pos, mine.full) == (other.pos, other.full)
    np.random.seed(3)
    one = mine.sample(64)
    np.random.seed(3)
    batch_inds = np.random.randint(0, 100, size=64) if not optimized else None
    two = other._get_samples(batch_inds) if batch_inds is not None else other._get_samples(_indices(mine, one, other))
    for left, right in zip(one[:5], two[:5], strict=True):
        np.testing.assert_array_equal(left, right)
    with pytest.raises(ValueError, match=r"buffer_size=100, and this model's has 50: make them equal"):
        _loaded(
            DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=ReplayBuffer, **{**given, "buffer_size": 50}), tmp_path
        )
    plain = DQN("MlpPolicy", "CartPole-v1", **given)
    _loaded(plain, tmp_path)
    assert type(plain.replay_buffer) is sb3.ReplayBuffer


def _indices(mine: Any, batch: Any, other: Any) -> Any:
    """Where these steps lie in a buffer of SB3's."""
    found = [np.flatnonzero((other.observations[:, 0] == obs).all(axis=1)) for obs in batch.observations.numpy()]
    assert all(len(each) for each in found)
    return np.array([each[0] for each in found])


def _loaded(model: DQN, folder: Path) -> None:
    model.load_replay_buffer(folder / "buffer")


def test_a_pickled_sb3_hindsight_buffer_can_be_converted(tmp_path: Path) -> None:
    environment = BitFlippingEnv(n_bits=4, max_steps=6)
    given: dict[str, Any] = {"buffer_size": 50, "learning_starts": 1_000, "device": "cpu", "seed": 0}
    theirs = DQN("MultiInputPolicy", environment, replay_buffer_class=Sb3HerReplayBuffer, **given)
    theirs.learn(72)
    assert theirs.replay_buffer is not None
    save_to_pkl(tmp_path / "buffer", theirs.replay_buffer)
    model = DQN("MultiInputPolicy", environment, replay_buffer_class=HerReplayBuffer, **given)
    model.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=False)
    mine, other = model.replay_buffer, theirs.replay_buffer
    assert type(mine) is HerReplayBuffer
    np.random.seed(3)
    one = mine.sample(64)
    np.random.seed(3)
    two = other.sample(64)
    for name in ("observations", "next_observations"):
        for key, value in getattr(one, name).items():
            np.testing.assert_array_equal(value, getattr(two, name)[key])
    np.testing.assert_array_equal(one.rewards, two.rewards)


def test_arrays_in_the_store_compute_like_arrays() -> None:
    mine, theirs = _pair()
    for name in ("observations", "next_observations", "actions"):
        one, other = getattr(mine, name), getattr(theirs, name)
        np.testing.assert_array_equal(one * 2, other * 2)
        np.testing.assert_array_equal(1 - one, 1 - other)
        np.testing.assert_array_equal(one == one[3], other == other[3])
        np.testing.assert_array_equal(np.maximum(one, 0.5), np.maximum(other, 0.5))
        assert one.mean() == other.mean()
        assert (one.nbytes, one.size, one.ndim, one.shape) == (other.nbytes, other.size, other.ndim, other.shape)
        np.testing.assert_array_equal(one.reshape(-1), other.reshape(-1))
        assert float(np.sum(one)) == float(np.sum(other))
        np.testing.assert_array_equal(np.concatenate([one, one]), np.concatenate([other, other]))


def test_numbers_out_of_range_are_refused_not_wrapped() -> None:
    """SB3's own buffer lets them."""
    image = spaces.Box(0, 255, (2,), np.uint8)
    for space in (image, spaces.Dict({"image": image})):
        buffer = ReplayBuffer(10, space, spaces.Box(-1, 1, (1,), np.float32), "cpu")
        good, bad = np.array([[1, 2]]), np.array([[1, 300]])
        if isinstance(space, spaces.Dict):
            good, bad = {"image": good}, {"image": bad}  # type: ignore[assignment]
        rest: Any = np.zeros(1), np.zeros(1, bool), [{}]
        with pytest.raises(di_store.SchemaMismatch, match=r"obs(\.image)? is uint8, and was given the value 300"):
            buffer.add(good, bad, np.zeros((1, 1)), *rest)
        with pytest.raises(di_store.SchemaMismatch, match=r"action is float32, and was given the value 1e\+300"):
            buffer.add(good, good, np.full((1, 1), 1e300), *rest)
        buffer.add(good, good, np.zeros((1, 1)), *rest)
        assert buffer.size() == 1
        rollout = RolloutBuffer(10, space, spaces.Discrete(2), "cpu")
        with pytest.raises(di_store.SchemaMismatch, match="observation is uint8, and was given the value 300"):
            rollout.add(bad, np.zeros(1), np.zeros(1), np.zeros(1), torch.zeros(1), torch.zeros(1))


IMAGE = spaces.Box(0, 255, (3, 70, 70), np.uint8)


@pytest.mark.parametrize("space", [IMAGE, spaces.Dict({"image": IMAGE, "box": BOX})], ids=["image", "dict"])
@pytest.mark.parametrize("form", ["plain", "floats", "strided"])
def test_large_steps_are_written_without_buffering(space: Any, form: str) -> None:
    """They are not gathered first. The caller may change its arrays after `add`, and give them in any form."""
    size, n_envs = 9, 4
    rng, kinds = np.random.default_rng(1), (ReplayBuffer, sb3.ReplayBuffer if space is IMAGE else sb3.DictReplayBuffer)
    mine, theirs = (kind(size * n_envs, space, spaces.Discrete(3), "cpu", n_envs=n_envs) for kind in kinds)

    def given(box: spaces.Box) -> Any:
        values = rng.integers(0, 255, (n_envs, *box.shape)) if box is IMAGE else rng.random((n_envs, *box.shape))
        values = values.astype(np.float64 if form == "floats" else box.dtype)
        return np.repeat(values, 2, axis=0)[::2] if form == "strided" else values

    def observation() -> Any:
        return given(space) if space is IMAGE else {key: given(each) for key, each in space.spaces.items()}

    obs = observation()
    for step in range(2 * size + 3):
        after = observation()
        done = rng.random(n_envs) < 0.2
        if step in (4, 7):  # begins anew without an end
            obs = observation()
        for buffer in (theirs, mine):
            buffer.add(obs, after, np.ones((n_envs, 1), int), np.full(n_envs, step), done, [{}] * n_envs)
        for each in obs.values() if isinstance(obs, dict) else [obs]:
            each[...] = 0
        obs = after
    for name in ("observations", "next_observations"):
        ours_, theirs_ = getattr(mine, name), getattr(theirs, name)
        for key in theirs_ if isinstance(theirs_, dict) else [...]:
            np.testing.assert_array_equal(ours_[key][:], theirs_[key][:])
    np.testing.assert_array_equal(mine.rewards, theirs.rewards)
    np.testing.assert_array_equal(mine.dones, theirs.dones)
