"""The handle of a table in parts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np

from di_store._core import KEY_SHARD_AT
from di_store.base import config
from di_store.base.dtypes import Array
from di_store.base.errors import StoreError
from di_store.base.tree import flatten, unflatten
from di_store.client.table import peek_within, schema_within
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
from di_store.policy.changes import UNCHANGED, Unchanged
from di_store.policy.limiters import Limiter, MinSize, check_limiter
from di_store.policy.samplers import Prioritized, Sampler
from di_store.policy.settings import Settings
from di_store.policy.views import View
from di_store.replay.batch import Batch, check_out, empty_batch, host_array, key_array
from di_store.replay.exporting import Exported
from di_store.replay.incomplete import IncompleteGroup, without_groups
from di_store.replay.keys import plain, shards_of, with_shard
from di_store.replay.loader import Loader
from di_store.replay.sampling import Terms, check_n
from di_store.replay.stats import ShardedStats
from di_store.replay.table import Table
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import check_timeout

T = TypeVar("T")
_CALL_SECONDS = 60.0


class ShardedTable(Table):
    """A handle of a table in parts; thread-safe. It pickles as cluster and name.

    Keys carry the number of the shard in their highest byte, so every handle of the table knows all keys.
    """

    def __init__(self, parts: Parts, pickled: tuple[Any, ...]) -> None:
        self._parts = parts
        self._pickled = pickled
        self._mass = MassSource(parts, None)
        self._inserts = itertools.count()

    @property
    def name(self) -> str:
        return self._parts.name

    @property
    def schema(self) -> dict[str, Any] | None:
        """As `Table.schema`, from the first shard that has columns."""
        if self._parts.settings.schema is not None or self._parts.settings.opaque:
            declared = self._parts.settings.schema
            return None if declared is None else declared.specs()
        steps = Deadline(_CALL_SECONDS).steps(self._parts.shards)
        found = (self._unless_lost(shard, step, schema_within) for shard, step in steps)
        return next((each for each in found if each is not None), None)

    @property
    def capacity(self) -> int | None:
        """As `Table.capacity`, summed over all shards that answer."""
        return self.stats()["capacity"]

    @property
    def view(self) -> View:
        return self._parts.settings.view

    @property
    def sampler(self) -> Sampler:
        sampler = self._parts.settings.sampler
        if not isinstance(sampler, Prioritized):
            return sampler
        said = self.stats()
        return replace(sampler, alpha=said["alpha"], beta=said["beta"])

    @property
    def settings(self) -> Settings:
        """The settings of the table before it was divided."""
        return self._parts.settings

    def __len__(self) -> int:
        return self.stats()["size"]

    def __repr__(self) -> str:
        draw = "mass" if self._parts.by_mass else "local"
        return f"<Table {self.name!r} in {len(self._parts.shards)} shards, draw={draw!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._pickled

    # -- writing ------------------------------------------------------------------------------------------------

    def writer(self, *, lanes: int | None = None, autoreset: Any = None) -> ShardWriter:
        return ShardWriter(self._parts, lanes, autoreset)

    def insert(self, value: Any, *, priority: float | None = None, timeout: float | None = None) -> Array:
        return self._insert(lambda table, within: table.insert(value, priority=priority, timeout=within), timeout)

    def extend(self, batch: Any, *, priority: Any = None, timeout: float | None = None) -> Array:
        """As `Table.extend`, into one shard."""
        return self._insert(lambda table, within: table.extend(batch, priority=priority, timeout=within), timeout)

    def _insert(self, call: Callable[[Table, Any], Array], timeout: float | None) -> Array:
        deadline = Deadline.given(timeout)
        shard = self._parts.route(lane_key(self._parts.key, next(self._inserts)))
        try:
            return with_shard(shard.call(deadline, call), shard.number)
        except StoreError as error:
            self._parts.is_lost(shard, error, deadline)  # the next call goes elsewhere then
            raise

    # -- reading ------------------------------------------------------------------------------------------------

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
        if beta is not None:
            beta = config.real("beta", beta, why="it is the exponent of the importance weights")
        if self._parts.by_mass:
            terms = Terms(check_n(n), timeout, min_n, linger, replace=config.flag("replace", replace))
            source = self._mass if columns is None else MassSource(self._parts, columns)
            source.check_replace(terms.n, replace)
            if out is not None:
                check_out(out, terms.n)
            return sample_by_mass(source, terms, beta, out)
        options: dict[str, Any] = {"columns": columns, "out": out, "replace": replace}
        shard, deadline = self._parts.own(), Deadline.given(timeout)
        try:
            batch = shard.call(
                deadline,
                lambda table, within: table.sample(n, timeout=within, min_n=min_n, linger=linger, **options),
            )
        except StoreError as error:
            self._parts.is_lost(shard, error, deadline)  # a node without a shard of its own draws from another one then
            raise
        probabilities = self._parts.probabilities_here(deadline)
        return of_whole(self._parts, shard, batch, probabilities.beta if beta is None else beta, probabilities)

    def peek(self, keys: Any, *, columns: str | Iterable[str] | None = None) -> Batch:
        wanted = key_array(keys)
        places = shards_of(wanted)
        self._check_places(wanted, places)
        deadline, asked = Deadline(_CALL_SECONDS), self._with_some(places)
        found: list[tuple[int, Batch]] = []
        order: list[Array] = []
        for shard, step in deadline.steps(
            asked or self._parts.shards[:1]
        ):  # of no keys one says which outputs there are
            at = np.flatnonzero(places == shard.number)
            mine = plain(wanted[at])
            batch = self._unless_lost(shard, step, partial(_peek, keys=mine, columns=columns))
            found.append((shard.number, empty_batch(mine) if batch is None else batch))
            order.append(at)
        whole = reordered(merge(_alike(found)), np.argsort(np.concatenate(order)))
        return self._weighed(whole, deadline)

    def _weighed(self, batch: Batch, deadline: Deadline) -> Batch:
        """With the probabilities that a draw would have now."""
        if not has_probabilities(self._parts.settings.sampler):
            return batch
        parts = self._parts
        now = by_mass(parts.answers.newest(deadline=deadline)) if parts.by_mass else parts.probabilities_here(deadline)
        if isinstance(now, Probabilities):
            weigh(batch, now.shares[shards_of(batch.keys)], now.beta, 0.0 if self._parts.by_mass else now.least)
        return batch

    def keys(self, start: int = 0, n: int | None = None, *, timeout: float | None = 60) -> Array:
        """As `Table.keys`, shard by shard: oldest first in each."""
        first = config.count("start", start, minimum=0)
        most = None if n is None else config.count("n", n, minimum=0)
        steps = Deadline.given(timeout).steps(self._parts.shards)
        found = np.concatenate([with_shard(shard.call(step, _keys), shard.number) for shard, step in steps])
        return found[first:] if most is None else found[first : first + most]

    def incomplete(self, *, timeout: float | None = 60) -> list[IncompleteGroup]:
        raise without_groups(self.name, self.view)  # division.check_parts refuses groups

    def at(self, positions: Any, *, timeout: float | None = 60) -> Array:
        raise self._without_order("at()")

    def positions(self, keys: Any, *, timeout: float | None = 60) -> Array:
        raise self._without_order("positions()")

    def _without_order(self, what: str) -> StoreError:
        return StoreError(
            f"table {self.name!r} lies in {len(self._parts.shards)} shards: {what} needs one order of all items",
            remedy="keys() gives them by shard; node= instead of shards= makes a table with one order",
        )

    def evicted(self, *, timeout: float | None = 60) -> Iterator[int]:
        steps = Deadline.given(timeout).steps(self._parts.shards)
        return _Gone([(shard.number, shard.call(step, _evicted)) for shard, step in steps])

    def update(self, keys: Any, values: Any, *, row: int | None = 0, timeout: float | None = 60) -> int:
        leaves = flatten(values)
        wanted = key_array(keys)

        def call(table: Table, at: Array, own: Array, within: Any) -> int:
            mine = unflatten(
                {name: leaf[at] if hasattr(leaf, "shape") else np.asarray(leaf)[at] for name, leaf in leaves.items()}
            )
            return table.update(own, mine, row=row, timeout=within)

        return self._by_key("update", wanted, timeout, call, skips=False)

    def update_priorities(self, keys: Any, priorities: Any, *, timeout: float | None = 60) -> int:
        wanted, given = key_array(keys), host_array(priorities)
        if len(wanted) != len(given):
            raise ValueError(f"update_priorities: {len(wanted)} keys but {len(given)} priorities")
        if wrong := given[~(np.isfinite(given) & (given >= 0))][:1].tolist():
            raise ValueError(f"priority {wrong[0]} is not a finite number of at least 0; nothing was changed")

        def call(table: Table, at: Array, own: Array, within: Any) -> int:
            return table.update_priorities(own, given[at], timeout=within)

        return self._by_key("update_priorities", wanted, timeout, call, skips=True)

    def delete(self, keys: Any, *, timeout: float | None = 60) -> int:
        def call(table: Table, at: Array, own: Array, within: Any) -> int:
            return table.delete(own, timeout=within)

        return self._by_key("delete", key_array(keys), timeout, call, skips=False)

    def _by_key(
        self,
        what: str,
        keys: Array,
        timeout: float | None,
        call: Callable[[Table, Array, Array, Any], int],
        *,
        skips: bool,
    ) -> int:
        """The sum of what a call returns for the keys of each shard; `skips`: it leaves out shards that are lost."""
        deadline, places, answers, done = Deadline.given(timeout), shards_of(keys), self._parts.answers, 0
        failed: StoreError | None = None
        self._check_places(keys, places)
        if skips:
            answers.newest(deadline=deadline.step(2))
        asked = sorted(self._with_some(places), key=answers.is_silent)
        for shard, step in deadline.steps([each for each in asked if not (skips and answers.is_silent(each))]):
            at = np.flatnonzero(places == shard.number)
            make = partial(_of_some, call, at, plain(keys[at]))
            if skips:
                done += self._parts.call_or_skip(shard, step, what, make, 0)
                continue
            try:
                done += shard.call(step, make)
            except StoreError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return done

    def _with_some(self, places: Array) -> list[Shard]:
        """The shards with these numbers."""
        numbers = set(np.unique(places).tolist())
        return [shard for shard in self._parts.shards if shard.number in numbers]

    def _check_places(self, keys: Array, places: Array) -> None:
        if wrong := keys[places >= len(self._parts.shards)][:3].tolist():
            raise ValueError(
                f"keys {wrong} do not belong to any of the {len(self._parts.shards)} shards of table {self.name!r}"
            )

    # -- changing -----------------------------------------------------------------------------------------------

    def reset(self, *, timeout: float | None = 60) -> None:
        self._parts.each(Deadline.given(timeout), lambda table, within: table.reset(timeout=within))

    def resize(self, capacity: int, *, timeout: float | None = 60) -> None:
        """As `Table.resize`: each shard gets its part. If one refuses, other shards may have changed."""
        part = part_of(config.count("capacity", capacity, minimum=1), len(self._parts.shards))
        self._parts.each(Deadline.given(timeout), lambda table, within: table.resize(part, timeout=within))

    def configure(
        self,
        *,
        limiter: Limiter | None = None,
        alpha: float | None = None,
        beta: float | Unchanged | None = UNCHANGED,
        max_staleness: int | Unchanged | None = UNCHANGED,
        timeout: float | None = 60,
    ) -> None:
        """As `Table.configure`, for each shard; a limiter is divided. If one refuses, other shards may have changed."""
        if limiter is not None:
            if self._parts.by_mass and not isinstance(check_limiter(limiter), MinSize):
                raise ValueError(f'limiter={limiter!r} with draw="mass": only MinSize(n) is possible')
            limiter = divided(check_limiter(limiter), len(self._parts.shards))
        options = {"limiter": limiter, "alpha": alpha, "beta": beta, "max_staleness": max_staleness}
        self._parts.each(
            Deadline.given(timeout),
            lambda table, within: table.configure(**options, timeout=within),  # type: ignore[arg-type]
        )

    def finish(self, *, timeout: float | None = 60) -> None:
        self._parts.each(Deadline.given(timeout), lambda table, within: table.finish(timeout=within))

    def stats(self) -> ShardedStats:
        """As `Table.stats`, summed over all shards that answer.

        ``shards`` holds the statistics of each shard. Shards that do not answer are missing in the sums.
        """
        self._parts.check_open()
        return aggregate(self._parts, self._parts.answers.newest(0.0))

    def loader(
        self,
        batch_size: int,
        *,
        prefetch: int = 2,
        device: Any = None,
        pin_memory: bool = False,
        beta: float | Callable[[int], float | None] | None = None,
        columns: str | Iterable[str] | None = None,
        drop_last: bool = False,
        timeout: float | None = None,
        replace: bool = True,
    ) -> Loader:
        seconds = check_timeout(timeout)
        source = (
            MassSource(self._parts, columns)
            if self._parts.by_mass
            else LocalSource(self._parts, columns, _CALL_SECONDS if seconds is None else seconds)
        )
        return Loader(
            self._parts.session, source, batch_size, prefetch, device, pin_memory, beta, drop_last, timeout, replace
        )

    def export(self, path: str | os.PathLike[str], *, timeout: float | None = 60) -> Exported:
        raise StoreError(
            f"table {self.name!r} lies in {len(self._parts.shards)} shards: export() writes one table",
            remedy="on each node, di_store.attach() opens its shard as a table of that name",
        )

    def _open(self) -> NoReturn:
        """What calls of one store need of a table."""
        raise StoreError(
            f"table {self.name!r} lies in {len(self._parts.shards)} shards of several stores",
            remedy="use the calls of this handle; on each node, di_store.attach() opens its shard as a table",
        )

    _writable = _open

    # -- shards -------------------------------------------------------------------------------------------------

    def _unless_lost(self, shard: Shard, deadline: Deadline, call: Callable[[Table, Any], T]) -> T | None:
        """What a call of a shard returns; None: it is lost."""
        if self._parts.answers.is_silent(shard):
            return None
        try:
            return shard.call(deadline, call)
        except StoreError as error:
            if not self._parts.is_lost(shard, error, deadline):
                raise
            return None


def _peek(table: Table, within: Any, keys: Array, columns: str | Iterable[str] | None) -> Batch:
    return peek_within(table, keys, columns, within)


def _keys(table: Table, within: Any) -> Array:
    return table.keys(timeout=within)


def _evicted(table: Table, within: Any) -> Iterator[int]:
    return table.evicted(timeout=within)


def _of_some(call: Callable[[Table, Array, Array, Any], int], at: Array, own: Array, table: Table, within: Any) -> int:
    return call(table, at, own, within)


class _Gone:
    """As `GoneKeys`, of all shards: what left one of them comes in its order."""

    def __init__(self, each: list[tuple[int, Iterator[int]]]) -> None:
        self._each = each

    def __iter__(self) -> _Gone:
        return self

    def __next__(self) -> int:
        for number, keys in self._each:
            for key in keys:
                return key | number << KEY_SHARD_AT
        raise StopIteration


def _alike(parts: list[tuple[int, Batch]]) -> list[tuple[int, Batch]]:
    """Batches of `peek`, of which those of shards without columns, or that are lost, have no data: zeros, then."""
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
