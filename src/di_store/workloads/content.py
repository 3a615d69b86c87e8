"""What the loads write, and how readers see that it arrived whole.

All content comes from a pool of 1,000 random frames of 84 x 84 bytes, the same in every process; floats are its bytes
over 255. Nothing is zero throughout. Readers add up every byte of a batch: for single rows the sums must be among those
of the rows that writers have; frames of a stream carry their episode and step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, TypeAlias

import numpy as np

import di_store
from di_store.workloads.load import Append, Column, TablePlan

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
POOL_FRAMES, FRAME_BYTES = 1_000, 84 * 84
ROWS_BYTES = 64 << 20
STAMP_BYTES = 16
_EVERY = 64
"""Rows between the starts of two slices of a table's content, at most."""


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
        elif flat.dtype.kind == "f":
            self._copy(self._floats, flat)
        elif flat.dtype == np.uint8:
            self._copy(self.frames.reshape(-1), flat)
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
        self.leaves: dict[str, Any] = {}
        ragged: dict[tuple[float, float, int, int], list[int]] = {}
        for column in columns:
            if column.lengths is not None:
                lengths = ragged.setdefault(column.lengths, [pool.length(column.lengths) for _ in range(count)])
                self.leaves[column.name] = [
                    pool.fill(np.empty((n, *column.fixed_shape), column.dtype)) for n in lengths
                ]
                continue
            leaf = np.empty((count, *column.fixed_shape), column.dtype)
            if column.size < FRAME_BYTES // 8:
                pool.fill(leaf)
            else:
                for row in leaf:
                    pool.fill(row)
            self.leaves[column.name] = leaf

    def single(self) -> Iterator[dict[str, Any]]:
        """One row after the other, without end."""
        return cycle([{name: leaf[at] for name, leaf in self.leaves.items()} for at in range(self.count)])

    def batches(self, size: int) -> Iterator[dict[str, Any]]:
        """Batches of neighbouring rows, without end."""
        starts = range(0, self.count - size + 1, max(1, (self.count - size) // _EVERY))
        made = [{name: leaf[at : at + size] for name, leaf in self.leaves.items()} for at in starts]
        return cycle(made)

    def sums(self) -> Array:
        """The sums that whole rows have, sorted, each once."""
        data = {name: _ragged(leaf) if isinstance(leaf, list) else leaf for name, leaf in self.leaves.items()}
        return np.unique(row_sums(data))


def table_rows(table: TablePlan, batch: int) -> Rows:
    """Rows for a table, the same in every process: so many that no cache holds them, and more than a batch.

    Args:
        table: whose rows.
        batch: the most that is inserted at once.
    """
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
    if isinstance(data, di_store.Ragged):
        return touch(data.values)
    return int(_leaf_sums(data.reshape(1, -1))[0])


def data_bytes(data: Any) -> int:
    """Bytes of a batch's arrays."""
    if isinstance(data, dict):
        return sum(map(data_bytes, data.values()))
    return int(data.values.nbytes if isinstance(data, di_store.Ragged) else data.nbytes)


def _ragged(rows: list[Array]) -> di_store.Ragged:
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
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
    """Steps of the lanes of one writer: rows without end, cut into episodes, frames stamped where that is asked for."""

    def __init__(self, plan: Append, columns: Sequence[Column], member: int) -> None:
        self._plan = plan
        self._lanes = max(1, plan.lanes)
        self._flagged = any(column.name == "terminated" for column in columns)
        self._pool = Pool()
        self._rng = np.random.default_rng(member + 1)
        self._steps = np.zeros(self._lanes, np.int64)
        self._lengths = self._new_lengths(self._lanes)
        # Told apart by writer, lane and count; never 0, which padding is.
        self._episodes = (np.int64(member + 1) << 48) + (np.arange(self._lanes, dtype=np.int64) << 32)
        row_bytes = sum(column.row_bytes for column in columns)
        kept = POOL_FRAMES if plan.stamped else min(max(ROWS_BYTES // row_bytes, 8), POOL_FRAMES)
        self._kept = kept
        self._others = {
            column.name: self._pool.fill(np.empty((kept, *column.fixed_shape), column.dtype))
            for column in columns
            if column.name not in (plan.stamped, "terminated")
        }
        self._plain: dict[int, Iterator[dict[str, Any]]] = {}

    def rows(self, count: int) -> dict[str, Any]:
        """The next rows: leaves ``[count, lanes, …]``, without the lane axis where there are no lanes."""
        if self._plan.stamped:
            return self._stamped(count)
        if count not in self._plain:
            blocks = max(1, self._kept // count)
            self._plain[count] = cycle([self._unstamped(count) for _ in range(blocks)])
        return next(self._plain[count])

    def row(self) -> dict[str, Any]:
        """The next row, without the leading axis."""
        if self._plan.stamped:
            return {name: leaf[0] for name, leaf in self._stamped(1).items()}
        if 0 not in self._plain:
            made = [{name: leaf[0] for name, leaf in self._unstamped(1).items()} for _ in range(self._kept)]
            self._plain[0] = cycle(made)
        return next(self._plain[0])

    @property
    def most_rows(self) -> int:
        """Of one call: what the pool has frames for."""
        return max(1, POOL_FRAMES // self._lanes)

    def _new_lengths(self, count: int) -> Array:
        least, most = self._plan.episode
        return self._rng.integers(least, most + 1, count)

    def _shape(self, leaf: Array, count: int) -> Array:
        lead = (count, self._lanes) if self._plan.lanes else (count,)
        return leaf.reshape(*lead, *leaf.shape[1:])

    def _unstamped(self, count: int) -> dict[str, Any]:
        total = count * self._lanes
        made = {}
        for name, leaf in self._others.items():
            start = int(self._rng.integers(0, len(leaf) - total + 1)) if total < len(leaf) else 0
            block = leaf[start : start + total] if total <= len(leaf) else np.resize(leaf, (total, *leaf.shape[1:]))
            made[name] = self._shape(block, count)
        _, ended = self._count(count)
        if self._flagged:
            made["terminated"] = self._shape(ended.reshape(-1), count)
        return made

    def _stamped(self, count: int) -> dict[str, Any]:
        total = count * self._lanes
        start = int(self._rng.integers(0, POOL_FRAMES - total + 1))
        frames = self._pool.frames[start : start + total]
        stamps, ended = self._count(count)
        frames.reshape(total, -1)[:, :STAMP_BYTES] = stamps.reshape(total, 2).view(np.uint8)
        made = {self._plan.stamped: self._shape(frames, count)}
        for name, leaf in self._others.items():
            made[name] = self._shape(leaf[start : start + total], count)
        if self._flagged:
            made["terminated"] = self._shape(ended.reshape(-1), count)
        return made

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
