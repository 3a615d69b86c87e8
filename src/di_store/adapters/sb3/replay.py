"""The replay buffer."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers as sb3
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

import di_store
from di_store.adapters.ring import parts
from di_store.adapters.sb3.steps import DRAWN, Sb3Steps, check_spaces, column_of
from di_store.adapters.stored_array import Array
from di_store.adapters.stores import MadeAtFirst, StoreLike
from di_store.adapters.trees import cut


class ReplayBuffer(MadeAtFirst, sb3.ReplayBuffer):  # type: ignore[misc]
    """A replacement for SB3's `ReplayBuffer` and `DictReplayBuffer`.

    `rewards`, `dones` and `timeouts` are arrays as in SB3; `observations`, `next_observations` and `actions` read from
    the store and cannot be assigned to. The store takes memory as the buffer fills.

    In a given store, each step is in the table when `add` returns. If the table already exists, the buffer continues
    with its steps. A pickle then holds the name of the table, not the steps.

    Args:
        buffer_size: number of transitions of all environments together.
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these.
        action_space: Box, Discrete, MultiDiscrete or MultiBinary.
        device: device of the tensors of a batch.
        n_envs: number of environments that one `add` comes from.
        optimize_memory_usage: has no effect, as observations are always stored once.
        handle_timeout_termination: whether a step with `TimeLimit.truncated` in `infos` does not count as done.
        n_steps: number of rewards that are summed; more than 1 needs a version of SB3 that has `NStepReplayBuffer`.
        gamma: discount per step of that sum.
        store: the store of the steps: a store, its name, or a dict of `di_store.open`'s options; None: its own store.
        table: name of the table there; only one buffer may write to it.

    Raises:
        ValueError: a space that cannot be stored. di_store.CapacityError: the buffer needs more than the machine's
        memory.
    """

    _rows: Sb3Steps

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 1,
        gamma: float = 0.99,
        store: StoreLike = None,
        table: str = "replay",
    ) -> None:
        check_spaces(observation_space, action_space)
        self.n_steps, self.gamma = _check_n_steps(n_steps), gamma
        sb3.BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.buffer_size: int = max(buffer_size // n_envs, 1)
        self.pos: int = 0
        self.full: bool = False
        self.optimize_memory_usage = False  # SB3's way of it draws other steps
        self.handle_timeout_termination = handle_timeout_termination
        self._open({"store": store, "table": table})

    def _open(self, place: dict[str, Any]) -> None:
        actions = di_store.Spec((self.action_dim,), self._maybe_cast_dtype(self.action_space.dtype))
        space, shape = self.observation_space, self.obs_shape
        entries: dict[str, Any] = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        self._keys, self._reshaped = [key for key in entries if key], isinstance(space, (spaces.Dict, spaces.Discrete))
        self._discrete = [number for number, each in enumerate(entries.values()) if isinstance(each, spaces.Discrete)]
        obs = column_of(space, shape)
        self._rows = rows = Sb3Steps(obs, actions, self.buffer_size, self.n_envs, **place)
        if rows.given:
            self.pos, self.full = (rows.newest // self.n_envs + 1) % self.buffer_size, rows.count == self.buffer_size
        self._action_shape, self._none_done = (self.n_envs, self.action_dim), bytes(self.n_envs)
        steps = np.arange(self.n_steps).astype(np.float32)
        self._weights, self._discounts = self.gamma**steps, self.gamma ** (steps + 1)

    # -- writing ------------------------------------------------------------------------------------------------

    def add(
        self, obs: Any, next_obs: Any, action: Array, reward: Array, done: Array, infos: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add one step of every environment, as in SB3."""
        ends: Any = None
        if done.tobytes() != self._none_done:  # quicker than any(); other types than bool take the long way
            cut_off = self.handle_timeout_termination
            ends = done, np.array([info.get("TimeLimit.truncated", False) for info in infos]) if cut_off else 0.0
        if action.shape != self._action_shape:
            action = action.reshape(self._action_shape)
        if self._reshaped:
            obs, next_obs = self._leaves(obs), self._leaves(next_obs)
        self._rows.append(self.pos, obs, next_obs, action, reward, ends)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def _leaves(self, obs: Any) -> list[Any]:
        """The entries of an observation. Numbers of Discrete spaces get the axis that SB3's buffer gives them."""
        found = [*map(obs.__getitem__, self._keys)] if self._keys else [obs]
        for number in self._discrete:
            found[number] = np.reshape(found[number], (self.n_envs, 1))
        return found

    def reset(self) -> None:
        """Remove all steps."""
        super().reset()
        self._rows.clear()

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def observations(self) -> Any:
        """``[buffer_size, n_envs, …]``, by key of a Dict space. Indexing reads from the store."""
        return self._column("obs")

    @property
    def next_observations(self) -> Any:
        """As `observations`."""
        return self._column("next_obs")

    @property
    def actions(self) -> Any:
        """As `observations`."""
        return self._column("action")

    def _column(self, name: str) -> Any:
        return self._rows.column(name, np.arange(self._rows.slots).reshape(-1, self.n_envs))

    @property
    def rewards(self) -> Array:
        """float32[buffer_size, n_envs]."""
        return self._rows.rewards

    @property
    def dones(self) -> Array:
        """float32[buffer_size, n_envs]: 1 where an episode ended."""
        return self._rows.lent_flags()[0]

    @property
    def timeouts(self) -> Array:
        """float32[buffer_size, n_envs]: 1 where an episode was cut off."""
        return self._rows.lent_flags()[1]

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw steps with numpy's global generator, the same ones as SB3's buffer.

        Args:
            batch_size: number of steps.
            env: `VecNormalize`, which normalizes observations and rewards.

        Raises:
            ValueError: the buffer is empty.
        """
        size = self.buffer_size if self.full else self.pos
        if size == 0:
            raise ValueError("the replay buffer is empty: add() steps before sample(), or raise learning_starts=")
        return self._get_samples(np.random.randint(0, size, size=batch_size), env)

    def _get_samples(self, batch_inds: Array, env: Any = None) -> Any:
        if self.n_envs == 1:  # numpy's generator would draw zeros without a step
            envs, slots = np.zeros(1, np.int64), batch_inds
        else:
            envs = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))
            slots = batch_inds * self.n_envs + envs
        if self.n_steps > 1:
            return self._n_step_samples(slots, envs, env)
        rows = self._rows
        data = rows.read(slots, DRAWN)
        rewards = self._normalize_reward(rows.rewards.take(slots).reshape(-1, 1), env)
        return self._samples(data, slots, rewards, env)

    def _n_step_samples(self, slots: Array, envs: Array, env: Any) -> Any:
        """Sums of `n_steps` rewards, as SB3's `NStepReplayBuffer`."""
        dones, timeouts = self._rows.flags()
        steps, n_envs = np.arange(self.n_steps), self.n_envs
        ahead = (slots[:, None] + steps * n_envs) % (self.buffer_size * n_envs)
        ended = (dones.take(ahead) + timeouts.take(ahead)) != 0
        newest = (self.pos - 1) % self.buffer_size  # the oldest step comes next
        ended |= ahead == (newest * n_envs + envs)[:, None]
        ended[:, -1] = True
        last = ended.argmax(axis=1)
        rewards = self._normalize_reward(self._rows.rewards.take(ahead), env)
        returns = (rewards * self._weights * (steps <= last[:, None])).sum(axis=1, keepdims=True)
        final = ahead.take(np.arange(len(slots)) * self.n_steps + last)
        data = self._rows.read(slots, ("obs", "action")) | self._rows.read(final, ("next_obs",))
        discounts = self.to_torch(self._discounts.take(last[:, None]), False)
        return self._samples(data, final, returns, env)._replace(discounts=discounts)

    def _samples(self, data: dict[str, Any], final: Array, rewards: Array, env: Any) -> Any:
        """The named tuple of tensors. The arrays are the batch's own, so tensors need no copy of them.

        Args:
            data: of the batch.
            final: the slots of the last steps. Their flags say whether the episode ended other than by a timeout.
            rewards: float32[n, 1].
            env: as `sample`.
        """
        rows, obs, following = self._rows, data["obs"], data["next_obs"]
        ends = (rows.dones.take(final) * (1 - rows.timeouts.take(final))).reshape(-1, 1)
        if env is not None:
            obs, following = env.normalize_obs(obs), env.normalize_obs(following)
        tensor = torch.from_numpy if self.device.type == "cpu" else self._moved
        if isinstance(obs, dict):
            kind = DictReplayBufferSamples
            obs = {key: tensor(value) for key, value in obs.items()}
            following = {key: tensor(value) for key, value in following.items()}
        else:
            kind, obs, following = ReplayBufferSamples, tensor(obs), tensor(following)
        return kind(obs, tensor(data["action"]), following, tensor(ends), tensor(rewards))

    def _moved(self, array: Array) -> Any:
        return self.to_torch(array, copy=False)

    # -- pickling -----------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the attributes and the steps themselves: the loaded buffer has another store.

        With a given store, pickle the names of store and table: the loaded buffer continues with the steps there.
        """
        state = self.__dict__.copy()
        rows: Sb3Steps = state.pop("_rows")
        flags = rows.flags()
        if rows.given:
            return state | {"_place": {"store": rows.store, "table": rows.table.name}}
        state["_flags"] = rows.rewards, *flags
        slots, order = np.arange(rows.slots).reshape(-1, self.n_envs), self._order()
        steps = [order[part] for part in parts(len(order), self.n_envs)]
        return state | {"_steps": [(times, rows.read(slots[times], DRAWN)) for times in steps]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        steps, flags, place = (state.pop(name, None) for name in ("_steps", "_flags", "_place"))
        self.__dict__.update(state)
        self._open(place or {})
        if place is None:
            self._restore(flags, steps)

    def _restore(self, flags: Any, steps: Iterable[tuple[Array, dict[str, Any]]]) -> None:
        rows = self._rows
        rows.rewards[:], rows.dones[:], rows.timeouts[:] = flags
        rows.find_ends()
        for times, data in steps:  # leaves ``[times, n_envs, …]``
            rows.write(times * self.n_envs, data)

    def take_over(self, theirs: sb3.ReplayBuffer) -> None:
        """Replace the steps with those of a buffer of SB3's own class.

        Raises:
            ValueError: that buffer has another size or other spaces.
        """
        for name in ("buffer_size", "n_envs", "observation_space", "action_space"):
            mine, other = getattr(self, name), getattr(theirs, name)
            if mine != other:
                raise ValueError(f"the loaded buffer has {name}={other}, and this model's has {mine}: make them equal")
        self.reset()
        self.pos, self.full = theirs.pos, theirs.full
        # In its optimized form, SB3's buffer has the next observations in the next place.
        after = theirs.observations if theirs.optimize_memory_usage else theirs.next_observations
        further, order = int(theirs.optimize_memory_usage), self._order()
        data = {"obs": theirs.observations, "action": theirs.actions}
        self._restore(
            (theirs.rewards, theirs.dones, theirs.timeouts),
            (
                (times, cut(data, times) | {"next_obs": cut(after, (times + further) % self.buffer_size)})
                for times in (order[part] for part in parts(len(order), self.n_envs))
            ),
        )

    def _order(self) -> Array:
        """The times that hold a step, oldest first."""
        count = self.size()
        order: Array = (np.arange(count) + (self.pos - count)) % self.buffer_size
        return order


_NSTEP = [getattr(sb3, "NStepReplayBuffer")] if hasattr(sb3, "NStepReplayBuffer") else []  # noqa: B009 - since 2.6


class NStepReplayBuffer(ReplayBuffer, *_NSTEP):  # type: ignore[misc]
    """A replacement for SB3's `NStepReplayBuffer`: a `ReplayBuffer` that sums `n_steps` rewards, by default 3."""

    def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **options: Any) -> None:
        super().__init__(*args, n_steps=n_steps, gamma=gamma, **options)


def _check_n_steps(n_steps: int) -> int:
    if n_steps < 1:
        raise ValueError(f"n_steps={n_steps}: at least 1 reward is summed")
    if n_steps > 1 and "discounts" not in ReplayBufferSamples._fields:
        raise ValueError(
            f"n_steps={n_steps} needs a version of Stable-Baselines3 with n-step returns, and "
            f"{stable_baselines3.__version__} is installed: pip install -U stable-baselines3"
        )
    return n_steps


def convert_what_is_loaded() -> None:
    """Let models whose ``replay_buffer_class`` is ours keep this class when they load a pickle of SB3's own buffer.

    SB3 would silently continue with its own class.
    """
    load = OffPolicyAlgorithm.load_replay_buffer

    @functools.wraps(load)
    def load_replay_buffer(self: Any, *args: Any, **options: Any) -> None:
        mine = getattr(self, "replay_buffer", None)
        load(self, *args, **options)
        if isinstance(mine, ReplayBuffer) and not isinstance(self.replay_buffer, ReplayBuffer):
            mine.take_over(self.replay_buffer)
            self.replay_buffer = mine

    OffPolicyAlgorithm.load_replay_buffer = load_replay_buffer
