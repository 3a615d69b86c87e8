"""The handle of a table in parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from di_store._core import KEY_SHARD_AT, LeaseEnd
from di_store.base.dtypes import Array
from di_store.base.errors import SchemaMismatch, StoreError, with_keys
from di_store.base.lacks import Lack
from di_store.base.tree import flatten, unflatten
from di_store.cluster.shards.aggregate import aggregate
from di_store.cluster.shards.division import divided, part_of
from di_store.cluster.shards.local import LocalSource, of_whole
from di_store.cluster.shards.mass import MassSource, sample_by_mass
from di_store.cluster.shards.merge import merge, reordered
from di_store.cluster.shards.parts import Parts
from di_store.cluster.shards.probabilities import Probabilities, by_mass, has_probabilities, weigh
from di_store.cluster.shards.routing import lane_key
from di_store.cluster.shards.shard import Shard
from di_store.cluster.shards.sharded_writer import ShardWriter
from di_store.columns.ragged import Ragged
from di_store.columns.schema import Schema
from di_store.layout.shape import UNLIMITED
from di_store.policy.limiters import MinSize
from di_store.policy.samplers import Prioritized, Sampler
from di_store.policy.settings import Settings
from di_store.replay.batch import Batch, empty_batch
from di_store.replay.keys import GoneKey, plain, shards_of, with_shard
from di_store.replay.laws import NO_LAWS
from di_store.replay.local_table import load_lease
from di_store.replay.sampling import Terms
from di_store.replay.stats import ShardedStats
from di_store.replay.stream import kind_of, leading_rows
from di_store.replay.table_backend import TableBackend
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import check_timeout
from di_store.session import Session

T = TypeVar("T")
_CALL_SECONDS = 60.0


_ONE_ORDER = Lack(
    "needs one order of all items",
    "keys() gives them by shard; node= instead of shards= makes a table with one order",
)


class ShardedTable(TableBackend):
    """A table in parts, on several nodes.

    Keys carry the number of the shard in their highest byte, so every handle of the table knows all keys.
    """

    lacks: ClassVar = {
        "at": _ONE_ORDER,
        "positions": _ONE_ORDER,
        "export": Lack("writes one table", "on each node, di_store.attach() opens its shard as a table of that name"),
        **NO_LAWS,
    }

    def __init__(self, parts: Parts, pickled: tuple[Any, ...]) -> None:
        self.name = parts.name
        self.parts = parts
        self._pickled = pickled
        self._mass = MassSource(parts, None)
        self._inserts = itertools.count()

    @property
    def session(self) -> Session:
        return self.parts.session

    @property
    def settings(self) -> Settings:
        return self.parts.settings

    @property
    def identity(self) -> str:
        return self.parts.settings.made

    def shown(self) -> str:
        draw = "mass" if self.parts.by_mass else "local"
        return f"{self.name!r} in {len(self.parts.shards)} shards, draw={draw!r}"

    def where(self) -> str:
        return f"lies in {len(self.parts.shards)} shards"

    def pickled(self) -> tuple[Any, ...]:
        return self._pickled

    def pickled_lease(self, number: int, keys: Array) -> tuple[Any, ...]:
        return load_lease, (*self._pickled, number, keys)

    # -- what it is like ----------------------------------------------------------------------------------------

    def schema(self, deadline: Deadline | None = None) -> Schema | None:
        """As `Table.schema`, from the first shard that has columns."""
        if self.parts.settings.schema is not None or self.parts.settings.opaque:
            return self.parts.settings.schema
        steps = (deadline or Deadline(_CALL_SECONDS)).steps(self.parts.shards)
        found = (self._unless_lost(shard, step, _schema) for shard, step in steps)
        return next((each for each in found if each is not None), None)

    def capacity(self) -> int | None:
        return self.stats()["capacity"]

    def sampler(self) -> Sampler:
        sampler = self.parts.settings.sampler
        if not isinstance(sampler, Prioritized):
            return sampler
        said = self.stats()
        return replace(sampler, alpha=said["alpha"], beta=said["beta"])

    def size(self) -> int:
        return self.stats()["size"]

    def stats(self, deadline: Deadline | None = None) -> ShardedStats:
        """As `Table.stats`, summed over all shards that answer.

        ``shards`` holds the statistics of each shard. Shards that do not answer are missing in the sums.
        """
        self.parts.check_open()
        return aggregate(self.parts, self.parts.answers.newest(0.0))

    # -- writing ------------------------------------------------------------------------------------------------

    def writer(self, lanes: int | None, autoreset: Any, deadline: Deadline | None = None) -> ShardWriter:
        return ShardWriter(self.parts, lanes, autoreset)

    def insert(self, value: Any, priority: Any, deadline: Deadline) -> Array:
        return self._insert(lambda table, within: table.insert(value, priority, within), deadline)

    def extend(self, batch: Any, priority: Any, deadline: Deadline) -> Array:
        """As `Table.extend`, into one shard."""
        return self._insert(lambda table, within: table.extend(batch, priority, within), deadline)

    def _insert(self, call: Callable[[TableBackend, Deadline], Array], deadline: Deadline) -> Array:
        shard = self.parts.route(lane_key(self.parts.key, next(self._inserts)))
        try:
            keys = with_shard(shard.call(deadline, call), shard.number)
        except StoreError as error:
            self.parts.is_lost(shard, error, deadline)  # the next call goes elsewhere then
            raise
        self.parts.answers.forget_empty()
        return keys

    # -- reading ------------------------------------------------------------------------------------------------

    def sample(
        self, found: Any, terms: Terms, beta: float | None, columns: str | Iterable[str] | None, out: Batch | None
    ) -> Batch:
        terms.deadline = terms.deadline or Deadline(terms.timeout)
        if self.parts.by_mass:
            source = self._mass if columns is None else MassSource(self.parts, columns)
            source.check(terms)
            return sample_by_mass(source, terms, beta, out)
        shard, deadline = self.parts.own(), terms.deadline

        def sample(table: TableBackend, within: Deadline) -> Batch:
            return table.draw(terms, columns, out)

        try:
            batch = shard.call(deadline, sample)
        except StoreError as error:
            self.parts.is_lost(shard, error, deadline)  # a node without a shard of its own draws from another one then
            raise
        probabilities = self.parts.probabilities_here(deadline)
        return of_whole(self.parts, shard, batch, probabilities.beta if beta is None else beta, probabilities, self)

    def peek(self, keys: Array, columns: str | Iterable[str] | None, deadline: Deadline | None = None) -> Batch:
        places = shards_of(keys)
        self._check_places(keys, places)
        deadline, asked = deadline or Deadline(_CALL_SECONDS), self._with_some(places)
        found: list[tuple[int, Batch]] = []
        order: list[Array] = []
        for shard, step in deadline.steps(asked or self.parts.shards):  # without keys, one says which outputs there are
            at = np.flatnonzero(places == shard.number)
            mine = plain(keys[at])
            batch = self._unless_lost(shard, step, partial(_peek, keys=mine, columns=columns))
            found.append((shard.number, empty_batch(mine) if batch is None else batch))
            order.append(at)
        whole = reordered(merge(_alike(found)), np.argsort(np.concatenate(order)))
        return self._weighed(whole, deadline)

    def _weighed(self, batch: Batch, deadline: Deadline) -> Batch:
        """With the probabilities that a draw would have now."""
        if not has_probabilities(self.parts.settings.sampler):
            return batch
        parts = self.parts
        now: Probabilities | str
        if parts.by_mass:
            now = by_mass(parts.answers.newest(deadline=deadline), parts.min_size)
        else:
            now = parts.probabilities_here(deadline)
        if isinstance(now, Probabilities):
            weigh(batch, now.shares[shards_of(batch.keys)], now.beta, 0.0 if parts.by_mass else now.least)
        return batch

    def source(
        self, columns: str | Iterable[str] | None, timeout: float | Deadline | None = None
    ) -> MassSource | LocalSource:
        if self.parts.by_mass:
            return MassSource(self.parts, columns)
        seconds = check_timeout(timeout)
        return LocalSource(self.parts, columns, _CALL_SECONDS if seconds is None else seconds, self)

    def keys(self, start: int, n: int, deadline: Deadline) -> Array:
        """As `Table.keys`, shard by shard: oldest first in each."""
        steps = deadline.steps(self.parts.shards)
        found = np.concatenate([with_shard(shard.call(step, _keys), shard.number) for shard, step in steps])
        return found[start : start + n]

    def evicted(self, deadline: Deadline) -> Iterator[GoneKey]:
        steps = deadline.steps(self.parts.shards)
        return _Gone([(shard.number, shard.call(step, _evicted)) for shard, step in steps])

    # -- changing -----------------------------------------------------------------------------------------------

    def update(self, keys: Array, values: Any, row: Any, deadline: Deadline, lease: int | None = None) -> int:
        leaves = flatten(values, what="values")

        def call(table: TableBackend, at: Array, own: Array, within: Deadline) -> int:
            mine = values if len(own) == len(keys) else unflatten(_of_items(leaves, at, len(keys)))
            return table.update(own, mine, row, within, lease)

        return self._by_key("update", keys, deadline, call, skips=False)

    def end_leases(self, keys: Array, number: int, how: LeaseEnd, deadline: Deadline) -> int:
        def call(table: TableBackend, at: Array, own: Array, within: Deadline) -> int:
            return table.end_leases(own, number, how, within)

        return self._by_key("give_back" if how is LeaseEnd.RETURNED else "ack", keys, deadline, call, skips=False)

    def extend_leases(self, keys: Array, number: int, seconds: float, deadline: Deadline) -> int:
        def call(table: TableBackend, at: Array, own: Array, within: Deadline) -> int:
            return table.extend_leases(own, number, seconds, within)

        return self._by_key("extend", keys, deadline, call, skips=False)

    def update_priorities(self, keys: Array, priorities: Array, deadline: Deadline) -> int:
        if len(keys) != len(priorities):
            raise ValueError(f"update_priorities: {len(keys)} keys but {len(priorities)} priorities")
        if wrong := priorities[~(np.isfinite(priorities) & (priorities >= 0))][:1].tolist():
            raise ValueError(f"priority {wrong[0]} is not a finite number of at least 0; nothing was changed")

        def call(table: TableBackend, at: Array, own: Array, within: Deadline) -> int:
            return table.update_priorities(own, priorities[at], within)

        return self._by_key("update_priorities", keys, deadline, call, skips=True)

    def delete(self, keys: Array, deadline: Deadline) -> int:
        def call(table: TableBackend, at: Array, own: Array, within: Deadline) -> int:
            return table.delete(own, within)

        return self._by_key("delete", keys, deadline, call, skips=False)

    def reset(self, deadline: Deadline) -> None:
        self.parts.each(deadline, lambda table, within: table.reset(within))

    def resize(self, capacity: int, deadline: Deadline) -> None:
        """As `Table.resize`: each shard gets its part. If a shard refuses, other shards may have changed."""
        part = part_of(capacity, len(self.parts.shards))
        self.parts.each(deadline, lambda table, within: table.resize(part, within))

    def configure(self, changes: dict[str, Any], deadline: Deadline) -> None:
        """As `Table.configure`, for each shard; a limiter is divided.

        If a shard refuses, other shards may have changed.
        """
        if (limiter := changes["limiter"]) is not None:
            if self.parts.by_mass and not isinstance(limiter, MinSize):
                raise ValueError(f'limiter={limiter!r} with draw="mass": only MinSize(n) is possible')
            changes = {**changes, "limiter": divided(limiter, len(self.parts.shards))}
        self.parts.each(deadline, lambda table, within: table.configure(changes, within))

    def finish(self, deadline: Deadline) -> None:
        self.parts.each(deadline, lambda table, within: table.finish(within))

    # -- shards -------------------------------------------------------------------------------------------------

    def _by_key(
        self,
        what: str,
        keys: Array,
        deadline: Deadline,
        call: Callable[[TableBackend, Array, Array, Deadline], int],
        *,
        skips: bool,
    ) -> int:
        """The sum of a call's results over the shards of these keys; `skips`: leaves out lost shards."""
        places, answers, done = shards_of(keys), self.parts.answers, 0
        failed: StoreError | None = None
        missed: list[Array] = []
        self._check_places(keys, places)
        if skips:
            answers.newest(deadline=deadline.step(2))
        asked = self._with_some(places)
        if not (asked or skips):  # without keys, arguments are checked all the same
            asked = self.parts.shards[:1]
        asked.sort(key=answers.is_silent)
        for shard, step in deadline.steps([each for each in asked if not (skips and answers.is_silent(each))]):
            at = np.flatnonzero(places == shard.number)
            make = partial(_of_some, call, at, plain(keys[at]))
            if skips:
                done += self.parts.call_or_skip(shard, step, what, make, 0)
                continue
            try:
                done += shard.call(step, make)
            except StoreError as error:
                failed = failed or error
                missed.append(at)
        if failed is not None:
            which = keys[np.concatenate(missed)]
            raise with_keys(failed, which, f"{what} failed for {len(which)} of {len(keys)} keys (error.keys)")
        return done

    def _with_some(self, places: Array) -> list[Shard]:
        """The shards with these numbers."""
        numbers = set(np.unique(places).tolist())
        return [shard for shard in self.parts.shards if shard.number in numbers]

    def _check_places(self, keys: Array, places: Array) -> None:
        if wrong := keys[places >= len(self.parts.shards)][:3].tolist():
            raise ValueError(
                f"keys {wrong} do not belong to any of the {len(self.parts.shards)} shards of table {self.name!r}"
            )

    def _unless_lost(self, shard: Shard, deadline: Deadline, call: Callable[[TableBackend, Deadline], T]) -> T | None:
        """The result of a call of a shard; None: the shard is lost."""
        if self.parts.answers.is_silent(shard):
            return None
        try:
            return shard.call(deadline, call)
        except StoreError as error:
            if not self.parts.is_lost(shard, error, deadline):
                raise
            return None


