"""The replay buffer of hindsight experience replay."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common import buffers as sb3
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as Sb3HerReplayBuffer

from di_store.adapters.sb3.replay import ReplayBuffer
from di_store.adapters.sb3.steps import DRAWN
from di_store.adapters.stored_array import Array
from di_store.adapters.stores import StoreLike


class _DictReplayBuffer(ReplayBuffer, sb3.DictReplayBuffer):  # type: ignore[misc]
    """A base class between SB3's `HerReplayBuffer` and the class that it extends."""

    _place: dict[str, Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **(options | self._place))


class HerReplayBuffer(Sb3HerReplayBuffer, _DictReplayBuffer):  # type: ignore[misc]
    """A replacement for SB3's `HerReplayBuffer`: hindsight experience replay (Andrychowicz et al. 2017).

    It takes SB3's arguments. `store` and `table` are as in `ReplayBuffer`. In an existing table, an episode that had
    not ended counts as cut off, and infos (`copy_info_dict`) are empty.

    Raises:
        ValueError: the observations are not a Dict with `observation`, `achieved_goal` and `desired_goal`.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        *args: Any,
        store: StoreLike = None,
        table: str = "replay",
        **options: Any,
    ) -> None:
        keys = set(observation_space.spaces) if isinstance(observation_space, spaces.Dict) else set()
        if missing := {"observation", "achieved_goal", "desired_goal"} - keys:
            raise ValueError(f"HerReplayBuffer needs a Dict observation space, and {sorted(missing)[0]!r} is not in it")
        self._place = {"store": store, "table": table}
        super().__init__(buffer_size, observation_space, *args, **options)
        del self._place
        if self._rows.count:
            self._find_episodes()

    def _find_episodes(self) -> None:
        """Set SB3's records of episodes from the steps in the table."""
        order = self._order()
        self.ep_start[:], self.ep_length[:] = 0, 0
        for lane in range(self.n_envs):
            # Where an episode of this environment begins in `order`; one whose beginning was overwritten stays out.
            ended = self.dones[order, lane] + self.timeouts[order, lane]
            begins = [0, *(np.flatnonzero(ended) + 1).tolist()]
            for begin, end in zip(begins[self.full :], begins[1 + self.full :], strict=False):
                part = order[begin:end]
                self.ep_start[part, lane], self.ep_length[part, lane] = order[begin], end - begin
            last = begins[-1]
            self._current_ep_start[lane] = order[last] if last < len(order) else self.pos
            self.ep_start[order[last:], lane] = self._current_ep_start[lane]

    def take_over(self, theirs: Any) -> None:
        """As `ReplayBuffer`'s, with the episodes."""
        super().take_over(theirs)
        for name in ("ep_start", "ep_length", "_current_ep_start", "infos"):
            getattr(self, name)[:] = getattr(theirs, name)

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
        """As `ReplayBuffer`, but without the environment: call `set_env` after loading."""
        state = ReplayBuffer.__getstate__(self)
        del state["env"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        given = "_place" in state
        ReplayBuffer.__setstate__(self, state)
        self.env = None
        if given:
            self._find_episodes()
