"""The rows of episodes in tables: one row for each step, so each observation is stored once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

import di_store
from di_store.adapters.rllib.parts import Content, Name, Part
from di_store.adapters.stored_array import Array
from di_store.adapters.stores import own_store

_OPTION = 'replay_buffer_config={"capacity": …}'
_SPARE = 1_024
"""Rows for last observations and for the chunks of one `add`, in addition to the steps that a buffer holds."""

Form = tuple[Any, ...]


def form_of(contents: dict[Name, Content]) -> Form:
    """The form of an episode: equal for episodes whose rows fit into one table."""
    return tuple((name, each.part.key) for name, each in contents.items())


class Piece(NamedTuple):
    """Rows to write: steps `start` to `stop` - 1 of a chunk of an episode.

    Steps count from the chunk's first step. Earlier steps, which are only in the episode's lookback, are negative. The
    last observation has a row of its own if `stop` is one more than the number of the chunk's steps.
    """

    contents: dict[Name, Content]
    start: int
    stop: int


class EpisodeTable:
    """A table for episodes of one form.

    Args:
        contents: contents of the first episode.
        capacity: number of steps that the buffer holds.
        store: the store of the table; None: a store of its own.
        name: name of the table.

    Attributes:
        parts: parts by name of the sequence.
    """

    def __init__(
        self, contents: dict[Name, Content], capacity: int, store: di_store.Store | None = None, name: str = "steps"
    ) -> None:
        self.parts: dict[Name, Part] = {name: each.part for name, each in contents.items()}
        self._columns: dict[Name, list[str]] = {}  # by sequence: the names of its columns
        names = iter(range(len(contents) * 1_000))
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

    def write(self, pieces: Sequence[Piece]) -> list[array[int]]:
        """Add rows. Returns their keys by piece."""
        total = sum(piece.stop - piece.start for piece in pieces)
        if total == 0:
            return [array("Q") for _ in pieces]
        if self._held + total > self._capacity:
            self._grow(self._held + total)
        rows = {}
        for name, columns in self._columns.items():
            for number, column in enumerate(columns):
                rows[column] = _joined([(piece, piece.contents[name], number) for piece in pieces], total)
        keys = self.table.extend({"step": rows}).tolist()
        self._held += total
        found, begin = [], 0
        for piece in pieces:
            end = begin + piece.stop - piece.start
            found.append(array("Q", keys[begin:end]))
            begin = end
        return found

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


def _joined(pieces: list[tuple[Piece, Content, int]], total: int) -> Array:
    """One column of all pieces; zeros where a sequence lacks the row."""
    sample = pieces[0][1].columns[pieces[0][2]]
    if len(pieces) == 1:
        (start, stop), lookback = pieces[0][0][1:], pieces[0][1].lookback
        if lookback + start >= 0 and lookback + stop <= len(sample):
            return sample[lookback + start : lookback + stop]
    column: Array = np.zeros((total, *sample.shape[1:]), sample.dtype)
    begin = 0
    for (_, start, stop), each, number in pieces:
        values, first = each.columns[number], max(start, -each.lookback)
        values = values[each.lookback + first : each.lookback + stop]
        column[begin + first - start : begin + first - start + len(values)] = values
        begin += stop - start
    return column
