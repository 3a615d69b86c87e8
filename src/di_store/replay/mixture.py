"""Batches from several tables: each example comes from a table drawn with probability proportional to its weight."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.random import Generator, Philox  # here, since numpy's lazy import fails in a process out of descriptors

from di_store import _core
from di_store.base import config
from di_store.base.dtypes import Array
from di_store.base.errors import EndOfData, StoreError, Timeout, shown
from di_store.base.tree import flatten
from di_store.columns.ragged import Ragged
from di_store.replay.batch import Batch, check_out, host_array, key_array
from di_store.replay.handle import TableHandle
from di_store.replay.keys import MOST_SHARDS, plain, shards_of, with_shard
from di_store.replay.loader import Loader
from di_store.replay.sampling import (
    Drawn,
    Terms,
    Undelivered,
    await_columns,
    check_fits,
    check_n,
    check_replace,
    collect,
)
from di_store.replay.table import Table, open_table
from di_store.session import Session, loaded

_ALIGNED_BYTES = 64
"""Each array of a batch begins at a multiple of this, as in the core."""

Shares: TypeAlias = "Mapping[str, float] | Mapping[Mixture, float] | Mapping[str | Mixture, float]"
"""Weights by table name or mixture. A mixture's weight is divided among its tables in proportion to their weights."""


class Mixture:
    """Samples from several tables of one store. Pickles as the tables' names, the weights and the seed.

    In a process that unpickles it, and in a forked child, the random choice of tables starts again from the seed.
    """

    def __init__(
        self, session: Session, tables: Mapping[str, Table], weights: Mapping[str, float], seed: int | None
    ) -> None:
        self._session = session
        self._tables = list(tables.values())
        self._weights = dict(weights)
        self._seed = seed
        self._ended: StoreError | None = None
        handles = [table._open() for table in self._tables]
        self._source: MixtureSource | None = MixtureSource(handles, _Shares(list(weights.values()), seed))
        session.follow(self, Mixture._end_with)

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each table by name; a table's probability is its weight divided by the sum of all."""
        return dict(self._weights)

    def __len__(self) -> int:
        return sum(len(table) for table in self._tables)

    def __repr__(self) -> str:
        return f"<Mixture {self._weights!r} of store {self._session.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return load_mixture, (self._session.name, self._weights, self._seed, self._session.readonly)

    def sample(
        self,
        n: int,
        *,
        timeout: float | None = None,
        min_n: int | None = None,
        linger: float | None = None,
        beta: float | None = None,
        columns: str | Iterable[str] | None = None,
        out: Batch | None = None,
        replace: bool = True,
    ) -> Batch:
        """Draw n examples as `Table.sample` does.

        ``batch.source``, int32[n], is the table that each example is from, as its position in `weights`. Examples of
        one table are adjacent. The highest byte of a key is that position too, so pass these keys only to the
        mixture's `update_priorities`.

        Raises:
            Timeout: what was drawn is given back. EndOfData: a table is finished and has too few items left.
        """
        whole = self._open()
        if beta is not None:
            beta = config.real("beta", beta, why="it is the exponent of the importance weights")
        n = check_n(n)
        check_fits(whole.arena, n)
        whole.check_replace(n, replace)
        if out is not None:
            check_out(out, n)
        source = whole if columns is None else whole.only(columns)
        drawn = source.draw(
            Terms(n, timeout, min_n, linger, replace=replace), beta, None if out is None else _Given(out)
        )
        drawn.deliver()
        batch: Batch = drawn.parts
        return batch if out is None or len(batch) < n else out.become(batch)

    def update_priorities(self, keys: Any, priorities: Any, *, timeout: float | None = 60) -> int:
        """Set priorities by the keys of this mixture's batches. Returns how many of the items were live.

        Args:
            keys: uint64[n], as a batch of this mixture has them.
            priorities: n numbers, numpy or torch on any device.
            timeout: as `Table.update_priorities`, for each table.

        Raises:
            ValueError: priorities that a table refuses, or not n of them; nothing was changed.
        """
        self._open()
        keys, priorities = key_array(keys), host_array(priorities)
        if len(keys) != len(priorities):
            raise ValueError(f"update_priorities: {len(keys)} keys but {len(priorities)} priorities")
        places, own = shards_of(keys), plain(keys)
        for place, table in enumerate(self._tables):
            table._open().native.check_priorities(priorities[places == place])
        return sum(
            table.update_priorities(own[places == place], priorities[places == place], timeout=timeout)
            for place, table in enumerate(self._tables)
            if (places == place).any()
        )

    def loader(
        self,
        batch_size: int,
        *,
        prefetch: int = 2,
        device: Any = None,
        pin_memory: bool = False,
        beta: Any = None,
        columns: str | Iterable[str] | None = None,
        drop_last: bool = False,
        timeout: float | None = None,
        replace: bool = True,
    ) -> Loader:
        """An iterator over batches that a background thread draws ahead; arguments as `Table.loader`."""
        source = self._open().only(columns)
        return Loader(
            self._session, source, batch_size, prefetch, device, pin_memory, beta, drop_last, timeout, replace
        )

    def _end_with(self, why: StoreError) -> None:
        """The store's handle is closed."""
        self._ended = self._ended or why
        self._source = None  # the last handle to go unmaps the store

    def _open(self) -> MixtureSource:
        source = self._source
        if source is None:
            assert self._ended is not None
            raise copy.copy(self._ended)
        for table in self._tables:
            table._writable()
        return source


