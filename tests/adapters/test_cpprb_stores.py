"""cpprb's buffers in a store that is given."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cpprb", reason="runs with make adapters ADAPTER=cpprb")

from given_stores import KINDS, killed_after_a_checkpoint, opened

import di_store
from di_store.adapters.cpprb import PrioritizedReplayBuffer, ReplayBuffer

ENV: dict[str, Any] = {"obs": {"shape": 3}, "n": {"dtype": np.int64}, "image": {"dtype": np.uint8}}


def step(number: int, shape: Any = 3) -> dict[str, Any]:
    return {"obs": np.full(shape, number, np.float32), "n": number, "image": number % 256}


def numbers(buffer: ReplayBuffer) -> list[int]:
    found: list[int] = buffer.get_all_transitions()["n"].reshape(-1).tolist()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_works_with_every_kind_of_store(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as store:
        buffer = ReplayBuffer(10, ENV, store=store, table="mine")
        for number in range(13):
            buffer.add(**step(number))
        assert numbers(buffer) == [10, 11, 12, *range(3, 10)]
        batch = buffer.sample(32)
        assert (batch["obs"] == batch["n"]).all()
        assert buffer.table.name == "mine"
        assert len(buffer.store.table("mine")) == 10
        if kind == "connected":  # its token does not travel
            return
        other = pickle.loads(pickle.dumps(buffer))
        other.add(**step(13))
        assert numbers(buffer) == [10, 11, 12, 13, *range(4, 10)]
        assert other.store.name == buffer.store.name


def test_a_buffer_holds_more_than_memory(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """847 MB in a store of 256 MiB at full scale."""
    size, memory, shape = count(4_000, 30_000), count(32, 256) << 20, (84, 84)
    env = ENV | {"obs": {"shape": shape}}
    buffer = ReplayBuffer(size, env, store={"memory": memory, "disk": tmp_path / "tier"})
    for number in range(size):
        buffer.add(**step(number, shape))
    assert size * 84 * 84 * 4 > 3 * memory
    batch = buffer.sample(200)
    assert (batch["obs"] == batch["n"][:, :, None]).all()
    assert len(set(batch["n"].reshape(-1).tolist())) > 100
    assert buffer.store.stats()["committed"] <= memory


def test_a_killed_run_can_be_resumed(tmp_path: Path) -> None:
    def fill(store: di_store.Store, checkpoint: Callable[[], None]) -> None:
        buffer = PrioritizedReplayBuffer(10, ENV, alpha=1.0, eps=1e-6, store=store, table="replay")
        for number in range(10**9):
            if number == 13:
                checkpoint()
            buffer.add(**step(number), priorities=[1.0 if number == 7 else 0.0])

    path = killed_after_a_checkpoint(fill, tmp_path)
    with di_store.restore(path, memory="64MiB", disk=tmp_path / "tier") as store:
        buffer = PrioritizedReplayBuffer(10, ENV, alpha=1.0, eps=1e-6, store=store, table="replay")
        assert numbers(buffer) == [10, 11, 12, *range(3, 10)]
        assert buffer.get_next_index() == 3
        drawn = buffer.sample(64)
        assert np.bincount(drawn["n"].reshape(-1)).argmax() == 7
        assert set(drawn["indexes"][drawn["n"].reshape(-1) == 7]) == {7}
        assert buffer.add(**step(13)) == 3
        assert numbers(buffer) == [10, 11, 12, 13, *range(4, 10)]


def test_numbers_that_a_type_cannot_hold_are_refused() -> None:
    buffer = ReplayBuffer(10, ENV)
    buffer.add(**step(1))
    for odd in ({"image": np.array(300)}, {"image": -1}, {"obs": np.full(3, 1e300)}, {"n": np.float64("nan")}):
        with pytest.raises(di_store.SchemaMismatch, match="was given the value"):
            buffer.add(**step(2) | odd)
    assert numbers(buffer) == [1]
