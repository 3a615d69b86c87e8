"""Draws the batches of a mixture: the share of each table, copied into one batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from di_store import _core
from di_store.base import config
from di_store.base.dtypes import Array
from di_store.base.errors import EndOfData, Timeout
from di_store.base.tree import flatten, unflatten
from di_store.columns.ragged import Ragged
from di_store.replay.batch import Batch
from di_store.replay.handle import TableHandle
from di_store.replay.keys import with_shard
from di_store.replay.sampling import (
    Terms,
    Undelivered,
    await_columns,
    check_fits,
    check_replace,
    collect,
)
from di_store.replay.table_source import AttachedSource, deliver, held_draws, may_draw
from di_store.runtime.forks import in_child
from di_store.runtime.waits import run

_ALIGNED_BYTES = 64
"""Each array of a batch begins at a multiple of this, as in the core."""


class TableChoice:
    """Chooses the number of examples of a batch from each table, with a seeded generator. Thread-safe."""

    def __init__(self, weights: list[float], seed: int | None) -> None:
        self._probabilities = np.asarray(weights, np.float64) / np.sum(weights)
        self._seed = seed
        self._begin()
        in_child(self, TableChoice._begin)

    def counts(self, n: int) -> Array:
        """Examples by table, int64[tables], with sum n."""
        places = self._random.choice(len(self._probabilities), n, p=self._probabilities)
        return np.bincount(places, minlength=len(self._probabilities))

    def _begin(self) -> None:
        """In a forked child too, which may inherit the lock of numpy's generator in the locked state."""
        # The first use of np.random loads it: when a mixture is made, and not with the package.
        self._random = np.random.Generator(np.random.Philox(self._seed))


class SharedColumns:
    """The columns of a mixture's batches.

    Each of its tables has these columns; they come in the order of the first table.

    A table's columns are checked when the mixture is made, or else before the first batch after they are declared.
    """

    def __init__(self, handles: list[TableHandle], names: tuple[str, ...] | None) -> None:
        self.names = names
        self._first: TableHandle | None = None
        self._unchecked = list(handles)

    @property
    def first(self) -> TableHandle:
        """The table that sets the order of columns in batches: the first one that had columns."""
        assert self._first is not None
        return self._first

    def check(self) -> None:
        """Check the tables whose columns were declared since the last call.

        Raises:
            ValueError: two tables give different columns, or one lacks a column of `names`.
        """
        for handle in list(self._unchecked) if self._unchecked else ():
            if handle.schema is None:
                continue
            first = self._first or handle
            mine, theirs = _shapes(first, self.names), _shapes(handle, self.names)
            if mine != theirs:
                named = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
                raise ValueError(
                    f"tables {first.name!r} and {handle.name!r} give different columns: {', '.join(named)}; a mixture "
                    "needs the same ones: choose them with columns="
                )
            self._first = first
            self._unchecked = [each for each in self._unchecked if each is not handle]


class MixtureSource(AttachedSource):
    """Draws a mixture's batches, for `Mixture.sample` and loaders."""

    def __init__(self, handles: list[TableHandle], choice: TableChoice, columns: tuple[str, ...] | None = None) -> None:
        """Begin; raises ValueError if the tables give different columns."""
        self.handles = handles
        self._choice = choice
        self.columns = columns
        self.leasing: Any = None  # a loader's mixture
        self.shared = SharedColumns(handles, columns)
        self.shared.check()
        self._buffers = _core.BatchBuffers()
        self.arena = handles[0].arena
        self.name = "mixture of " + ", ".join(repr(handle.name) for handle in handles)

    def only(self, columns: str | Iterable[str] | None) -> MixtureSource:
        """A source of batches with only these outputs (None: the same ones) that shares this source's random generator.

        Raises:
            ValueError: the tables give different columns of these names.
        """
        chosen = self.columns if columns is None else config.names("columns", columns)
        return MixtureSource(self.handles, self._choice, chosen)

    def check(self, terms: Terms) -> None:
        """As `DrawSource.check`: any table may have to give all examples."""
        for handle in self.handles:
            check_replace(handle, 1, terms.replace)

    def beta(self) -> float | None:
        """None: each table's own sampler gives the exponent."""
        return None

    def begin(self, n: int) -> MixtureDraws:
        """The draws of a batch of n, not made yet. The number from each table is chosen now."""
        self.shared.check()
        return MixtureDraws(self, self._choice.counts(n))

    def _one_buffer(self, handle: TableHandle, n: int, which: list[int] | None) -> Callable[[str, Any, Any], Array]:
        """A function that makes the arrays of a batch of n in one buffer, reused after the last array is deleted."""
        outputs = 0 if (plan := handle.read_plan()) is None else len(plan.native["outputs"])
        buffer = self._buffers.take(n * handle.bytes_of(which) + outputs * _ALIGNED_BYTES)
        end = 0

        def make(_: str, shape: tuple[int, ...], dtype: Any) -> Array:
            nonlocal end
            element = np.dtype(dtype)
            size = math.prod(shape) * element.itemsize
            found: Array = buffer[end : end + size].view(element).reshape(shape)
            end += -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES
            return found

        return make

    def allocate(self, n: int, allocate: Callable[[str, Any, Any], Any] | None) -> dict[str, Any]:
        """The arrays of a batch of n, for its outputs of fixed size."""
        self.shared.check()  # a table may have got its columns while the draws waited
        first = self.shared.first
        which = first.which(self.columns)
        return first.allocate(n, which, allocate or self._one_buffer(first, n, which))


