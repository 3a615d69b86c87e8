"""di_store.adapters.sb3 beside Stable-Baselines3's own buffers: same adds and same seed, same batches."""

from __future__ import annotations

import copy
import pickle
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="runs with make adapters ADAPTER=sb3")

import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common import buffers as sb3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as Sb3HerReplayBuffer

import di_store
from di_store.adapters.sb3 import HerReplayBuffer, ReplayBuffer, RolloutBuffer

pytestmark = pytest.mark.extended
torch.set_num_threads(1)  # for networks this small, more threads only wait for each other

ROOT = Path(__file__).resolve().parents[2]
BOX = spaces.Box(-1, 1, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 6, 6), np.uint8)
SPACES = {
    "box": BOX,
    "float64": spaces.Box(-1, 1, (2, 2), np.float64),
    "image": IMAGE,
    "large": spaces.Box(0, 255, (3, 60, 60), np.uint8),  # each step is written at once
    "discrete": spaces.Discrete(7),
    "binary": spaces.MultiBinary(3),
    "multidiscrete": spaces.MultiDiscrete([3, 4]),
    "dict": spaces.Dict({"state": BOX, "a key/that is no name": IMAGE, "number": spaces.Discrete(5)}),
}
ACTIONS = {"discrete": spaces.Discrete(3), "box": spaces.Box(-1, 1, (2, 3), np.float64)}


def _drawn(space: spaces.Space, n: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _drawn(each, n) for key, each in space.spaces.items()}
    return np.stack([np.asarray(space.sample()) for _ in range(n)])


def _merged(ended: np.ndarray, new: Any, old: Any) -> Any:
    if isinstance(new, dict):
        return {key: _merged(ended, new[key], old[key]) for key in new}
    return np.where(ended.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _steps(count: int, n_envs: int, space: spaces.Space, action: spaces.Space, jumps: float = 0.05) -> Any:
    """Arguments of `add`: episodes of some steps, some of them cut off, some given up without a word."""
    rng = np.random.default_rng(0)
    space.seed(0)
    action.seed(0)
    obs = _drawn(space, n_envs)
    for _ in range(count):
        following = _drawn(space, n_envs)
        done = rng.random(n_envs) < 0.2
        cut_off = done & (rng.random(n_envs) < 0.5)
        infos = [{"TimeLimit.truncated": bool(each)} for each in cut_off]
        yield obs, copy.deepcopy(following), _drawn(action, n_envs), rng.random(n_envs).astype("f4"), done, infos
        obs = _merged(done | (rng.random(n_envs) < jumps), _drawn(space, n_envs), following)


def _same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    for name, mine, other in zip(ours._fields, ours, theirs, strict=True):
        if isinstance(mine, dict):
            assert list(mine) == list(other)
        pairs = [(mine[key], other[key]) for key in mine] if isinstance(mine, dict) else [(mine, other)]
        for one, two in pairs:
            if one is two is None:
                continue
            assert (one.shape, one.dtype, one.device) == (two.shape, two.dtype, two.device), name
            assert torch.equal(one, two), name


def _batches(seed: int, n: int, *buffers: Any, env: Any = None) -> list[Any]:
    drawn = []
    for buffer in buffers:
        np.random.seed(seed)
        drawn.append(buffer.sample(n, env))
    return drawn


def _own(space: spaces.Space, n_steps: int) -> Any:
    if isinstance(space, spaces.Dict):
        return sb3.DictReplayBuffer
    return sb3.ReplayBuffer if n_steps == 1 else sb3.NStepReplayBuffer


@pytest.mark.parametrize("timeouts", [False, True])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("space", SPACES)
def test_batches_match_sb3(space: str, action: str, n_envs: int, timeouts: bool) -> None:
    """Bit for bit, before and after the ring is full, and in a copy and after pickling."""
    arguments = {"device": "cpu", "n_envs": n_envs, "handle_timeout_termination": timeouts}
    theirs = _own(SPACES[space], 1)(50, SPACES[space], ACTIONS[action], **arguments)
    ours = ReplayBuffer(50, SPACES[space], ACTIONS[action], **arguments)
    for number, step in enumerate(_steps(120, n_envs, SPACES[space], ACTIONS[action])):
        theirs.add(*copy.deepcopy(step))
        ours.add(*step)
        if number % 7 in (0, 3):
            _same(*_batches(number, 32, ours, theirs))
            assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())
    for loaded in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        _same(*_batches(1, 32, loaded, theirs))
        loaded.add(*step)
        assert loaded.pos == ours.pos + 1
    assert len({each.store.name for each in (ours, loaded)}) == 2


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("n_steps", [2, 5])
def test_n_step_returns_match_sb3(n_steps: int, n_envs: int) -> None:
    """As SB3's, for programs that end each episode before they begin another."""
    arguments = {"device": "cpu", "n_envs": n_envs, "n_steps": n_steps, "gamma": 0.9}
    theirs = sb3.NStepReplayBuffer(60, BOX, ACTIONS["box"], **arguments)
    ours = ReplayBuffer(60, BOX, ACTIONS["box"], **arguments)
    for number, step in enumerate(_steps(150, n_envs, BOX, ACTIONS["box"], jumps=0)):
        theirs.add(*step)
        ours.add(*step)
        if number % 7 == 0:
            _same(*_batches(number, 32, ours, theirs))
    _same(*_batches(1, 32, pickle.loads(pickle.dumps(ours)), theirs))