def load_mixture(store: str, weights: dict[str, float], seed: int | None, readonly: bool) -> Mixture:
    """Unpickle a mixture, in the process that loads it."""

    def attach(session: Session) -> Mixture:
        return Mixture(session, {name: open_table(session, name, 0) for name in weights}, weights, seed)

    return loaded(attach, store, readonly)


class _Shares:
    """Draws how many examples of a batch come from each table, from a seeded generator. Thread-safe."""

    def __init__(self, weights: list[float], seed: int | None) -> None:
        # mutant: mixture-weights-equal
        self._probabilities = np.asarray(weights, np.float64) / np.sum(weights)
        self._seed = seed
        self._random, self._pid = self._begin()

    def counts(self, n: int) -> Array:
        """Examples by table, int64[tables], with sum n."""
        # mutant: inherited-generator-draws-on
        if self._pid != os.getpid():  # a forked child may inherit the lock of numpy's generator in the locked state
            self._random, self._pid = self._begin()  # the pid is set last, since other threads look at it first
        places = self._random.choice(len(self._probabilities), n, p=self._probabilities)
        return np.bincount(places, minlength=len(self._probabilities))

    def _begin(self) -> tuple[Generator, int]:
        return Generator(Philox(self._seed)), os.getpid()


class MixtureSource:
    """Draws a mixture's batches, for `Mixture.sample` and loaders."""

    def __init__(self, handles: list[TableHandle], shares: _Shares, columns: Any = None) -> None:
        self._handles = handles
        self._shares = shares
        self._columns = columns
        self._buffers = _core.BatchBuffers()
        self.arena = handles[0].arena
        self.name = "mixture of " + ", ".join(repr(handle.name) for handle in handles)

    def only(self, columns: str | Iterable[str] | None) -> MixtureSource:
        """A source of batches with only these outputs, which shares this one's random generator."""
        return MixtureSource(self._handles, self._shares, columns)

    def check_replace(self, n: int, replace: bool) -> None:
        """Check the option `replace` of batches of n: any of the tables may have to give all of them."""
        for handle in self._handles:
            check_replace(handle, 1, replace)

    def beta(self) -> float | None:
        """None: for each table, its own sampler's exponent is used."""
        return None

    def draw(self, terms: Terms, beta: float | None, allocate: Callable[[str, Any, Any], Any] | None) -> Drawn:
        """Draw a batch from the tables without delivering it; arguments as `TableSource.draw`."""
        counts = self._shares.counts(terms.n)
        parts: list[_Part] = []
        try:
            with terms:
                while not parts:
                    parts = self._parts(counts, terms)
            batch = self._assemble(parts, beta, allocate)
        except BaseException:
            _give_back(parts)
            raise

        def deliver() -> None:
            for part in parts:
                part.deliver()

        return Drawn(batch, {part.handle: part.held for part in parts}, deliver, lambda: _give_back(parts))

    def _one_buffer(self, handle: TableHandle, n: int, which: list[int] | None) -> Callable[[str, Any, Any], Array]:
        """A function that makes the arrays of a batch of n, in one buffer that is reused after the last one is gone."""
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

    def _parts(self, counts: Array, terms: Terms) -> list[_Part]:
        """Draw `counts[i]` items of table i. An empty list: all were given back, call it again.

        If a finished table waits for draws of other processes, this gives back its own draws before it waits:
        otherwise two processes could wait for each other's draws.
        """
        parts = [
            _Part(handle, place, int(count))
            for place, (handle, count) in enumerate(zip(self._handles, counts, strict=True))
            if count
        ]
        try:
            if terms.min_n < terms.n:
                _collect_some(parts, terms)
            else:
                for part in parts:
                    part.draw(terms, holding=part is not parts[0])
            return [part for part in parts if part.held]
        except Undelivered as error:
            blocked = error
        except BaseException:
            _give_back(parts)
            raise
        _give_back(parts)
        terms.pause(blocked.handle, blocked.seen, blocked.reason, holder=blocked.holder)
        return []

    def _assemble(
        self, parts: list[_Part], beta: float | None, allocate: Callable[[str, Any, Any], Any] | None
    ) -> Batch:
        """Copy each table's examples directly to their place in one batch."""
        self._check_columns(parts)
        first = parts[0].handle
        n = sum(part.held for part in parts)
        which = first.which(self._columns)
        whole = first.allocate(n, which, allocate or self._one_buffer(first, n, which))
        batches, at = [], 0
        for part in parts:
            out = _cut(whole, at, at + part.held)
            batches.append(part.finish(beta, self._columns, out))
            at += part.held
        for batch in batches:
            _join_ragged(whole, batch.data, [other.data for other in batches])
        names = ("priorities", "probabilities", "weights", "times_sampled", "versions", "episodes", "starts")
        joined = [np.concatenate([getattr(batch, name) for batch in batches]) for name in names]
        keys = np.concatenate([with_shard(batch.keys, part.place) for part, batch in zip(parts, batches, strict=True)])
        found = Batch(whole, keys, *joined, sum(batch.table_size for batch in batches))
        found.source = np.concatenate([np.full(part.held, part.place, np.int32) for part in parts])
        return found

    def _check_columns(self, parts: list[_Part]) -> None:
        first = parts[0].handle
        for part in parts[1:]:
            mine, theirs = _shapes(first, self._columns), _shapes(part.handle, self._columns)
            if mine != theirs:
                names = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
                raise ValueError(
                    f"tables {first.name!r} and {part.handle.name!r} give different columns: {', '.join(names)}; a "
                    "mixture needs the same, choose them with columns="
                )


