"""What the processes of a load do: one class for each kind of duty, with its options, done step by step.

A duty is plain data until a process begins it with `join`. Store calls go through `Calls`, which times each one and
adds up this thread's CPU time inside them. What surrounds them (making content, checking what arrived) does not count.
"""

from __future__ import annotations

import time
import warnings
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, repeat
from typing import Any

import numpy as np

import di_store
from di_store.workloads.content import Array, Row, Rows, Steps, broken_frames, data_bytes, objects, row_sums
from di_store.workloads.tables import TablePlan

WEIGHTS = "policy"
SHARED_OBJECT = "0b" * 20
"""Id of the object that `Get(other=True)` gets; whoever starts the load puts it."""

FILL_BYTES = 32 << 20
"""Of rows that are inserted at once to fill a table."""


class Over(Exception):
    """The phase ended during a call: raised inside it by a signal."""


class Calls:
    """Times the store calls of one phase.

    Attributes:
        spent: nanoseconds of every call, by label.
        cpu: nanoseconds of this thread inside calls; 0 without `with_cpu`, as reading that clock costs as much as a
            small call.
        waiting: whether a call is under way.
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


@dataclass(frozen=True)
class Place:
    """Where a process does its duties.

    Attributes:
        store: this process's handle.
        tables, duties: of the whole load.
        number, processes: of this process among those of its role, and their count.
    """

    store: di_store.Store
    tables: Mapping[str, TablePlan]
    duties: tuple[Duty, ...]
    number: int
    processes: int

    def part(self, count: int) -> int:
        """The part of a count that is for this process."""
        return count // self.processes + (self.number < count % self.processes)


class Duty:
    """What one process does again and again.

    Attributes:
        label: names its calls and figures.
        rate: elements a second, all processes together; None: as many as it can; 0: none.
        elements: that a step handles, in the mean.
        follows: whether a step needs what other processes bring in its period, and so is due at the period's end.
        bytes: moved since the phase began.
    """

    label: str
    rate: float | None
    elements = 1
    follows = False
    bytes = 0

    def join(self, place: Place) -> None:
        """Make what steps need, and do this process's part before anything is measured."""
        self._place, self._store = place, place.store
        self._rng = np.random.default_rng(place.number)
        self._begin()

    def _begin(self) -> None:
        raise NotImplementedError

    def step(self, calls: Calls, check: bool) -> int:
        """One step; how many elements it handled. `check`: whether what arrives is added up and compared."""
        raise NotImplementedError

    def audit(self, draws: int) -> dict[str, float]:
        """Figures over the whole run, by name; `draws`: how many examples to draw to test a mixture's shares."""
        return {}

    def close(self) -> None:
        """Let go."""


@dataclass(kw_only=True)
class Write(Duty):
    """Brings rows into tables.

    Attributes:
        tables: that take them.
        lanes: of each process; 0: one stream without a lane axis.
        priority: whether it gives priorities.
    """

    label: str = "insert"
    tables: tuple[str, ...] = ("items",)
    rate: float | None
    lanes: int = 0
    priority: bool = False

    def _feed(self, call: Callable[..., Any], rows: Iterator[Row], shape: tuple[int, ...], element_bytes: int) -> None:
        """What a step calls, with which rows and so many priorities, until it has handled its elements."""
        self._call, self._rows, self._shape, self._element_bytes = call, rows, shape, element_bytes

    def step(self, calls: Calls, check: bool) -> int:
        """All elements at once, or row by row."""
        for _ in range(1 if self._shape or self.lanes else self.elements):
            calls(self.label, self._call, next(self._rows), priority=self._priorities(*self._shape))
        self.bytes += self.elements * self._element_bytes
        return self.elements

    def _priorities(self, *shape: int) -> Any:
        return self._rng.random(shape or None) + 0.01 if self.priority else None


