"""Stable-Baselines3's replay and rollout buffers with their steps in a Di-store table.

`ReplayBuffer` draws what SB3's own buffer would draw: with the same seed a training run is the same. Each observation
is stored once, also where it is the next observation of the step before.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import di_store
from di_store.adapters.ring import DRAWN, Array, Ring, pieces
from di_store.adapters.rows import Rows

try:
    import stable_baselines3
    import torch
    from gymnasium import spaces
    from stable_baselines3.common import buffers as sb3
    from stable_baselines3.common.type_aliases import (
        DictReplayBufferSamples,
        DictRolloutBufferSamples,
        ReplayBufferSamples,
        RolloutBufferSamples,
    )
    from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as Sb3HerReplayBuffer
except ImportError as error:
    raise ImportError("di_store.adapters.sb3 needs Stable-Baselines3 and PyTorch: pip install di-store[sb3]") from error

if stable_baselines3.__version__.partition(".")[0] != "2":
    raise ImportError(
        f"di_store.adapters.sb3 works with Stable-Baselines3 2, and {stable_baselines3.__version__} is installed: "
        "pip install 'stable-baselines3>=2.3,<3'"
    )

_STORED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class ReplayBuffer(sb3.ReplayBuffer):  # type: ignore[misc]
    """In place of SB3's `ReplayBuffer`, `DictReplayBuffer` and `NStepReplayBuffer`.

    It has a store of its own, which takes memory as it fills. `rewards`, `dones` and `timeouts` are arrays as in SB3;
    `observations`, `next_observations` and `actions` read from the store and cannot be assigned to.

    Args:
        buffer_size: transitions of all environments together.
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these.
        action_space: one of these.
        device: of the tensors of a batch.
        n_envs: environments that one `add` comes from.
        optimize_memory_usage: has no effect, as observations are always stored once.
        handle_timeout_termination: whether `TimeLimit.truncated` in `infos` makes a step not count as done.
        n_steps: rewards that are summed; more than 1 needs a version of SB3 that has `NStepReplayBuffer`.
        gamma: discount per step of that sum.

    Raises:
        ValueError: a space that cannot be stored. di_store.CapacityError: more than the machine's memory.
    """

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
    ) -> None:
        _check_spaces(observation_space, action_space)
        self.n_steps, self.gamma = _check_n_steps(n_steps), gamma
        sb3.BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.buffer_size: int = max(buffer_size // n_envs, 1)
        self.pos: int = 0
        self.full: bool = False
        self.optimize_memory_usage = False  # SB3's way of it draws other steps
        self.handle_timeout_termination = handle_timeout_termination
        self._open()

    def _open(self) -> None:
        actions = di_store.Spec((self.action_dim,), self._maybe_cast_dtype(self.action_space.dtype))
        space, shape = self.observation_space, self.obs_shape
        obs: Any
        if isinstance(space, spaces.Dict):
            obs = {key: di_store.Spec(shape[key], each.dtype) for key, each in space.spaces.items()}
            self._discrete = [key for key, each in space.spaces.items() if isinstance(each, spaces.Discrete)]
        else:
            obs = di_store.Spec(shape, space.dtype)
            self._discrete = [""] if isinstance(space, spaces.Discrete) else []
        self._rows = Ring(obs, actions, self.buffer_size, self.n_envs)
        self._action_shape, self._none_done = (self.n_envs, self.action_dim), bytes(self.n_envs)
        steps = np.arange(self.n_steps).astype(np.float32)
        self._weights, self._discounts = self.gamma**steps, self.gamma ** (steps + 1)

    # -- writing ------------------------------------------------------------------------------------------------

    def add(
        self, obs: Any, next_obs: Any, action: Array, reward: Array, done: Array, infos: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add one step of every environment, as SB3's."""
        if self._discrete:
            obs, next_obs = self._shaped(obs), self._shaped(next_obs)
        ends: Any = None
        if done.tobytes() != self._none_done:  # quicker than any(); other types than bool take the long way
            cut_off = self.handle_timeout_termination
            ends = done, [info.get("TimeLimit.truncated", False) for info in infos] if cut_off else 0.0
        if action.shape != self._action_shape:
            action = action.reshape(self._action_shape)
        self._rows.append(self.pos, obs, next_obs, action, reward, ends)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def _shaped(self, obs: Any) -> Any:
        """Numbers of Discrete spaces get the axis that they have in the buffer."""
        if not isinstance(obs, dict):
            return np.reshape(obs, (self.n_envs, 1))
        return obs | {key: np.reshape(obs[key], (self.n_envs, 1)) for key in self._discrete}

    def reset(self) -> None:
        """Remove all steps."""
        super().reset()
        self._rows.clear()

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def observations(self) -> Any:
        """``[buffer_size, n_envs, …]``, by key of a Dict space: read from the store when indexed."""
        return self._rows.column("obs")

    @property
    def next_observations(self) -> Any:
        """As `observations`."""
        return self._rows.column("next_obs")

    @property
    def actions(self) -> Any:
        """As `observations`."""
        return self._rows.column("action")

    @property
    def rewards(self) -> Array:
        """float32[buffer_size, n_envs]."""
        return self._rows.rewards

    @property
    def dones(self) -> Array:
        """float32[buffer_size, n_envs]: 1 where an episode ended."""
        return self._rows.flags()[0]

    @property
    def timeouts(self) -> Array:
        """float32[buffer_size, n_envs]: 1 where it was cut off."""
        return self._rows.flags()[1]

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw steps with numpy's global generator, the same ones as SB3's buffer.

        Args:
            batch_size: steps.
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
            final: the slots of the last steps, which say whether the episode ended other than by a timeout.
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
        """The attributes and the steps themselves: what is loaded is a buffer with another store."""
        state = self.__dict__.copy()
        rows: Ring = state.pop("_rows")
        state["_flags"] = rows.rewards, *rows.flags()
        order = self._order(rows.count)
        state["_steps"] = [(times, rows.read_times(times)) for times in pieces(order, self.n_envs)]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        steps, flags = state.pop("_steps"), state.pop("_flags")
        self.__dict__.update(state)
        self._open()
        self._rows.restore_flags(*flags)
        for times, data in steps:
            self._rows.restore(times, data)

    def _order(self, count: int) -> Array:
        """The times that hold a step, oldest first."""
        order: Array = (np.arange(count) + (self.pos - count)) % self.buffer_size
        return order