class _Part:
    """One table's share of a batch."""

    def __init__(self, handle: TableHandle, place: int, count: int) -> None:
        self.handle = handle
        self.place = place
        self.held = 0
        self.seen = 0  # the table's sequence number before the last attempt to draw
        self.why = ""
        self.holder: int | None = None  # client slot of the process that blocked the last attempt
        self._count = count
        self._draws: _core.Draws | None = None

    @property
    def lacks(self) -> bool:
        """Whether fewer items were drawn than wanted."""
        return self.held < self._count

    def try_draw(self, terms: Terms, holding: bool) -> None:
        """Draw what is available now, without waiting; `holding`: this process holds draws of other tables."""
        now = Terms(terms.n, 0, stop=terms.stop, ours=terms.ours, replace=terms.replace)
        self.seen = self.handle.native.items_seq()
        try:
            self.draw(now, holding)
        except Timeout as error:
            self.why, self.holder = error.reason, error.holder
            self.held = 0 if self._draws is None else self._draws.count

    def draw(self, terms: Terms, holding: bool) -> None:
        own = Terms(self._count, terms.timeout, stop=terms.stop, ours=terms.ours, replace=terms.replace)
        own.wait, own.holding = terms.wait, holding
        try:
            await_columns(self.handle, own)
            reader = self.handle.reader()
            check_fits(self.handle.arena, own.n, self.handle.bytes_of(None))
            self._draws = self._draws or reader.begin(not terms.replace)
            self.held = collect(self.handle, reader, self._draws, own)
        finally:
            terms.wait = own.wait  # all tables share one deadline
        if self.lacks:
            raise EndOfData(f"table {self.handle.name!r} is finished: {self.held} of {self._count} are left")

    def finish(self, beta: float | None, columns: Any, out: dict[str, Any]) -> Batch:
        handle = self.handle
        exponent = handle.native.beta if beta is None else beta
        assert self._draws is not None
        return handle.batch(handle.reader().finish(self._draws, exponent, handle.which(columns), out, False))

    def deliver(self) -> None:
        if self._draws is not None:
            self.handle.reader().deliver(self._draws)

    def give_back(self) -> None:
        if self._draws is not None:
            self.handle.reader().give_back(self._draws)
            self._draws = None


