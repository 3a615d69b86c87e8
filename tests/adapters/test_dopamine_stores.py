"""Dopamine's buffer in a store that is given."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("dopamine", reason="runs with make adapters ADAPTER=dopamine")

from dopamine.jax.replay_memory import accumulator, elements, samplers
from given_stores import KINDS, killed_and_unpickled, opened

import di_store
from di_store.adapters.dopamine import ReplayBuffer


def buffer_of(size: int, **options: Any) -> ReplayBuffer:
    made = accumulator.TransitionAccumulator(stack_size=1, update_horizon=1, gamma=0.99)
    return ReplayBuffer(made, samplers.UniformSamplingDistribution(seed=1), batch_size=32, max_capacity=size, **options)


def fill(buffer: ReplayBuffer, begin: int, end: int, size: int = 4) -> None:
    for number in range(begin, end):
        observation = np.full(size, number, np.float32)
        buffer.add(elements.TransitionElement(observation, number % 3, 1.0, number % 10 == 9, number % 10 == 9))


def test_a_buffer_holds_more_than_memory(tmp_path: Path, count: Callable[[int, int], int]) -> None:
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
        with pytest.raises(di_store.TableExists, match="load the buffer's pickle"):
            fill(buffer_of(50, store=store), 0, 3)
        second = buffer_of(50, store=store, table="second")
        for _ in range(2):
            second.from_state_dict(first.to_state_dict())
            for key in first._memory:
                assert np.array_equal(second._memory[key].state, first._memory[key].state)
        fill(second, 120, 150)
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


class Pairs(accumulator.Accumulator):  # type: ignore[misc]
    """Elements that are not Dopamine's: the observation beside its action."""

    def accumulate(self, transition: Any) -> Any:
        yield {"state": transition.observation, "action": np.int32(transition.action)}

    def clear(self) -> None:
        pass

    def to_state_dict(self) -> dict[str, Any]:
        return {}

    def from_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


ACCUMULATORS = {"frames": None, "leaves": Pairs}


def made(kind: str, size: int, **options: Any) -> ReplayBuffer:
    if (own := ACCUMULATORS[kind]) is None:
        return buffer_of(size, **options)
    return ReplayBuffer(
        own(), samplers.UniformSamplingDistribution(seed=1), batch_size=32, max_capacity=size, **options
    )


def first_numbers(buffer: ReplayBuffer) -> list[int]:
    """The observation that each element begins with, oldest first."""
    found = []
    for element in buffer._memory.values():
        state = element["state"] if isinstance(element, dict) else element.state
        assert (state == state.flat[0]).all()
        found.append(int(state.flat[0]))
    return found


@pytest.mark.parametrize("elements_are", ACCUMULATORS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_works_with_every_kind_of_store(kind: str, elements_are: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as store:
        buffer, own = made(elements_are, 20, store=store, table="mine"), made(elements_are, 20)
        for each in (buffer, own):
            fill(each, 0, 57)
        assert first_numbers(buffer) == first_numbers(own)
        for each in (buffer, own):
            each.clear()
            fill(each, 100, 117)
        assert first_numbers(buffer) == first_numbers(own)
        assert buffer.table.name == "mine"


@pytest.mark.parametrize("elements_are", ACCUMULATORS)
def test_a_killed_run_can_be_resumed(elements_are: str, tmp_path: Path) -> None:
    own = made(elements_are, 20)
    fill(own, 0, 57)
    with killed_and_unpickled(lambda store: made(elements_are, 20, store=store), fill, 57, tmp_path) as buffer:
        for _ in range(2):
            assert first_numbers(buffer) == first_numbers(own)
            for each in (buffer, own):
                fill(each, 57, 88)


@pytest.mark.parametrize("elements_are", ACCUMULATORS)
def test_an_old_pickle_is_reconciled_with_the_table(elements_are: str) -> None:
    """What was overwritten since is gone, and what came since is overwritten."""
    with di_store.open(memory="64MiB") as store:
        buffer = made(elements_are, 20, store=store)
        fill(buffer, 0, 200)
        data, before = pickle.dumps(buffer), first_numbers(buffer)
        fill(buffer, 200, 245)
        again = pickle.loads(data)
        kept = first_numbers(again)
        assert kept == before[len(before) - len(kept) :]
        fill(again, 200, 270)
        own = made(elements_are, 20)
        fill(own, 200, 270)
        assert first_numbers(again) == first_numbers(own)
        again.sample(32)


def test_an_empty_observation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"float32\[0\], not an array of numbers with at least one element"):
        fill(buffer_of(10), 0, 1, size=0)