class MixtureDraws:
    """The draws of one batch of a mixture."""

    def __init__(self, source: MixtureSource, counts: Array) -> None:
        self._source = source
        self.leasing = source.leasing  # whose leases they are
        self._counts = counts
        self._parts: list[MixturePart] = []

    @property
    def held(self) -> int:
        """How many draws are held."""
        return sum(part.held for part in self._parts)

    def draw(self, terms: Terms) -> bool:
        """As `Draws.draw`."""
        self.give_back()  # of a call that was interrupted
        parts: list[MixturePart] = []
        try:
            if terms.now:
                parts = self._begin()
                if not all(part.draw_now(terms) for part in parts):
                    _give_back(parts)
                    return False
            else:
                with terms:
                    while not parts:
                        parts = self._wait(terms)
        except BaseException:  # also Ctrl-C: nobody else knows of these draws
            _give_back(parts)
            raise
        self._parts = parts
        return True

    def _begin(self) -> list[MixturePart]:
        pairs = zip(self._source.handles, self._counts, strict=True)
        return [MixturePart(handle, place, int(count)) for place, (handle, count) in enumerate(pairs) if count]

    def _wait(self, terms: Terms) -> list[MixturePart]:
        """Draw the chosen numbers from each table. An empty list: all draws were given back; call this again.

        If a finished table waits for draws of other processes, this gives back its own draws before it waits:
        otherwise two processes could wait for each other's draws.
        """
        parts = self._begin()
        try:
            if terms.min_n < terms.n:
                _collect_some(parts, terms)
            else:
                for part in parts:
                    part.draw(terms, holding=part is not parts[0])
            return [part for part in parts if part.held]
        except Undelivered as error:
            blocked = error
        except BaseException:  # also Ctrl-C: nobody else knows of these draws
            _give_back(parts)
            raise
        _give_back(parts)
        run(terms.pausing(blocked.handle, blocked.seen, blocked.reason, holder=blocked.holder))
        return []

    def counts(self) -> dict[TableHandle, int]:
        """As `Draws.counts`."""
        return {part.handle: part.held for part in self._parts}

    def least_bytes(self) -> int:
        """As `Draws.least_bytes`."""
        first = self._source.shared.first
        return self.held * first.bytes_of(first.which(self._source.columns))

    def copy(self, beta: float | None, allocate: Callable[[str, Any, Any], Any] | None) -> _MixtureCopying:
        """As `Draws.copy`: each table's examples go directly to their place in one batch."""
        whole = self._source.allocate(self.held, allocate)
        copying, at = [], 0
        for part in self._parts:
            copying.append(part.copy(beta, self._source.columns, _cut(whole, at, at + part.held)))
            at += part.held
        return _MixtureCopying(self._source, self._parts, copying, whole, self.leasing)

    def deliver(self) -> None:
        """As `Draws.deliver`."""
        for part in self._parts:
            part.deliver()

    def deliver_some(self, places: Sequence[int]) -> None:
        """As `Draws.deliver_some`."""
        first = 0
        for part in self._parts:
            part.deliver_some([place - first for place in places if 0 <= place - first < part.held])
            first += part.held

    def give_back(self) -> None:
        """As `Draws.give_back`."""
        _give_back(self._parts)


