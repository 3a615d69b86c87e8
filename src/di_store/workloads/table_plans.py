"""The tables of a named load: their columns, and the arguments of `create_table`. Plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import di_store
from di_store.policy.limiters import Limiter
from di_store.policy.samplers import Sampler
from di_store.policy.views import View

LEAST_CAPACITY = 64
"""No scale makes a table's capacity smaller than this."""


@dataclass(frozen=True)
class LoadColumn:
    """One column of the rows that are written.

    Attributes:
        name, dtype, shape: type of one row; None as first dimension: ragged.
        lengths: for a ragged column: mean, sigma of the logarithm, smallest and largest of a lognormal number of rows,
            drawn once for all columns with the same lengths.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] = ()
    lengths: tuple[float, float, int, int] | None = None

    @property
    def fixed_shape(self) -> tuple[int, ...]:
        """The dimensions that do not vary."""
        return tuple(each for each in self.shape if each is not None)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row; for a ragged column the mean."""
        mean = self.lengths[0] if self.lengths is not None else 1.0
        return round(math.prod(mean if each is None else each for each in self.shape)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """One table of a load.

    Attributes:
        columns: columns of a row.
        capacity: number of items.
        view, sampler, limiter, settings: as in `create_table`; `settings` holds its other options.
        fill: items inserted before the measurement; -1: as many as the table holds.
        stamped: column of frames whose first 16 bytes are episode and step; "": no such column.
        logical_bytes: bytes of one item stored alone, by the count of the load's source, if they differ from a row's.
    """

    name: str = "items"
    columns: tuple[LoadColumn, ...]
    capacity: int
    view: View = field(default_factory=di_store.Step)
    sampler: Sampler = field(default_factory=di_store.Uniform)
    limiter: Limiter = field(default_factory=lambda: di_store.MinSize(1))
    settings: dict[str, Any] = field(default_factory=dict)
    fill: int = -1
    stamped: str = ""
    logical_bytes: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return sum(column.row_bytes for column in self.columns)

    @property
    def item_bytes(self) -> int:
        """Logical bytes of one item."""
        return self.logical_bytes or self.row_bytes

    @property
    def stored_bytes(self) -> int:
        """Approximate bytes of one item in the store."""
        return self.row_bytes * self.view.rows_added

    @property
    def filled(self) -> int:
        """Items inserted before the measurement."""
        return self.capacity if self.fill < 0 else min(self.fill, self.capacity)

    @property
    def limited_late(self) -> bool:
        """Whether the table's limiter is set only after filling, because filling would have to wait for draws."""
        return isinstance(self.limiter, di_store.SamplesPerInsert) and self.filled > 0

    def create(self, store: di_store.Store, *, lanes: int) -> di_store.Table:
        """Make the table. A table that could not be filled under its limiter begins without the limiter."""
        return store.create_table(
            self.name,
            capacity=self.capacity,
            view=self.view,
            schema={column.name: di_store.Spec(column.shape, column.dtype) for column in self.columns},
            sampler=self.sampler,
            limiter=di_store.MinSize(1) if self.limited_late else self.limiter,
            lanes=lanes,
            **self.settings,
        )

    def scaled(self, scale: float) -> TablePlan:
        """The table with a share of the items and of the limiter's minimum; a queue stays as it is."""
        limiter, settings = self.limiter, dict(self.settings)
        if isinstance(limiter, di_store.Queue):
            return self
        capacity = min(self.capacity, max(LEAST_CAPACITY, round(self.capacity * scale)))
        if isinstance(limiter, di_store.MinSize):
            limiter = di_store.MinSize(max(1, min(limiter.n, capacity // 2)))
        elif isinstance(limiter, di_store.SamplesPerInsert):
            limiter = replace(limiter, min_size=max(1, min(limiter.min_size, capacity // 2)))
        fill = self.fill if self.fill <= 0 else max(1, round(self.fill * scale))
        if "max_bytes" in settings:
            settings["max_bytes"] = max(64 << 20, round(settings["max_bytes"] * scale))
        return replace(self, capacity=capacity, limiter=limiter, fill=fill, settings=settings)
