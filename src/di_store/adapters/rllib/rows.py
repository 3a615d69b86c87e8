"""The rows of episodes in tables: one row for each step, so each observation is stored once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

import di_store
from di_store.adapters.rllib.parts import Content, Name, Part, contents
from di_store.adapters.stored_array import Array
from di_store.adapters.stores import own_store

_OPTION = 'replay_buffer_config={"capacity": …}'
_SPARE = 1_024
"""Rows for last observations and for the chunks of one `add`, in addition to the steps that a buffer holds."""


class Chunk:
    """An episode, or a continuation of one, that is being added to the buffer.

    Its rows are those of the steps `start` to `stop` - 1. Steps count from the chunk's first step. Earlier steps, which
    are only in the episode's lookback, are negative.

    Attributes:
        contents: its sequences; empty if it has no steps.
        place: the place of its rows; None: it has no steps.
        continues: whether its rows begin with its first step, because an earlier chunk has the rows before.
        keys: keys of its rows, once they are written.
    """

    def __init__(self, episode: SingleAgentEpisode, continues: bool) -> None:
        self.episode, self.continues = episode, continues
        self.contents: dict[Name, Content] = contents(episode) if len(episode) else {}
        self.place: EpisodeTable | None = None
        self.keys = array("Q")

    @property
    def start(self) -> int:
        """The first step that has a row."""
        return 0 if self.continues else -max(each.lookback for each in self.contents.values())

    @property
    def stop(self) -> int:
        """One after the last. The last observation gets a row with its action, or at the end of the episode."""
        return len(self.episode) + bool(self.episode.is_done)


class EpisodeTable:
    """A table for episodes of one form.

    Args:
        first: contents of the first episode.
        capacity: number of steps that the buffer holds.
        store: the store of the table; None: a store of its own.
        name: name of the table.

    Attributes:
        parts: parts by name of the sequence.
    """

    def __init__(
        self, first: dict[Name, Content], capacity: int, store: di_store.Store | None = None, name: str = "steps"
    ) -> None:
        self.parts: dict[Name, Part] = {name: each.part for name, each in first.items()}
        self._columns: dict[Name, list[str]] = {}  # by sequence: the names of its columns
        names = count()
        schema: dict[str, di_store.Spec] = {}
        for sequence, part in self.parts.items():
            kind = sequence if isinstance(sequence, str) else sequence[0]
            self._columns[sequence] = [f"{kind}{next(names)}" for _ in part.leaves]
            for column, leaf in zip(self._columns[sequence], part.leaves, strict=True):
                schema[column] = di_store.Spec(leaf.shape, leaf.dtype)
        self._options: dict[str, Any] = {"view": di_store.Step(), "schema": {"step": schema}, "lanes": 1}
        self._capacity, self._held = capacity + capacity // 8 + _SPARE, 0
        self._given = store is not None
        needed = self._memory(self._capacity)
        self.store = store or own_store(needed, f"{capacity:,} steps of these episodes", _OPTION)
        self.table = self.store.create_table(name, capacity=self._capacity, **self._options)

    def _memory(self, rows: int) -> int:
        # Episodes leave as a whole, and steps of others lie between theirs: blocks are free when all of theirs left.
        return max(2 * di_store.needed_memory(capacity=rows, **self._options), 8 << 20)

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Add the rows of chunks, which get their keys."""
        spans = [(chunk.start, chunk.stop) for chunk in chunks]
        total = sum(stop - start for start, stop in spans)
        if total == 0:
            return
        if self._held + total > self._capacity:
            self._grow(self._held + total)
        rows = {}
        for name, columns in self._columns.items():
            given = [chunk.contents[name] for chunk in chunks]
            for number, column in enumerate(columns):
                rows[column] = _joined(spans, [(each.columns[number], each.lookback) for each in given], total)
        keys = self.table.extend({"step": rows}).tolist()
        self._held += total
        begin = 0
        for chunk, (start, stop) in zip(chunks, spans, strict=True):
            chunk.keys = array("Q", keys[begin : begin + stop - start])
            begin += stop - start

    def _grow(self, rows: int) -> None:
        """An episode that is longer than the buffer's capacity is kept as long as it is the only one."""
        capacity = max(rows, self._capacity + self._capacity // 4)
        if not self._given:
            self.store.resize(memory=self._memory(capacity))
        self.table.resize(capacity)
        self._capacity = capacity

    def delete(self, keys: Iterable[int]) -> None:
        """Remove rows."""
        listed = np.fromiter(keys, np.uint64)
        if len(listed):
            self.table.delete(listed)
            self._held -= len(listed)

    def match(self, known: Iterable[int]) -> set[int]:
        """Find the rows of the table again, because other processes may have written since.

        Returns the episodes of `known` whose rows exist. Later rows belong to no known episode and are removed.
        """
        wanted, held = set(known), self.table.keys().tolist()
        there = wanted.intersection(held)
        self._held = len(held)
        self.delete([key for key in held if key not in there])
        return there

    def read(self, keys: Any, names: Iterable[Name]) -> dict[Name, list[Array]]:
        """Rows of sequences, by name: the columns of their leaves, ``[n, …]``, new arrays.

        Raises:
            di_store.CapacityError: a row was evicted because memory did not suffice.
        """
        names = list(names)
        wanted = [f"step/{column}" for name in names for column in self._columns[name]]
        batch = self.table.peek(np.asarray(keys, np.uint64), columns=wanted)
        if batch.live is not None and not batch.live.all():
            raise di_store.CapacityError(
                "steps left the buffer's table before their episode did, because its memory was too small",
                remedy=f"lower {_OPTION}",
            )
        rows = batch.data["step"]
        return {name: [rows[column] for column in self._columns[name]] for name in names}


def _joined(spans: list[tuple[int, int]], given: list[tuple[Array, int]], total: int) -> Array:
    """One column of all chunks, from their values and lookbacks; zeros where a sequence lacks the row."""
    sample = given[0][0]
    if len(spans) == 1:
        (start, stop), lookback = spans[0], given[0][1]
        if lookback + start >= 0 and lookback + stop <= len(sample):
            return sample[lookback + start : lookback + stop]
    column: Array = np.zeros((total, *sample.shape[1:]), sample.dtype)
    begin = 0
    for (start, stop), (values, lookback) in zip(spans, given, strict=True):
        first = max(start, -lookback)
        values = values[lookback + first : lookback + stop]
        column[begin + first - start : begin + first - start + len(values)] = values
        begin += stop - start
    return column
