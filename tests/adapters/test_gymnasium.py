"""The recorder, with Gymnasium's environments: the table holds what the environments returned, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store

gym = pytest.importorskip("gymnasium", reason="runs with make adapters ADAPTER=gymnasium")
from gymnasium import spaces  # noqa: E402
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv  # noqa: E402

from di_store.adapters.gymnasium import Recorder  # noqa: E402

VIEW = di_store.Transition(n_step=1)


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="256MiB") as own:
        yield own


class Log(gym.Wrapper):  # type: ignore[misc,name-defined]
    """Keeps the transitions of one environment."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.rows: list[Any] = []

    def reset(self, **options: Any) -> Any:
        self.obs, infos = self.env.reset(**options)
        return self.obs, infos

    def step(self, action: Any) -> Any:
        found = self.env.step(action)
        self.rows.append((leaves(self.obs), leaves(action), np.float32(found[1]), found[2], found[3], leaves(found[0])))
        self.obs = found[0]
        return found


class Odd(gym.Env):  # type: ignore[misc,name-defined]
    """Nested spaces; the observation is (episode, step); an action of 9 in its first part raises."""

    observation_space = spaces.Dict(
        at=spaces.Box(-1, 1000, (2,)), pair=spaces.Tuple((spaces.Discrete(50), spaces.MultiBinary(3)))
    )
    action_space = spaces.Tuple((spaces.Discrete(10), spaces.MultiDiscrete([3, 4])))

    def __init__(self, offset: int = 0) -> None:
        self.offset, self.episode, self.at, self.fails = offset, -1, 0, False

    def seen(self) -> Any:
        return {
            "at": np.array([self.episode, self.at], np.float32),
            "pair": (np.int64(self.at), np.array([1, 0, self.at % 2], np.int8)),
        }

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.at = self.episode + 1, 0
        if self.fails:
            raise RuntimeError("no reset")
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        if action[0] == 9:
            raise RuntimeError("broken")
        self.at += 1
        ends = self.at == 2 + (self.episode + self.offset) % 3
        return self.seen(), float(self.at), ends and self.episode % 2 == 0, ends and self.episode % 2 == 1, {}


def leaves(value: Any) -> Any:
    """As nested tuples of numbers."""
    if isinstance(value, dict):
        return tuple(leaves(value[name]) for name in sorted(value))
    if isinstance(value, tuple):
        return tuple(leaves(part) for part in value)
    found = np.asarray(value)
    return tuple(found.ravel().tolist()) if found.ndim else found.item()


def table_for(store: di_store.Store, env: Any, **options: Any) -> di_store.Table:
    return store.create_table("replay", capacity=5_000, schema=Recorder.schema(env), **{"view": VIEW, **options})


def held(table: di_store.Table) -> list[Any]:
    """The transitions of the table, as `Log` has them."""
    data = table.peek(table.keys()).data
    columns = [data[name] for name in ("obs", "action", "reward", "terminated", "truncated", "next_obs")]

    def at(column: Any, row: int) -> Any:
        return {name: at(part, row) for name, part in column.items()} if isinstance(column, dict) else column[row]

    return [tuple(leaves(at(column, row)) for column in columns) for row in range(len(table))]


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0"])
def test_a_single_environment_is_recorded_whole(store: di_store.Store, name: str) -> None:
    log = Log(gym.make(name, max_episode_steps=60))
    table = table_for(store, log)
    with Recorder(log, table) as env:
        env.action_space.seed(1)
        env.reset(seed=1)
        for _ in range(300):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()
        assert isinstance(env, Recorder)
        assert isinstance(env, gym.Wrapper)
    assert held(table) == log.rows
    with pytest.raises(di_store.WriterClosed):
        env.reset()


def test_the_wrapper_autoreset_adds_no_row(store: di_store.Store) -> None:
    log = Log(gym.make("CartPole-v1"))
    table = table_for(store, log)
    env = Recorder(gym.wrappers.Autoreset(log), table)
    env.reset(seed=1)
    for _ in range(300):
        env.step(env.action_space.sample())
    env.close()
    assert held(table) == log.rows
    assert len(set(table.peek(table.keys()).episodes)) > 3


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("make", [lambda: gym.make("CartPole-v1"), lambda: Odd(1), lambda: Odd(2)])
def test_vector_environments_are_recorded_in_all_autoreset_modes(store: di_store.Store, mode: Any, make: Any) -> None:
    envs = SyncVectorEnv([lambda: Log(make())] * 3, autoreset_mode=mode)
    table = table_for(store, envs)
    env = Recorder(envs, table)
    env.reset(seed=1)
    for _ in range(150):
        actions = env.action_space.sample()
        if isinstance(actions, tuple):
            actions = (actions[0] % 9, actions[1])
        _, _, terminated, truncated, _ = env.step(actions)
        if mode is AutoresetMode.DISABLED and (over := terminated | truncated).any():
            env.reset(options={"reset_mask": over})
    env.close()
    expected = [row for log in envs.envs for row in log.rows]
    assert sorted(held(table)) == sorted(expected)
    assert len(expected) > 200


