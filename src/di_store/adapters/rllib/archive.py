"""The episodes of a buffer, whose rows lie in tables."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

import di_store
from di_store.adapters.rllib.parts import Content, Name
from di_store.adapters.rllib.rows import Chunk, EpisodeTable
from di_store.adapters.rllib.stored import Episodes, StoredEpisode

_MOST_FORMS = 16
_AT_ONCE = 64
"""Episodes that are written at once while a buffer is loaded."""


class Archive:
    """Episodes in the order of their first chunks.

    Args:
        capacity: number of steps that the buffer holds.
        first: number of the first episode.
        store: the store of the tables; None: a store of its own for each.
        table: name of the first table; tables of episodes of other forms get a number.

    Attributes:
        episodes: the episodes.
        numbers: numbers of episodes by their id.
    """

    def __init__(
        self, capacity: int, first: int = 0, store: di_store.Store | None = None, table: str = "steps"
    ) -> None:
        self._capacity, self._store, self._table = capacity, store, table
        self._places: dict[Any, EpisodeTable] = {}  # by form, which is equal for episodes that fit into one table
        self.episodes = Episodes(first)
        self.numbers: dict[str, int] = {}

    def write(self, episodes: Iterable[SingleAgentEpisode]) -> list[Chunk]:
        """Write the rows of episodes and chunks. A call of `add` or `drop` must follow.

        Raises:
            TypeError: a table has no columns for one of them; nothing was written. di_store.CapacityError.
        """
        chunks, begun = [], set[str]()
        for episode in episodes:
            chunks.append(Chunk(episode, episode.id_ in self.numbers or episode.id_ in begun))
            begun.add(episode.id_)
        self._write(chunks)
        return chunks

    def _write(self, chunks: Sequence[Chunk]) -> None:
        by_place: dict[EpisodeTable, list[Chunk]] = {}
        for chunk in chunks:
            if chunk.contents:
                chunk.place = self._place(chunk.contents)
                by_place.setdefault(chunk.place, []).append(chunk)
        for place, those in by_place.items():
            place.write(those)

    def _place(self, found: dict[Name, Content]) -> EpisodeTable:
        form = tuple((name, each.part.key) for name, each in found.items())
        if (place := self._places.get(form)) is not None:
            return place
        number = len(self._places)
        if number == _MOST_FORMS:
            raise TypeError(
                f"the buffer holds episodes of {_MOST_FORMS} different types and shapes: give observations, "
                "actions, rewards and model outputs the same dtype and shape in all episodes"
            )
        name = f"{self._table}-{number}" if number else self._table
        try:
            place = EpisodeTable(found, self._capacity, self._store, name)
        except di_store.TableExists as error:
            raise di_store.TableExists(
                f"table {name!r} already exists in the store, and only the buffer's own state says which "
                "steps belong to which episode",
                remedy="load the buffer's pickle, which continues with the table; or give table= another name",
            ) from error
        self._places[form] = place
        return place

    @property
    def places(self) -> list[EpisodeTable]:
        """The tables, in the order in which they were made."""
        return [*self._places.values()]

    def close(self) -> None:
        """Drop the tables."""
        for place in self._places.values():
            place.store.drop_table(place.table.name)

    def drop(self, chunks: Iterable[Chunk]) -> None:
        """Remove rows of chunks that are not added."""
        for chunk in chunks:
            if chunk.place is not None:
                chunk.place.delete(chunk.keys)

    def add(self, chunk: Chunk) -> tuple[StoredEpisode, int, bool]:
        """Add an episode, or continue one. Returns the episode, how many steps it had before, and whether it is new.

        Raises:
            ValueError: the chunk does not continue the episode that has its id.
        """
        episode, number = chunk.episode, self.numbers.get(chunk.episode.id_)
        if number is None:
            if chunk.continues and chunk.place is not None:  # what it continued was evicted meanwhile
                chunk.place.delete(chunk.keys)
                chunk.continues = False
                self._write([chunk])
            stored = StoredEpisode(self.episodes.first + len(self.episodes), episode, chunk.place, chunk.contents)
            stored.keys = chunk.keys
            self._keep_last(stored, chunk)
            self.numbers[episode.id_] = stored.number
            self.episodes.append(stored)
            return stored, 0, True
        stored = self.episodes.stored[number]
        before = len(stored)
        _check(stored, chunk)
        if chunk.continues and chunk.place is not None and chunk.place is stored.place:
            stored.follow(episode, chunk.keys)
            self._keep_last(stored, chunk)
        else:
            self._join(stored, chunk)
        return self.episodes.stored[number], before, False

    @staticmethod
    def _keep_last(stored: StoredEpisode, chunk: Chunk) -> None:
        has_row = stored.is_done or not chunk.contents
        stored.tail = None if has_row else [column[-1:].copy() for column in chunk.contents["obs"].columns]

    def _join(self, stored: StoredEpisode, chunk: Chunk) -> None:
        """Continue an episode with a chunk of another form: concatenate as RLlib does, and write all of it again."""
        whole = stored.restored()
        whole.concat_episode(copy.deepcopy(chunk.episode))
        joined = Chunk(whole, continues=False)
        self._write([joined])
        self.drop([chunk])
        if stored.place is not None:
            stored.place.delete(stored.keys)
        found = StoredEpisode(stored.number, whole, joined.place, joined.contents)
        found.keys = joined.keys
        self._keep_last(found, joined)
        self.episodes.stored[stored.number] = found

    def evict(self) -> StoredEpisode:
        """Remove the oldest episode."""
        stored = self.episodes.popleft()
        del self.numbers[stored.id_]
        if stored.place is not None:
            stored.place.delete(stored.keys)
        return stored

    def match(self) -> list[StoredEpisode]:
        """Find the rows in the tables again. Removes and returns the oldest episodes up to the last that lacks rows."""
        stored = [*self.episodes.stored.values()]
        there = {
            place: place.match(key for each in stored if each.place is place for key in each.keys)
            for place in self.places
        }
        lacking = [
            number
            for number, each in enumerate(stored, 1)
            if each.place is not None and not there[each.place].issuperset(each.keys)
        ]
        return [self.evict() for _ in range(lacking[-1] if lacking else 0)]

    def restore(self, episodes: Sequence[SingleAgentEpisode]) -> None:
        """Add whole episodes."""
        for begin in range(0, len(episodes), _AT_ONCE):
            for chunk in self.write(episodes[begin : begin + _AT_ONCE]):
                self.add(chunk)


def _check(stored: StoredEpisode, chunk: Chunk) -> None:
    episode, name = chunk.episode, f"the chunk of episode {chunk.episode.id_!r}"
    if stored.is_done:
        raise ValueError(f"{name} comes after the episode's end: give each episode an id_ of its own")
    if stored.t != episode.t_started:
        raise ValueError(
            f"{name} starts at step {episode.t_started}, and the buffer has its steps before {stored.t}: add() all "
            "chunks that cut() makes, in order"
        )
    if stored.tail is None or chunk.place is not stored.place:
        return  # RLlib compares them
    obs = chunk.contents["obs"]
    for column, last in zip(obs.columns, stored.tail, strict=True):
        if not np.array_equal(column[obs.lookback], last[0]):
            raise ValueError(f"{name} does not start with the observation that its last chunk ended with")
