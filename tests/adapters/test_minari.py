"""Minari datasets made here, read into tables and written back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_pages import run_programs

import di_store

gym = pytest.importorskip("gymnasium", reason="runs with make adapters ADAPTER=minari")
minari = pytest.importorskip("minari", reason="runs with make adapters ADAPTER=minari")
from gymnasium import spaces  # noqa: E402
from gymnasium.vector import SyncVectorEnv  # noqa: E402
from minari.data_collector import EpisodeBuffer  # noqa: E402

from di_store.adapters.gymnasium import Recorder  # noqa: E402
from di_store.adapters.minari import read, write  # noqa: E402


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="256MiB") as own:
        yield own


def collected(name: str, env: str, episodes: int) -> Any:
    """A dataset of a random policy."""
    made, buffers = gym.make(env, max_episode_steps=50), []
    made.action_space.seed(1)
    for number in range(episodes):
        seen, rows, over = [made.reset(seed=number)[0]], [], False
        while not over:
            action = made.action_space.sample()
            obs, reward, terminated, truncated, _ = made.step(action)
            seen.append(obs)
            rows.append((action, float(reward), terminated, truncated))
            over = terminated or truncated
        actions, rewards, terminations, truncations = (list(column) for column in zip(*rows, strict=True))
        buffers.append(EpisodeBuffer(None, number, None, seen, actions, rewards, terminations, truncations))
    return minari.create_dataset_from_buffers(name, buffers, env=env)


def same(one: Any, other: Any) -> None:
    """The same episodes, in the same order."""
    ours, theirs = list(one.iterate_episodes()), list(other.iterate_episodes())
    assert len(ours) == len(theirs)
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_equal(found.observations, expected.observations)
        np.testing.assert_equal(found.actions, expected.actions)
        np.testing.assert_array_equal(found.rewards, np.float32(expected.rewards))
        np.testing.assert_array_equal(found.terminations, expected.terminations)
        np.testing.assert_array_equal(found.truncations, expected.truncations)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("view", [di_store.Episode(max_length=50, bootstrap=("obs",)), di_store.Transition()])
def test_a_dataset_is_read_and_written_back(store: di_store.Store, env: str, view: Any) -> None:
    dataset = collected("mine/one-v0", env, 20)
    table = read(store, "mine/one-v0", view=view)
    assert table.name == "mine/one-v0"
    assert len(table) == (20 if isinstance(view, di_store.Episode) else dataset.total_steps)
    again = write(table, "mine/two-v0", env=env)
    assert again.total_steps == dataset.total_steps
    assert again.env_spec.id == env
    assert again.action_space == dataset.action_space
    same(minari.load_dataset("mine/two-v0"), dataset)


def test_a_dataset_of_the_minari_collector_is_read(store: di_store.Store) -> None:
    pytest.importorskip("jax")  # Minari's collector needs it
    collector = minari.DataCollector(gym.make("CartPole-v1"))
    for number in range(3):
        collector.reset(seed=number)
        over = False
        while not over:
            _, _, terminated, truncated, _ = collector.step(collector.action_space.sample())
            over = terminated or truncated
    dataset = collector.create_dataset(dataset_id="mine/collected-v0")
    table = read(store, dataset, view=di_store.Transition())
    assert len(table) == dataset.total_steps
    same(write(table, "mine/back-v0", env="CartPole-v1"), dataset)


def test_transitions_are_those_of_the_dataset(store: di_store.Store) -> None:
    dataset = collected("mine/one-v0", "CartPole-v1", 5)
    table = store.create_table("replay", capacity=1_000, view=di_store.Transition())
    assert read(table, dataset) is table
    data = table.peek(table.keys()).data
    episodes = list(dataset.iterate_episodes())
    for name, expected in (
        ("obs", [one.observations[:-1] for one in episodes]),
        ("next_obs", [one.observations[1:] for one in episodes]),
        ("action", [one.actions for one in episodes]),
        ("terminated", [one.terminations for one in episodes]),
    ):
        np.testing.assert_array_equal(data[name], np.concatenate(expected))
    assert set(data) == {"obs", "action", "reward", "terminated", "truncated", "next_obs", "discount", "steps"}


def test_steps_without_final_observations_are_handled(store: di_store.Store) -> None:
    dataset = collected("mine/one-v0", "CartPole-v1", 5)
    again = write(read(store, dataset), "mine/steps-v0")
    pairs = zip(again.iterate_episodes(), dataset.iterate_episodes(), strict=True)
    terminated = [(found, expected) for found, expected in pairs if expected.terminations[-1]]
    assert terminated
    for found, expected in terminated:
        np.testing.assert_array_equal(found.observations[:-1], expected.observations[:-1])
        np.testing.assert_array_equal(found.observations[-1], expected.observations[-2])
        np.testing.assert_array_equal(found.actions, expected.actions)
    truncated = collected("mine/long-v0", "Pendulum-v1", 2)
    again = write(read(store, truncated), "mine/cut-v0")
    for found, expected in zip(again.iterate_episodes(), truncated.iterate_episodes(), strict=True):
        np.testing.assert_array_equal(found.observations, expected.observations[:-1])
        np.testing.assert_array_equal(found.actions, expected.actions[:-1])
        assert found.truncations.tolist() == [False] * 48 + [True]


def test_nested_spaces_come_back(store: di_store.Store) -> None:
    observation = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))))
    action = spaces.Tuple((spaces.Discrete(4), spaces.Box(0, 255, (4, 4, 3), np.uint8)))

    def many(space: Any, total: int) -> Any:
        if isinstance(space, spaces.Dict):
            return {name: many(part, total) for name, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(many(part, total) for part in space.spaces)
        return np.array([space.sample() for _ in range(total)])

    buffers = [
        EpisodeBuffer(
            observations=many(observation, total + 1),
            actions=many(action, total),
            rewards=[1.0] * total,
            terminations=[False] * total,
            truncations=[False] * (total - 1) + [True],
        )
        for total in (1, 3, 2000)
    ]
    made = {"observation_space": observation, "action_space": action}
    dataset = minari.create_dataset_from_buffers("nested-v0", buffers, **made, jpeg_encoding=False)
    table = read(store, dataset, view=di_store.Transition())
    same(write(table, "nested-v1", **made), dataset)
    plain = write(table, "nested-v2")
    assert isinstance(plain.observation_space, spaces.Dict)


TEXTS = {
    "text": spaces.Text(12, charset="aäö "),
    "nested": spaces.Dict(words=spaces.Text(12, charset="aäö "), at=spaces.Box(0, 1, (2,))),
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("view", [di_store.Step(), di_store.Episode(10, bootstrap=("obs",)), di_store.Transition()])
def test_text_comes_back_as_it_was(store: di_store.Store, kind: str, view: Any) -> None:
    given, action = {"observation_space": TEXTS[kind], "action_space": spaces.Text(3, min_length=0)}, ["", "ab", "c"]
    words = [["aä ö", "a" * 12, "ö", "ä a"], ["ä", "a", "aaä", "ö"]]
    buffers = []
    for texts in words:
        obs = texts if kind == "text" else {"words": texts, "at": np.random.rand(4, 2).astype(np.float32)}
        flags = [False, False, True]
        buffers.append(EpisodeBuffer(None, None, None, obs, action, [1.0, 2.0, 3.0], flags, [False] * 3))
    dataset = minari.create_dataset_from_buffers("text/first-v0", buffers, **given)
    table = read(store, dataset, view=view, capacity=10)
    leaf = "obs" if kind == "text" else "obs/words"
    data = table.peek(table.keys(), columns=leaf).data["obs"]
    assert "aä ö" in np.ravel(data if kind == "text" else data["words"]).tolist()
    with pytest.raises(ValueError, match="holds text"):
        write(table, "text/no-space-v0")
    found = write(table, "text/second-v0", **given)
    if isinstance(view, di_store.Step):  # it has no final observations, and repeats the last one
        for episode, texts in zip(found.iterate_episodes(), words, strict=True):
            held = episode.observations if kind == "text" else episode.observations["words"]
            assert held == [*texts[:3], texts[2]]
            assert episode.actions == action
    else:
        same(found, dataset)


def test_empty_entries_come_back_and_names_with_a_slash_are_refused(store: di_store.Store) -> None:
    for name, goal in (("plain", spaces.Box(-1, 1, (0,))), ("walker/pos", spaces.Box(-1, 1, (2,)))):
        space = spaces.Dict({"goal": spaces.Box(-1, 1, (2, 0)), name: goal})
        given: dict[str, Any] = {"observation_space": space, "action_space": spaces.Discrete(2)}
        table = store.create_table(name, capacity=10, view=di_store.Transition())
        with table.writer() as writer:
            for number in range(4):
                obs = {part: np.zeros(space[part].shape, np.float32) for part in ("goal", name)}
                flags = {"terminated": number == 3, "truncated": False}
                writer.append({"obs": obs, "action": 1, "reward": 1.0, **flags}, next={"obs": obs})
        if name == "plain":
            (episode,) = write(table, "empty/first-v0", **given).iterate_episodes()
            assert {part: each.shape for part, each in episode.observations.items()} == {
                "goal": (5, 2, 0),
                "plain": (5, 0),
            }
        else:
            with pytest.raises(ValueError, match="'walker/pos', and Minari cannot read"):
                write(table, "slash/first-v0", **given)


def test_infos_are_read_only_when_requested(store: di_store.Store) -> None:
    buffer = EpisodeBuffer(
        observations=np.zeros((4, 2), np.float32),
        actions=np.zeros(3, np.int64),
        rewards=[0.0] * 3,
        terminations=[False, False, True],
        truncations=[False] * 3,
        infos={"lives": np.arange(4), "deep": {"x": np.arange(4.0)}},
    )
    made = {"observation_space": spaces.Box(-1, 1, (2,)), "action_space": spaces.Discrete(2)}
    dataset = minari.create_dataset_from_buffers("infos-v0", [buffer], **made)
    assert "info" not in (read(store, dataset).schema or {})
    table = read(store, dataset, name="some", infos=["lives"])
    assert table.peek(table.keys()).data["info"]["lives"].tolist() == [1, 2, 3]
    table = read(store, dataset, name="all", infos=True)
    assert table.peek(table.keys()).data["info"]["deep"]["x"].tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="no info 'score'; it has"):
        read(store, dataset, name="missing", infos=["score"])


def test_recordings_of_vector_environments_are_exported(store: di_store.Store) -> None:
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3)
    table = store.create_table("replay", capacity=1_000, view=di_store.Transition(), schema=Recorder.schema(envs))
    env = Recorder(envs, table)
    env.reset(seed=1)
    for _ in range(100):
        env.step(env.action_space.sample())
    env.close()
    dataset = write(table, "recorded-v0", env="CartPole-v1")
    assert dataset.total_steps == len(table)
    for episode in dataset.iterate_episodes():
        assert (episode.terminations | episode.truncations).tolist() == [False] * (len(episode) - 1) + [True]
        assert len(episode.observations) == len(episode) + 1
        moved = episode.observations[:-1, 0] + 0.02 * episode.observations[:-1, 1]
        np.testing.assert_allclose(episode.observations[1:, 0], moved, atol=1e-5)  # CartPole's own equation


def test_a_recorder_can_be_given_as_the_environment(store: di_store.Store) -> None:
    table = store.create_table("replay", capacity=1_000, view=di_store.Transition())
    env = Recorder(gym.make("Pendulum-v1"), table)
    env.reset(seed=1)
    for _ in range(20):
        env.step(env.action_space.sample())
    env.close()
    dataset = write(table, "recorded-v0", env=env)
    assert dataset.total_steps == 20
    made = dataset.recover_environment()
    assert made.spec.id == "Pendulum-v1"
    assert not isinstance(made, Recorder)
    with pytest.raises(TypeError, match="not a vector environment"):
        write(table, "recorded-v1", env=SyncVectorEnv([lambda: gym.make("Pendulum-v1")]))


def test_removed_rows_split_an_episode(store: di_store.Store) -> None:
    dataset = collected("mine/one-v0", "Pendulum-v1", 1)
    table = read(store, dataset, view=di_store.Transition())
    table.delete(table.keys()[20:22])
    again = list(write(table, "mine/two-v0").iterate_episodes())
    assert [len(one) for one in again] == [20, 28]
    whole = next(iter(dataset.iterate_episodes()))
    np.testing.assert_array_equal(again[1].observations, whole.observations[22:])
    assert again[0].truncations[-1]


def test_episodes_are_added_to_a_dataset(store: di_store.Store) -> None:
    whole = collected("mine/whole-v0", "CartPole-v1", 12)
    first, second = (
        whole.filter_episodes(lambda episode: episode.id < 5),
        whole.filter_episodes(lambda each: each.id >= 5),
    )
    view = di_store.Episode(max_length=50, bootstrap=("obs",))
    made = write(read(store, first, name="first", view=view), "mine/made-v0", env="CartPole-v1")
    table = read(store, second, name="second", view=view)
    assert write(table, made) is made
    same(made, whole)
    same(minari.load_dataset("mine/made-v0"), whole)
    for options in ({"env": "CartPole-v1"}, {"observation_space": whole.observation_space}, {"author": "me"}):
        with pytest.raises(ValueError, match="are for a new dataset"):
            write(table, made, **options)
    other = write(read(store, collected("mine/pendulum-v0", "Pendulum-v1", 1), view=view), "mine/other-v0")
    with pytest.raises(ValueError, match="does not fit the table's column 'obs'"):
        write(table, other)


def test_a_dataset_is_appended_to_existing_rows(store: di_store.Store, tmp_path: Any) -> None:
    """A dataset goes on behind what a restored table holds, and both are written."""
    dataset = collected("mine/one-v0", "CartPole-v1", 9)
    head, tail = dataset.filter_episodes(lambda each: each.id < 4), dataset.filter_episodes(lambda each: each.id >= 4)
    view = di_store.Episode(max_length=50, bootstrap=("obs",))
    read(store, head, name="steps", view=view, capacity=100)
    store.checkpoint(tmp_path / "checkpoint")
    with di_store.restore(tmp_path / "checkpoint", memory="64MiB") as again:
        same(write(read(again.table("steps"), tail), "mine/two-v0", env="CartPole-v1"), dataset)


def test_impossible_conversions_are_refused_by_name(store: di_store.Store) -> None:
    with pytest.raises(FileNotFoundError, match="not found locally"):
        read(store, "mine/none-v0")
    dataset = collected("mine/one-v0", "CartPole-v1", 1)
    with pytest.raises(TypeError, match="takes a Minari dataset"):
        read(store, 3)
    with pytest.raises(TypeError, match="takes a store or a table"):
        read(3, dataset)  # type: ignore[arg-type]
    table = read(store, dataset)
    with pytest.raises(ValueError, match="pass a store"):
        read(table, dataset, capacity=3)
    with pytest.raises(di_store.TableExists):
        read(store, dataset)
    with pytest.raises(ValueError, match="does not fit the table's column 'obs'"):
        write(table, "mine/two-v0", env="Pendulum-v1")
    with pytest.raises(TypeError, match="not Sequence"):
        write(store.create_table("sequences", capacity=10, view=di_store.Sequence(4)), "mine/two-v0")
    with pytest.raises(ValueError, match="has no column 'obs'"):
        write(store.create_table("fresh", capacity=10), "mine/two-v0")
    table.reset()
    with pytest.raises(ValueError, match="nothing is written"):
        write(table, "mine/two-v0")
    with pytest.raises(FileNotFoundError):
        minari.load_dataset("mine/two-v0")


def test_programs_of_the_page_run(tmp_path: Path) -> None:
    run_programs("minari", tmp_path)