class _MixtureCopying:
    """`Copying` of a batch of a mixture."""

    def __init__(
        self,
        source: MixtureSource,
        parts: list[MixturePart],
        copying: list[_core.Gathering],
        whole: dict[str, Any],
        leasing: Any,
    ) -> None:
        self._source = source
        self._leasing = leasing
        self._parts = parts
        self._copying = copying
        self._whole = whole

    @property
    def is_whole(self) -> bool:
        return all(each.is_whole for each in self._copying)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self._copying)

    def read_ahead(self) -> bool:
        return all(each.read_ahead() for each in self._copying)

    def copy_portion(self) -> None:
        next(each for each in self._copying if not each.is_whole).copy_portion()

    def batch(self) -> Batch:
        parts = self._parts
        batches = [part.handle.batch(each.parts(), part.draws) for part, each in zip(parts, self._copying, strict=True)]
        whole = self._join([batch.data for batch in batches])
        names = ("priorities", "probabilities", "weights", "times_sampled", "versions", "episodes", "starts")
        joined = [np.concatenate([getattr(batch, name) for batch in batches]) for name in names]
        keys = np.concatenate([with_shard(batch.keys, part.place) for part, batch in zip(parts, batches, strict=True)])
        found = Batch(whole, keys, *joined, sum(batch.table_size for batch in batches))
        found.source = np.concatenate([np.full(part.held, part.place, np.int32) for part in parts])
        if parts[0].lease:
            numbers = {part.place: part.lease for part in parts}
            found._lease = self._leasing, tuple(numbers.get(place, 0) for place in range(len(self._source.handles)))
        return found

    def _join(self, parts: list[Any]) -> Any:
        """The data of the batch: outputs of fixed size lie in place; the others are joined, and put in their order."""
        first = self._source.shared.first
        if first.opaque and not first.keeps_encoded:
            return [value for values in parts for value in values]
        if first.opaque:
            return _end_to_end(parts) if all(parts) else ()
        plan = first.read_plan()
        if plan is None or not plan.ragged:
            return self._whole
        fixed, each = _flat(self._whole), [_flat(data) for data in parts]
        found = {
            name: fixed[name] if name in fixed else _joined([one[name] for one in each])
            for name in plan.names
            if name in each[0]
        }
        return unflatten(found)


class MixturePart:
    """One table's share of a batch."""

    def __init__(self, handle: TableHandle, place: int, count: int) -> None:
        self.handle = handle
        self.place = place
        self.held = 0
        self.seen = 0  # the table's sequence number before the last attempt to draw
        self.why = ""
        self.holder: int | None = None  # client slot of the process that blocked the last attempt
        self._count = count
        self.draws: _core.Draws | None = None
        self._beta: float | None = None  # the sampler's, at the draw

    @property
    def lease(self) -> int:
        """Number of its draws with a lease; 0: they have none."""
        return held_draws(self.draws).lease

    @property
    def lacks(self) -> bool:
        """Whether fewer items were drawn than wanted."""
        return self.held < self._count

    def try_draw(self, terms: Terms, holding: bool) -> None:
        """Draw what is available now, without waiting; `holding`: this process holds draws of other tables."""
        now = Terms(terms.n, 0, stop=terms.stop, ours=terms.ours, replace=terms.replace, lease=terms.lease)
        now.lends = terms.lends
        self.seen = self.handle.native.items_seq()
        try:
            self.draw(now, holding)
        except Timeout as error:
            self.why, self.holder = error.reason, error.holder
            self.held = 0 if self.draws is None else self.draws.count

    def draw_now(self, terms: Terms) -> bool:
        """Draw without waiting. Returns whether all draws are made.

        Raises:
            EndOfData: the table is finished and has too few items left.
        """
        if not may_draw(self.handle, self._count, terms):
            return False
        finished = self.handle.native.finished  # before the draws: then they have chosen from everything
        self.draw(terms, holding=False)
        if self.lacks and finished and self.held and not held_draws(self.draws).paced_out:
            raise self._end()
        return not self.lacks

    def draw(self, terms: Terms, holding: bool) -> None:
        """Draw as the terms allow; `holding`: this process holds draws of other tables.

        Raises:
            Timeout, Undelivered: as `collect`. EndOfData: the table is finished and has too few items left.
        """
        stop, ours = terms.stop, terms.ours
        own = Terms(self._count, terms.timeout, None, None, stop, ours, terms.replace, terms.now, terms.lease)
        own.wait, own.holding = terms.wait, holding
        try:
            await_columns(self.handle, own)
            reader = self.handle.reader()
            check_fits(self.handle.arena, own.n, self.handle.bytes_of(None))
            self.draws = self.draws or terms.begin(self.handle)
            self.held = collect(self.handle, reader, self.draws, own)
            self._beta = self.handle.native.beta
        finally:
            terms.wait = own.wait  # all tables share one deadline
        if self.lacks and not terms.now:
            raise self._end()

    def _end(self) -> EndOfData:
        return EndOfData(f"table {self.handle.name!r} is finished: {self.held} of {self._count} are left")

    def copy(self, beta: float | None, columns: Any, out: dict[str, Any]) -> _core.Gathering:
        """Copy the rows in memory into arrays of the batch."""
        handle, draws = self.handle, held_draws(self.draws)
        return handle.reader().gather(draws, self._beta if beta is None else beta, handle.which(columns), out)

    def deliver(self) -> None:
        """Note that the caller has the batch."""
        if self.draws is not None:
            deliver(self.handle, self.draws)

    def deliver_some(self, places: list[int]) -> None:
        """As `Draws.deliver_some`."""
        if self.draws is not None:
            self.handle.reader().deliver_some(self.draws, places)

    def give_back(self) -> None:
        """Give the draws back, as if they had never been made."""
        if self.draws is not None:
            self.handle.reader().give_back(self.draws)
            self.draws = None
            self.held = 0


