"""What the processes of a load do: one class for each kind of duty, one `step` of it after the other.

Store calls go through `Calls`, which times each by itself and adds up the CPU time of this thread inside them. What
surrounds them (making content, adding up what arrived) is not the store's.
"""

from __future__ import annotations

import time
import warnings
from array import array
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np

import di_store
from di_store.workloads.content import (
    Array,
    Steps,
    broken_frames,
    data_bytes,
    row_sums,
    table_rows,
    touch,
)
from di_store.workloads.load import Append, Draw, DutyPlan, Get, Insert, Load, Publish, Pull, Put

WEIGHTS = "policy"
OTHERS_OBJECT = "0b" * 20
"""Id of the object that `Get(other=True)` gets: `carry` puts it."""

FILL_BYTES = 32 << 20
MIXTURE_DRAWS = 100_000


class Over(Exception):
    """A phase has ended while a call waits: raised inside it by a signal."""


class Calls:
    """Times store calls.

    Attributes:
        spent: nanoseconds of every call, by label.
        cpu: nanoseconds of this thread inside calls; not taken, as asking costs as much as a small call, where the
            phase is about rates alone.
        waiting: whether a call is under way.
        last: nanoseconds of the last call.
    """

    def __init__(self) -> None:
        self.waiting = False
        self.last = 0
        self.clear(with_cpu=True)

    def clear(self, *, with_cpu: bool) -> None:
        """Begin a phase."""
        self._clock: Callable[[], int] = time.thread_time_ns if with_cpu else _no_clock
        self.spent: dict[str, array[int]] = {}
        self.cpu = 0

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
        self.add(label, self.last)
        return found

    def add(self, label: str, nanoseconds: int) -> None:
        """Note a time that was taken elsewhere."""
        found = self.spent.get(label)
        if found is None:
            found = self.spent[label] = array("q")
        found.append(nanoseconds)


def _no_clock() -> int:
    return 0


class Duty:
    """What one process does again and again.

    Attributes:
        elements: that a step handles, in the mean.
        follows: whether a step needs what others bring in the time between two of them, and so comes at its end.
        bytes: moved since the phase began.
    """

    elements = 1
    follows = False

    def __init__(self) -> None:
        self.bytes = 0

    def fill(self) -> None:
        """Do this process's share before anything is measured."""

    def step(self, calls: Calls, check: bool) -> int:
        """One step; how many elements it handled. `check`: whether what arrives is added up and compared."""
        raise NotImplementedError

    def audit(self, draws: int) -> dict[str, float]:
        """Figures found over the whole run, by name; `draws`: how many a look at a mixture takes."""
        return {}

    def close(self) -> None:
        """Let go."""