@dataclass(kw_only=True)
class Insert(Write):
    """Inserts rows into one table: `batch` at a time by one `extend`, or one by one where `singly`."""

    batch: int = 1
    singly: bool = False

    @property
    def at_once(self) -> int:
        """Rows of one call."""
        return 1 if self.singly else self.batch

    def _begin(self) -> None:
        plan = self._place.tables[self.tables[0]]
        table = self._store.table(plan.name)
        self.elements = self.batch
        content = Rows.of(plan.columns, self.at_once)
        left = self._place.part(plan.filled)
        count = max(1, min(FILL_BYTES // plan.row_bytes, content.count, left or 1))
        batches = content.batches(count)
        while left > 0:
            batch = {name: leaf[:left] for name, leaf in next(batches).items()}
            table.extend(batch, priority=self._priorities(min(left, count)))
            left -= count
        if self.at_once > 1:
            self._feed(table.extend, content.batches(self.batch), (self.batch,), plan.item_bytes)
        else:
            self._feed(table.insert, content.single(), (), plan.item_bytes)


@dataclass(kw_only=True)
class Append(Write):
    """Appends steps to a stream that its tables share; `rate` counts steps over all lanes.

    Attributes:
        rows: of one call: 1 `append`, more `extend`.
        episode: fewest and most steps of an episode.
        stamped: column of frames whose first 16 bytes are episode and step; "" where none is checked.
    """

    rows: int = 1
    episode: tuple[int, int] = (1_000, 1_000)
    stamped: str = ""

    def _begin(self) -> None:
        plans = [self._place.tables[name] for name in self.tables]
        columns, row_bytes = plans[0].columns, plans[0].row_bytes
        steps = Steps(columns, self._place.number, lanes=self.lanes, episode=self.episode, stamped=self.stamped)
        self._writer = self._writer_of(plans)
        self.elements = self.rows * max(1, self.lanes)
        self._fill(steps, [plan for plan in plans if plan.filled])
        if self.rows > 1:
            self._feed(self._writer.extend, map(steps.rows, repeat(self.rows)), self._shape_of(self.rows), row_bytes)
        else:
            self._feed(self._writer.append, map(steps.rows, repeat(None)), (), row_bytes)

    def _fill(self, steps: Steps, wanted: list[TablePlan]) -> None:
        """Write this process's part of the items of tables that are to be full, many rows at once."""
        apart = 0 < len(wanted) < len(self.tables)
        writer = self._writer_of(wanted) if apart else self._writer
        left = max((self._place.part(plan.filled) for plan in wanted), default=0)
        lanes = max(1, self.lanes)
        while left > 0:
            most = max(1, min(FILL_BYTES // (wanted[0].row_bytes * lanes), steps.most_rows))
            rows = min(most, -(-left * wanted[0].view.rows_added // lanes))
            made = writer.extend(steps.rows(rows), priority=self._priorities(*self._shape_of(rows)))
            left -= len((made if isinstance(made, di_store.Items) else made[wanted[0].name]).keys)
        if apart:
            writer.close()

    def _shape_of(self, rows: int) -> tuple[int, ...]:
        return (rows, self.lanes) if self.lanes else (rows,)

    def _writer_of(self, plans: list[TablePlan]) -> di_store.Writer:
        tables, lanes = [self._store.table(plan.name) for plan in plans], self.lanes or None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # some streams are one endless episode
            return tables[0].writer(lanes=lanes) if len(tables) == 1 else self._store.writer(tables, lanes=lanes)

    def close(self) -> None:
        """End the episodes, without waiting for a limiter."""
        try:
            self._writer.close(timeout=0.0)
        except di_store.StoreError:
            pass  # nobody draws any more, so there may be no room for the last items


@dataclass(kw_only=True)
class Draw(Duty):
    """Draws batches, as a learner does.

    Attributes:
        source: a table, or tables with their weights in a mixture.
        rate: elements a second.
        update: whether it gives new priorities for each batch.
        anneal: batches over which beta goes from the sampler's to 1; 0: constant.
        prefetch: batches that a loader draws ahead; -1: plain `sample`.
        trim: batches between two deletions of the oldest items above the table's `fill`; 0: never.
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

    def _begin(self) -> None:
        plans = [self._place.tables[name] for name in self.tables]
        plan = self._plan = plans[0]
        source: Any = self.source
        self._table: Any = self._store.table(source) if isinstance(source, str) else self._store.mix(dict(source))
        self.elements = self.batch
        self.follows = any(isinstance(plan.limiter, di_store.Queue) for plan in plans)
        self._loader = self._table.loader(self.batch, prefetch=self.prefetch) if self.prefetch >= 0 else None
        self._options: dict[str, float] = {"min_n": self.least, "linger": 0} if self.least else {}
        self._beta = float(getattr(plan.sampler, "beta", None) or 0.0)
        streams = [duty for duty in self._place.duties if isinstance(duty, Append)]
        self._stamped = {duty.stamped for duty in streams} - {""}
        inserts = [d.at_once for d in self._place.duties if isinstance(d, Insert) and d.tables[0] == plan.name]
        self._known = None if streams else Rows.of(plan.columns, max(inserts, default=1)).sums()
        self._limited = "max_times_sampled" in plan.settings
        self._keys: list[Array] = []
        self._batch: Any = None
        self._batches = self._damaged = 0
        self._updates = cycle([self._rng.random(self.batch) + 1e-5 for _ in range(64)])

    def step(self, calls: Calls, check: bool) -> int:
        """One batch, new priorities for it, and a look at every byte."""
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
        self.bytes += data_bytes(batch.data)
        if check:
            self._damaged += self._look(batch.data)
        return len(batch)

    def audit(self, draws: int) -> dict[str, float]:
        """Damaged examples; how often one item was delivered; how far a mixture is from its shares, in sigmas."""
        found = {"damaged": float(self._damaged)}
        if self._keys:
            found["most_deliveries"] = float(np.unique(np.concatenate(self._keys), return_counts=True)[1].max())
        if not isinstance(self.source, str) and not self.follows:  # a queue would run empty
            total = second = 0
            while total < draws:
                batch = self._table.sample(self.batch, columns=("reward",))
                total += len(batch)
                second += int((batch.source == 1).sum())
            share = self.source[1][1] / sum(weight for _, weight in self.source)
            sigma = float(np.sqrt(total * share * (1 - share)))
            found |= {"mixture_draws": total, "mixture_second": second}
            found["mixture_sigmas"] = abs(second - total * share) / sigma
        return found

    def close(self) -> None:
        """Give back what was drawn ahead."""
        if self._loader is not None:
            self._loader.close()

    def _trim(self) -> None:
        """Delete the oldest items above what the table was filled with, all at once."""
        above = len(self._table) - self._plan.filled
        if above > 0:
            self._table.delete(self._table.keys(n=above))

    def _look(self, data: Mapping[str, Any]) -> int:
        """Read every byte; how many examples are not what was written."""
        sums = row_sums(data)
        if self._known is not None:
            return int((~np.isin(sums, self._known)).sum())
        names = [name for name in self._stamped for name in (name, f"next_{name}") if name in data]
        return sum(broken_frames(data[name]) for name in names if data[name].ndim == 4)


@dataclass(kw_only=True)
class Publish(Duty):
    """Publishes `rate` versions of weights a second, of `size` bytes: every word is the version, beside the time."""

    label: str = "publish"
    size: int
    rate: float | None

    def _begin(self) -> None:
        self._tree: dict[str, Array] = {"at": np.zeros(1, np.int64), "layers": np.ones(self.size // 4, np.uint32)}
        self._version = self._store.publish(WEIGHTS, self._tree)

    def step(self, calls: Calls, check: bool) -> int:
        """One version."""
        self._tree["layers"].fill(self._version + 1)
        self._tree["at"][0] = time.monotonic_ns()
        self._version = calls(self.label, self._store.publish, WEIGHTS, self._tree)
        self.bytes += self.size
        return 1


@dataclass(kw_only=True)
class Pull(Duty):
    """Looks for newer weights, `rate` times a second over all processes."""

    label: str = "pull"
    size: int
    rate: float | None

    def _begin(self) -> None:
        self._version: int | None = None
        self._torn = self._pulled = 0

    def step(self, calls: Calls, check: bool) -> int:
        """One look; a version that is found must be whole and newer than the one before."""
        found = calls(self.label, self._store.latest, WEIGHTS, newer_than=self._version)
        if found is not None:
            layers = found.value["layers"]
            if self._version is not None:
                calls.spent["publish to pull"].append(time.monotonic_ns() - int(found.value["at"][0]))
            self._pulled += 1
            self._torn += int(layers.min() != layers.max() or layers[0] != found.version)
            self._version = found.version
            self.bytes += self.size
        return 1

    def audit(self, draws: int) -> dict[str, float]:
        """Versions that mix two, and how many this process pulled."""
        return {"damaged": float(self._torn), "least_pulled": float(self._pulled)}


@dataclass(kw_only=True)
class Put(Duty):
    """Puts an object and deletes it to make room, as one call."""

    label: str = "put"
    size: int
    rate: float | None = None

    def _begin(self) -> None:
        self._values = cycle(objects(self.size))

    def step(self, calls: Calls, check: bool) -> int:
        """One put and delete."""
        calls(self.label, self._put, next(self._values))
        self.bytes += self.size
        return 1

    def _put(self, value: Array) -> None:
        self._store.delete([self._store.put(value)])


@dataclass(kw_only=True)
class Get(Duty):
    """Gets an object that this process put, or that another one did (`other`), as a view of the store's memory."""

    label: str = "get"
    size: int
    other: bool = False
    rate: float | None = None

    def _begin(self) -> None:
        own = not self.other
        self._ref = self._store.put(objects(self.size, 1)[0]) if own else di_store.Ref.parse(SHARED_OBJECT)

    def step(self, calls: Calls, check: bool) -> int:
        """One get."""
        calls(self.label, self._store.get, self._ref)
        return 1