def _add(buffer: Any, obs: float, following: float, reward: float = 1.0, done: bool = False, width: int = 4) -> None:
    given, after = np.full((1, width), obs, np.float32), np.full((1, width), following, np.float32)
    buffer.add(given, after, np.zeros((1, 1), np.int64), np.array([reward]), np.array([done]), [{}])


@pytest.mark.parametrize("read_between", [True, False])
def test_n_step_returns_stop_where_an_episode_was_reset(read_between: bool) -> None:
    """A program that resets its environment in the middle of an episode: no reward of the next one is summed."""
    buffer = ReplayBuffer(10, BOX, spaces.Discrete(2), device="cpu", n_steps=3, gamma=1.0)
    for obs in (0, 1, 10, 11, 12):
        _add(buffer, obs, obs + 1)
        if read_between:
            buffer.sample(1)
    batch = buffer._get_samples(np.arange(5))
    assert batch.rewards[:, 0].tolist() == [2, 1, 3, 2, 1]
    assert batch.next_observations[:, 0].tolist() == [2, 2, 13, 13, 13]
    assert batch.dones.sum() == 0
    assert buffer.timeouts[:5, 0].tolist() == [0, 1, 0, 0, 0]


def test_vec_normalize_applies_to_samples() -> None:
    """`VecNormalize` acts on what is drawn, as in SB3."""
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2))
    buffers = [
        cls(100, env.observation_space, env.action_space, device="cpu", n_envs=2)
        for cls in (ReplayBuffer, sb3.ReplayBuffer)
    ]
    env.reset()
    obs = env.get_original_obs()
    for _ in range(40):
        action = np.stack([env.action_space.sample() for _ in range(2)])
        _, _, done, infos = env.step(action)
        for buffer in buffers:
            buffer.add(obs, env.get_original_obs(), action, env.get_original_reward(), done, infos)
        obs = env.get_original_obs()
    _same(*_batches(0, 50, *buffers, env=env))


def test_buffer_attributes_match_sb3() -> None:
    """The attributes that programs read: same shapes, types and values; steps in the store cannot be assigned to."""
    arguments = {"device": "cpu", "n_envs": 2}
    for space in (BOX, SPACES["dict"]):
        ours = ReplayBuffer(20, space, spaces.Discrete(3), **arguments)
        theirs = _own(space, 1)(20, space, spaces.Discrete(3), **arguments)
        for step in _steps(25, 2, space, spaces.Discrete(3), jumps=0):
            theirs.add(*copy.deepcopy(step))
            ours.add(*step)
        for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
            mine, other = getattr(ours, name), getattr(theirs, name)
            for one, two in [(mine[key], other[key]) for key in other] if isinstance(other, dict) else [(mine, other)]:
                assert (one.shape, one.dtype, one.ndim, len(one)) == (two.shape, two.dtype, two.ndim, len(two))
                assert np.array_equal(np.asarray(one), two)
                assert np.array_equal(one[3], two[3])
                assert np.array_equal(one[[1, 2], [0, 1]], two[[1, 2], [0, 1]])
                assert np.array_equal(one[-2:, 0], two[-2:, 0])
                assert np.array_equal(one[..., 0], two[..., 0])
        with pytest.raises(TypeError, match="cannot be changed"):
            ours.actions[0] = 1


