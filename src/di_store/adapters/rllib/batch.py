"""Rows of a batch. A row continues from the end of an episode to the beginning of another one."""

from __future__ import annotations

from typing import Any

import numpy as np

from di_store.adapters.rllib.stored import StoredEpisode
from di_store.adapters.rllib.windows import Window, read
from di_store.adapters.stored_array import Array


class BatchRows:
    """The rows of a batch, as RLlib's `EpisodeReplayBuffer.sample` fills them.

    An episode of n steps takes n + 1 places in a row: the last action is repeated, the first reward is 0.

    Args:
        size: number of rows.
        length: length of each row.

    Attributes:
        steps: the steps at which the parts of rows begin.
    """

    def __init__(self, size: int, length: int) -> None:
        self.steps: list[tuple[StoredEpisode, int]] = []
        self._size, self._length = size, length
        self._row = self._filled = 0
        self._parts: list[tuple[Window, int, int, int]] = []  # window, row, begin, whole length of the episode's rest
        shape = (size, length)
        self._first, self._last, self._terminated, self._truncated = (np.zeros(shape, bool) for _ in range(4))

    @property
    def full(self) -> bool:
        """Whether all rows are filled."""
        return self._row == self._size

    def add(self, stored: StoredEpisode, step: int) -> None:
        """Continue the row with the rest of an episode. Only the first part of a row begins at `step`."""
        row, begin = self._row, self._filled
        if begin:
            step = 0
        self.steps.append((stored, step))
        rest = len(stored) - step + 1
        end = min(begin + rest, self._length)
        self._first[row, begin] = True
        self._last[row, end - 1] = True
        if end == begin + rest:
            self._terminated[row, end - 1] = stored.is_terminated
            self._truncated[row, end - 1] = stored.is_truncated and not stored.is_terminated
        self._parts.append((Window(stored, step, end - begin - 1), row, begin, end))
        self._filled = end
        if end == self._length:
            self._row, self._filled = row + 1, 0

    def read(self) -> dict[str, Any]:
        """The batch."""
        chosen = [window for window, _, _, _ in self._parts]
        backs = [int(window.step > 0) for window in chosen]
        rows = read(chosen, backs, ("obs", "action", "reward"))
        shape = self._size, self._length
        found: dict[str, Any] = {"obs": None, "actions": None, "rewards": None}
        place: Any = chosen[0].stored.place
        if any(place.parts[name].structure is not None for name in ("obs", "action")):
            raise TypeError(
                "batches of rows need observations and actions that are arrays: sample(sample_episodes=True)"
            )
        kinds = {name: [each[name][0] for each in rows] for name in ("obs", "action", "reward")}
        found["obs"], found["actions"], found["rewards"] = (
            np.empty((*shape, *columns[0].shape[1:]), np.result_type(*columns)) for columns in kinds.values()
        )
        starts = any(window.step == 0 for window in chosen)
        if starts:  # a reward of 0.0 is Python's
            found["rewards"] = found["rewards"].astype(np.result_type(found["rewards"], np.float64))
        for (window, row, begin, end), back, columns in zip(self._parts, backs, rows, strict=True):
            count = end - begin
            found["obs"][row, begin:end] = columns["obs"][0][back : back + count]
            found["actions"][row, begin:end] = self._actions(window, columns["action"][0][back : back + count])
            rewards = columns["reward"][0]
            if back:
                found["rewards"][row, begin:end] = rewards[:count]
            else:
                found["rewards"][row, begin] = 0
                found["rewards"][row, begin + 1 : end] = rewards[: count - 1]
        return found | {
            "is_first": self._first,
            "is_last": self._last,
            "is_terminated": self._terminated,
            "is_truncated": self._truncated,
        }

    @staticmethod
    def _actions(window: Window, actions: Array) -> Array:
        """Actions of a window. If it ends with its episode, the last action is repeated."""
        return actions if window.stop < len(window.stored) else np.concatenate([actions[:-1], actions[-2:-1]])
