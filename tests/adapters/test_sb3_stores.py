"""di_store.adapters.sb3 in a store that is given."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="runs with make adapters ADAPTER=sb3")

from given_stores import KINDS, killed_after_a_checkpoint, opened
from gymnasium import spaces
from stable_baselines3 import DQN, PPO
from stable_baselines3.common import buffers as sb3
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as Sb3HerReplayBuffer

import di_store
from di_store.adapters.sb3 import HerReplayBuffer, ReplayBuffer, RolloutBuffer

pytestmark = pytest.mark.extended
BOX, ACTIONS = spaces.Box(-1, 1e6, (3,), np.float32), spaces.Discrete(9)
DICT = spaces.Dict({"a/b": BOX, "number": spaces.Discrete(1_000_000)})
SIZE, ENVS = 20, 2


def _obs(space: Any, step: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {"a/b": _obs(BOX, step), "number": np.array([step, step + 500])}
    return np.array([[step] * 3, [step + 500] * 3], np.float32)


def _add(buffer: sb3.ReplayBuffer, begin: int, end: int, space: Any = BOX) -> None:
    """Steps of two environments: one's episodes take 5 steps, the other's 7 and are cut off."""
    for step in range(begin, end):
        done, cut_off = np.array([step % 5 == 4, step % 7 == 6]), step % 7 == 6
        infos = [{}, {"TimeLimit.truncated": cut_off}]
        action, reward = np.array([step % 9, step % 4]), np.array([step, -step], np.float32)
        buffer.add(_obs(space, step), _obs(space, step + 1), action, reward, done, infos)


def _leaves(batch: Any) -> Iterator[Any]:
    for value in batch:
        if isinstance(value, dict):
            yield from value.values()
        elif value is not None:
            yield value


def _same(ours: sb3.ReplayBuffer, theirs: sb3.ReplayBuffer, seam: int | None = None) -> None:
    """Same steps and draws; `seam`: the step after which the writer changed, which counts as cut off."""
    assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
    expected = theirs.timeouts.copy()
    if seam is not None:
        expected[seam] = np.where(theirs.dones[seam] == 0, 1, expected[seam])
    np.testing.assert_array_equal(ours.dones, theirs.dones)
    np.testing.assert_array_equal(ours.timeouts, expected)
    np.testing.assert_array_equal(ours.rewards, theirs.rewards)
    np.random.seed(5)
    mine = ours.sample(64)
    np.random.seed(5)
    for one, other in zip(_leaves(mine), _leaves(theirs.sample(64)), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def _pair(space: Any = BOX, **options: Any) -> tuple[ReplayBuffer, sb3.ReplayBuffer]:
    theirs = sb3.DictReplayBuffer if isinstance(space, spaces.Dict) else sb3.ReplayBuffer
    given = (SIZE * ENVS, space, ACTIONS, "cpu", ENVS)
    return ReplayBuffer(*given, **options), theirs(*given)


@pytest.mark.parametrize("space", [BOX, DICT], ids=["box", "dict"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_works_with_every_kind_of_store(kind: str, space: Any, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as store:
        ours, theirs = _pair(space, store=store, table="mine")
        for begin, end in ((0, 8), (8, 47)):
            for buffer in (ours, theirs):
                _add(buffer, begin, end, space)
            _same(ours, theirs)
        assert ours.table.name == "mine"
        assert ours.table.stats()["inserts"] == 47 * ENVS
        assert len(ours.store.table("mine")) == SIZE * ENVS
        ours.reset()
        theirs.reset()
        assert len(ours.table) == 0
        for buffer in (ours, theirs):
            _add(buffer, 100, 111, space)
        assert len(ours.table) == 11 * ENVS


def test_an_abandoned_episode_on_another_machine_is_dropped(tmp_path: Path) -> None:
    with opened("connected", tmp_path) as store:
        ours, _ = _pair(store=store)
        _add(ours, 0, 3)
        _add(ours, 10, 13)
        np.testing.assert_array_equal(ours.observations[:6, 0, 0], [0, 1, 2, 10, 11, 12])
        np.testing.assert_array_equal(ours.timeouts[:6].any(axis=1), [0, 0, 1, 0, 0, 0])


def test_a_buffer_holds_more_than_memory(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """847 MB in a store of 256 MiB at full scale."""
    rows, memory = count(2_000, 30_000), count(16, 256) << 20
    space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    buffer = ReplayBuffer(rows, space, ACTIONS, "cpu", store={"memory": memory, "disk": tmp_path / "tier"})
    assert rows * 84 * 84 * 4 > 3 * memory
    obs = np.zeros((1, 84, 84, 4), np.uint8)
    for step in range(rows):
        after = np.full_like(obs, (step + 1) % 251)
        buffer.add(obs, after, np.array([[step % 9]]), np.array([step]), np.array([False]), [{}])
        obs = after
    for begin in range(0, rows, 50):
        batch = buffer._get_samples(np.arange(begin, begin + 50))
        numbers = batch.rewards.numpy().reshape(-1)
        np.testing.assert_array_equal(numbers, np.arange(begin, begin + 50))
        shape = (-1, 1, 1, 1)
        assert (batch.observations.numpy() == (numbers % 251).reshape(shape)).all()
        assert (batch.next_observations.numpy() == ((numbers + 1) % 251).reshape(shape)).all()
    assert buffer.store.stats()["committed"] <= memory


def test_a_buffer_of_a_million_images_is_accepted(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """Of a million, the disk has to have 42 GB free."""
    space, size = spaces.Box(0, 255, (84, 84, 4), np.uint8), count(200_000, 1_000_000)
    disk = {"disk": tmp_path / "tier", "disk_capacity": size * 42_000}
    buffer = ReplayBuffer(size, space, ACTIONS, "cpu", store={"memory": "512MiB", **disk})
    for step in range(10):
        obs = np.full((1, 84, 84, 4), step, np.uint8)
        buffer.add(obs, obs + 1, np.array([[0]]), np.array([step]), np.array([False]), [{}])
    assert (buffer.observations[:10, 0, 5, 5, 2] == np.arange(10)).all()


def test_other_processes_can_sample_its_table(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        ours, _ = _pair(store=store)
        _add(ours, 0, 5)
        with di_store.attach(store.name) as other:
            batch = other.table("replay").sample(1_000)  # all of them, whatever is drawn
            assert set(batch.data["obs"][:, 0].tolist()) == {*range(5), *range(500, 505)}
            assert (batch.data["terminated"] == (batch.data["obs"][:, 0] == 4)).all()


def _fill(store: di_store.Store, checkpoint: Callable[[], None]) -> None:
    buffer, _ = _pair(store=store)
    _add(buffer, 0, 33)
    checkpoint()
    _add(buffer, 33, 10**9)


def test_a_killed_run_can_be_resumed(tmp_path: Path) -> None:
    path = killed_after_a_checkpoint(_fill, tmp_path)
    # Twice: what a resumed buffer wrote is found again.
    for _ in range(2):
        with di_store.restore(path, memory="64MiB", disk=tmp_path / "tier") as store:
            ours, theirs = _pair(store=store)
            _add(theirs, 0, 33)
            _same(ours, theirs, seam=32 % SIZE)
            for buffer in (ours, theirs):
                _add(buffer, 33, 40)
            _same(ours, theirs, seam=32 % SIZE)
            again, _ = _pair(store=store)
            assert (again.pos, again.full) == (0, True)
            assert (again.timeouts[32 % SIZE] == ours.timeouts[32 % SIZE]).all()


def test_a_half_written_step_is_left_out(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        ours, theirs = _pair(store=store)
        _add(ours, 0, 9)
        _add(theirs, 0, 8)
        ours.table.delete(ours.table.keys()[-1:])
        _same(_pair(store=store)[0], theirs, seam=7)


def test_n_step_returns_stop_where_a_run_was_resumed(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        given: Any = (SIZE * ENVS, BOX, ACTIONS, "cpu", ENVS)
        _add(ReplayBuffer(*given, store=store), 10, 13)
        ours = ReplayBuffer(*given, store=store, n_steps=3, gamma=1.0)
        _add(ours, 20, 22)
        np.random.seed(0)
        batch = ours._get_samples(np.array([1, 2, 3] * 20))
        pairs = set(zip(batch.observations[:, 0].tolist(), batch.rewards[:, 0].tolist(), strict=True))
        assert pairs == {(11.0, 23.0), (12.0, 12.0), (20.0, 41.0), (511.0, -23.0), (512.0, -12.0), (520.0, -20.0)}


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_a_hindsight_buffer_can_be_resumed(strategy: str, tmp_path: Path) -> None:
    environment = BitFlippingEnv(n_bits=4, max_steps=6)
    with opened("store", tmp_path) as store:
        options = {"n_sampled_goal": 2, "goal_selection_strategy": strategy}
        given: dict[str, Any] = {
            "replay_buffer_kwargs": options,
            "buffer_size": 50,
            "learning_starts": 1_000,
            "seed": 0,
        }
        ours = DQN("MultiInputPolicy", environment, replay_buffer_class=HerReplayBuffer, **given)
        options["store"] = store
        first = DQN("MultiInputPolicy", environment, replay_buffer_class=HerReplayBuffer, **given)
        for model in (ours, first):
            environment.reset(seed=3)
            environment.action_space.seed(3)
            model.learn(48)
        one, other = ours.replay_buffer, first.replay_buffer
        assert isinstance(one, HerReplayBuffer)
        assert isinstance(other, HerReplayBuffer)
        model = DQN("MultiInputPolicy", environment, replay_buffer_class=HerReplayBuffer, **given)
        again = model.replay_buffer
        assert isinstance(again, HerReplayBuffer)
        for name in ("ep_start", "ep_length", "_current_ep_start"):
            np.testing.assert_array_equal(getattr(other, name), getattr(one, name))
        one.truncate_last_trajectory()
        for name in ("ep_start", "ep_length", "_current_ep_start"):
            np.testing.assert_array_equal(getattr(again, name), getattr(one, name))
        np.random.seed(1)
        mine = again.sample(64)
        np.random.seed(1)
        for left, right in zip(_leaves(mine), _leaves(one.sample(64)), strict=True):
            np.testing.assert_array_equal(left.numpy(), right.numpy())


def test_a_pickled_buffer_refers_to_its_table(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        ours, theirs = _pair(store=store)
        for buffer in (ours, theirs):
            _add(buffer, 0, 30)
        data = pickle.dumps(ours)
        assert len(data) < 5_000
        again = pickle.loads(data)
        _same(again, theirs, seam=29 % SIZE)
        assert again.table.stats()["inserts"] == 60


def test_a_run_is_resumed_with_its_model(tmp_path: Path) -> None:
    def model(store: Any) -> DQN:
        options = {"replay_buffer_class": ReplayBuffer, "replay_buffer_kwargs": {"store": store}}
        return DQN("MlpPolicy", "CartPole-v1", buffer_size=500, learning_starts=100, seed=0, **options)

    with di_store.open(memory="32MiB") as store:
        first = model(store)
        first.learn(300)
        first.save(tmp_path / "model.zip")
        store.checkpoint(tmp_path / "replay")
        name = store.name
    del first
    with di_store.restore(tmp_path / "replay", name) as store:
        again = DQN.load(tmp_path / "model.zip")
        buffer = again.replay_buffer
        assert isinstance(buffer, ReplayBuffer)
        assert (buffer.size(), buffer.store.name) == (300, store.name)


def test_rollouts_are_stored_in_the_given_store(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        options = {"rollout_buffer_class": RolloutBuffer, "rollout_buffer_kwargs": {"store": store}}
        model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=1, **options)
        model.learn(128)
        buffer = model.rollout_buffer
        assert isinstance(buffer, RolloutBuffer)
        assert buffer.store.name == store.name
        assert buffer.table.stats()["inserts"] == 128
        again = pickle.loads(pickle.dumps(buffer))
        np.testing.assert_array_equal(again.observations, buffer.observations)
        PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=1, **options).learn(64)


def test_removed_rows_raise_an_error(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        ours, _ = _pair(store=store)
        _add(ours, 0, 5)
        ours.table.delete(ours.table.keys(n=1))
        with pytest.raises(di_store.StoreError, match="1 of the rows are gone from table 'replay'"):
            _ = ours.observations[:5]


@pytest.mark.parametrize(
    ("size", "envs", "text"),
    [
        (50, 2, "holds 40 items, and buffer_size= asks for 50"),
        (40, 4, "holds 5 steps of 2 environments, and the buffer has 4 with 10 each"),
        (40, 1, "holds 5 steps of 2 environments, and the buffer has 1 with 40 each"),
    ],
)
def test_unsupported_stores_are_refused(size: int, envs: int, text: str, tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        _add(_pair(store=store)[0], 0, 5)
        with pytest.raises(ValueError, match=text):
            ReplayBuffer(size, BOX, ACTIONS, "cpu", envs, store=store)


def test_other_spaces_are_refused(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        _add(_pair(store=store)[0], 0, 5)
        with pytest.raises(di_store.StoreError, match="replay"):
            _pair(DICT, store=store)


def test_another_kind_of_store_is_refused() -> None:
    with pytest.raises(TypeError, match="store= is a int"):
        ReplayBuffer(10, BOX, ACTIONS, store=7)  # type: ignore[arg-type]
    assert Sb3HerReplayBuffer in HerReplayBuffer.__mro__


EMPTY = spaces.Box(-1, 1, (0,), np.float32)


@pytest.mark.parametrize("given", [None, {"memory": "16MiB"}])
@pytest.mark.parametrize("space", [EMPTY, spaces.Dict({"walker/pos": BOX, "none": EMPTY})], ids=["empty", "dict"])
@pytest.mark.parametrize("actions", [ACTIONS, EMPTY], ids=["number", "empty"])
def test_empty_entries_and_names_with_a_slash_come_back(space: Any, actions: Any, given: Any) -> None:
    theirs = sb3.DictReplayBuffer if isinstance(space, spaces.Dict) else sb3.ReplayBuffer
    pair = ReplayBuffer(10, space, actions, "cpu", store=given), theirs(10, space, actions, "cpu")
    for step in range(14):
        empty = np.zeros((1, 0), np.float32)
        obs, after = ({"walker/pos": np.full((1, 3), each, np.float32), "none": empty} for each in (step, step + 1))
        if not isinstance(space, spaces.Dict):
            obs = after = empty
        action = np.array([[step % 9]]) if actions is ACTIONS else empty
        for buffer in pair:
            buffer.add(obs, after, action, np.array([step]), np.array([step % 5 == 4]), [{}])
    _same(*pair)