def _of_items(leaves: dict[str, Any], at: Array, n: int) -> dict[str, Any]:
    """The values of the items at these places among n.

    Raises:
        SchemaMismatch: a leaf does not have one value for each item.
    """
    for name, leaf in leaves.items():
        if leading_rows(leaf) != n:
            got = kind_of(leaf) if leading_rows(leaf) is None else f"{leading_rows(leaf)} values"
            raise SchemaMismatch(f"column {name!r} of {n} items is [{n}, …], got {got}", remedy="nothing was written")
    return {
        name: [leaf[each] for each in at.tolist()] if isinstance(leaf, (list, tuple)) else leaf[at]
        for name, leaf in leaves.items()
    }


def _schema(table: TableBackend, within: Deadline) -> Schema | None:
    return table.schema(within)


def _peek(table: TableBackend, within: Deadline, keys: Array, columns: str | Iterable[str] | None) -> Batch:
    return table.peek(keys, columns, within)


def _keys(table: TableBackend, within: Deadline) -> Array:
    return table.keys(0, UNLIMITED, within)


def _evicted(table: TableBackend, within: Deadline) -> Iterator[GoneKey]:
    return table.evicted(within)


def _of_some(
    call: Callable[[TableBackend, Array, Array, Deadline], int],
    at: Array,
    own: Array,
    table: TableBackend,
    within: Deadline,
) -> int:
    return call(table, at, own, within)


