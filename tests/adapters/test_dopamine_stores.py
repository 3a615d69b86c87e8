"""Dopamine's buffer in a store that is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("dopamine", reason="needs the extra dopamine")

from dopamine.jax.replay_memory import accumulator, elements, samplers

import di_store
from di_store.adapters.dopamine import ReplayBuffer


def buffer_of(size: int, **options: Any) -> ReplayBuffer:
    made = accumulator.TransitionAccumulator(stack_size=1, update_horizon=1, gamma=0.99)
    return ReplayBuffer(made, samplers.UniformSamplingDistribution(seed=1), batch_size=32, max_capacity=size, **options)


def fill(buffer: ReplayBuffer, first: int, count: int, size: int = 4) -> None:
    for number in range(first, first + count):
        observation = np.full(size, number, np.float32)
        buffer.add(elements.TransitionElement(observation, number % 3, 1.0, number % 10 == 9, number % 10 == 9))


def test_beyond_memory(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    held, memory, size = count(4_000, 30_000), count(40, 256) << 20, 84 * 84
    buffer = buffer_of(held, store={"memory": memory, "disk": tmp_path / "tier"}, table="mine")
    with pytest.raises(RuntimeError, match="first add"):
        _ = buffer.table
    fill(buffer, 0, held + 10, size)
    assert held * size * 4 > 2 * memory
    assert buffer.table.name.startswith("mine")
    assert buffer.store.stats()["committed"] <= memory
    batch = buffer.sample(64)
    assert (batch.next_state == batch.state + 1).all()
    assert (batch.state == batch.state[:, :1]).all()


def test_a_table_with_rows_is_refused_and_a_checkpoint_is_loaded() -> None:
    with di_store.open(memory="256MiB") as store:
        first = buffer_of(50, store=store)
        fill(first, 0, 120)
        with pytest.raises(di_store.TableExists, match="give table= another name"):
            fill(buffer_of(50, store=store), 0, 3)
        second = buffer_of(50, store=store, table="second")
        for _ in range(2):
            second.from_state_dict(first.to_state_dict())
            for key in first._memory:
                assert np.array_equal(second._memory[key].state, first._memory[key].state)
        fill(second, 120, 30)
        assert second.store is store


def test_short_episodes_move_to_a_larger_table() -> None:
    with di_store.open(memory="256MiB") as store:
        buffer = buffer_of(40, store=store)
        for number in range(400):
            observation = np.full(4, number, np.float32)
            buffer.add(elements.TransitionElement(observation, 0, 1.0, False, number % 2 == 1))
        assert len([name for name in store.stats()["tables"] if name.startswith("replay")]) == 1
        batch = buffer.sample(32)
        assert (batch.state == batch.state[:, :1]).all()
