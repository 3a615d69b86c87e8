"""The work of a load's processes: one class for each kind of duty, with its options, done step by step.

A duty is plain data until a process begins it with `join`. Store calls go through `Calls`, which times each one and
adds up this thread's CPU time inside them. Other work (making content, checking received data) does not count.
"""

from __future__ import annotations

import time
import warnings
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle, repeat
from typing import Any

import numpy as np

import di_store
from di_store.workloads.content import Array, LoadRows, LoadSteps, Row, broken_frames, data_bytes, objects, row_sums
from di_store.workloads.table_plans import TablePlan

WEIGHTS = "policy"
SHARED_OBJECT = "0b" * 20
"""Id of the object that `Get(other=True)` gets; whoever starts the load puts it."""

FILL_BYTES = 32 << 20
"""Bytes of rows that are inserted at once to fill a table."""

ALONE_BYTES = 1_000_000
"""Rows from this size are inserted one by one."""


class Over(Exception):
    """The phase ended during a call: raised inside it by a signal."""


class Calls:
    """Times the store calls of one phase.

    Attributes:
        spent: nanoseconds of every call, by label.
        cpu: nanoseconds of this thread inside calls; 0 without `with_cpu`, because reading this clock costs as much as
            a small call.
        waiting: whether a call is running.
        last: nanoseconds of the last call.
    """

    def __init__(self, *, with_cpu: bool) -> None:
        self.spent: dict[str, array[int]] = defaultdict(lambda: array("q"))
        self.cpu = self.last = 0
        self.waiting = False
        self._clock: Callable[[], int] = time.thread_time_ns if with_cpu else int

    def __call__(self, label: str, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Call, and time it."""
        cpu = self._clock()
        begin = time.perf_counter_ns()
        self.waiting = True
        try:
            found = call(*arguments, **keywords)
        finally:
            self.waiting = False
            end = time.perf_counter_ns()
            self.cpu += self._clock() - cpu
        self.last = end - begin
        self.spent[label].append(self.last)
        return found


@dataclass(kw_only=True)
class Duty:
    """The repeated work of one process.

    Attributes:
        label: name of its calls and figures.
        rate: elements per second, all processes together; None: as many as possible; 0: no elements.
        elements: mean number of elements of a step; known once a process has begun the duty.
        follows: whether a step needs data that other processes write in its period; such a step is due at the period's
            end.
    """

    label: str
    rate: float | None = None
    elements = 1
    follows = False

    def join(self, store: di_store.Store, tables: Mapping[str, TablePlan], number: int, processes: int) -> None:
        """Prepare the steps, and do the part of process `number` of its role before the measurement."""
        self._store, self._tables = store, tables
        self._number, self._processes = number, processes
        self._rng = np.random.default_rng(number)
        self._begin()

    def _begin(self) -> None:
        raise NotImplementedError

    def step(self, calls: Calls, check: bool) -> tuple[int, int]:
        """Do one step; returns its number of elements and bytes. `check`: whether to compare the received data."""
        raise NotImplementedError

    def audit(self, draws: int) -> dict[str, float]:
        """Figures over the whole run, by name; `draws`: number of examples to draw to test a mixture's shares."""
        return {}

    def close(self) -> None:
        """Release everything."""


@dataclass(kw_only=True)
class Write(Duty):
    """Writes rows to tables.

    Attributes:
        tables: tables that take the rows.
        lanes: lanes of each process; 0: one stream without a lane axis.
        priority: whether the duty gives priorities.
    """

    label: str = "insert"
    tables: tuple[str, ...] = ("items",)
    lanes: int = 0
    priority: bool = False

    def step(self, calls: Calls, check: bool) -> tuple[int, int]:
        """All elements at once, or row by row."""
        for _ in range(self._turns):
            calls(self.label, self._call, next(self._rows), priority=self._priorities(*self._shape))
        return self.elements, self.elements * self._element_bytes

    def _calls(
        self, call: Any, rows: Iterator[Row], shape: tuple[int, ...], element_bytes: int, turns: int = 1
    ) -> None:
        """The calls of a step: the function, its rows, the number of priorities, and the number of calls."""
        self._call, self._rows, self._shape, self._turns = call, rows, shape, turns
        self._element_bytes = element_bytes

    def _part(self, plan: TablePlan) -> int:
        """The share of this process in the items that fill a table."""
        return plan.filled // self._processes + (self._number < plan.filled % self._processes)

    def _priorities(self, *shape: int) -> Any:
        return self._rng.random(shape or None) + 0.01 if self.priority else None


@dataclass(kw_only=True)
class Insert(Write):
    """Inserts rows into one table, `batch` at a time: by one `extend`, large ones one by one."""

    batch: int = 1

    def _begin(self) -> None:
        plan = self._tables[self.tables[0]]
        table = self._store.table(plan.name)
        self.elements = max(1, min(self.batch, plan.capacity // 2))
        content, left = LoadRows.of(plan), self._part(plan)
        batches = content.batches(max(1, min(FILL_BYTES // plan.row_bytes, content.count, left)))
        while left > 0:
            batch = {name: leaf[:left] for name, leaf in next(batches).items()}
            left -= len(table.extend(batch, priority=self._priorities(len(next(iter(batch.values()))))))
        if self.elements > 1 and plan.row_bytes < ALONE_BYTES:
            self._calls(table.extend, content.batches(self.elements), (self.elements,), plan.item_bytes)
        else:
            self._calls(table.insert, content.single(), (), plan.item_bytes, self.elements)


@dataclass(kw_only=True)
class Append(Write):
    """Appends steps to a stream that its tables share; `rate` counts steps over all lanes.

    Attributes:
        rows: rows of one call: 1 is `append`, more are `extend`.
        episode: fewest and most steps of an episode.
    """

    rows: int = 1
    episode: tuple[int, int] = (1_000, 1_000)

    def _begin(self) -> None:
        plans = [self._tables[name] for name in self.tables]
        steps = LoadSteps(plans[0], self._number, lanes=self.lanes, episode=self.episode)
        lanes, row_bytes = max(1, self.lanes), plans[0].row_bytes
        self._writer = self._writer_of(plans)
        wanted = [plan for plan in plans if plan.filled]
        writer = self._writer if len(wanted) in (0, len(plans)) else self._writer_of(wanted)
        left = max(map(self._part, wanted), default=0)
        while left > 0:
            most = max(1, min(FILL_BYTES // (row_bytes * lanes), steps.most_rows))
            rows = min(most, -(-left * plans[0].view.rows_added // lanes))
            made: Any = writer.extend(steps.rows(rows), priority=self._priorities(*self._shape_of(rows)))
            left -= len((made[wanted[0].name] if len(wanted) > 1 else made).keys)
        if writer is not self._writer:
            writer.close()
        self.elements = self.rows * lanes
        if self.rows > 1:
            feed = map(steps.rows, repeat(self.rows))
            self._calls(self._writer.extend, feed, self._shape_of(self.rows), row_bytes)
        else:
            self._calls(self._writer.append, map(steps.rows, repeat(None)), (), row_bytes)

    def _shape_of(self, rows: int) -> tuple[int, ...]:
        return (rows, self.lanes) if self.lanes else (rows,)

    def _writer_of(self, plans: list[TablePlan]) -> di_store.Writer:
        tables, lanes = [self._store.table(plan.name) for plan in plans], self.lanes or None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # some streams are one endless episode
            return tables[0].writer(lanes=lanes) if len(tables) == 1 else self._store.writer(tables, lanes=lanes)

    def close(self) -> None:
        """End the episodes, without waiting for a limiter."""
        with suppress(di_store.StoreError):  # nobody draws any more, so there may be no room for the last items
            self._writer.close(timeout=0.0)


@dataclass(kw_only=True)
class Draw(Duty):
    """Draws batches, as a learner does.

    Attributes:
        source: tables with their weights; from several it draws mixtures.
        update: whether it gives new priorities for each batch.
        anneal: batches over which beta goes from the sampler's to 1; 0: constant.
        prefetch: batches that a loader draws ahead; -1: plain `sample`.
        trim: batches between two deletions of the oldest items above the table's `fill`; 0: never.
        least: number of elements that suffices (`min_n`, without lingering); 0: all.
    """

    label: str = "sample"
    source: tuple[tuple[str, float], ...] = (("items", 1.0),)
    batch: int
    update: bool = False
    anneal: int = 0
    prefetch: int = -1
    trim: int = 0
    least: int = 0

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables it draws from."""
        return tuple(name for name, _ in self.source)

    def _begin(self) -> None:
        plans = [self._tables[name] for name in self.tables]
        plan = self._plan = plans[0]
        one = len(plans) == 1
        self._table: Any = self._store.table(plan.name) if one else self._store.mix(dict(self.source))
        self.elements = self.batch
        self.follows = any(isinstance(plan.limiter, di_store.Queue) for plan in plans)
        self._loader = self._table.loader(self.batch, prefetch=self.prefetch) if self.prefetch >= 0 else None
        self._options: dict[str, float] = {"min_n": self.least, "linger": 0} if self.least else {}
        self._beta = float(getattr(plan.sampler, "beta", None) or 0.0)
        # The items of other views are made of several rows.
        self._known = LoadRows.of(plan).sums() if isinstance(plan.view, di_store.Step) else None
        self._limited = "max_times_sampled" in plan.settings
        self._keys: list[Array] = []
        self._batch: Any = None
        self._batches = self._damaged = 0
        self._updates = cycle([self._rng.random(self.batch) + 1e-5 for _ in range(64)])

    def step(self, calls: Calls, check: bool) -> tuple[int, int]:
        """One batch, new priorities for it, and a check of every byte."""
        table = self._table
        if self.anneal:
            self._options["beta"] = self._beta + (1 - self._beta) * min(1.0, self._batches / self.anneal)
        if self._loader is not None:
            batch = calls(self.label, next, self._loader)
        else:
            batch = calls(self.label, table.sample, self.batch, **self._options)
        if self.update:
            calls("update", table.update_priorities, batch.keys, next(self._updates)[: len(batch)])
        self._batches += 1
        if self.trim and self._batches % self.trim == 0:
            calls("trim", self._trim)
        self._batch = batch  # frees the batch before, so that its buffers are used again
        if self._limited:
            self._keys.append(batch.keys.copy())
        if check:
            self._damaged += self._look(batch.data)
        return len(batch), data_bytes(batch.data)

    def audit(self, draws: int) -> dict[str, float]:
        """Number of damaged examples, deliveries of one item, and a mixture's deviation from its shares in sigmas."""
        found = {"damaged": float(self._damaged)}
        if self._keys:
            found["most_deliveries"] = float(np.unique(np.concatenate(self._keys), return_counts=True)[1].max())
        if len(self.source) > 1 and not self.follows:  # a queue would run empty
            total = second = 0
            while total < draws:
                batch = self._table.sample(self.batch, columns=("reward",))
                total += len(batch)
                second += int((batch.source == 1).sum())
            share = self.source[1][1] / sum(weight for _, weight in self.source)
            sigma = float(np.sqrt(total * share * (1 - share)))
            found["mixture_sigmas"] = abs(second - total * share) / sigma
        return found

    def close(self) -> None:
        """Give back batches that were drawn ahead."""
        if self._loader is not None:
            self._loader.close()

    def _trim(self) -> None:
        """Delete the oldest items above the table's `fill`, all at once."""
        above = len(self._table) - self._plan.filled
        if above > 0:
            self._table.delete(self._table.keys(n=above))

    def _look(self, data: Mapping[str, Any]) -> int:
        """Read every byte; returns the number of examples that differ from the written ones."""
        sums = row_sums(data)
        if self._known is not None:
            return int((~np.isin(sums, self._known)).sum())
        stamped = (self._plan.stamped, f"next_{self._plan.stamped}")
        return sum(broken_frames(data[name]) for name in stamped if name in data and data[name].ndim == 4)


@dataclass(kw_only=True)
class Publish(Duty):
    """Publishes `rate` versions of weights a second, of `size` bytes: each word is the version's number."""

    label: str = "publish"
    size: int

    def _begin(self) -> None:
        self._tree: dict[str, Array] = {"at": np.zeros(1, np.int64), "layers": np.ones(self.size // 4, np.uint32)}
        self._version = self._store.publish(WEIGHTS, self._tree)

    def step(self, calls: Calls, check: bool) -> tuple[int, int]:
        """One version."""
        self._tree["layers"].fill(self._version + 1)
        self._tree["at"][0] = time.monotonic_ns()
        self._version = calls(self.label, self._store.publish, WEIGHTS, self._tree)
        return 1, self.size


@dataclass(kw_only=True)
class Pull(Duty):
    """Looks for newer weights, `rate` times a second over all processes."""

    label: str = "pull"
    size: int

    def _begin(self) -> None:
        self._version: int | None = None
        self._torn = self._pulled = 0

    def step(self, calls: Calls, check: bool) -> tuple[int, int]:
        """Pull once; a version that is found must be whole and newer than the previous one."""
        found = calls(self.label, self._store.latest, WEIGHTS, newer_than=self._version)
        if found is None:
            return 1, 0
        layers = found.value["layers"]
        if self._version is not None:
            calls.spent["publish to pull"].append(time.monotonic_ns() - int(found.value["at"][0]))
        self._pulled += 1
        self._torn += int(layers.min() != layers.max() or layers[0] != found.version)
        self._version = found.version
        return 1, self.size

    def audit(self, draws: int) -> dict[str, float]:
        """Number of versions that mix two, and number of versions that this process pulled."""
        return {"damaged": float(self._torn), "least_pulled": float(self._pulled)}


@dataclass(kw_only=True)
class Put(Duty):
    """Puts an object and deletes it to make room.

    Attributes:
        held: number of objects that are put before they are deleted; the deletes then do not count. 0: a put and its
            delete are one call.
        pool: largest number of different objects, and their bytes.
    """

    label: str = "put"
    size: int
    held: int = 0
    pool: tuple[int, int] = (100, 32 << 20)

    def _begin(self) -> None:
        self._values = cycle(objects(self.size, *self.pool))
        self._refs: list[di_store.Ref] = []

    def step(self, calls: Calls, check: bool) -> tuple[int, int]:
        """One put."""
        if not self.held:
            calls(self.label, self._put, next(self._values))
        else:
            self._refs.append(calls(self.label, self._store.put, next(self._values)))
            if len(self._refs) == self.held:
                self._store.delete(self._refs)
                self._refs.clear()
        return 1, self.size

    def _put(self, value: Array) -> None:
        self._store.delete([self._store.put(value)])


@dataclass(kw_only=True)
class Get(Duty):
    """Gets objects that this process put, or one that another process put (`other`).

    Attributes:
        copy: whether to get copies; otherwise the duty gets views of the store's memory, and no bytes are moved.
        pool: largest number of different objects, and their bytes.
    """

    label: str = "get"
    size: int
    other: bool = False
    copy: bool = False
    pool: tuple[int, int] = (1, 0)

    def _begin(self) -> None:
        shared = [di_store.Ref.parse(SHARED_OBJECT)]
        self._refs = cycle(shared if self.other else self._store.put_many(objects(self.size, *self.pool)))
        self._get = partial(self._store.get, copy=True) if self.copy else self._store.get

    def step(self, calls: Calls, check: bool) -> tuple[int, int]:
        """One get."""
        calls(self.label, self._get, next(self._refs))
        return 1, self.size if self.copy else 0


@dataclass(kw_only=True)
class Update(Duty):
    """Gives new priorities to `batch` keys of a full table, always the same ones."""

    label: str = "update"
    batch: int

    def _begin(self) -> None:
        table = self._store.table("items")
        keys = self._rng.choice(table.keys(), self.batch, replace=False)
        self._update = partial(table.update_priorities, keys, self._rng.random(self.batch) + 0.5)
        self.elements = self.batch

    def step(self, calls: Calls, check: bool) -> tuple[int, int]:
        """One update."""
        calls(self.label, self._update)
        return self.batch, 0
