"""`done` in the forms in which programs give it to the SB3 adapter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="runs with make adapters ADAPTER=sb3")
from gymnasium import spaces
from stable_baselines3.common import buffers as sb3

from di_store.adapters.sb3 import ReplayBuffer

pytestmark = pytest.mark.extended
BOX = spaces.Box(-9, 9, (2,))


def _add(buffer: Any, time: int, done: np.ndarray, ended: np.ndarray) -> None:
    obs = np.full((4, 2), time, np.float32)
    buffer.add(obs, obs + 1, np.zeros((4, 2)), np.ones(4), done, [{"TimeLimit.truncated": each} for each in ended])


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("step", [1, 2])
def test_done_flags_of_any_type_are_accepted(dtype: Any, step: int) -> None:
    """The arrays are those of SB3, also where the array given is a part of another one."""
    ours, theirs = (kind(24, BOX, BOX, "cpu", 4) for kind in (ReplayBuffer, sb3.ReplayBuffer))
    random = np.random.default_rng(0)
    for time in range(15):
        done = (random.random(4 * step) < (time % 3) / 3).astype(dtype)[::step]
        for buffer in (ours, theirs):
            _add(buffer, time, done, np.array(done) * [0, 1, 0, 1])
    assert np.array_equal(ours.dones, theirs.dones)
    assert np.array_equal(ours.timeouts, theirs.timeouts)


def test_done_of_a_wrong_shape_is_refused_at_once() -> None:
    """As by SB3; the buffer goes on."""
    buffer = ReplayBuffer(24, BOX, BOX, "cpu", 4)
    _add(buffer, 0, np.zeros(4, bool), np.zeros(4))
    with pytest.raises(ValueError, match="broadcast"):
        _add(buffer, 1, np.ones((4, 1), bool), np.zeros(4))
    _add(buffer, 1, np.ones(4, bool), np.zeros(4))
    assert buffer.dones[:3].tolist() == [[0] * 4, [1] * 4, [0] * 4]
    assert buffer.sample(8).observations.shape == (8, 2)


def test_steps_of_an_interrupted_write_are_not_lost(monkeypatch: Any) -> None:
    """Steps that were gathered are not lost: the next call writes them."""
    buffer = ReplayBuffer(40, BOX, BOX, "cpu", 4)
    for time in range(3):
        _add(buffer, time, np.zeros(4, bool), np.zeros(4))

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(buffer._rows._stream), "write", interrupted)
        buffer.sample(8)
    _add(buffer, 3, np.zeros(4, bool), np.zeros(4))
    assert buffer.observations[:4, 0, 0].tolist() == [0, 1, 2, 3]


def test_flags_set_from_outside_end_with_their_step() -> None:
    """As `HerReplayBuffer.truncate_last_trajectory` sets them: the next step at that place has none."""
    ours, theirs = (kind(24, BOX, BOX, "cpu", 4) for kind in (ReplayBuffer, sb3.ReplayBuffer))
    for buffer in (ours, theirs):
        for time in range(13):
            if time == 5:
                buffer.dones[3, 1] = buffer.timeouts[3, 1] = 1
            _add(buffer, time, np.zeros(4, bool), np.zeros(4))
    assert np.array_equal(ours.dones, theirs.dones)
    assert np.array_equal(ours.timeouts, theirs.timeouts)