class _DictReplayBuffer(ReplayBuffer, sb3.DictReplayBuffer):  # type: ignore[misc]
    """Comes between SB3's `HerReplayBuffer` and the class that it extends."""


class HerReplayBuffer(Sb3HerReplayBuffer, _DictReplayBuffer):  # type: ignore[misc]
    """In place of SB3's `HerReplayBuffer`, with its arguments: hindsight experience replay (Andrychowicz et al. 2017).

    Raises:
        ValueError: the observations are not a Dict with `observation`, `achieved_goal` and `desired_goal`.
    """

    def __init__(self, buffer_size: int, observation_space: spaces.Space, *args: Any, **kwargs: Any) -> None:
        keys = set(observation_space.spaces) if isinstance(observation_space, spaces.Dict) else set()
        if missing := {"observation", "achieved_goal", "desired_goal"} - keys:
            raise ValueError(f"HerReplayBuffer needs a Dict observation space, and {sorted(missing)[0]!r} is not in it")
        super().__init__(buffer_size, observation_space, *args, **kwargs)

    def _get_real_samples(self, batch_indices: Array, env_indices: Array, env: Any = None) -> Any:
        slots = batch_indices * self.n_envs + env_indices
        data = self._rows.read(slots, DRAWN)
        rewards = self._normalize_reward(self._rows.rewards.take(slots).reshape(-1, 1), env)
        return self._samples(data, slots, rewards, env)

    def _get_virtual_samples(self, batch_indices: Array, env_indices: Array, env: Any = None) -> Any:
        slots = batch_indices * self.n_envs + env_indices
        data = self._rows.read(slots, DRAWN)
        infos: Any = [{} for _ in slots]
        if self.copy_info_dict:
            infos = copy.deepcopy(self.infos[batch_indices, env_indices])
        obs, following = data["obs"], data["next_obs"]
        goals = self._sample_goals(batch_indices, env_indices)
        obs["desired_goal"], following["desired_goal"] = goals, goals.copy()
        environment: Any = self.env
        if environment is None:
            raise ValueError("HerReplayBuffer computes rewards with its environment: call set_env() first")
        rewards = environment.env_method("compute_reward", following["achieved_goal"], goals, infos, indices=[0])[0]
        rewards = self._normalize_reward(rewards.astype(np.float32).reshape(-1, 1), env)
        return self._samples(data, slots, rewards, env)

    def __getstate__(self) -> dict[str, Any]:
        """As `ReplayBuffer`; without the environment, which `set_env` gives again."""
        state = ReplayBuffer.__getstate__(self)
        del state["env"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        ReplayBuffer.__setstate__(self, state)
        self.env = None


class RolloutBuffer(sb3.RolloutBuffer):  # type: ignore[misc]
    """In place of SB3's `RolloutBuffer` and `DictRolloutBuffer`, for PPO and A2C.

    Observations and actions lie in a store of its own. The rest are arrays as in SB3: rewards and values, which returns
    are computed from, and advantages and returns, which are known last.

    Args:
        buffer_size: steps of each environment.
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these.
        action_space: one of these.
        device: of the tensors of a batch.
        gae_lambda: 1: the advantage is the return less the value.
        gamma: discount per step.
        n_envs: environments.

    Raises:
        ValueError: a space that cannot be stored. di_store.CapacityError: more than the machine's memory.
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
    ) -> None:
        _check_spaces(observation_space, action_space)
        self.pos: int
        sb3.BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.gae_lambda, self.gamma = gae_lambda, gamma
        self._open()
        self.reset()

    def _open(self) -> None:
        space, shape = self.observation_space, self.obs_shape
        # By key of a Dict space, or "".
        self._spaces = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        self._columns = {key: f"obs.{key}" if key else "obs" for key in self._spaces}
        self._shapes = shape if isinstance(space, spaces.Dict) else {"": shape}
        specs = {self._columns[key]: di_store.Spec(self._shapes[key], each.dtype) for key, each in self._spaces.items()}
        specs["action"] = di_store.Spec((self.action_dim,), self.action_space.dtype)
        self._rows = Rows(specs, self.buffer_size * self.n_envs, chunk=self.n_envs, option="n_steps=")
        # SB3 numbers samples through the steps of an environment first.
        self._order = np.arange(self.buffer_size * self.n_envs).reshape(-1, self.n_envs).T.reshape(-1)

    def reset(self) -> None:
        """Begin the next rollout."""
        if self.pos not in (0, self.buffer_size):
            self._rows.clear()
        shape, kind = (self.buffer_size, self.n_envs), np.float32
        self.rewards, self.returns, self.episode_starts = (
            np.zeros(shape, kind),
            np.zeros(shape, kind),
            np.zeros(shape, kind),
        )
        self.values, self.log_probs, self.advantages = (
            np.zeros(shape, kind),
            np.zeros(shape, kind),
            np.zeros(shape, kind),
        )
        self.generator_ready = False
        sb3.BaseBuffer.reset(self)

    def add(self, obs: Any, action: Array, reward: Array, episode_start: Array, value: Any, log_prob: Any) -> None:
        """Add one step of every environment, as SB3's."""
        time, n_envs = self.pos, self.n_envs
        self.rewards[time] = reward
        self.episode_starts[time] = episode_start
        self.values[time] = value.cpu().numpy().reshape(-1)
        self.log_probs[time] = log_prob.cpu().numpy()
        staged, part = self._rows.place(time * n_envs, n_envs)
        staged["action"][part] = action.reshape(n_envs, -1)
        for key, column in self._columns.items():
            given = obs[key] if key else obs
            staged[column][part] = np.reshape(given, (n_envs, *self._shapes[key]))
        self.pos = time + 1
        if self.pos == self.buffer_size:
            self.full = True

    def get(self, batch_size: int | None = None) -> Iterator[Any]:
        """All steps in an order drawn with numpy's global generator, the same one as SB3's.

        Args:
            batch_size: of each batch; None: all steps.
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
        data = self._rows.read(self._order[batch_inds], self._rows.specs)[0]
        tensor = torch.from_numpy if self.device.type == "cpu" else self._moved
        late = [tensor(each.take(batch_inds)) for each in (self.values, self.log_probs, self.advantages, self.returns)]
        actions = tensor(data["action"].astype(np.float32, copy=False))
        if "" in self._columns:
            return RolloutBufferSamples(tensor(data["obs"]), actions, *late)
        observations = {key: tensor(data[column]) for key, column in self._columns.items()}
        return DictRolloutBufferSamples(observations, actions, *late)

    def _moved(self, array: Array) -> Any:
        return self.to_torch(array, copy=False)

    def _whole(self, column: str) -> Array:
        """A column as SB3's array: ``[buffer_size, n_envs, …]``, after `get` ``[buffer_size · n_envs, …]``."""
        slots: Any = self._order if self.generator_ready else slice(None)
        found = self._rows.read(slots, (column,))[0][column]
        return found if self.generator_ready else found.reshape(self.buffer_size, self.n_envs, *found.shape[1:])

    @property
    def observations(self) -> Any:
        """A copy of all observations; of a Dict space by key."""
        found = {key: self._whole(column) for key, column in self._columns.items()}
        return found.get("", found)

    @property
    def actions(self) -> Array:
        """A copy of all actions."""
        return self._whole("action")

    def __getstate__(self) -> dict[str, Any]:
        """The attributes and the steps themselves: what is loaded is a buffer with another store."""
        state = self.__dict__.copy()
        rows: Rows = state.pop("_rows")
        return state | {"_pieces": [*rows.pieces(self.pos % self.buffer_size * self.n_envs)]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        steps = state.pop("_pieces")
        self.__dict__.update(state)
        self._open()
        for slot, data in steps:
            self._rows.write(slot, data)


def _check_spaces(observations: Any, actions: Any) -> None:
    inner = observations.spaces if isinstance(observations, spaces.Dict) else {"": observations}
    named = {f"observation space {key!r}" if key else "the observation space": each for key, each in inner.items()}
    for what, space in {**named, "the action space": actions}.items():
        if not isinstance(space, _STORED):
            raise ValueError(
                f"{what} is {type(space).__name__}: ReplayBuffer stores Box, Discrete, MultiDiscrete and "
                "MultiBinary, and observations also as one Dict of these"
            )


def _check_n_steps(n_steps: int) -> int:
    if n_steps < 1:
        raise ValueError(f"n_steps={n_steps}: at least 1 reward is summed")
    if n_steps > 1 and "discounts" not in ReplayBufferSamples._fields:
        raise ValueError(
            f"n_steps={n_steps} needs a version of Stable-Baselines3 with n-step returns, and "
            f"{stable_baselines3.__version__} is installed: pip install -U stable-baselines3"
        )
    return n_steps
