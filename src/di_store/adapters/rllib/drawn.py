"""Makes the episodes that a buffer returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from scipy.signal import lfilter

from di_store.adapters.rllib.parts import Name
from di_store.adapters.rllib.rows import EpisodeTable
from di_store.adapters.rllib.stored import StoredEpisode
from di_store.adapters.stored_array import Array

_GIVEN = {
    "id_",
    "observations",
    "actions",
    "rewards",
    "infos",
    "extra_model_outputs",
    "is_terminated",
    "is_truncated",
    "t",
    "t_started",
    "_observation_space",
    "_action_space",
    "_custom_data",
}


class DrawnTransition:
    """A step that was drawn, and the step `n_step` steps later, or the last step of the episode."""

    __slots__ = ("n_step", "step", "stop", "stored")

    def __init__(self, stored: StoredEpisode, step: int, n_step: int) -> None:
        self.stored, self.step, self.n_step = stored, step, n_step
        self.stop = min(step + n_step, len(stored))


class DrawnValues:
    """The values of drawn transitions, by transition.

    Args:
        chosen: the transitions.
        gamma: discount per step.
        extras: by transition, the step whose model outputs are wanted; None: no model outputs.

    Attributes:
        observations: the first and the last observation.
        actions: the first action.
        rewards: discounted sums of rewards.
        extras: model outputs by name.
    """

    def __init__(self, chosen: Sequence[DrawnTransition], gamma: float, extras: Sequence[int] | None) -> None:
        count = len(chosen)
        self.observations: list[list[Any]] = [[]] * count
        self.actions: list[Any] = [None] * count
        self.rewards: list[Any] = [None] * count
        self.extras: list[dict[Any, Any]] = [{} for _ in range(count)] if extras is not None else []
        places: dict[Any, list[int]] = {}
        for number, each in enumerate(chosen):
            places.setdefault(each.stored.place, []).append(number)
        for place, numbers in places.items():
            those = [chosen[number] for number in numbers]
            self._read(place, those, numbers, gamma)
            if extras is not None:
                self._read_extras(place, those, numbers, [extras[number] for number in numbers])

    def _read(self, place: EpisodeTable, chosen: list[DrawnTransition], numbers: list[int], gamma: float) -> None:
        count, keys, ends, tails = len(chosen), [], [], []
        for number, each in enumerate(chosen):
            stored = each.stored
            first = stored.back + each.step
            keys.append(stored.keys[first])
            if stored.tail is not None and each.stop == len(stored):
                tails.append((count + number, stored.tail))
                ends.append(stored.keys[first])
            else:
                ends.append(stored.keys[stored.back + each.stop])
        rows = place.read(keys + ends, ("obs", "action", "reward"))
        for number, tail in tails:
            for column, last in zip(rows["obs"], tail, strict=True):
                column[number] = last[0]
        obs = place.parts["obs"].items(rows["obs"])
        actions = place.parts["action"].items([column[:count] for column in rows["action"]])
        rewards = self._sums(place, chosen, rows["reward"][0][:count], gamma)
        if len(numbers) == len(self.actions):
            self.observations, self.actions = list(map(list, zip(obs[:count], obs[count:], strict=True))), actions
            self.rewards = rewards
            return
        for at, first, last, action, reward in zip(numbers, obs[:count], obs[count:], actions, rewards, strict=True):
            self.observations[at], self.actions[at], self.rewards[at] = [first, last], action, reward

    @staticmethod
    def _sums(place: EpisodeTable, chosen: list[DrawnTransition], first: Array, gamma: float) -> list[Any]:
        """Discounted sums of rewards, by RLlib's filter, all at once; zeros in front do not change a sum."""
        most = max(each.stop - each.step for each in chosen)
        kind = np.result_type(first, np.float64)
        if most == 1:
            return list(first.astype(kind) + 0.0)  # the filter makes 0.0 of -0.0
        raw: Array = np.zeros((most, *first.shape), kind)
        keys: list[int] = []
        times: list[int] = []
        for each in chosen:
            begin, stop = each.stored.back + each.step, each.stored.back + each.stop
            keys += each.stored.keys[begin:stop]
            times += range(most - 1, most - 1 - (stop - begin), -1)
        lengths = [each.stop - each.step for each in chosen]
        raw[times, np.repeat(np.arange(len(chosen)), lengths)] = place.read(keys, ("reward",))["reward"][0]
        return list(lfilter([1], [1, -gamma], raw, axis=0)[-1])

    def _read_extras(
        self, place: EpisodeTable, chosen: list[DrawnTransition], numbers: list[int], steps: Sequence[int]
    ) -> None:
        names = [name for name in place.parts if isinstance(name, tuple)]
        if not names:
            return
        keys = [each.stored.keys[each.stored.back + step] for each, step in zip(chosen, steps, strict=True)]
        for name, columns in place.read(keys, names).items():
            for at, item in zip(numbers, place.parts[name].items(columns), strict=True):
                self.extras[at][name[1]] = item


