"""The steps that a buffer draws from, in RLlib's order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from di_store.adapters.stored_array import Array

_LEAST = 1_024


class EpisodeSteps(Sequence[tuple[int, ...]]):
    """A replacement for RLlib's list of tuples: the episode's number, the step in it, and with `nodes` the tree's node.

    Args:
        nodes: whether steps have nodes of a sum tree.
    """

    def __init__(self, nodes: bool = False) -> None:
        self._columns = [np.zeros(_LEAST, np.int64) for _ in range(3 if nodes else 2)]
        self._begin = self._end = 0

    def __len__(self) -> int:
        return self._end - self._begin

    @overload
    def __getitem__(self, index: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, ...]]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        if not -len(self) <= index < len(self):
            raise IndexError("step index out of range")
        position = (self._begin if index >= 0 else self._end) + index
        return tuple(int(column[position]) for column in self._columns)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        part = slice(self._begin, self._end)
        return iter(list(zip(*[column[part].tolist() for column in self._columns], strict=True)))

    def one(self, position: int) -> tuple[int, int]:
        """The episode and the step at this position."""
        position += self._begin
        return self._columns[0].item(position), self._columns[1].item(position)

    def at(self, positions: Array) -> list[tuple[int, ...]]:
        """The steps at these positions."""
        positions = positions + self._begin
        return list(zip(*[column[positions].tolist() for column in self._columns], strict=True))

    def extend(self, episode: int, first: int, count: int, nodes: Sequence[int] = ()) -> None:
        """Add the steps of an episode from `first` on, with their nodes."""
        if self._end + count > len(self._columns[0]):
            self._make_room(count)
        part = slice(self._end, self._end + count)
        self._columns[0][part] = episode
        self._columns[1][part] = range(first, first + count) if count < _LEAST else np.arange(first, first + count)
        if nodes:
            self._columns[2][part] = nodes
        self._end += count

    def restore(self, steps: Sequence[tuple[int, ...]]) -> None:
        """Replace all steps with the given ones."""
        self._begin = self._end = 0
        self._make_room(len(steps))
        if steps:
            for column, values in zip(self._columns, zip(*steps, strict=True), strict=True):
                column[: len(steps)] = values
        self._end = len(steps)

    def _make_room(self, count: int) -> None:
        size = max(_LEAST, 2 * (len(self) + count))
        for number, column in enumerate(self._columns):
            self._columns[number] = larger = np.zeros(size, np.int64)
            larger[: len(self)] = column[self._begin : self._end]
        self._begin, self._end = 0, len(self)

    def remove(self, episodes: Sequence[int], count: int) -> Array:
        """Remove all steps of episodes, `count` steps in total. Returns their nodes, in order, if steps have nodes.

        Steps before the last removed one move to the right. These are few, since the oldest episodes leave first.
        """
        if count == 0:
            return np.zeros(0, np.int64)
        size, numbers = count, self._columns[0]
        while True:
            part = slice(self._begin, min(self._begin + size, self._end))
            gone = np.isin(numbers[part], episodes) if len(episodes) > 1 else numbers[part] == episodes[0]
            if np.count_nonzero(gone) == count:
                break
            if part.stop == self._end:
                raise AssertionError("steps of an episode are missing")
            size *= 2
        removed: Array = self._columns[-1][part][gone]
        begin = part.stop - (len(gone) - count)
        for column in self._columns:
            column[begin : part.stop] = column[part][~gone]
        self._begin = begin
        return removed
