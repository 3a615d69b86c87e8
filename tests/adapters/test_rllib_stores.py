"""RLlib's buffers in a store that is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray.rllib", reason="needs the extra rllib")

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
def test_beyond_memory(kind: Any, tmp_path: Path, count: Callable[[int, int], int]) -> None:
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
        with pytest.raises(di_store.TableExists, match="give table= another name"):
            EpisodeReplayBuffer(capacity=100, store=store).add(episode(9, 3))
        second = EpisodeReplayBuffer(capacity=100, store=store, table="second")
        for _ in range(2):
            second.set_state(first.get_state())
            assert len(second.table) == 55
            assert [each.id_ for each in second.episodes] == [each.id_ for each in first.episodes]
        assert set(store.stats()["tables"]) == {"steps", "second"}