def test_recorders_work_inside_environment_processes(store: di_store.Store) -> None:
    table = table_for(store, gym.make("CartPole-v1"))
    envs = AsyncVectorEnv([lambda: Recorder(gym.make("CartPole-v1"), table)] * 2)
    envs.reset(seed=1)
    over = 0
    for _ in range(50):
        _, _, terminated, truncated, _ = envs.step(envs.action_space.sample())
        over += int(np.sum(terminated | truncated))
    last = int(np.sum(terminated | truncated))
    envs.close()
    assert len(table) == 100 - over + last, "the step after an episode's end only resets"
    assert len(set(table.peek(table.keys()).episodes)) >= over


def test_environments_in_other_processes_are_recorded(store: di_store.Store) -> None:
    envs = AsyncVectorEnv([lambda: gym.make("Pendulum-v1", max_episode_steps=7)] * 2, shared_memory=True)
    table = table_for(store, envs)
    env = Recorder(envs, table)
    first = leaves(env.reset(seed=1)[0][0])
    for _ in range(8):
        env.step(env.action_space.sample())
    env.close()
    assert len(table) == 14, "the eighth step only resets"
    assert held(table)[0][0] == first


def test_an_exception_ends_the_episode(store: di_store.Store) -> None:
    env = Recorder(Odd(), table := table_for(store, Odd()))
    env.reset()
    env.step((1, np.array([0, 0])))
    with pytest.raises(RuntimeError, match="broken"):
        env.step((9, np.array([0, 0])))
    env.unwrapped.episode = 2  # longer, so that more steps follow
    for _ in range(3):
        env.step((1, np.array([0, 0])))
    env.close()
    found = table.peek(table.keys())
    assert found.data["obs"]["at"].tolist() == [[0, 0], [2, 2], [2, 3]]
    assert found.starts.tolist() == [0, 0, 1]


def test_an_interrupted_reset_ends_the_episode(store: di_store.Store) -> None:
    env = Recorder(Odd(), table := table_for(store, Odd()))
    env.reset()
    env.step((1, np.array([0, 0])))
    env.unwrapped.fails = True
    with pytest.raises(RuntimeError, match="no reset"):
        env.reset()
    for _ in range(3):
        env.step((1, np.array([0, 0])))
    env.close()
    found = table.peek(table.keys())
    assert found.data["obs"]["at"].tolist() == [[0, 0], [1, 1], [1, 2]]
    assert len(set(found.episodes)) == 2


def test_an_exception_in_a_vector_environment_ends_its_episodes(store: di_store.Store) -> None:
    envs = SyncVectorEnv([lambda: Odd(2)] * 2)
    env = Recorder(envs, table := table_for(store, envs))
    fine, bad = (np.array([1, 1]), np.zeros((2, 2), int)), (np.array([1, 9]), np.zeros((2, 2), int))
    env.reset()
    env.step(fine)
    with pytest.raises(RuntimeError, match="broken"):
        env.step(bad)
    env.reset()
    env.step(fine)
    env.close()
    assert table.peek(table.keys()).data["obs"]["at"].tolist() == [[0, 0]] * 2 + [[1, 0]] * 2


def test_a_refused_row_ends_the_episode(store: di_store.Store) -> None:
    env = Recorder(Odd(), table := table_for(store, Odd(), limiter=di_store.Queue(1)))
    env.reset()
    env.step((1, np.array([0, 0])))
    table.finish()
    with pytest.raises(di_store.EndOfData):
        env.step((1, np.array([0, 0])))
    env.close()
    with pytest.raises(di_store.WriterClosed):
        env.reset()


