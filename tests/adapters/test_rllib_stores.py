"""RLlib's buffers in a store that is given."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray.rllib", reason="runs with make adapters ADAPTER=rllib")

from given_stores import KINDS, killed_and_unpickled, opened
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

import di_store
from di_store.adapters.rllib import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer


def episode(number: int, steps: int, size: int = 4) -> SingleAgentEpisode:
    observations = [np.full(size, number * 1_000 + step, np.float32) for step in range(steps + 1)]
    rewards = [float(step) for step in range(steps)]
    return SingleAgentEpisode(
        id_=f"episode-{number}",
        observations=observations,
        actions=[step % 2 for step in range(steps)],
        rewards=rewards,
        terminated=True,
        len_lookback_buffer=0,
    )


@pytest.mark.parametrize("kind", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
def test_a_buffer_holds_more_than_memory(kind: Any, tmp_path: Path, count: Callable[[int, int], int]) -> None:
    steps, memory, size = count(4_000, 30_000), count(40, 256) << 20, 84 * 84
    buffer = kind(capacity=steps, store={"memory": memory, "disk": tmp_path / "tier"}, table="mine")
    with pytest.raises(RuntimeError, match="first add"):
        _ = buffer.table
    for number in range(steps // 50):
        buffer.add(episode(number, 50, size))
    assert steps * size * 4 > 2 * memory
    assert buffer.table.name == "mine"
    assert buffer.store.stats()["committed"] <= memory
    for found in buffer.sample(num_items=64, n_step=1, to_numpy=False, sample_episodes=True):
        first, second = found.observations[0], found.observations[1]
        assert (first == first[0]).all()
        assert (second == first + 1).all()


def test_a_table_with_steps_is_refused_and_a_state_is_taken() -> None:
    with di_store.open(memory="64MiB") as store:
        first = EpisodeReplayBuffer(capacity=100, store=store)
        first.add([episode(number, 10) for number in range(5)])
        with pytest.raises(di_store.TableExists, match="load the buffer's pickle"):
            EpisodeReplayBuffer(capacity=100, store=store).add(episode(9, 3))
        second = EpisodeReplayBuffer(capacity=100, store=store, table="second")
        for _ in range(2):
            second.set_state(first.get_state())
            assert len(second.table) == 55
            assert [each.id_ for each in second.episodes] == [each.id_ for each in first.episodes]
        assert set(store.stats()["tables"]) == {"steps", "second"}


BUFFERS = [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer]


def _same(buffer: Any, other: Any) -> None:
    """Same episodes, and every step is drawn."""
    assert [each.id_ for each in buffer.episodes] == [each.id_ for each in other.episodes]
    for one, theirs in zip(buffer.episodes, other.episodes, strict=True):
        np.testing.assert_array_equal(np.array(list(one.observations)), np.array(list(theirs.observations)))
    assert buffer.get_num_timesteps() == other.get_num_timesteps()
    drawn = buffer.sample(num_items=200, n_step=1, to_numpy=False, sample_episodes=True)
    begun = {int(each.observations[0][0]) // 1_000 for each in drawn}
    assert begun == {int(each.observations[0][0]) // 1_000 for each in other.episodes}


@pytest.mark.parametrize("made", BUFFERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_works_with_every_kind_of_store(kind: str, made: Any, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as store:
        buffer, own = made(capacity=40, store=store, table="mine"), made(capacity=40)
        for each in (buffer, own):
            for number in range(9):
                each.add([episode(number, 7)])
        _same(buffer, own)
        assert buffer.table.name == "mine"
        assert len(buffer.table) == sum(len(each) + 1 for each in own.episodes)


def _add(buffer: Any, begin: int, end: int) -> None:
    for number in range(begin, end):
        buffer.add([episode(number, 7)])


@pytest.mark.parametrize("made", BUFFERS)
def test_a_killed_run_can_be_resumed(made: Any, tmp_path: Path) -> None:
    own = made(capacity=40)
    _add(own, 0, 9)
    with killed_and_unpickled(lambda store: made(capacity=40, store=store), _add, 9, tmp_path) as buffer:
        _same(buffer, own)
        for each in (buffer, own):
            _add(each, 9, 13)
        _same(buffer, own)


@pytest.mark.parametrize("made", BUFFERS)
def test_an_old_pickle_is_reconciled_with_the_table(made: Any) -> None:
    """What was removed since is gone, and so is what came since."""
    with di_store.open(memory="64MiB") as store:
        buffer = made(capacity=40, store=store)
        for number in range(9):
            buffer.add([episode(number, 7)])
        data = pickle.dumps(buffer)
        for number in range(9, 11):
            buffer.add([episode(number, 7)])
        again = pickle.loads(data)
        assert [each.id_ for each in again.episodes] == [f"episode-{number}" for number in range(6, 9)]
        assert len(again.table) == 3 * 8
        assert again.get_num_timesteps() == 21
        own = made(capacity=40)
        for each in (again, own):
            for number in range(20, 28):
                each.add([episode(number, 7)])
        _same(again, own)


@pytest.mark.parametrize("kind", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
def test_empty_entries_and_names_with_a_slash_come_back(kind: Any) -> None:
    observations = [{"walker/pos": np.full(2, step), "none": np.zeros(0, np.float32)} for step in range(6)]
    actions = [np.zeros(0, np.float32)] * 5
    buffer = kind(capacity=100)
    made = {"observations": observations, "actions": actions, "rewards": [1.0] * 5, "len_lookback_buffer": 0}
    buffer.add(SingleAgentEpisode(id_="odd", terminated=True, **made))
    for found in buffer.sample(num_items=20, n_step=1, to_numpy=False, sample_episodes=True):
        first, second = found.observations[0], found.observations[1]
        assert (second["walker/pos"] == first["walker/pos"] + 1).all()
        assert first["none"].shape == found.actions[0].shape == (0,)
    assert [each["none"].shape for each in buffer.episodes[0].observations] == [(0,)] * 6
