"""Views: which windows of an episode are items, and what a window looks like to the learner.

Every view has `windows(episode)`, all windows that exist by now (never fewer later), and
`example(episode, window)`, the flat dict of arrays that a batch holds for it (without the batch axis).
Field names and defaults are those of the public views, so that a test builds both from the same keywords.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from .episodes import Episode, Row, under


@dataclass(frozen=True)
class Window:
    """Rows `start` (inclusive) to `stop` (exclusive) of an episode."""

    start: int
    stop: int


class Choices(dict[str, Any]):
    """The first example of an item that has several: every draw gives one of them.

    Attributes:
        every: all of them, each with the episode that it begins in and its first row there.
    """

    def __init__(self, every: list[tuple[tuple[int, int], Row]]) -> None:
        super().__init__(every[0][1])
        self.every = every


class View(Protocol):
    """What the model asks of a view."""

    def windows(self, episode: Episode) -> list[Window]: ...

    def example(self, episode: Episode, window: Window) -> Row: ...


def column_rows(episode: Episode, column: str, ats: Iterable[int]) -> list[Any]:
    """The column at rows `ats`, which all exist."""
    return [as_value(episode.value(at, column)) for at in ats]


def as_value(value: Any) -> Any:
    """A row of a column: an array, or of a ragged column the tuple."""
    return value if isinstance(value, tuple) else np.asarray(value)


def stack(episode: Episode, column: str, at: int, frames: int, pad: str) -> np.ndarray[Any, Any]:
    """`frames` frames ending at row `at`, oldest first, `[frames, …]`."""
    if episode.repeats(at, column):
        at = len(episode.rows) - 1
    first = np.asarray(episode.rows[0][column])
    before = first if pad == "first" else np.zeros_like(first)
    return np.stack([before if i < 0 else np.asarray(episode.value(i, column)) for i in range(at - frames + 1, at + 1)])


@dataclass(frozen=True)
class Step:
    """One row."""

    def windows(self, episode: Episode) -> list[Window]:
        return [Window(at, at + 1) for at in range(len(episode.rows))]

    def example(self, episode: Episode, window: Window) -> Row:
        return dict(episode.rows[window.start])


@dataclass(frozen=True)
class Transition:
    """n-step transitions: from row t to the observation k ≤ n rows later."""

    n_step: int = 1
    gamma: float = 0.99
    frame_stack: dict[str, int] | None = None
    frame_pad: str = "first"
    obs: tuple[str, ...] = ("obs",)
    reward: str = "reward"
    future: tuple[str, ...] = ()
    horizon: int = 1000

    def _stop(self, episode: Episode, start: int) -> int | None:
        """The row behind the window that begins at `start`, or None while that is open."""
        stop = start
        while stop < len(episode.rows) and stop - start < self.n_step:
            stop += 1
            if np.all(np.asarray(episode.rows[stop - 1].get("discount", 1.0)) == 0):
                return stop
        return stop if stop - start == self.n_step or episode.ended else None

    def _reaches(self, episode: Episode, start: int) -> bool:
        """Whether all is known that a later step of an item from `start` on is drawn from."""
        most = max(self.n_step, self.horizon)
        rows = len(episode.rows)
        if episode.knows(start + most, self.obs) and start + most <= rows:
            return True
        if not episode.ended:
            return False
        return episode.knows(rows, self.obs) or (episode.settled and rows - 1 - start >= self.n_step)

    def windows(self, episode: Episode) -> list[Window]:
        found = []
        for start in range(len(episode.rows)):
            stop = self._stop(episode, start)
            if self.future and not self._reaches(episode, start):
                continue
            if stop is not None and episode.knows(stop, self.obs):
                found.append(Window(start, stop))
        return found

    def example(self, episode: Episode, window: Window) -> Row:
        rows = episode.rows[window.start : window.stop]
        total: Any = 0.0
        factor: Any = 1.0
        for row in rows:
            total = total + factor * np.asarray(row[self.reward], dtype=np.float64)
            factor = factor * self.gamma * np.asarray(row.get("discount", 1.0), dtype=np.float64)
        last = rows[-1]
        if last.get("terminated", False):
            factor = factor * 0.0
        example: Row = dict(rows[0])
        example.update({flag: last[flag] for flag in ("terminated", "truncated") if flag in last})
        example[self.reward] = np.asarray(total, dtype=np.float32)
        example["discount"] = np.asarray(factor, dtype=np.float32)
        example["steps"] = np.asarray(len(rows))
        for column in [name for name in rows[0] if under(name, self.obs)]:
            example["next_" + column] = episode.value(window.stop, column)
        for column, frames in (self.frame_stack or {}).items():
            example[column] = stack(episode, column, window.start, frames, self.frame_pad)
            if under(column, self.obs):
                example["next_" + column] = stack(episode, column, window.stop, frames, self.frame_pad)
        return self._with_futures(episode, window, example) if self.future else example

    def _with_futures(self, episode: Episode, window: Window, example: Row) -> Row:
        start, rows = window.start, len(episode.rows)
        known = rows if episode.knows(rows, self.obs) else rows - 1
        every = []
        for later in range(1, min(self.horizon, known - start) + 1):
            more: Row = {"future_steps": np.asarray(later)}
            for column in [name for name in episode.rows[0] if under(name, self.future)]:
                more["future_" + column] = as_value(episode.value(start + later, column))
            every.append((episode.origins[start], example | more))
        return Choices(every)


@dataclass(frozen=True)
class Sequence:
    """Fixed-length sequences, `burn_in` real rows in front of `length` rows to learn from."""

    length: int
    period: int | None = None
    burn_in: int = 0
    tail: str = "pad"
    frame_stack: dict[str, int] | None = None
    first: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()
    cross_episodes: bool = False
    start: str = "grid"
    stride: int = 1
    last: dict[str, int] | None = None

    @property
    def span(self) -> int:
        """Steps from the first to the last row of one sequence."""
        return (self.total - 1) * self.stride + 1

    @property
    def total(self) -> int:
        """Rows of one sequence, burn-in included."""
        return self.burn_in + self.length

    def windows(self, episode: Episode) -> list[Window]:
        if self.start == "grid":
            return self._grid(episode)
        period = self.period or self.length * self.stride
        single = replace(self, period=1, start="grid")
        found, every = [], single.windows(episode)
        over = episode.ended and (
            episode.settled or not self.bootstrap or episode.knows(len(episode.rows), self.bootstrap)
        )
        for first in range(0, len(episode.rows), period):
            part = [window for window in every if first <= window.start < first + period]
            if part and (len(part) == period or over):
                found.append(Window(part[0].start, part[-1].stop))
        return found

    def _grid(self, episode: Episode) -> list[Window]:
        rows, found, start = len(episode.rows), [], 0
        while start + self.burn_in * self.stride < rows:
            stop = start + self.span
            if stop <= rows:
                found.append(Window(start, stop))
            elif episode.ended and self.tail == "shift" and rows >= self.span:
                found.append(Window(rows - self.span, rows))
            elif episode.ended and self.tail != "drop":
                found.append(Window(start, rows))
            if stop >= rows:
                break
            start += self.period or self.length * self.stride
        return [window for window in found if not self.bootstrap or episode.knows(window.stop, self.bootstrap)]

    def example(self, episode: Episode, window: Window) -> Row:
        if self.start == "grid":
            return self._example(episode, window)
        every = []
        for start in range(window.start, max(window.stop - self.span, window.start) + 1):
            example = self._example(episode, Window(start, min(start + self.span, window.stop)))
            every.append((episode.origins[start], example))
        return Choices(every)

    def _example(self, episode: Episode, window: Window) -> Row:
        taken = range(window.start, window.stop, self.stride)
        valid = len(taken)
        example: Row = {}
        for column in episode.rows[0]:
            if under(column, self.first):
                example[column] = episode.rows[window.start][column]
                continue
            frames = (self.frame_stack or {}).get(column, 1)
            extra = 1 if under(column, self.bootstrap) else 0
            begin = window.start - episode.origins[window.start][1]  # of the episode that the window starts in
            front = range(window.start - frames + 1, window.start)
            values = column_rows(episode, column, [max(at, begin) for at in front])
            values += column_rows(episode, column, taken)
            values += [as_value(episode.behind(window.stop, column))] * extra
            rows = next((rows for name, rows in (self.last or {}).items() if under(column, (name,))), self.total)
            example[column] = padded(values, frames - 1 + self.total + extra)[self.total - rows :]
        example["mask"] = np.arange(self.total) < valid
        example["lengths"] = np.asarray(valid)
        if self.cross_episodes:
            first = [episode.origins[at][1] == 0 for at in range(window.start, window.stop)]
            example["is_first"] = np.asarray(first + [False] * (self.total - valid))
        return example


@dataclass(frozen=True)
class Whole:
    """Whole episodes, cut at `max_length`; the public name is `Episode`."""

    max_length: int
    bootstrap: tuple[str, ...] = field(default=())

    def windows(self, episode: Episode) -> list[Window]:
        long = len(episode.rows) > self.max_length  # the cut item needs no end
        if not (episode.ended or long) or not episode.rows:
            return []
        stop = min(len(episode.rows), self.max_length)
        if self.bootstrap and not episode.knows(stop, self.bootstrap):
            return []
        return [Window(0, stop)]

    def example(self, episode: Episode, window: Window) -> Row:
        example: Row = {}
        for column in episode.rows[0]:
            extra = 1 if under(column, self.bootstrap) else 0
            values = column_rows(episode, column, range(window.stop + extra))
            example[column] = padded(values, self.max_length + extra)
        example["mask"] = np.arange(self.max_length) < window.stop
        example["lengths"] = np.asarray(window.stop)
        return example


def padded(values: list[Any], length: int) -> Any:
    """`[length, …]` with zeros behind `values`; a list of tuples, padded by empty ones, for a ragged column."""
    if isinstance(values[0], tuple):
        return values + [()] * (length - len(values))
    return np.stack(values + [np.zeros_like(values[0])] * (length - len(values)))
