"""Makes the episodes that a buffer returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from scipy.signal import lfilter

from di_store.adapters.rllib.parts import Name
from di_store.adapters.rllib.rows import EpisodeTable
from di_store.adapters.rllib.windows import Window, read, read_rows
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


Drawn: TypeAlias = "tuple[list[Any], Any, Any, dict[Any, Any]]"
"""Of a transition: its first and last observation, the action, the discounted sum of rewards, model outputs by name."""


def drawn_values(chosen: Sequence[Window], gamma: float, extras: Sequence[int] | None) -> list[Drawn]:
    """The values of transitions.

    Args:
        chosen: the transitions: steps, and where each ends.
        gamma: discount per step.
        extras: by transition, the step whose model outputs are wanted; None: no model outputs.
    """
    found: list[Any] = [None] * len(chosen)
    for place, numbers, _, rows in read_rows(chosen, None, ("obs", "action", "reward")):
        those = [chosen[number] for number in numbers]
        obs = place.parts["obs"].items(rows["obs"])
        actions = place.parts["action"].items([column[::2] for column in rows["action"]])
        rewards = _sums(place, those, rows["reward"][0][::2], gamma)
        if extras is None:
            outputs: list[dict[Any, Any]] = [{}] * len(those)
        else:
            outputs = _extras(place, those, [extras[number] for number in numbers])
        states = map(list, zip(obs[::2], obs[1::2], strict=True))
        for number, drawn in zip(numbers, zip(states, actions, rewards, outputs, strict=True), strict=True):
            found[number] = drawn
    return found


def _sums(place: EpisodeTable, chosen: list[Window], first: Array, gamma: float) -> list[Any]:
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


def _extras(place: EpisodeTable, chosen: list[Window], steps: Sequence[int]) -> list[dict[Any, Any]]:
    """The model outputs of one step for each transition, by name."""
    names = [name for name in place.parts if isinstance(name, tuple)]
    if not names:
        return [{}] * len(chosen)
    keys = [each.stored.keys[each.stored.back + step] for each, step in zip(chosen, steps, strict=True)]
    items = {name[1]: place.parts[name].items(columns) for name, columns in place.read(keys, names).items()}
    return [dict(zip(items, each, strict=True)) for each in zip(*items.values(), strict=True)]


def windows(maker: Maker, chosen: Sequence[Window], lookback: int) -> list[SingleAgentEpisode]:
    """Episodes of the windows, with up to `lookback` steps before them, as RLlib's `SingleAgentEpisode.slice`."""
    backs = [min(lookback, each.stored.back + each.step) for each in chosen]
    sizes = [each.stop - each.step + lookback for each in chosen]
    n_steps, weights, begin = np.ones(sum(sizes), np.int64), np.ones(sum(sizes)), 0
    found = []
    for window, back, size, rows in zip(chosen, backs, sizes, read(chosen, backs, None), strict=True):
        stored, step, length = window.stored, window.step, window.stop - window.step
        place: Any = stored.place
        buffers: dict[Name, tuple[Any, int]] = {}
        own = back
        for name, part in place.parts.items():
            first, columns = 0, rows[name]
            if not stored.even:
                own = min(lookback, stored.lookback(name) + step)
                first = back - own
            last = back + length + (name == "obs")
            buffers[name] = part.whole([column[first:last] for column in columns]), own
        if not stored.even:
            own = min(lookback, stored.lookback("infos") + step)
        buffers["infos"] = stored.infos_of(step - own, window.stop + 1), own
        episode = maker.window(window, buffers)
        for name, values in (("n_step", n_steps), ("weights", weights)):
            episode.extra_model_outputs[name] = maker.buffer(values[begin : begin + size], None, lookback)
        begin += size
        found.append(episode)
    return found


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
        self, drawn: Window, id_: str, values: tuple[list[Any], Any, Any, list[Any]], extras: dict[str, Any]
    ) -> SingleAgentEpisode:
        """An episode of one step.

        Args:
            drawn: the transition.
            id_: its own id.
            values: two observations, an action, a reward, two infos.
            extras: model outputs.
        """
        found = self._episode(drawn, id_, drawn.step, drawn.step + drawn.count, extras)
        like_obs, like_action = drawn.stored.like
        found.observations = self.buffer(values[0], like_obs)
        found.actions = self.buffer([values[1]], like_action)
        found.rewards = self.buffer([values[2]], self._of_rewards)
        found.infos = self.buffer(values[3])
        found.t = drawn.step + 1
        return found

    def window(self, window: Window, buffers: dict[Name, tuple[Any, int]]) -> SingleAgentEpisode:
        """An episode of a window's steps.

        Args:
            window: the window.
            buffers: data and lookback of all sequences and infos by name.
        """
        stored, step = window.stored, window.step
        extras = {
            name[1]: self.buffer(data, None, lookback)
            for name, (data, lookback) in buffers.items()
            if isinstance(name, tuple)
        }
        found = self._episode(window, stored.id_, stored.t_started + step, window.stop, extras)
        likes: dict[Name, Any] = dict(zip(("obs", "action"), stored.like, strict=True))
        made = {name: self.buffer(data, likes.get(name), lookback) for name, (data, lookback) in buffers.items()}
        found.observations, found.actions = made["obs"], made["action"]
        found.rewards, found.infos = made["reward"], made["infos"]
        found.t = found.t_started + window.stop - step
        return found

    def _episode(
        self, drawn: Window, id_: str, t_started: int, stop: int, extras: dict[str, Any]
    ) -> SingleAgentEpisode:
        """An episode without sequences; it has ended if `stop` is the end of the one that it was drawn from."""
        stored, found = drawn.stored, SingleAgentEpisode.__new__(SingleAgentEpisode)
        for name, value in self._plain:
            setattr(found, name, value)
        if stored.like is None:
            stored.like = tuple(vars(InfiniteLookbackBuffer(space=space)) for space in stored.spaces[:2])
        found.id_, found.t_started = id_, t_started
        found._observation_space, found._action_space = stored.spaces[:2]
        at_end = stop == len(stored)
        found.is_terminated, found.is_truncated = at_end and stored.is_terminated, at_end and stored.is_truncated
        found.extra_model_outputs, found._custom_data = extras, {}
        return found