class _Gone:
    """As `GoneKeys`, of all shards: keys of one shard come in the order in which their items left."""

    def __init__(self, each: list[tuple[int, Iterator[GoneKey]]]) -> None:
        self._each = each

    def __iter__(self) -> _Gone:
        return self

    def __next__(self) -> GoneKey:
        for number, keys in self._each:
            for key in keys:
                return GoneKey(key | number << KEY_SHARD_AT, key.reason)
        raise StopIteration


def _alike(parts: list[tuple[int, Batch]]) -> list[tuple[int, Batch]]:
    """Batches of `peek`. Those of lost shards, and of shards without columns, get zeros as data."""
    like = next((batch.data for _, batch in parts if not isinstance(batch.data, dict) or batch.data), {})
    for _, batch in parts:
        if batch.data == {} and like:
            batch.data = _zeros(like, len(batch))
    return parts


def _zeros(like: Any, n: int) -> Any:
    if isinstance(like, dict):
        return {name: _zeros(value, n) for name, value in like.items()}
    if isinstance(like, list):
        return [None] * n
    if isinstance(like, Ragged):
        rows = n * int(np.prod(like.lead[1:], dtype=np.int64))
        return Ragged(like.values[:0], np.zeros(rows + 1, np.int64), (n, *like.lead[1:]))
    return np.zeros((n, *like.shape[1:]), like.dtype)