def _give_back(parts: list[_Part]) -> None:
    for part in parts:
        part.give_back()


def _collect_some(parts: list[_Part], terms: Terms) -> None:
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
            terms.pause(part.handle, part.seen, f"{held} of {terms.n} drawn; {part.why}", at_most, part.holder)
        except Timeout:
            if held < terms.min_n:
                raise
            return


class _Given:
    """The `allocate` function of ``out=``: returns the array of an output in place of a new one."""

    def __init__(self, out: Batch) -> None:
        self._flat = flatten(out.data)

    def __call__(self, name: str, shape: Any, dtype: Any) -> Array:
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


def _join_ragged(whole: dict[str, Any], data: Any, parts: list[Any]) -> None:
    """Concatenate the ragged outputs of the parts into `whole`: they cannot be written in place."""
    for name, value in data.items():
        if isinstance(value, dict):
            _join_ragged(whole.setdefault(name, {}), value, [part[name] for part in parts])
        elif isinstance(value, Ragged) and name not in whole:
            each = [part[name] for part in parts]
            offsets: list[Array] = [np.zeros(1, np.int64)]
            for ragged in each:
                offsets.append(ragged.offsets[1:] + offsets[-1][-1])
            lead = (sum(ragged.lead[0] for ragged in each), *value.lead[1:])
            whole[name] = Ragged(np.concatenate([ragged.values for ragged in each]), np.concatenate(offsets), lead)


def flat_shares(store: str, weights: Any) -> dict[str, float]:
    """Weights by table name. A mixture's weight is divided among its tables in proportion to their weights.

    Args:
        store: name of the store that all tables are in.
        weights: as `Store.mix` takes them.

    Raises:
        ValueError: no table, more than 256, negative weights, or all zero; a mixture of another store.
        TypeError: not a dict of numbers by table name or mixture.
    """
    if not isinstance(weights, Mapping) or not all(isinstance(part, (str, Mixture)) for part in weights):
        raise TypeError(
            'mix() takes shares by table name or mixture, such as {"agent": 255, "demo": 1}, not ' + shown(weights)
        )
    found: dict[str, float] = {}
    for part, weight in weights.items():
        share = config.real(f"weight of {part!r}", weight)
        for name, portion in _portions(store, part).items():
            found[name] = found.get(name, 0.0) + share * portion
    if len(found) > MOST_SHARDS:
        raise ValueError(
            f"mix() of {len(found)} tables: at most {MOST_SHARDS}, since one byte of a key numbers its table; mix fewer"
        )
    if not sum(found.values()) > 0:
        raise ValueError("mix() needs a table, and a weight above 0")
    return found


def _portions(store: str, part: str | Mixture) -> dict[str, float]:
    if isinstance(part, str):
        return {part: 1.0}
    if part._session.name != store:
        raise ValueError(f"{part!r} is of another store than {store!r}: a mixture draws from the tables of one store")
    whole = sum(part.weights.values())
    return {name: weight / whole for name, weight in part.weights.items()}