def test_the_final_observations_are_those_before_the_reset(store: di_store.Store) -> None:
    envs = SyncVectorEnv([lambda: Odd(0)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    table = table_for(store, envs, view=di_store.Episode(max_length=5, bootstrap=("obs",)))
    env = Recorder(envs, table)
    env.reset()
    for _ in range(5):
        env.step((np.array([1, 1]), np.zeros((2, 2), int)))
    env.close()
    data = table.peek(table.keys()).data
    assert data["lengths"].tolist() == [2, 2, 3, 3]
    assert data["obs"]["at"][0, :3].tolist() == [[0, 0], [0, 1], [0, 2]]
    assert data["obs"]["at"][2, :4].tolist() == [[1, 0], [1, 1], [1, 2], [1, 3]]


def test_a_step_after_the_end_is_not_recorded(store: di_store.Store) -> None:
    env = Recorder(Odd(), table := table_for(store, Odd()))
    env.reset()
    for _ in range(5):
        env.step((1, np.array([0, 0])))
    env.close()
    assert len(table) == 2


class Talk(gym.Env[Any, Any]):  # type: ignore[misc,unused-ignore]
    """Says after each step what was said to it."""

    observation_space = spaces.Dict(said=spaces.Text(8))
    action_space = spaces.Text(8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return {"said": "hello"}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return {"said": action}, 1.0, False, False, {}


@pytest.mark.parametrize("lanes", [None, 2])
def test_text_is_recorded(store: di_store.Store, lanes: int | None) -> None:
    table = store.create_table("talk", capacity=10, view=di_store.Transition())
    env = Recorder(Talk() if lanes is None else SyncVectorEnv([Talk] * lanes), table)
    env.reset()
    for said in ("a", "later"):
        env.step(said if lanes is None else [said, said.upper()])
    with pytest.raises(di_store.SchemaMismatch, match="up to 8 characters, and was given 9"):
        env.step("123456789" if lanes is None else ["123456789", ""])
    with pytest.raises(TypeError, match="its space has text"):
        env.step(3 if lanes is None else [3, 4])
    env.close()
    data = table.peek(table.keys()).data
    found = set(zip(data["obs"]["said"].tolist(), data["next_obs"]["said"].tolist(), strict=True))
    assert found == {("hello", "a"), ("a", "later")} | ({("hello", "A"), ("A", "LATER")} if lanes else set())
    assert (data["action"] == data["next_obs"]["said"]).all()


def test_an_environment_that_cannot_be_recorded_is_refused_by_name(store: di_store.Store) -> None:
    table = store.create_table("other", capacity=10)
    odd = Odd()
    odd.observation_space = spaces.Dict(words=spaces.Sequence(spaces.Text(5)))
    with pytest.raises(TypeError, match="observation space holds a Sequence"):
        Recorder(odd, table)
    with pytest.raises(TypeError, match="not str"):
        Recorder("CartPole-v1", table)
    with pytest.raises(TypeError, match="takes a table"):
        Recorder(Odd(), store)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="autoreset mode 'often'"):
        Recorder(SyncVectorEnv([Odd]), table, autoreset="often")
    with pytest.raises(ValueError, match="no same-step mode"):
        Recorder(Odd(), table, autoreset=AutoresetMode.SAME_STEP)
    env = Recorder(Odd(), table)
    env.reset()
    with pytest.raises(TypeError, match="would be rounded"):
        env.step((1.5, np.array([0, 0])))
    env.close()


class Wide(gym.Env):  # type: ignore[misc,name-defined]
    """Gives observations of wider types than its space says."""

    observation_space = spaces.Dict({"n": spaces.Box(0, 255, (2,), np.uint8), "x": spaces.Box(-1, 1, (2,), np.float32)})
    action_space = spaces.Discrete(2)
    reward = 0.0

    def __init__(self) -> None:
        self.n, self.x = np.array([1, 2]), np.array([0.5, 0.25])

    def reset(self, **_: Any) -> Any:
        return {"n": self.n, "x": self.x}, {}

    def step(self, action: Any) -> Any:
        return {"n": self.n, "x": self.x}, self.reward, False, False, {}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("n", np.array([3, 300]), "observation is uint8, and was given the value 300"),
        ("n", np.array([3, -1]), "observation is uint8, and was given the value -1"),
        ("x", np.array([0.5, 1e300]), r"observation is float32, and was given the value 1e\+300"),
        ("reward", 1e300, "reward"),
    ],
)
def test_numbers_out_of_range_are_refused_not_wrapped(store: di_store.Store, name: str, value: Any, text: str) -> None:
    env = Wide()
    table = store.create_table("replay", capacity=10, view=di_store.Transition(), schema=Recorder.schema(env))
    recorder = Recorder(env, table)
    recorder.reset()
    recorder.step(1)
    setattr(env, name, value)
    with pytest.raises(di_store.SchemaMismatch, match=text):
        recorder.step(1)
    assert len(table) == 1
    assert table.peek(table.keys()).data["obs"]["n"].tolist() == [[1, 2]]


def test_vector_rewards_out_of_range_are_refused(store: di_store.Store) -> None:
    inner = Wide()
    inner.n, inner.x = inner.n.astype(np.uint8), inner.x.astype(np.float32)
    env = SyncVectorEnv([lambda: inner])
    table = store.create_table("replay", capacity=10, view=di_store.Transition(), schema=Recorder.schema(env))
    recorder = Recorder(env, table)
    recorder.reset()
    recorder.step(np.array([1]))
    inner.reward = 1e300
    with pytest.raises(di_store.SchemaMismatch, match=r"reward is float32, and was given the value 1e\+300"):
        recorder.step(np.array([1]))
    assert len(table) == 1
