"""What a named load is made of: columns, tables, who does what at which rate, and what must hold. Plain data.

A load is carried by real processes (`crew.py`): each `Role` is so many processes with the same duties, and each duty is
paced by absolute time at its share of the duty's rate, or does what it can where the rate is None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

import di_store
from di_store.policy.limiters import Limiter
from di_store.policy.samplers import Sampler
from di_store.policy.views import View

LEAST_CAPACITY = 64
"""Items that a table keeps, however small the scale."""

LEAST_OBJECT_BYTES = 1 << 20
"""Bytes of an object that no scale makes smaller."""


@dataclass(frozen=True)
class Column:
    """One column of the rows that are written.

    Attributes:
        name, dtype, shape: of one row; None as first dimension: ragged.
        lengths: of a ragged column: (mean, sigma of the logarithm, smallest, largest) of a lognormal number of rows,
            drawn once for all ragged columns of an element where they are equal.
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
    def size(self) -> int:
        """Values of one row, in the mean where it is ragged."""
        mean = self.lengths[0] if self.lengths is not None else 1.0
        return round(math.prod(mean if each is None else each for each in self.shape))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, in the mean where it is ragged."""
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def spec(self) -> di_store.Spec:
        """As `create_table` takes it."""
        return di_store.Spec(self.shape, self.dtype)


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """One table of a load.

    Attributes:
        columns: of a row.
        capacity: items it holds.
        view, sampler, limiter, settings: as `create_table` takes them; `settings` is what else it takes.
        fill: items that are there before anything is measured; -1: as many as it holds.
        sizes: logical bytes of an item, and about what it takes in the store, where they are not those of a row.
    """

    name: str = "items"
    columns: tuple[Column, ...]
    capacity: int
    view: View = field(default_factory=di_store.Step)
    sampler: Sampler = field(default_factory=di_store.Uniform)
    limiter: Limiter = field(default_factory=lambda: di_store.MinSize(1))
    settings: dict[str, Any] = field(default_factory=dict)
    fill: int = -1
    sizes: tuple[int, int] = (0, 0)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return sum(column.row_bytes for column in self.columns)

    @property
    def item_bytes(self) -> int:
        """Logical bytes of one item: what it would take by itself, as the row or paper counts it."""
        return self.sizes[0] or self.row_bytes

    @property
    def stored_bytes(self) -> int:
        """About what one item takes in the store."""
        return self.sizes[1] or self.item_bytes

    @property
    def filled(self) -> int:
        """Items that are there before anything is measured."""
        return self.capacity if self.fill < 0 else min(self.fill, self.capacity)

    @property
    def ragged(self) -> bool:
        """Whether rows vary in length."""
        return any(column.lengths is not None for column in self.columns)

    def scaled(self, scale: float) -> TablePlan:
        """With a share of the items, and of what the limiter starts at; a queue stays as it is."""
        limiter = self.limiter
        if isinstance(limiter, di_store.Queue):
            return self
        capacity = min(self.capacity, max(LEAST_CAPACITY, round(self.capacity * scale)))
        if isinstance(limiter, di_store.MinSize):
            limiter = di_store.MinSize(max(1, min(limiter.n, capacity // 2)))
        elif isinstance(limiter, di_store.SamplesPerInsert):
            limiter = replace(limiter, min_size=max(1, min(limiter.min_size, capacity // 2)))
        fill = self.fill if self.fill <= 0 else max(1, round(self.fill * scale))
        settings = dict(self.settings)
        if "max_bytes" in settings:
            settings["max_bytes"] = max(64 << 20, round(settings["max_bytes"] * scale))
        return replace(self, capacity=capacity, limiter=limiter, fill=fill, settings=settings)


# --- duties -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Insert:
    """Rows without a stream.

    Attributes:
        rate: elements a second, all processes together; None: as many as it can.
        batch: elements that come at once: one `extend`, or so many `insert` where `singly`.
        priority: whether the writer gives a priority.
    """

    label: str = "insert"
    table: str = "items"
    rate: float | None
    batch: int = 1
    singly: bool = False
    priority: bool = False


@dataclass(frozen=True, kw_only=True)
class Append:
    """Steps of a stream.

    Attributes:
        tables: that share the stream.
        rate: steps a second over all lanes and processes; None: as many as it can.
        lanes: of each process; 0: one stream without a lane axis.
        rows: of one call: 1 `append`, more `extend`.
        episode: steps of an episode, from the first number to the second.
        stamped: column of frames whose first 16 bytes tell episode and step; "" where none is checked.
        priority: whether the writer gives a priority.
    """

    label: str = "insert"
    tables: tuple[str, ...] = ("items",)
    rate: float | None
    lanes: int = 0
    rows: int = 1
    episode: tuple[int, int] = (1_000, 1_000)
    stamped: str = ""
    priority: bool = False


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Batches, and what a learner does with them.

    Attributes:
        source: table, or tables with their weights (one batch from a mixture).
        rate: elements a second; None: as many as it can.
        batch: elements of a batch.
        update: whether it gives new priorities for each batch.
        anneal: batches over which beta goes from the sampler's to 1; 0: it stays.
        prefetch: batches that a loader draws ahead; -1: plain `sample`.
        trim: every so many batches it deletes the oldest items above `fill` of the table; 0: never.
        least: elements that are enough (`min_n`, without lingering); 0: all.
    """

    label: str = "sample"
    source: str | tuple[tuple[str, float], ...] = "items"
    rate: float | None
    batch: int
    update: bool = False
    anneal: int = 0
    prefetch: int = -1
    trim: int = 0
    least: int = 0

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables it draws from."""
        return (self.source,) if isinstance(self.source, str) else tuple(name for name, _ in self.source)


@dataclass(frozen=True, kw_only=True)
class Publish:
    """Weights: `size` bytes, `rate` versions a second."""

    label: str = "publish"
    size: int
    rate: float | None


@dataclass(frozen=True, kw_only=True)
class Pull:
    """Looks for newer weights, `rate` a second over all processes."""

    label: str = "pull"
    size: int
    rate: float | None


@dataclass(frozen=True, kw_only=True)
class Put:
    """An object put, and deleted to make room."""

    label: str = "put"
    size: int
    rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Get:
    """An object that this process put, or another one did."""

    label: str = "get"
    size: int
    other: bool = False
    rate: float | None = None


DutyPlan: TypeAlias = Insert | Append | Draw | Publish | Pull | Put | Get


@dataclass(frozen=True)
class Role:
    """So many processes that do the same."""

    name: str
    processes: int
    duties: tuple[DutyPlan, ...]


@dataclass(frozen=True)
class Bar:
    """What must hold: a figure of the result at least, or at most, `value`."""

    figure: str
    relation: str  # ">=", "<=" or "<"
    value: float
    text: str

    def holds(self, figure: float) -> bool:
        """Whether `figure` meets it."""
        if self.relation == ">=":
            return figure >= self.value
        return figure <= self.value if self.relation == "<=" else figure < self.value


@dataclass(frozen=True, kw_only=True)
class Load:
    """A named load.

    Attributes:
        roles: the processes.
        most: labels that are let go as fast as they can after the paced run, together in one phase or each in its own;
            their rates over the paced ones are the headroom.
        bars: beside those that every load has: its rates, and nothing damaged.
        seconds: measured, when nobody says otherwise.
        objects_bytes: that objects and weights take in the store.
    """

    name: str
    title: str
    tables: tuple[TablePlan, ...] = ()
    roles: tuple[Role, ...]
    most: tuple[tuple[str, ...], ...] = ()
    bars: tuple[Bar, ...] = ()
    seconds: float = 60.0
    objects_bytes: int = 0

    def table(self, name: str) -> TablePlan:
        """The plan of one table."""
        return next(table for table in self.tables if table.name == name)

    @property
    def duties(self) -> tuple[tuple[Role, DutyPlan], ...]:
        """Every duty with its role."""
        return tuple((role, duty) for role in self.roles for duty in role.duties)

    @property
    def inserts_per_second(self) -> float:
        """Items a second that the paced writers make; 0 where they are not paced."""
        total = 0.0
        for _, plan in self.duties:
            if isinstance(plan, (Insert, Append)) and plan.rate is not None:
                table = self.table(plan.table if isinstance(plan, Insert) else plan.tables[0])
                total += plan.rate / table.view.rows_added
        return total

    @property
    def paced(self) -> bool:
        """Whether it has rates to hold."""
        return any(duty.rate for _, duty in self.duties)

    def scaled(self, scale: float) -> Load:
        """With tables of a share of the items, and large objects of a share of the bytes.

        Rates stay, and batches where a table can take them.
        """
        if scale == 1:
            return self
        tables = tuple(table.scaled(scale) for table in self.tables)
        by_name = {table.name: table for table in tables}

        def duty(plan: DutyPlan) -> DutyPlan:
            if isinstance(plan, Insert):
                return replace(plan, batch=max(1, min(plan.batch, by_name[plan.table].capacity // 2)))
            if isinstance(plan, (Put, Get)):
                return replace(plan, size=min(plan.size, max(LEAST_OBJECT_BYTES, round(plan.size * scale))))
            if isinstance(plan, Draw) and plan.trim:
                return replace(plan, trim=max(1, round(plan.trim * scale)))
            return plan

        roles = tuple(replace(role, duties=tuple(map(duty, role.duties))) for role in self.roles)
        objects = max(64 << 20, round(self.objects_bytes * scale)) if not tables else self.objects_bytes
        return replace(self, tables=tables, roles=roles, objects_bytes=objects)

    def lanes(self, table: str) -> int:
        """Lanes that write to a table at once, those of whoever fills it included."""
        count = 1
        for role, plan in self.duties:
            if isinstance(plan, Insert) and plan.table == table:
                count += role.processes
            elif isinstance(plan, Append) and table in plan.tables:
                count += role.processes * max(1, plan.lanes)
        return count

    @property
    def memory_bytes(self) -> int:
        """For a store that holds it all, with room for open chunks and batches being drawn; taken only as it is used.

        Rows of some hundred KB leave up to a sixth of a chunk empty, and the tables' own reckoning adds a fifth.
        """
        total = self.objects_bytes + (192 << 20)
        for table in self.tables:
            item = table.stored_bytes
            open_chunk = max(1 << 20, table.view.rows_spanned * table.row_bytes)
            total += round(table.capacity * (item * 1.6 + 192)) + 4 * self.lanes(table.name) * open_chunk
            total += int(table.settings.get("max_bytes", 0))
        for role, plan in self.duties:
            if isinstance(plan, Draw):
                item = max(self.table(name).stored_bytes for name in plan.tables)
                total += 3 * role.processes * plan.batch * item
        return total