class Inserting(Duty):
    """Rows without a stream."""

    def __init__(self, plan: Insert, store: di_store.Store, load: Load, share: tuple[int, int]) -> None:
        super().__init__()
        self._plan, self._share = plan, share
        self._rows: Iterator[dict[str, Any]] | None = None
        self._what = load.table(plan.table)
        self._table = store.table(plan.table)
        self.elements = plan.batch
        self._at_once = 1 if plan.singly else plan.batch
        self._rng = np.random.default_rng(share[0])

    def fill(self) -> None:
        """Its share of the table's items, many at once."""
        content = table_rows(self._what, self._at_once)
        left = _share_of(self._what.filled, self._share)
        at_once = max(1, min(FILL_BYTES // self._what.row_bytes, content.count, left or 1))
        batches = content.batches(at_once)
        while left > 0:
            batch = next(batches)
            if left < at_once:
                batch = {name: leaf[:left] for name, leaf in batch.items()}
            self._table.extend(batch, priority=self._priority(min(left, at_once)))
            left -= at_once
        self._rows = content.batches(self._at_once) if self._at_once > 1 else content.single()

    def step(self, calls: Calls, check: bool) -> int:
        """One batch, at once or row by row."""
        assert self._rows is not None
        plan, table = self._plan, self._table
        if self._at_once > 1:
            calls(plan.label, table.extend, next(self._rows), priority=self._priority(self._at_once))
        else:
            for _ in range(plan.batch):
                calls(plan.label, table.insert, next(self._rows), priority=self._priority(None))
        self.bytes += plan.batch * self._what.item_bytes
        return plan.batch

    def _priority(self, count: int | None) -> Any:
        if not self._plan.priority:
            return None
        return self._rng.random(count) + 0.01


class Appending(Duty):
    """Steps of a stream."""

    def __init__(self, plan: Append, store: di_store.Store, load: Load, share: tuple[int, int]) -> None:
        super().__init__()
        self._plan, self._share, self._store = plan, share, store
        self._plans = [load.table(name) for name in plan.tables]
        self._steps = Steps(plan, self._plans[0].columns, share[0])
        self._writer = self._open(plan.tables)
        self.elements = plan.rows * max(1, plan.lanes)
        self._rng = np.random.default_rng(share[0])

    def _open(self, names: tuple[str, ...]) -> di_store.Writer:
        lanes = self._plan.lanes or None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # some streams are one endless episode
            if len(names) == 1:
                return self._store.table(names[0]).writer(lanes=lanes)
            return self._store.writer([self._store.table(name) for name in names], lanes=lanes)

    def fill(self) -> None:
        """Its share of the items of the tables that are to be full, many rows at once."""
        wanted = [plan for plan in self._plans if plan.filled]
        if not wanted:
            return
        apart = len(wanted) < len(self._plans)
        writer = self._open(tuple(plan.name for plan in wanted)) if apart else self._writer
        left = max(_share_of(plan.filled, self._share) for plan in wanted)
        lanes = max(1, self._plan.lanes)
        at_once = max(1, min(FILL_BYTES // (self._plans[0].row_bytes * lanes), self._steps.most_rows))
        while left > 0:
            rows = min(at_once, -(-left * wanted[0].view.rows_added // lanes))
            made = writer.extend(self._steps.rows(rows), priority=self._priority(rows))
            left -= len((made if isinstance(made, di_store.Items) else made[wanted[0].name]).keys)
        if apart:
            writer.close()

    def step(self, calls: Calls, check: bool) -> int:
        """One `append` or `extend`."""
        plan = self._plan
        if plan.rows == 1:
            row = self._steps.row()
            priority = 0.01 + float(self._rng.random()) if plan.priority else None
            calls(plan.label, self._writer.append, row, priority=priority)
        else:
            rows = self._steps.rows(plan.rows)
            calls(plan.label, self._writer.extend, rows, priority=self._priority(plan.rows))
        self.bytes += self.elements * self._plans[0].row_bytes
        return self.elements

    def close(self) -> None:
        """End the episodes, without waiting for a limiter."""
        try:
            self._writer.close(timeout=0.0)
        except di_store.StoreError:
            pass  # nobody draws any more, so the last items have no room

    def _priority(self, rows: int) -> Any:
        if not self._plan.priority:
            return None
        return self._rng.random((rows, self._plan.lanes) if self._plan.lanes else rows) + 0.01


class Drawing(Duty):
    """Batches, and what a learner does with them."""

    def __init__(self, plan: Draw, store: di_store.Store, load: Load, share: tuple[int, int]) -> None:
        super().__init__()
        self._plan, self._load = plan, load
        self._what = load.table(plan.tables[0])
        mixed = not isinstance(plan.source, str)
        self._table: Any = store.mix(dict(plan.source)) if mixed else store.table(plan.tables[0])  # type: ignore[arg-type]
        self.elements = plan.batch
        self._beta = float(getattr(self._what.sampler, "beta", None) or 0.0)
        self._batches = 0
        self.follows = any(isinstance(load.table(name).limiter, di_store.Queue) for name in plan.tables)
        self._batch: Any = None
        self._loader = self._table.loader(plan.batch, prefetch=plan.prefetch) if plan.prefetch >= 0 else None
        self._stamped = {duty.stamped for _, duty in load.duties if isinstance(duty, Append)} - {""}
        streamed = any(isinstance(duty, Append) for _, duty in load.duties)
        inserts = [d for _, d in load.duties if isinstance(d, Insert) and d.table == self._what.name]
        at_once = max((1 if d.singly else d.batch for d in inserts), default=1)
        self._known = None if streamed else table_rows(self._what, at_once).sums()
        self._limit = int(self._what.settings.get("max_times_sampled", 0))
        self._keys: list[Array] = []
        self._damaged = 0
        self._rng = np.random.default_rng(share[0])
        self._priorities = cycle([self._rng.random(plan.batch) + 1e-5 for _ in range(64)])

    def step(self, calls: Calls, check: bool) -> int:
        """One batch, new priorities for it, and a look at every byte."""
        plan, table = self._plan, self._table
        if self._loader is not None:
            batch = calls(plan.label, next, self._loader)
        elif plan.least:
            batch = calls(plan.label, table.sample, plan.batch, min_n=plan.least, linger=0)
        elif plan.anneal:
            beta = self._beta + (1 - self._beta) * min(1.0, self._batches / plan.anneal)
            batch = calls(plan.label, table.sample, plan.batch, beta=beta)
        else:
            batch = calls(plan.label, table.sample, plan.batch)
        if plan.update:
            calls("update", table.update_priorities, batch.keys, next(self._priorities)[: len(batch)])
        self._batches += 1
        if plan.trim and self._batches % plan.trim == 0:
            calls("trim", self._trim)
        self._batch = batch  # the one before is let go here, so that its buffers come back
        if self._limit:
            self._keys.append(batch.keys.copy())
        self.bytes += data_bytes(batch.data)
        if check:
            self._damaged += self._look(batch.data)
        return len(batch)

    def audit(self, draws: int) -> dict[str, float]:
        """Damaged examples; how often one item was delivered; what a mixture draws."""
        found = {"damaged": float(self._damaged)}
        if self._keys:
            found["most_deliveries"] = float(np.unique(np.concatenate(self._keys), return_counts=True)[1].max())
        if not isinstance(self._plan.source, str) and not self.follows:  # a queue would be empty soon
            total = second = 0
            while total < draws:
                batch = self._table.sample(self._plan.batch, columns=("reward",))
                total += len(batch)
                second += int((batch.source == 1).sum())
            share = self._plan.source[1][1] / sum(weight for _, weight in self._plan.source)
            sigma = float(np.sqrt(total * share * (1 - share)))
            found |= {"mixture_draws": total, "mixture_second": second}
            found["mixture_sigmas"] = abs(second - total * share) / sigma
        return found

    def close(self) -> None:
        """Give back what was drawn ahead."""
        if self._loader is not None:
            self._loader.close()

    def _trim(self) -> None:
        """Remove the oldest items above what the table was filled with, all at once."""
        above = len(self._table) - self._what.filled
        if above > 0:
            self._table.delete(self._table.keys(n=above))

    def _look(self, data: Any) -> int:
        """Touch every byte; how many examples are not what was written."""
        if self._known is not None:
            return int((~np.isin(row_sums(data), self._known)).sum())
        touch(data)
        names = [name for name in self._stamped for name in (name, f"next_{name}") if name in data]
        return sum(broken_frames(data[name]) for name in names if data[name].ndim == 4)


class Publishing(Duty):
    """New weights: every byte that of its version, after the time of publishing."""

    def __init__(self, plan: Publish, store: di_store.Store, load: Load, share: tuple[int, int]) -> None:
        super().__init__()
        self._plan, self._store = plan, store
        self._tree: dict[str, Array] = {"at": np.zeros(1, np.int64), "layers": np.zeros(plan.size // 4, np.uint32)}
        self._version = 0

    def fill(self) -> None:
        """The first version, for those who pull."""
        self._next()

    def step(self, calls: Calls, check: bool) -> int:
        """One version."""
        self._tree["layers"].fill(self._version + 1)
        self._tree["at"][0] = time.monotonic_ns()
        self._version = calls(self._plan.label, self._store.publish, WEIGHTS, self._tree)
        self.bytes += self._plan.size
        return 1

    def _next(self) -> None:
        self._tree["layers"].fill(self._version + 1)
        self._version = self._store.publish(WEIGHTS, self._tree)


class Pulling(Duty):
    """Looks for newer weights and reads them."""

    def __init__(self, plan: Pull, store: di_store.Store, load: Load, share: tuple[int, int]) -> None:
        super().__init__()
        self._plan, self._store = plan, store
        self._version: int | None = None
        self._torn = 0
        self._pulled = 0

    def step(self, calls: Calls, check: bool) -> int:
        """One look; a version that is found must be of one piece and newer than the one before."""
        found = calls(self._plan.label, self._store.latest, WEIGHTS, newer_than=self._version)
        if found is not None:
            layers = found.value["layers"]
            age = time.monotonic_ns() - int(found.value["at"][0])
            if self._version is not None:
                calls.add("publish to pull", age)
            self._pulled += 1
            self._torn += int(layers.min() != layers.max() or layers[0] != found.version)
            self._version = found.version
            self.bytes += self._plan.size
        return 1

    def audit(self, draws: int) -> dict[str, float]:
        """Versions that were of two pieces, and how many this process pulled."""
        return {"damaged": float(self._torn), "least_pulled": float(self._pulled)}


class Putting(Duty):
    """One object put, and deleted to make room."""

    def __init__(self, plan: Put, store: di_store.Store, load: Load, share: tuple[int, int]) -> None:
        super().__init__()
        self._plan, self._store = plan, store
        self._values = cycle(objects(plan.size))

    def step(self, calls: Calls, check: bool) -> int:
        """Put and delete, as one call."""
        calls(self._plan.label, self._put, next(self._values))
        self.bytes += self._plan.size
        return 1

    def _put(self, value: Array) -> None:
        self._store.delete([self._store.put(value)])


class Getting(Duty):
    """One object, as a view of the store's memory."""

    def __init__(self, plan: Get, store: di_store.Store, load: Load, share: tuple[int, int]) -> None:
        super().__init__()
        self._plan, self._store = plan, store
        self._ref = di_store.Ref.parse(OTHERS_OBJECT)

    def fill(self) -> None:
        """Put the object, where it is to be this process's own."""
        if not self._plan.other:
            self._ref = self._store.put(objects(self._plan.size, 1)[0])

    def step(self, calls: Calls, check: bool) -> int:
        """One get."""
        calls(self._plan.label, self._store.get, self._ref)
        return 1


def objects(size: int, most: int = 100) -> list[Array]:
    """Arrays to put: so many that no cache holds them, where they are not tiny or huge, but `most` at most."""
    first = np.resize(np.random.default_rng(0).integers(0, 255, min(max(size, 1), 1 << 20), np.uint8), size)
    return [first, *(first.copy() for _ in range(min(most - 1, (32 << 20) // max(size, 1))))]


def make_duty(plan: DutyPlan, store: di_store.Store, load: Load, share: tuple[int, int]) -> Duty:
    """The duty of one process.

    Args:
        plan: of the duty.
        store: this process's handle.
        load: the whole load.
        share: this process's number among those of its role, and how many they are.
    """
    kinds: dict[type, Callable[[Any, di_store.Store, Load, tuple[int, int]], Duty]] = {
        Insert: Inserting,
        Append: Appending,
        Draw: Drawing,
        Publish: Publishing,
        Pull: Pulling,
        Put: Putting,
        Get: Getting,
    }
    return kinds[type(plan)](plan, store, load, share)


def _share_of(count: int, share: tuple[int, int]) -> int:
    return count // share[1] + (1 if share[0] < count % share[1] else 0)
