"""The rollout buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers as sb3
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples

import di_store
from di_store.adapters.casts import assign
from di_store.adapters.ring import Ring
from di_store.adapters.sb3.steps import check_spaces, column_of
from di_store.adapters.stored_array import Array
from di_store.adapters.stores import MadeAtFirst, StoreLike


class RolloutBuffer(MadeAtFirst, sb3.RolloutBuffer):  # type: ignore[misc]
    """A replacement for SB3's `RolloutBuffer` and `DictRolloutBuffer`, for PPO and A2C.

    Observations and actions lie in a store. Everything else is in arrays, as in SB3: rewards, values, advantages and
    returns.

    Args:
        buffer_size: number of steps of each environment.
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these.
        action_space: Box, Discrete, MultiDiscrete or MultiBinary.
        device: device of the tensors of a batch.
        gae_lambda: 1: the advantage is the return less the value.
        gamma: discount per step.
        n_envs: number of environments.
        store: the store of observations and actions: a store, its name, or a dict of `di_store.open`'s options; None:
            its own store. An existing table is emptied, as a rollout is for one update only.
        table: name of the table there; only one buffer may write to it.

    Raises:
        ValueError: a space that cannot be stored. di_store.CapacityError: the buffer needs more than the machine's
        memory.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        device: Any = "auto",
        gae_lambda: float = 1,
        gamma: float = 0.99,
        n_envs: int = 1,
        *,
        store: StoreLike = None,
        table: str = "rollout",
    ) -> None:
        check_spaces(observation_space, action_space)
        self.pos: int
        sb3.BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.gae_lambda, self.gamma = gae_lambda, gamma
        self._open({"store": store, "table": table})
        self._rows.clear()
        self.reset()

    def _open(self, place: dict[str, Any]) -> None:
        specs = {
            "obs": column_of(self.observation_space, self.obs_shape),
            "action": di_store.Spec((self.action_dim,), self.action_space.dtype),
        }
        slots = self.buffer_size * self.n_envs
        self._rows = Ring(specs, slots, chunk=self.n_envs, option="n_steps=", **place)
        # SB3 numbers samples through the steps of an environment first.
        self._order = np.arange(self.buffer_size * self.n_envs).reshape(-1, self.n_envs).T.reshape(-1)

    def reset(self) -> None:
        """Begin the next rollout."""
        if self.pos not in (0, self.buffer_size):
            self._rows.clear()
        shape, kind = (self.buffer_size, self.n_envs), np.float32
        self.rewards, self.returns, self.episode_starts = (np.zeros(shape, kind) for _ in range(3))
        self.values, self.log_probs, self.advantages = (np.zeros(shape, kind) for _ in range(3))
        self.generator_ready = False
        sb3.BaseBuffer.reset(self)

    def add(self, obs: Any, action: Array, reward: Array, episode_start: Array, value: Any, log_prob: Any) -> None:
        """Add one step of every environment, as in SB3."""
        time, n_envs = self.pos, self.n_envs
        self.rewards[time] = reward
        self.episode_starts[time] = episode_start
        self.values[time] = value.cpu().numpy().reshape(-1)
        self.log_probs[time] = log_prob.cpu().numpy()
        staged, part = self._rows.place(time * n_envs, n_envs)
        assign(staged["action"][part], action.reshape(n_envs, -1), "action")
        columns = staged["obs"]
        pairs = [(columns[key], obs[key]) for key in columns] if isinstance(columns, dict) else [(columns, obs)]
        for column, given in pairs:
            assign(column[part], np.reshape(given, column[part].shape), "observation")
        self.pos = time + 1
        if self.pos == self.buffer_size:
            self.full = True
            self._rows.flush()

    def get(self, batch_size: int | None = None) -> Iterator[Any]:
        """All steps, in SB3's order: it is drawn with numpy's global generator.

        Args:
            batch_size: steps of each batch; None: all steps.
        """
        if not self.full:
            raise ValueError(f"the rollout has {self.pos} of {self.buffer_size} steps: add() the others before get()")
        total = self.buffer_size * self.n_envs
        indices = np.random.permutation(total)
        if not self.generator_ready:
            for name in ("values", "log_probs", "advantages", "returns"):
                self.__dict__[name] = self.swap_and_flatten(self.__dict__[name])
            self.generator_ready = True
        size = batch_size or total
        for begin in range(0, total, size):
            yield self._get_samples(indices[begin : begin + size])

    def _get_samples(self, batch_inds: Array, env: Any = None) -> Any:
        data = self._rows.read(self._order[batch_inds], tuple(self._rows.specs))
        tensor = torch.from_numpy if self.device.type == "cpu" else self._moved
        late = [tensor(each.take(batch_inds)) for each in (self.values, self.log_probs, self.advantages, self.returns)]
        actions = tensor(data["action"].astype(np.float32, copy=False))
        obs = data["obs"]
        if isinstance(obs, dict):
            return DictRolloutBufferSamples({key: tensor(each) for key, each in obs.items()}, actions, *late)
        return RolloutBufferSamples(tensor(obs), actions, *late)

    def _moved(self, array: Array) -> Any:
        return self.to_torch(array, copy=False)

    def _whole(self, column: str) -> Any:
        """A column as SB3's array: ``[buffer_size, n_envs, …]``, after `get` ``[buffer_size · n_envs, …]``."""
        if self.generator_ready:
            return self._rows.read(self._order, (column,))[column]
        return self._rows.read(np.arange(self._rows.slots).reshape(-1, self.n_envs), (column,))[column]

    @property
    def observations(self) -> Any:
        """A copy of all observations; for a Dict space by key."""
        return self._whole("obs")

    @property
    def actions(self) -> Array:
        """A copy of all actions."""
        found: Array = self._whole("action")
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the attributes and the steps themselves: the loaded buffer has another store.

        With a given store, pickle the names of store and table instead of the steps.
        """
        state = self.__dict__.copy()
        rows: Ring = state.pop("_rows")
        if rows.given:
            rows.flush()
            return state | {"_place": {"store": rows.store, "table": rows.table.name}}
        slots = (np.arange(rows.slots) + self.pos * self.n_envs) % rows.slots
        return state | {"_pieces": [*rows.pieces(slots, tuple(rows.specs))]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        steps, place = state.pop("_pieces", ()), state.pop("_place", {"table": "rollout"})
        self.__dict__.update(state)
        self._open(place)
        if self._rows.given:
            self._rows.take_over()
        for slots, data in steps:
            self._rows.write(slots, data)
