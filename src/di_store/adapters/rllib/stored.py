"""Episodes whose steps lie in a table."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from di_store.adapters.rllib.parts import Content, Name
from di_store.adapters.rllib.rows import EpisodeTable
from di_store.adapters.stored_array import Array

_PLAIN = ("agent_id", "module_id", "multi_agent_episode_id", "_start_time", "_last_step_time")


class StoredEpisode:
    """An episode of a buffer.

    Args:
        number: number of the episode in the buffer.
        episode: the episode as it is at the beginning.
        place: the place of its rows; None: the episode has no steps yet, and is kept as an object.
        contents: contents of `episode`.

    Attributes:
        keys: keys of the rows of its steps, including steps of the lookback.
        back: number of rows before its first step (the lookback).
        tail: the last observation, if it has no row yet, as rows of its leaves, ``[1, …]``. It gets a row together with
            the action that follows it, or when the episode ends.
        infos: one dict for each observation; None: they are empty.
        spaces: of observations, actions and rewards.
        even: whether all sequences have the same lookback.
        held: the episode itself while it has no steps.
        like: the attributes that all its drawn episodes share, once an episode was drawn.
    """

    __slots__ = (
        "_infos_back",
        "_lookbacks",
        "_rest",
        "back",
        "even",
        "held",
        "id_",
        "infos",
        "is_terminated",
        "is_truncated",
        "keys",
        "like",
        "number",
        "place",
        "spaces",
        "t",
        "t_started",
        "tail",
    )

    def __init__(
        self, number: int, episode: SingleAgentEpisode, place: EpisodeTable | None, contents: dict[Name, Content]
    ) -> None:
        self.number, self.id_, self.place = number, episode.id_, place
        self.held = copy.deepcopy(episode) if place is None else None
        self.t, self.t_started = episode.t, episode.t_started
        self.is_terminated, self.is_truncated = episode.is_terminated, episode.is_truncated
        self.keys, self.back = array("Q"), 0
        self.tail: list[Array] | None = None
        self.like: Any = None
        self.infos: list[Any] | None = None
        if place is None:
            return
        self._lookbacks = {name: each.lookback for name, each in contents.items()}
        self._infos_back = episode.infos.lookback
        self.back = max(self._lookbacks.values())
        self.even = {*self._lookbacks.values(), self._infos_back} == {self.back}
        self.spaces = episode.observation_space, episode.action_space, episode.rewards.space
        self._rest = {name: getattr(episode, name) for name in _PLAIN}
        self._rest["_custom_data"] = copy.deepcopy(episode.custom_data)
        self._take_infos(episode.infos.data, 0)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Pickle without `like`, which is made again when needed."""
        return None, {name: getattr(self, name) for name in self.__slots__ if hasattr(self, name)} | {"like": None}

    def __len__(self) -> int:
        return int(self.t - self.t_started)

    @property
    def is_done(self) -> bool:
        """Whether the episode has ended."""
        return bool(self.is_terminated or self.is_truncated)

    def lookback(self, name: Name) -> int:
        """Number of items in a sequence before the first step."""
        return self._lookbacks[name] if name != "infos" else self._infos_back

    def info(self, step: int) -> Any:
        """The info that the environment gave with the observation of a step."""
        return {} if self.infos is None else self.infos[step + self._infos_back]

    def infos_of(self, begin: int, end: int) -> list[Any]:
        """Like `info`, for several steps."""
        if self.infos is None:
            return [{} for _ in range(end - begin)]
        return self.infos[begin + self._infos_back : end + self._infos_back]

    def _take_infos(self, infos: list[Any], begin: int) -> None:
        """Replace the infos from `begin` on."""
        if self.infos is None:
            if not any(infos):
                return
            self.infos = [{} for _ in range(begin)]
        del self.infos[begin:]
        self.infos.extend(copy.deepcopy(infos))

    def follow(self, chunk: SingleAgentEpisode, keys: array[int]) -> None:
        """Continue with a chunk whose rows were written. The caller checks the chunk before, and sets `tail` after."""
        count = len(self) + self._infos_back  # the chunk's first observation is the last one so far
        self._take_infos(chunk.infos.data[chunk.infos.lookback :], count)
        self.keys.extend(keys)
        self.t, self.is_terminated, self.is_truncated = chunk.t, chunk.is_terminated, chunk.is_truncated
        if chunk.custom_data:
            self._rest["_custom_data"].update(copy.deepcopy(chunk.custom_data))

    def restored(self) -> SingleAgentEpisode:
        """The episode in memory of its own, as RLlib's buffer would hold it."""
        if self.place is None:
            return copy.deepcopy(self.held)
        episode = SingleAgentEpisode(id_=self.id_)
        for attribute, value in self._rest.items():
            setattr(episode, attribute, copy.deepcopy(value))
        place, length = self.place, len(self)
        columns = place.read(self.keys, place.parts)
        if self.tail is not None:
            columns["obs"] = [np.concatenate(each) for each in zip(columns["obs"], self.tail, strict=True)]
        spaces: dict[Any, Any] = dict(zip(("obs", "action", "reward"), self.spaces, strict=True))
        buffers: dict[Name, InfiniteLookbackBuffer] = {}
        for name, part in place.parts.items():
            rows = slice(self.back - self._lookbacks[name], self.back + length + (name == "obs"))
            buffers[name] = InfiniteLookbackBuffer(part.whole([column[rows] for column in columns[name]]))
            buffers[name].lookback, buffers[name].space = self._lookbacks[name], spaces.get(name)
        episode.observations, episode.actions = buffers.pop("obs"), buffers.pop("action")
        episode.rewards = buffers.pop("reward")
        episode.extra_model_outputs = {name[1]: value for name, value in buffers.items()}
        infos = [{} for _ in range(self._infos_back + length + 1)] if self.infos is None else self.infos
        episode.infos = InfiniteLookbackBuffer(copy.deepcopy(infos))
        episode.infos.lookback = self._infos_back
        episode.observation_space, episode.action_space = self.spaces[:2]
        episode.is_terminated, episode.is_truncated = self.is_terminated, self.is_truncated
        episode.t_started, episode.t = self.t_started, self.t
        return episode


class Episodes(Sequence[SingleAgentEpisode]):
    """A replacement for RLlib's deque of episodes: indexing reads an episode from the store.

    Attributes:
        first: number of the oldest episode.
        stored: episodes by number.
    """

    def __init__(self, first: int = 0) -> None:
        self.first, self.stored = first, dict[int, StoredEpisode]()

    def __len__(self) -> int:
        return len(self.stored)

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> list[SingleAgentEpisode]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        if not -len(self) <= index < len(self):
            raise IndexError("episode index out of range")
        return self.stored[self.first + range(len(self))[index]].restored()

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        return (stored.restored() for stored in self.stored.values())

    def append(self, stored: StoredEpisode) -> None:
        """Add an episode; its number is one more than the last episode's."""
        self.stored[stored.number] = stored

    def popleft(self) -> StoredEpisode:
        """Remove the oldest episode and return it."""
        stored = self.stored.pop(self.first)
        self.first += 1
        return stored
