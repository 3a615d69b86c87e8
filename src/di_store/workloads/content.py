"""The content that loads write, and the readers' check that it arrived undamaged.

All content comes from a pool of 1,000 random frames of 84 x 84 bytes, the same in every process. Floats are these bytes
divided by 255, so no row is all zeros. Readers add up every byte of a batch. The sums of single rows must be among
those of the writers' rows; frames of a stream carry their episode and step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, repeat
from typing import Any, TypeAlias

import numpy as np

import di_store
from di_store.workloads.table_plans import LoadColumn, TablePlan

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Row: TypeAlias = dict[str, Any]
FRAME_BYTES = 84 * 84
POOL_BYTES = 1_000 * FRAME_BYTES
ROWS_BYTES, MOST_ROWS = 64 << 20, 1_000
STAMP_BYTES = 16
SLICES = 64
"""Batches of a table's rows are made from about so many different slices of them."""


def objects(size: int, most: int = 100, pool_bytes: int = 32 << 20) -> list[Array]:
    """At most `most` arrays uint8[size] to put. Together they exceed the caches, unless the arrays are tiny or huge."""
    first = np.resize(np.random.default_rng(0).integers(0, 255, min(max(size, 1), 1 << 20), np.uint8), size)
    return [first, *(first.copy() for _ in range(min(most - 1, pool_bytes // max(size, 1))))]


class LoadRows:
    """Rows of a table: `count` of them, in leaves ``[count, …]``, ragged ones as lists."""

    def __init__(self, columns: Sequence[LoadColumn], count: int) -> None:
        self.count = count
        self.leaves: Row = {}
        self._rng = np.random.default_rng(0)
        self._bytes = self._rng.integers(0, 256, POOL_BYTES, np.uint8)
        self._floats = self._bytes.astype(np.float32) / np.float32(255)
        ragged: dict[tuple[float, float, int, int], list[int]] = {}
        for column in columns:
            if column.lengths is not None:
                lengths = ragged.setdefault(column.lengths, [self._length(*column.lengths) for _ in range(count)])
                shapes = [(length, *column.fixed_shape) for length in lengths]
                self.leaves[column.name] = [self._filled(np.empty(shape, column.dtype)) for shape in shapes]
                continue
            leaf = self.leaves[column.name] = np.empty((count, *column.fixed_shape), column.dtype)
            for part in [leaf] if column.row_bytes < FRAME_BYTES // 8 else leaf:
                self._filled(part)

    @classmethod
    def of(cls, table: TablePlan) -> LoadRows:
        """Rows with more bytes than a cache holds, the same in every process."""
        return cls(table.columns, min(max(ROWS_BYTES // table.row_bytes, 8), MOST_ROWS))

    def single(self) -> Iterator[Row]:
        """One row after the other, without end."""
        return cycle([{name: leaf[at] for name, leaf in self.leaves.items()} for at in range(self.count)])

    def batches(self, size: int) -> Iterator[Row]:
        """Batches of neighbouring rows, without end. A batch that is larger than all rows repeats them."""
        if size > self.count:
            return repeat({name: np.resize(leaf, (size, *leaf.shape[1:])) for name, leaf in self.leaves.items()})
        starts = range(0, self.count - size + 1, max(1, (self.count - size) // SLICES))
        return cycle([{name: leaf[at : at + size] for name, leaf in self.leaves.items()} for at in starts])

    def sums(self) -> Array:
        """The sums of whole rows, sorted and without repetitions."""
        return np.unique(row_sums(self.leaves))

    def _filled(self, target: Array) -> Array:
        """With random content: one row's column, or all rows of a small one."""
        if target.dtype == np.bool_:
            target[...] = self._rng.random(target.shape) < 0.01
        elif target.dtype.kind == "f" or target.dtype == np.uint8:
            pool = self._floats if target.dtype.kind == "f" else self._bytes
            start = int(self._rng.integers(max(pool.size - target.size, 0) + 1))
            target[...] = np.resize(pool[start : start + target.size], target.shape)
        else:
            target[...] = self._rng.integers(0, 18, target.shape)
        return target

    def _length(self, mean: float, sigma: float, least: int, most: int) -> int:
        """One draw of a lognormal number, by its mean."""
        return int(np.clip(round(self._rng.lognormal(np.log(mean) - sigma**2 / 2, sigma)), least, most))


def row_sums(data: Mapping[str, Any]) -> Array:
    """uint64[n]: the sum of all bytes of each row. Each column has another factor, so that swapped columns differ."""
    total: Any = np.uint64(0)
    for factor, name in enumerate(sorted(data)):
        total = total + _leaf_sums(data[name]) * np.uint64(2 * factor + 1)
    return np.asarray(total)


def data_bytes(data: Mapping[str, Any]) -> int:
    """Bytes of a batch's arrays."""
    return sum(leaf.values.nbytes if isinstance(leaf, di_store.Ragged) else leaf.nbytes for leaf in data.values())


def _leaf_sums(leaf: Any) -> Array:
    if isinstance(leaf, list):
        leaf = di_store.Ragged(np.concatenate(leaf), np.cumsum([0, *map(len, leaf)], dtype=np.int64))
    if isinstance(leaf, di_store.Ragged):
        unit = np.dtype(f"u{leaf.values.dtype.itemsize}")
        values = np.ascontiguousarray(leaf.values).view(unit).reshape(len(leaf.values), -1).sum(axis=1, dtype=np.uint64)
        found: Array = np.add.reduceat(values, leaf.offsets[:-1].astype(np.int64))
        return found
    rows = np.ascontiguousarray(leaf).reshape(len(leaf), -1).view(np.uint8)
    whole = rows.shape[1] // 8 * 8
    total = rows[:, whole:].sum(axis=1, dtype=np.uint64)
    if whole:
        total += rows[:, :whole].view(np.uint64).sum(axis=1)
    return np.asarray(total)


class LoadSteps:
    """Steps of the lanes of one writer: rows without end, cut into episodes, stamped where the table says so."""

    def __init__(self, table: TablePlan, member: int, *, lanes: int, episode: tuple[int, int]) -> None:
        self._stamped = table.stamped
        self._lanes = max(1, lanes)
        self._lead = (lanes,) if lanes else ()
        self._rows = LoadRows.of(table)
        self._rng = np.random.default_rng(member + 1)
        self._steps = np.zeros(self._lanes, np.int64)
        self._new_lengths: Callable[[int], Array] = lambda n: self._rng.integers(episode[0], episode[1] + 1, n)
        self._lengths = self._new_lengths(self._lanes)
        # Unique by writer, lane and count; never 0, which is padding.
        self._episodes = (np.int64(member + 1) << 48) + (np.arange(self._lanes, dtype=np.int64) << 32)
        self._made_before: dict[int | None, Iterator[Row]] = {}

    @property
    def most_rows(self) -> int:
        """The most rows of one call without a repeated frame."""
        return max(1, MOST_ROWS // self._lanes)

    def rows(self, count: int | None = None) -> Row:
        """The next rows: leaves ``[count, lanes, …]``, without the lane axis if there are no lanes.

        None: one row, without the leading axis. Rows without stamps repeat after a while.
        """
        if self._stamped:
            return self._made(count)
        if count not in self._made_before:
            different = max(1, self._rows.count // (count or 1))
            self._made_before[count] = cycle([self._made(count) for _ in range(different)])
        return next(self._made_before[count])

    def _made(self, count: int | None) -> Row:
        lead = (count or 1, *self._lead)
        total, kept = (count or 1) * self._lanes, self._rows.count
        start = int(self._rng.integers(0, kept - total + 1)) if total <= kept else 0
        made: Row = {}
        stamps, ended = self._count(count or 1)
        for name, leaf in self._rows.leaves.items():
            part = leaf[start : start + total] if total <= kept else np.resize(leaf, (total, *leaf.shape[1:]))
            if name == self._stamped:
                part.reshape(total, -1)[:, :STAMP_BYTES] = stamps.reshape(total, 2).view(np.uint8)
            made[name] = (ended if name == "terminated" else part).reshape(*lead, *leaf.shape[1:])
        return {name: leaf[0] for name, leaf in made.items()} if count is None else made

    def _count(self, count: int) -> tuple[Array, Array]:
        """Episode and step of every row, int64[count, lanes, 2], and whether it is its episode's last."""
        stamps = np.empty((count, self._lanes, 2), np.int64)
        ended = np.zeros((count, self._lanes), np.bool_)
        for row in range(count):
            stamps[row, :, 0] = self._episodes
            stamps[row, :, 1] = self._steps
            self._steps += 1
            over = ended[row] = self._steps >= self._lengths
            self._episodes[over] += 1
            self._steps[over] = 0
            self._lengths[over] = self._new_lengths(int(over.sum()))
        return stamps, ended


def broken_frames(frames: Array) -> int:
    """Number of examples of stamped frames ``[n, time, 84, 84]`` that are not consecutive within one episode.

    Neighbours are consecutive steps; a stack that reaches before its episode's start repeats the first frame; padding
    is zero.
    """
    n, time = frames.shape[:2]
    stamps = np.ascontiguousarray(frames.reshape(n, time, -1)[:, :, :STAMP_BYTES]).view(np.int64)
    episode, step = stamps[..., 0], stamps[..., 1]
    real = episode[:, 1:] != 0
    same = episode[:, 1:] == episode[:, :-1]
    apart = step[:, 1:] - step[:, :-1]
    runs_on = same & ((apart == 1) | ((apart == 0) & (step[:, 1:] == 0)))
    return int(((real & ~runs_on).any(axis=1) | (episode[:, 0] == 0)).sum())
