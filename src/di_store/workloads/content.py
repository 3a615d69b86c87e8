"""What the loads write, and how readers check that it arrived whole.

All content comes from a pool of 1,000 random frames of 84 x 84 bytes, the same in every process; floats are its bytes
over 255, so nothing is zero throughout. Readers add up every byte of a batch. The sums of single rows must be among
those of the rows that writers have; frames of a stream carry their episode and step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, TypeAlias

import numpy as np

import di_store
from di_store.workloads.tables import Column, TablePlan

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Row: TypeAlias = dict[str, Any]
POOL_FRAMES, FRAME_BYTES = 1_000, 84 * 84
ROWS_BYTES = 64 << 20
STAMP_BYTES = 16
SLICES = 64
"""Batches of a table's rows are about so many different slices of them."""


def objects(size: int, most: int = 100, pool_bytes: int = 32 << 20) -> list[Array]:
    """Arrays uint8[size] to put, `most` at most: more than a cache holds, where they are not tiny or huge."""
    first = np.resize(np.random.default_rng(0).integers(0, 255, min(max(size, 1), 1 << 20), np.uint8), size)
    return [first, *(first.copy() for _ in range(min(most - 1, pool_bytes // max(size, 1))))]


class Pool:
    """Random values of any type."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self.frames: Array = self._rng.integers(0, 256, (POOL_FRAMES, 84, 84), np.uint8)
        self._floats = self.frames.reshape(-1).astype(np.float32) / np.float32(255)

    def fill(self, target: Array) -> Array:
        """Random content for one row's column, or for all rows of a small one."""
        flat = target.reshape(-1)
        if flat.dtype == np.bool_:
            flat[...] = self._rng.random(flat.size) < 0.01
        elif flat.dtype.kind == "f" or flat.dtype == np.uint8:
            self._copy(self._floats if flat.dtype.kind == "f" else self.frames.reshape(-1), flat)
        else:
            flat[...] = self._rng.integers(0, 18, flat.size)
        return target

    def length(self, lengths: tuple[float, float, int, int]) -> int:
        """One draw of a lognormal number, by its mean."""
        mean, sigma, least, most = lengths
        drawn = self._rng.lognormal(np.log(mean) - sigma**2 / 2, sigma)
        return int(min(max(round(drawn), least), most))

    def _copy(self, pool: Array, flat: Array) -> None:
        done = 0
        while done < flat.size:
            start = int(self._rng.integers(0, pool.size - 1)) if flat.size < pool.size else 0
            count = min(flat.size - done, pool.size - start)
            flat[done : done + count] = pool[start : start + count]
            done += count


class Rows:
    """Rows of a table without a stream: `count` of them, in leaves ``[count, …]``, ragged ones as lists."""

    def __init__(self, columns: Sequence[Column], count: int) -> None:
        pool = Pool()
        self.count = count
        self.leaves: Row = {}
        ragged: dict[tuple[float, float, int, int], list[int]] = {}
        for column in columns:
            if column.lengths is not None:
                lengths = ragged.setdefault(column.lengths, [pool.length(column.lengths) for _ in range(count)])
                shapes = [(length, *column.fixed_shape) for length in lengths]
                self.leaves[column.name] = [pool.fill(np.empty(shape, column.dtype)) for shape in shapes]
                continue
            leaf = self.leaves[column.name] = np.empty((count, *column.fixed_shape), column.dtype)
            for part in [leaf] if column.size < FRAME_BYTES // 8 else leaf:
                pool.fill(part)

    def single(self) -> Iterator[Row]:
        """One row after the other, without end."""
        return cycle([{name: leaf[at] for name, leaf in self.leaves.items()} for at in range(self.count)])

    def batches(self, size: int) -> Iterator[Row]:
        """Batches of neighbouring rows, without end."""
        starts = range(0, self.count - size + 1, max(1, (self.count - size) // SLICES))
        return cycle([{name: leaf[at : at + size] for name, leaf in self.leaves.items()} for at in starts])

    def sums(self) -> Array:
        """The sums that whole rows have, sorted, each once."""
        data = {name: _ragged(leaf) if isinstance(leaf, list) else leaf for name, leaf in self.leaves.items()}
        return np.unique(row_sums(data))


def table_rows(table: TablePlan, batch: int) -> Rows:
    """Rows for a table, the same in every process: more than a cache holds and than `batch`, the largest insert."""
    count = min(max(ROWS_BYTES // table.row_bytes, 8), 1_000)
    if batch > 1:
        count = max(count, batch + max(8, min(256, (ROWS_BYTES // 4) // table.row_bytes)))
    return Rows(table.columns, count)


def row_sums(data: Mapping[str, Any]) -> Array:
    """uint64[n]: every byte of each row, added up; each column with another factor, so that swapped ones differ."""
    total: Any = np.uint64(0)
    for factor, name in enumerate(sorted(data)):
        total = total + _leaf_sums(data[name]) * np.uint64(2 * factor + 1)
    return np.asarray(total)


def touch(data: Any) -> int:
    """Add up every byte of a batch of a stream; the sum."""
    if isinstance(data, dict):
        return sum(map(touch, data.values()))
    values = data.values if isinstance(data, di_store.Ragged) else data
    return int(_leaf_sums(values.reshape(1, -1))[0])


def data_bytes(data: Any) -> int:
    """Bytes of a batch's arrays."""
    if isinstance(data, dict):
        return sum(map(data_bytes, data.values()))
    return int(data.values.nbytes if isinstance(data, di_store.Ragged) else data.nbytes)


def _ragged(rows: list[Array]) -> di_store.Ragged:
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return di_store.Ragged(np.concatenate(rows), offsets)


def _leaf_sums(leaf: Any) -> Array:
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


# --- streams ----------------------------------------------------------------------------------------------------------


class Steps:
    """Steps of the lanes of one writer: rows without end, cut into episodes, those of column `stamped` stamped."""

    def __init__(
        self, columns: Sequence[Column], member: int, *, lanes: int, episode: tuple[int, int], stamped: str
    ) -> None:
        self._stamped, self._episode = stamped, episode
        self._lanes = max(1, lanes)
        self._lead = (lanes,) if lanes else ()
        self._flagged = any(column.name == "terminated" for column in columns)
        self._pool = Pool()
        self._rng = np.random.default_rng(member + 1)
        self._steps = np.zeros(self._lanes, np.int64)
        self._lengths = self._new_lengths(self._lanes)
        # Unique by writer, lane and count; never 0, which is padding.
        self._episodes = (np.int64(member + 1) << 48) + (np.arange(self._lanes, dtype=np.int64) << 32)
        row_bytes = sum(column.row_bytes for column in columns)
        self._kept = POOL_FRAMES if stamped else min(max(ROWS_BYTES // row_bytes, 8), POOL_FRAMES)
        self._others = {
            column.name: self._pool.fill(np.empty((self._kept, *column.fixed_shape), column.dtype))
            for column in columns
            if column.name not in (stamped, "terminated")
        }
        self._plain: dict[int, Iterator[Row]] = {}

    @property
    def most_rows(self) -> int:
        """Of one call: what the pool has frames for."""
        return max(1, POOL_FRAMES // self._lanes)

    def rows(self, count: int) -> Row:
        """The next rows: leaves ``[count, lanes, …]``, without the lane axis where there are no lanes."""
        if self._stamped:
            return self._made(count)
        if count not in self._plain:
            self._plain[count] = cycle([self._made(count) for _ in range(max(1, self._kept // count))])
        return next(self._plain[count])

    def row(self) -> Row:
        """The next row, without the leading axis."""
        if self._stamped:
            return _first(self._made(1))
        if 0 not in self._plain:
            self._plain[0] = cycle([_first(self._made(1)) for _ in range(self._kept)])
        return next(self._plain[0])

    def _made(self, count: int) -> Row:
        total = count * self._lanes
        start = int(self._rng.integers(0, self._kept - total + 1)) if total <= self._kept else 0
        made: Row = {}
        stamps, ended = self._count(count)
        if self._stamped:
            made[self._stamped] = self._pool.frames[start : start + total]
            made[self._stamped].reshape(total, -1)[:, :STAMP_BYTES] = stamps.reshape(total, 2).view(np.uint8)
        for name, leaf in self._others.items():
            fits = total <= len(leaf)
            made[name] = leaf[start : start + total] if fits else np.resize(leaf, (total, *leaf.shape[1:]))
        if self._flagged:
            made["terminated"] = ended.reshape(-1)
        return {name: leaf.reshape(count, *self._lead, *leaf.shape[1:]) for name, leaf in made.items()}

    def _count(self, count: int) -> tuple[Array, Array]:
        """Episode and step of every row, int64[count, lanes, 2], and whether it is its episode's last."""
        stamps = np.empty((count, self._lanes, 2), np.int64)
        ended = np.zeros((count, self._lanes), np.bool_)
        for row in range(count):
            stamps[row, :, 0] = self._episodes
            stamps[row, :, 1] = self._steps
            self._steps += 1
            over = self._steps >= self._lengths
            if over.any():
                ended[row] = over
                self._episodes[over] += 1
                self._steps[over] = 0
                self._lengths[over] = self._new_lengths(int(over.sum()))
        return stamps, ended

    def _new_lengths(self, count: int) -> Array:
        least, most = self._episode
        return self._rng.integers(least, most + 1, count)


def _first(rows: Row) -> Row:
    return {name: leaf[0] for name, leaf in rows.items()}


def broken_frames(frames: Array) -> int:
    """How many examples of stamped frames ``[n, time, 84, 84]`` do not run on within one episode.

    Neighbours are consecutive steps, or the first frame repeated where a stack reaches before its episode's start;
    padding is zero.
    """
    n, time = frames.shape[:2]
    stamps = np.ascontiguousarray(frames.reshape(n, time, -1)[:, :, :STAMP_BYTES]).view(np.int64)
    episode, step = stamps[..., 0], stamps[..., 1]
    real = episode[:, 1:] != 0
    same = episode[:, 1:] == episode[:, :-1]
    apart = step[:, 1:] - step[:, :-1]
    runs_on = same & ((apart == 1) | ((apart == 0) & (step[:, 1:] == 0)))
    return int(((real & ~runs_on).any(axis=1) | (episode[:, 0] == 0)).sum())