class Maker:
    """Makes episodes as `SingleAgentEpisode(…)` does, by copying an episode that it made once."""

    def __init__(self) -> None:
        like = SingleAgentEpisode(
            observations=[0, 0], actions=[0], rewards=[0.0], infos=[{}, {}], len_lookback_buffer=0
        )
        self._plain = [(name, getattr(like, name)) for name in SingleAgentEpisode.__slots__ if name not in _GIVEN]
        self._without_space, self._of_rewards = vars(like.infos), vars(like.rewards)

    def buffer(self, data: Any, like: dict[str, Any] | None = None, lookback: int = 0) -> InfiniteLookbackBuffer:
        """A sequence of an episode.

        Args:
            data: a list, or arrays.
            like: the attributes of a sequence with the same space; None: no space.
            lookback: items before the first step.
        """
        found = InfiniteLookbackBuffer.__new__(InfiniteLookbackBuffer)
        values = (like or self._without_space).copy()
        values["data"], values["lookback"] = data, lookback
        values["finalized"] = type(data) is not list
        found.__dict__ = values
        return found

    def transition(
        self,
        stored: StoredEpisode,
        id_: str,
        step: int,
        ended: tuple[bool, bool],
        values: tuple[list[Any], Any, Any, list[Any]],
        extras: dict[str, Any],
    ) -> SingleAgentEpisode:
        """An episode of one step.

        Args:
            stored: the episode that it comes from.
            id_: its own id.
            step: its first step in `stored`.
            ended: terminated, truncated.
            values: two observations, an action, a reward, two infos.
            extras: model outputs.
        """
        found = self._episode(stored, id_, step, ended, extras)
        like_obs, like_action = stored.like
        found.observations = self.buffer(values[0], like_obs)
        found.actions = self.buffer([values[1]], like_action)
        found.rewards = self.buffer([values[2]], self._of_rewards)
        found.infos = self.buffer(values[3])
        found.t = step + 1
        return found

    def window(
        self, stored: StoredEpisode, step: int, stop: int, buffers: dict[Name, tuple[Any, int]]
    ) -> SingleAgentEpisode:
        """An episode of the steps from `step` to `stop`.

        Args:
            stored: the episode that it comes from.
            step: the first step.
            stop: the step after the last one.
            buffers: data and lookback of all sequences and infos by name.
        """
        done = stop == len(stored)
        ended = (stored.is_terminated, stored.is_truncated) if done else (False, False)
        extras = {
            name[1]: self.buffer(data, None, lookback)
            for name, (data, lookback) in buffers.items()
            if isinstance(name, tuple)
        }
        found = self._episode(stored, stored.id_, stored.t_started + step, ended, extras)
        likes: dict[Name, Any] = dict(zip(("obs", "action"), stored.like, strict=True))
        made = {name: self.buffer(data, likes.get(name), lookback) for name, (data, lookback) in buffers.items()}
        found.observations, found.actions = made["obs"], made["action"]
        found.rewards, found.infos = made["reward"], made["infos"]
        found.t = found.t_started + stop - step
        return found

    def _episode(
        self, stored: StoredEpisode, id_: str, t_started: int, ended: tuple[bool, bool], extras: dict[str, Any]
    ) -> SingleAgentEpisode:
        found = SingleAgentEpisode.__new__(SingleAgentEpisode)
        for name, value in self._plain:
            setattr(found, name, value)
        if stored.like is None:
            stored.like = tuple(vars(InfiniteLookbackBuffer(space=space)) for space in stored.spaces[:2])
        found.id_, found.t_started = id_, t_started
        found._observation_space, found._action_space = stored.spaces[:2]
        found.is_terminated, found.is_truncated = ended
        found.extra_model_outputs, found._custom_data = extras, {}
        return found
