"""The rows of a table's lanes, one after the other, so that each observation is stored once."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import numpy as np

import di_store
from di_store.adapters.stored_array import Array
from di_store.adapters.stores import NO_KEY
from di_store.adapters.trees import cut, differ


class Stream:
    """Appends rows of environments. An episode ends before each row that does not follow the previous one.

    Args:
        table: the table.
        lanes: number of environments.

    Attributes:
        last: uint64[lanes]: the newest row of each; `NO_KEY`: none.
    """

    def __init__(self, table: di_store.Table, lanes: int) -> None:
        self._table, self._lanes, self._pid = table, lanes, os.getpid()
        self._writer = table.writer(lanes=lanes)
        self.last: Array = np.full(lanes, NO_KEY)

    def write(
        self, steps: dict[str, Any], following: Any, lanes: Array | None, one: bool
    ) -> tuple[Array, Array | None]:
        """Append rows.

        Returns their keys, sorted by lane; and bool[n, lanes]: the rows before which an episode was ended because they
        do not continue it. None: no such rows.

        Args:
            steps: the columns, ``[n, lanes, …]``.
            following: the next observations; None: the table has no next observations.
            lanes: numbers of the lanes; None: all.
            one: whether these are one row of each lane, without the axis of n.
        """
        ahead = None if following is None else {"obs": following}
        try:
            if one:
                keys = self._writer.append(steps, next=ahead).keys
            else:
                keys = self._writer.extend(steps, next=ahead, lane=lanes).keys
        except di_store.WriterClosed:  # a thread that takes over from another gets a writer of its own
            if os.getpid() != self._pid:
                raise
            self._writer = self._table.writer(lanes=self._lanes)
            return self.write(steps, following, lanes, one)
        except ValueError:  # observations do not follow those before
            if following is None:
                raise
            with suppress(ValueError):  # the writer of a store on another machine would raise the error again
                self._writer.flush()
            if one:
                steps, following = cut(steps, None), cut(following, None)
            return self._write_broken(steps, following, lanes)
        if lanes is None:
            self.last = keys if one else keys[-1:] if self._lanes == 1 else keys.reshape(self._lanes, -1)[:, -1]
        else:
            self.last[lanes] = keys.reshape(len(lanes), -1)[:, -1]
        return keys, None

    def _write_broken(self, steps: dict[str, Any], following: Any, lanes: Array | None) -> tuple[Array, Array]:
        numbers = np.arange(self._lanes) if lanes is None else lanes
        ended = steps["terminated"] | steps["truncated"]
        broken = np.zeros_like(ended)
        broken[0] = self._jumped(numbers, cut(steps["obs"], 0))
        broken[1:] = differ(cut(following, slice(0, -1)), cut(steps["obs"], slice(1, None)), 2) & ~ended[:-1]
        edges, found = [*np.flatnonzero(broken[1:].any(axis=1)) + 1, len(ended)], []
        for begin, end in zip([0, *edges], edges, strict=False):
            if broken[begin].any():
                self._writer.end_episode(lane=numbers[broken[begin]])
            keys = self.write(cut(steps, slice(begin, end)), cut(following, slice(begin, end)), lanes, False)[0]
            found.append(keys.reshape(len(numbers), -1))
        return np.concatenate(found, axis=1).reshape(-1), broken

    def _jumped(self, lanes: Array, obs: Any) -> Array:
        """Which of these lanes are in an episode that these observations do not continue."""
        batch = self._table.peek(self.last[lanes], columns=("next_obs", "terminated", "truncated"))
        differs = differ(batch.data["next_obs"], obs, 1) & ~(batch.data["terminated"] | batch.data["truncated"])
        found: Array = (self.last[lanes] != NO_KEY) & (differs | ~np.asarray(batch.live))
        return found

    def clear(self) -> None:
        """The table was emptied: end all episodes."""
        self.last = np.full(self._lanes, NO_KEY)
        try:
            self._writer.end_episode()
        except di_store.WriterClosed:  # of another thread: its episodes have ended
            if os.getpid() != self._pid:
                raise
