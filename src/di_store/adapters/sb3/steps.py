"""The steps of a replay buffer: observations and actions in a table, rewards and flags in arrays beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

import di_store
from di_store.adapters.ring import Ring
from di_store.adapters.stored_array import Array
from di_store.adapters.stores import NO_KEY
from di_store.adapters.trees import Tree

_STORED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
DRAWN = ("obs", "action", "next_obs")
"""Columns that a buffer reads for a batch, besides rewards and flags."""


class Sb3Steps(Ring):
    """The steps of a buffer.

    Slots are numbered time by time: first all environments of one time, then those of the next.

    Args:
        obs: type of one environment's observation, or a dict of types by key.
        action: type of its action.
        size: number of times.
        n_envs: number of environments.
        place: store and table, as of `Ring`.

    Attributes:
        rewards: float32[size, n_envs].
        dones: float32[size, n_envs], 1 where an episode ended.
        timeouts: like `dones`, 1 where an episode was cut off.
        ended: the times with flags.
        count: number of times that the table already held.
    """

    by_time, late = True, frozenset(("reward", "terminated", "truncated"))

    def __init__(self, obs: Tree, action: di_store.Spec, size: int, n_envs: int, **place: Any) -> None:
        self.rewards, self.dones, self.timeouts = np.zeros((3, size, n_envs), np.float32)
        self.ended, self._lent = set[int](), False
        self._none = np.zeros(n_envs, np.bool_)
        specs = {"obs": obs, "action": action}
        super().__init__(specs, size * n_envs, lanes=n_envs, follows=True, option="buffer_size=", **place)
        self.count, (self._of_obs, self._of_action) = 0, self._kinds[:2]
        if self.given:
            self._resume()

    def _resume(self) -> None:
        held = self.take_over(("reward", "terminated", "truncated"))
        if not len(held.keys):
            return
        slots, truncated = held.slots, held.data["truncated"]
        ended = held.data["terminated"] | truncated
        # An episode that goes on in no row is cut off, also that of the newest step: its writer is gone.
        cut_off = held.last & ~ended
        self.rewards.reshape(-1)[slots] = held.data["reward"]
        self.dones.reshape(-1)[slots], self.timeouts.reshape(-1)[slots] = ended, truncated | cut_off
        self.find_ends()
        self.count = len(self.rewards) if (self.keys != NO_KEY).all() else self.newest // self._lanes + 1

    def find_ends(self) -> None:
        """Flags were set."""
        self.ended = set(np.flatnonzero((self.dones + self.timeouts).any(axis=1)).tolist())

    def append(self, time: int, obs: Any, next_obs: Any, action: Array, reward: Any, ends: Any) -> None:
        """Add one row per environment.

        Args:
            time: the ring's next time.
            obs: observations of all environments; of a Dict space, a list of the entries.
            next_obs: as `obs`.
            action: actions of all environments.
            reward: rewards of all environments.
            ends: whether episodes ended, and whether they were cut off; None: none ended.

        Raises:
            di_store.SchemaMismatch: a number that its column cannot hold. ValueError: a value of another shape.
        """
        row, kind = self._count, self._of_obs
        # What most programs give is asked for here: a call for each value would take longer than all of it.
        plain = type(obs) is np.ndarray is type(next_obs) and obs.dtype is kind is next_obs.dtype
        if plain and action.dtype is self._of_action and self.limit > 1:
            views = self._views[row]
            views[0][...], views[1][...], views[2][...] = obs, action, next_obs
        elif plain and action.dtype is self._of_action and obs.shape == next_obs.shape == self._shapes[0]:
            self._one = {"obs": obs, "action": action, "next_obs": next_obs}
        else:
            self.stage([*obs, action, *next_obs] if type(obs) is list else (obs, action, next_obs))
        self.rewards[time] = reward
        if ends is not None:
            self.dones[time], self.timeouts[time] = ends
            self.ended.add(time)
        elif self._lent or time in self.ended:
            self.dones[time] = self.timeouts[time] = 0
            self.ended.discard(time)
        if 0 < row < self._room - 1:
            self._count = row + 1
        else:
            self.commit(time * self._lanes)

    def lent_flags(self) -> tuple[Array, Array]:
        """As `flags`, for a caller that may write to them."""
        self._lent = True
        return self.flags()

    def flags(self) -> tuple[Array, Array]:
        """`dones` and `timeouts`. To write the steps may show that an episode was cut off."""
        self.flush()
        return self.dones, self.timeouts

    def _completed(self, slots: slice, rows: dict[str, Any], one: bool) -> dict[str, Any]:
        first, last = slots.start // self._lanes, slots.stop // self._lanes
        times: Any = first if one else slice(first, last)
        if first not in self.ended if one else self.ended.isdisjoint(range(first, last)):
            terminated = truncated = self._none if one else np.zeros((last - first, self._lanes), np.bool_)
        else:
            truncated = self.timeouts[times] != 0
            terminated = (self.dones[times] != 0) & ~truncated
        rows["reward"], rows["terminated"], rows["truncated"] = self.rewards[times], terminated, truncated
        return rows

    def _cut_off(self, first: int, cut: Array) -> None:
        # So that sums of rewards stop there.
        times = (first // self._lanes - 1 + np.flatnonzero(cut.any(axis=1))) % len(self.timeouts)
        self.timeouts[times] = np.maximum(self.timeouts[times], cut[cut.any(axis=1)])
        self.ended.update(times.tolist())


def check_spaces(observations: Any, actions: Any) -> None:
    """Raise ValueError for spaces that a table has no columns for."""
    inner = observations.spaces if isinstance(observations, spaces.Dict) else {"": observations}
    named = {f"observation space {key!r}" if key else "the observation space": each for key, each in inner.items()}
    for what, space in {**named, "the action space": actions}.items():
        if not isinstance(space, _STORED):
            raise ValueError(
                f"{what} is {type(space).__name__}: ReplayBuffer stores Box, Discrete, MultiDiscrete and "
                "MultiBinary, and observations also as one Dict of these"
            )


def column_of(space: Any, shape: Any) -> Any:
    """Type of the column of a space, or a dict of types by key.

    Args:
        space: the space.
        shape: shape of its values in SB3's buffers, or a dict of shapes.
    """
    if isinstance(space, spaces.Dict):
        return {key: column_of(each, shape[key]) for key, each in space.spaces.items()}
    return di_store.Spec(shape, space.dtype)