def test_reset_empties_the_buffer_and_extend_fills_it() -> None:
    """After reset() nothing of before is drawn; extend() adds step by step."""
    buffer = ReplayBuffer(10, BOX, spaces.Discrete(2), device="cpu")
    for obs in range(13):
        _add(buffer, obs, obs + 1, done=obs == 12)
    buffer.reset()
    assert (buffer.size(), buffer.pos, buffer.full) == (0, 0, False)
    with pytest.raises(ValueError, match="the replay buffer is empty"):
        buffer.sample(1)
    obs = np.full((2, 1, 4), 0.5, np.float32)
    buffer.extend(obs, obs, np.zeros((2, 1, 1), np.int64), np.ones((2, 1)), np.zeros((2, 1), bool), [[{}], [{}]])
    assert buffer.size() == 2
    assert buffer.sample(20).observations.unique().tolist() == [0.5]


def test_add_copies_its_arrays() -> None:
    """`add` keeps values, not arrays."""
    buffer = ReplayBuffer(10, BOX, spaces.Discrete(2), device="cpu")
    obs, action, reward, done = np.zeros((1, 4), np.float32), np.zeros((1, 1), int), np.zeros(1), np.zeros(1, bool)
    for _ in range(3):
        buffer.add(obs, obs, action, reward, done, [{}])
        obs += 1
        reward += 1
        done[:] = True
    assert buffer._get_samples(np.arange(3)).observations[:, 0].tolist() == [0, 1, 2]
    assert buffer.rewards[:3, 0].tolist() == [0, 1, 2]
    assert buffer.dones[:3, 0].tolist() == [0, 1, 1]


def test_episodes_of_one_step_fit() -> None:
    """Each of them stores a last observation of its own; the buffer keeps all that SB3's would keep."""
    buffer = ReplayBuffer(3_000, spaces.Box(0, 255, (64, 64), np.uint8), spaces.Discrete(2), device="cpu")
    for number in range(7_000):
        obs = np.full((1, 64, 64), number % 251, np.uint8)
        buffer.add(obs, obs, np.zeros((1, 1), int), np.ones(1), np.ones(1, bool), [{}])
    every = buffer._get_samples(np.arange(3_000)).observations[:, 0, 0].numpy()
    assert np.array_equal(np.roll(every, 3_000 - 7_000 % 3_000), np.arange(4_000, 7_000) % 251)


def test_observations_are_stored_once() -> None:
    """The store takes half of the bytes of SB3's arrays, or a little more."""
    buffer = ReplayBuffer(4_000, spaces.Box(0, 255, (64, 64), np.uint8), spaces.Discrete(2), device="cpu")
    for number in range(4_000):
        obs, following = (np.full((1, 64, 64), each % 251, np.uint8) for each in (number, number + 1))
        buffer.add(obs, following, np.zeros((1, 1), int), np.ones(1), np.zeros(1, bool), [{}])
    assert buffer.table.stats()["bytes_stored"] < 1.1 * 4_000 * 64 * 64


@pytest.mark.parametrize("steps", [1, 3, 100])
def test_a_copy_has_the_newest_steps(steps: int) -> None:
    """Also those that nobody has read yet."""
    buffer = ReplayBuffer(200, BOX, spaces.Discrete(2), device="cpu")
    for obs in range(steps):
        _add(buffer, obs, obs + 1)
    loaded = copy.deepcopy(buffer)
    assert loaded._get_samples(np.arange(steps)).observations[:, 0].tolist() == list(range(steps))


@pytest.mark.parametrize("width", [4, 20_000])
def test_another_thread_may_continue_to_add(width: int) -> None:
    """A program that fills the buffer in one thread and goes on in another, with steps that are gathered or not."""
    buffer = ReplayBuffer(10, spaces.Box(-1, 9, (width,), np.float32), spaces.Discrete(2), device="cpu")
    _add(buffer, 0, 1, width=width)
    buffer.sample(1)
    thread = threading.Thread(target=lambda: [_add(buffer, 1, 2, width=width), buffer.sample(1)])
    thread.start()
    thread.join()
    assert buffer._get_samples(np.arange(2)).next_observations[:, 0].tolist() == [1, 2]


def _trained(buffer: Any, **options: Any) -> tuple[DQN, torch.Tensor]:
    model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=buffer, seed=3, learning_starts=100, **options)
    model.learn(1_200)
    return model, torch.cat([each.flatten() for each in model.policy.parameters()])


@pytest.mark.parametrize("n_steps", [1, 3])
def test_training_gives_the_same_weights_as_sb3(n_steps: int) -> None:
    """A run with one seed ends with the same weights, to the bit, as with SB3's buffer."""
    kwargs = {"replay_buffer_kwargs": {"n_steps": n_steps}} if n_steps > 1 else {}
    _, ours = _trained(ReplayBuffer, buffer_size=1_000, **kwargs)
    _, theirs = _trained(_own(BOX, n_steps), buffer_size=1_000, **kwargs)
    assert torch.equal(ours, theirs)