def _give_back(parts: list[MixturePart]) -> None:
    for part in parts:
        part.give_back()


def _collect_some(parts: list[MixturePart], terms: Terms) -> None:
    """Draw until all parts are complete, or until the terms (`min_n`, `linger`) allow fewer."""
    held, newest = 0, time.monotonic()
    while True:
        for part in parts:
            if part.lacks:
                part.try_draw(terms, holding=any(other.held for other in parts if other is not part))
        count = sum(part.held for part in parts)
        if count > held:
            held, newest = count, time.monotonic()
        lacking = [part for part in parts if part.lacks]
        if not lacking:
            return
        at_most = terms.patience(held, newest)
        if at_most <= 0:
            return
        part = lacking[0]
        try:
            reason = f"{held} of {terms.n} drawn; {part.why}"
            run(terms.pausing(part.handle, part.seen, reason, at_most, part.holder))
        except Timeout:
            if held < terms.min_n:
                raise
            return


class OutAllocator:
    """The `allocate` function of ``out=``."""

    def __init__(self, out: Batch) -> None:
        self._flat = flatten(out.data)

    def __call__(self, name: str, shape: Any, dtype: Any) -> Array:
        """The array for an output, instead of a new one; ValueError if it does not fit."""
        found = self._flat.get(name)
        if not isinstance(found, np.ndarray) or found.dtype != dtype or found.shape[1:] != shape[1:]:
            raise ValueError(f"out[{name!r}] must be a writable contiguous array of the batch's shape and dtype")
        front: Array = found[: shape[0]]
        return front


def _shapes(handle: TableHandle, columns: Any) -> dict[str, Any]:
    plan, which = handle.read_plan(), handle.which(columns)
    assert plan is not None
    return {
        output["name"]: (output["dtype"], output["shape"], output["ragged"])
        for number, output in enumerate(plan.native["outputs"])
        if which is None or number in which
    }


def _cut(whole: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {
        name: _cut(value, start, stop) if isinstance(value, dict) else value[start:stop]
        for name, value in whole.items()
    }


def _flat(data: dict[str, Any]) -> dict[str, Any]:
    return flatten(data) if data else {}  # no output is of that kind


def _joined(each: list[Ragged]) -> Ragged:
    """Ragged outputs of several tables as one: they cannot be written in place."""
    values, offsets = _end_to_end([(ragged.values, ragged.offsets) for ragged in each])
    return Ragged(values, offsets, (sum(ragged.lead[0] for ragged in each), *each[0].lead[1:]))


def _end_to_end(pairs: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Values and offsets of several ragged outputs, joined into one."""
    offsets: list[Array] = [np.zeros(1, np.int64)]
    for _, each in pairs:
        offsets.append(each[1:] + offsets[-1][-1])
    return np.concatenate([values for values, _ in pairs]), np.concatenate(offsets)
