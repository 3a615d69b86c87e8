"""`update` of di_store.adapters.tianshou: the steps of another buffer."""

from __future__ import annotations

import multiprocessing as mp
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tianshou", reason="runs with make adapters ADAPTER=tianshou")

from test_tianshou import KINDS, both, equal
from tianshou import data as theirs
from tianshou.data import Batch

import di_store
from di_store.adapters import tianshou as ours


def _fill(buffers: tuple[Any, Any], steps: int, info: Any, seed: int = 0) -> None:
    """Steps whose `info` is as most environments give it: without entries, or `info`."""
    lanes = getattr(buffers[0], "buffer_num", 1)
    rng, obs = np.random.default_rng(seed), np.zeros((lanes, 4), np.float32)
    for step in range(steps):
        after, ended = rng.random((lanes, 4), np.float32), np.full(lanes, step % 5 == 4)
        entries = {"obs": obs, "act": np.full(lanes, step), "rew": rng.random(lanes), "terminated": ended}
        entries |= {"truncated": np.zeros(lanes, bool), "obs_next": after, "info": info(lanes)}
        for buffer in buffers:
            buffer.add(Batch(entries), buffer_ids=np.arange(lanes))
        obs = after


INFOS = {"none": lambda lanes: Batch(), "dict": lambda lanes: {}, "numbers": lambda lanes: Batch(n=np.arange(lanes))}


@pytest.mark.parametrize("info", INFOS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", ["ReplayBuffer", "PrioritizedReplayBuffer"])
def test_update_matches_tianshou(target: str, kind: str, info: str) -> None:
    sources = both(kind)
    _fill(sources, 15, INFOS[info])
    for source in sources:
        for before in (0, 10):
            pair = both(target)
            _fill(pair, before, INFOS[info], seed=1)
            assert np.array_equal(pair[0].update(sources[0]), pair[1].update(source))
            equal(pair[0][:], pair[1][:])
            _fill(pair, 20, INFOS[info], seed=2)
            equal(pair[0][:], pair[1][:])


def _update_from_nothing() -> None:
    for name in ("ReplayBuffer", "PrioritizedReplayBuffer"):
        for source in (ours, theirs):
            buffer, empty = getattr(ours, name)(**KINDS[name]), getattr(source, name)(**KINDS[name])
            assert len(buffer.update(empty)) == 0
            _fill((buffer, buffer), 4, INFOS["none"])
            assert len(buffer.update(empty)) == 0
            assert len(buffer) == 8
    buffer.update_weight(np.array([], int), np.array([]))


def test_an_update_without_steps_changes_nothing() -> None:
    """Tianshou's sum tree goes on for ever with an empty index: so in a process of its own."""
    child = mp.get_context("fork").Process(target=_update_from_nothing, daemon=True)
    child.start()
    child.join(120)
    assert child.exitcode == 0


def test_numbers_out_of_range_are_refused_not_wrapped() -> None:
    """Tianshou's own buffer lets them."""
    buffer = ours.ReplayBuffer(10)
    entries = {"act": 1, "rew": 0.0, "terminated": False, "truncated": False, "info": {}}
    small = np.array([1, 2], np.uint8)
    buffer.add(Batch(obs=small, obs_next=small, **entries))
    for obs, after in ((small, np.array([1, 300])), (np.array([-1, 2]), small)):
        with pytest.raises(di_store.SchemaMismatch, match="is uint8, and was given the value"):
            buffer.add(Batch(obs=obs, obs_next=after, **entries))
    buffer.add(Batch(obs=small, obs_next=small, **entries))
    assert len(buffer) == 2