def test_dqn_learns_cartpole() -> None:
    """DQN on CartPole gets far beyond the 20 steps of random actions."""
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        replay_buffer_class=ReplayBuffer,
        buffer_size=20_000,
        learning_rate=2.3e-3,
        batch_size=64,
        learning_starts=1_000,
        target_update_interval=10,
        train_freq=64,
        gradient_steps=32,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [64, 64]},
        seed=1,
    )
    model.learn(10_000)
    assert model.replay_buffer is not None
    assert np.mean([each["r"] for each in model.ep_info_buffer or []][-20:]) > 60


def test_a_saved_buffer_is_loaded_and_training_continues(tmp_path: Path) -> None:
    """`save_replay_buffer` and `load_replay_buffer`; then training goes on with the loaded steps."""
    model, _ = _trained(ReplayBuffer, buffer_size=1_000)
    model.save_replay_buffer(tmp_path / "buffer")
    model.save(tmp_path / "model")
    before = model.replay_buffer
    loaded = DQN.load(tmp_path / "model", env=model.env)
    loaded.load_replay_buffer(tmp_path / "buffer")
    assert type(loaded.replay_buffer) is ReplayBuffer
    _same(*_batches(0, 64, loaded.replay_buffer, before))
    loaded.learn(200)
    assert loaded.replay_buffer.size() == 1_000


def _hindsight(buffer: Any, n_envs: int, **kwargs: Any) -> Any:
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=4, continuous=False, max_steps=6), n_envs=n_envs)
    model = DQN(
        "MultiInputPolicy",
        env,
        replay_buffer_class=buffer,
        replay_buffer_kwargs=kwargs,
        learning_starts=60,
        buffer_size=200,
        seed=0,
    )
    return model.learn(400)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_hindsight_training_matches_sb3(strategy: str, n_envs: int, tmp_path: Path) -> None:
    """`HerReplayBuffer` of both ends with the same weights; saved and loaded, it draws the same."""
    kwargs = {"n_sampled_goal": 3, "goal_selection_strategy": strategy, "copy_info_dict": strategy == "final"}
    ours, theirs = (_hindsight(kind, n_envs, **kwargs) for kind in (HerReplayBuffer, Sb3HerReplayBuffer))
    for mine, other in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        assert torch.equal(mine, other)
    _same(*_batches(0, 50, ours.replay_buffer, theirs.replay_buffer))
    for each in (ours, theirs):
        each.save_replay_buffer(tmp_path / "buffer")
        with pytest.warns(UserWarning, match="last trajectory"):
            each.load_replay_buffer(tmp_path / "buffer")
    _same(*_batches(1, 50, ours.replay_buffer, theirs.replay_buffer))


def test_hindsight_needs_goals() -> None:
    """Another space is refused with the keys that it lacks."""
    with pytest.raises(ValueError, match="needs a Dict observation space, and 'achieved_goal' is not in it"):
        HerReplayBuffer(10, BOX, BOX, None)


def _rollout(steps: int, n_envs: int, space: spaces.Space, action: spaces.Space, *buffers: Any) -> None:
    rng = np.random.default_rng(steps)
    for obs, _, chosen, reward, done, _ in _steps(steps, n_envs, space, action):
        values = [
            torch.from_numpy(rng.random((n_envs, 1), np.float32)),
            torch.from_numpy(rng.random(n_envs, np.float32)),
        ]
        for buffer in buffers:
            buffer.add(copy.deepcopy(obs), chosen, reward, done, *values)
    for buffer in buffers:
        if buffer.full:
            last = torch.from_numpy(np.random.default_rng(0).random((n_envs, 1), np.float32))
            buffer.compute_returns_and_advantage(last, done)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("action", [*ACTIONS, "binary"])
@pytest.mark.parametrize("space", SPACES)
def test_rollout_batches_match_sb3(space: str, action: str, n_envs: int) -> None:
    """Batches bit for bit, in several rollouts, after one that was given up, and in a copy and after pickling."""
    actions = (ACTIONS | {"binary": spaces.MultiBinary(3)})[action]
    options = {"device": "cpu", "gae_lambda": 0.9, "gamma": 0.95, "n_envs": n_envs}
    own = sb3.DictRolloutBuffer if isinstance(SPACES[space], spaces.Dict) else sb3.RolloutBuffer
    pair = [kind(40, SPACES[space], actions, **options) for kind in (RolloutBuffer, own)]
    for steps in (40, 25, 40, 40):
        _rollout(steps, n_envs, SPACES[space], actions, *pair)
        if steps == 40:
            _same_attributes(*pair)
            _same_batches(pair, 7, None, 64)
            _same_attributes(*pair)
            ours = pair[0]
            for loaded in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
                _same_batches((loaded, pair[1]), 16)
            assert len({each.store.name for each in (ours, loaded)}) == 2
        for buffer in pair:
            buffer.reset()


