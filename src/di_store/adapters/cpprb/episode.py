"""Writes transitions whose observations are stored once."""

from __future__ import annotations

from typing import Any

import numpy as np

import di_store
from di_store.adapters.cpprb.columns import ROW_NODE, Rows, TransitionColumns
from di_store.adapters.stored_array import Array


class OpenEpisode:
    """Writes windowed transitions. A transition that does not continue the previous one starts an episode."""

    def __init__(self, table: di_store.Table, columns: TransitionColumns) -> None:
        self._columns = columns
        self._both = [name for name in columns.next_of if name in columns.stacked]
        alone = [name for name in columns.stacked if name not in columns.next_of]
        # By name, where the next values stand; None: they are known from the stack.
        self._followed = [(name, f"next_{name}") for name in columns.next_of] + [(name, None) for name in alone]
        self._writer = table.writer()
        self._going = False
        self._after: dict[str, bytes] = {}  # what the last transition says of the next one

    def end(self) -> None:
        """End the episode: the next transition starts another one."""
        self._writer.end_episode()
        self._going = False

    def add(self, rows: Rows, priority: Any) -> Any:
        """Append transitions in order. Returns the key of the first one."""
        self._check_next(rows)
        n = len(next(iter(rows.values())))
        edges = [0, *self._breaks(rows)] if n > 1 else [0]
        first = None
        for start, stop in zip(edges, [*edges[1:], n], strict=True):
            part, some = rows, priority
            if len(edges) > 1:
                part = {name: each[start:stop] for name, each in rows.items()}
                some = priority[start:stop] if isinstance(priority, np.ndarray) else priority
            if self._going and (start or not self._continues(rows)):
                self.end()
            keys = self._append(part, some, stop - start)
            first = keys[0] if first is None else first
        for name, following in self._followed:
            ahead = rows[name][-1, ..., 1:] if following is None else rows[following][-1]
            self._after[name] = ahead.tobytes()
        return first

    def _continues(self, rows: Rows) -> bool:
        """Whether the first of these transitions follows the last one that was written."""
        for name, following in self._followed:
            known = rows[name][0, ..., :-1] if following is None else rows[name][0]
            if known.tobytes() != self._after.get(name):
                return False
        return True

    def _breaks(self, rows: Rows) -> list[int]:
        """Which of these transitions do not continue the previous one; the first is not checked."""
        breaks = np.zeros(len(next(iter(rows.values()))), np.bool_)
        for name, following in self._followed:
            if following is None:
                breaks[1:] |= _differ(rows[name][1:, ..., :-1], rows[name][:-1, ..., 1:])
            else:
                breaks[1:] |= _differ(rows[name][1:], rows[following][:-1])
        return [int(each) for each in np.flatnonzero(breaks)]

    def _check_next(self, rows: Rows) -> None:
        for name in self._both:
            if not np.array_equal(rows["next_" + name][..., :-1], rows[name][..., 1:]):
                raise ValueError(
                    f"next_{name} is not {name} shifted by one frame, which stack_compress={name!r} with "
                    f"next_of={name!r} needs: leave one of the two out, or give the stack as it was before the reset"
                )

    def _append(self, rows: Rows, priority: Any, n: int) -> Array:
        columns = self._columns
        newest = {name: columns.newest(name, rows[name]) for name in columns.names}
        after = {name: columns.newest(name, rows["next_" + name]) for name in columns.next_of}
        if lead := 0 if self._going else columns.frames - 1:
            older = {name: _older(rows[name], name in columns.stacked, lead) for name in newest}
            newest = {name: np.concatenate((older[name], each)) for name, each in newest.items()}
            after = {name: np.concatenate((newest[name][1 : lead + 1], each)) for name, each in after.items()}
            if isinstance(priority, np.ndarray):
                priority = np.concatenate((np.ones(lead), priority))
        if n == 1 and not lead:
            step = {ROW_NODE: {name: each[0] for name, each in newest.items()}, "truncated": False}
            ahead = {ROW_NODE: {name: each[0] for name, each in after.items()}} if after else None
            made = self._writer.append(step, next=ahead, priority=priority)
        else:
            steps = {ROW_NODE: newest, "truncated": np.zeros(n + lead, np.bool_)}
            made = self._writer.extend(steps, next={ROW_NODE: after} if after else None, priority=priority)
        self._going = True
        return made.keys  # type: ignore[no-any-return]


def _differ(first: Array, second: Array) -> Array:
    """Which entries of the leading axis differ: bool[n]."""
    found: Array = (first != second).any(axis=tuple(range(1, first.ndim)))
    return found


def _older(rows: Array, stacked: bool, lead: int) -> Array:
    """Rows before an episode: the older frames of its first stack, oldest first; zeros for missing frames."""
    frames = np.zeros((lead, *(rows.shape[1:-1] if stacked else rows.shape[1:])), rows.dtype)
    if stacked and (count := rows.shape[-1] - 1):
        frames[lead - count :] = np.moveaxis(rows[0, ..., :-1], -1, 0)
    return frames