def _same_batches(pair: Any, *sizes: int | None) -> None:
    for size in sizes:
        drawn = []
        for buffer in pair:
            np.random.seed(3)
            drawn.append(list(buffer.get(size)))
        for mine, other in zip(*drawn, strict=True):
            _same(mine, other)


def _same_attributes(ours: Any, theirs: Any) -> None:
    assert (ours.pos, ours.full, ours.generator_ready) == (theirs.pos, theirs.full, theirs.generator_ready)
    for name in (
        "actions",
        "rewards",
        "values",
        "log_probs",
        "advantages",
        "returns",
        "episode_starts",
        "observations",
    ):
        mine, other = getattr(ours, name), getattr(theirs, name)
        for one, two in [(mine[key], other[key]) for key in other] if isinstance(other, dict) else [(mine, other)]:
            assert (one.shape, one.dtype) == (two.shape, two.dtype)
            assert np.array_equal(one, two)


def test_a_rollout_must_be_full() -> None:
    """SB3 asserts without a word."""
    buffer = RolloutBuffer(5, BOX, spaces.Discrete(2), device="cpu")
    _rollout(3, 1, BOX, spaces.Discrete(2), buffer)
    with pytest.raises(ValueError, match="the rollout has 3 of 5 steps"):
        next(iter(buffer.get()))


@pytest.mark.parametrize(("algorithm", "env"), [(PPO, "CartPole-v1"), (A2C, "Pendulum-v1"), (PPO, BitFlippingEnv)])
def test_on_policy_training_gives_the_same_weights_as_sb3(algorithm: Any, env: Any) -> None:
    """A run with one seed ends with the same weights, to the bit, as with SB3's buffer."""
    options = {"n_steps": 32, "batch_size": 16, "n_epochs": 2} if algorithm is PPO else {}
    policy = "MultiInputPolicy" if env is BitFlippingEnv else "MlpPolicy"
    found = []
    for buffer in (RolloutBuffer, None):
        model = algorithm(policy, make_vec_env(env, n_envs=2), rollout_buffer_class=buffer, seed=3, **options)
        model.learn(300)
        found.append(torch.cat([each.flatten() for each in model.policy.parameters()]))
    assert type(model.rollout_buffer) is not RolloutBuffer
    assert torch.equal(*found)


def test_optimize_memory_usage_is_accepted() -> None:
    """`optimize_memory_usage` with its default partner, which SB3 refuses, and a second learn() after it."""
    model = SAC(
        "MlpPolicy", "Pendulum-v1", replay_buffer_class=ReplayBuffer, buffer_size=200, optimize_memory_usage=True
    )
    model.learn(150)
    with pytest.warns(UserWarning, match="last trajectory"):
        model.learn(150)
    assert model.replay_buffer is not None
    assert model.replay_buffer.size() == 200


@pytest.mark.parametrize(
    ("observation", "action", "options", "text"),
    [
        (spaces.Tuple([BOX]), BOX, {}, "the observation space is Tuple: ReplayBuffer stores Box"),
        (spaces.Dict({"a": spaces.Dict({"b": BOX})}), BOX, {}, "observation space 'a' is Dict"),
        (BOX, spaces.Text(5), {}, "the action space is Text"),
        (BOX, BOX, {"n_steps": 0}, "n_steps=0: at least 1"),
    ],
)
def test_unsupported_spaces_and_options_are_refused(observation: Any, action: Any, options: Any, text: str) -> None:
    """Spaces and options that cannot work, before anything is stored."""
    with pytest.raises(ValueError, match=re.escape(text)):
        ReplayBuffer(10, observation, action, **options)


def test_a_buffer_larger_than_memory_is_refused() -> None:
    """More than the machine's memory: the error names the option."""
    with pytest.raises(
        di_store.CapacityError, match=r"steps need .* GiB, more than this machine has \(lower buffer_size="
    ):
        ReplayBuffer(50_000_000, spaces.Box(0, 255, (210, 160, 3), np.uint8), spaces.Discrete(2))
