"""Mixtures: each example of a batch comes from a table drawn with probability proportional to its weight."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from di_store.base import config
from di_store.base.errors import StoreError, shown
from di_store.replay.batch import Batch, check_out, host_array, key_array
from di_store.replay.keys import MOST_SHARDS, plain, shards_of
from di_store.replay.loader import Loader
from di_store.replay.lost import without_lost
from di_store.replay.mixture_source import MixtureDraws, MixtureSource, OutAllocator, TableChoice
from di_store.replay.sampling import Terms, check_fits, check_n, copied
from di_store.replay.table import Table, open_table
from di_store.session import Session, loaded

Shares: TypeAlias = "Mapping[str, float] | Mapping[Mixture, float] | Mapping[str | Mixture, float]"
"""Weights by table name or mixture. A mixture's weight is divided among its tables in proportion to their weights."""


def _drawn(draws: MixtureDraws, terms: Terms, beta: float | None, allocate: OutAllocator | None) -> Batch:
    draws.draw(terms)
    try:
        return copied(draws, beta, allocate)
    except BaseException:  # also Ctrl-C: nobody gets the batch
        draws.give_back()
        raise


class Mixture:
    """Samples from several tables of one store. It pickles as the tables' names, the weights and the seed.

    In a process that unpickles a mixture, and in a forked child, the random choice of tables restarts from the seed.
    """

    def __init__(
        self,
        session: Session,
        tables: Mapping[str, Table],
        weights: Mapping[str, float],
        columns: tuple[str, ...] | None,
        seed: int | None,
    ) -> None:
        self._session = session
        self._tables = list(tables.values())
        self._weights = dict(weights)
        self._columns = columns
        self._seed = seed
        self._ended: StoreError | None = None
        handles = [table._open() for table in self._tables]
        self._source: MixtureSource | None = MixtureSource(handles, TableChoice(list(weights.values()), seed), columns)
        session.follow(self, Mixture._end_with)

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each table by name; a table's probability is its weight divided by the sum of all weights."""
        return dict(self._weights)

    def __len__(self) -> int:
        return sum(len(table) for table in self._tables)

    def __repr__(self) -> str:
        return f"<Mixture {self._weights!r} of store {self._session.name!r}>"

    @property
    def _store_name(self) -> str:
        return self._session.name

    def __reduce__(self) -> tuple[Any, ...]:
        return load_mixture, (self._session.name, self._weights, self._columns, self._seed, self._session.readonly)

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

        ``batch.source``, int32[n], is the table of each example, as its position in `weights`. Examples of one table
        are adjacent. The highest byte of a key holds the same position, so pass these keys only to the mixture's
        `update_priorities`. Columns come in the order of the mixture's first table, in every batch.

        Raises:
            Timeout: not enough items in time; the draws are given back. EndOfData: a table is finished and has too few
            items left. ValueError: a table that had no columns when the mixture was made now has different columns.
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
        draws = source.begin(n)
        terms = Terms(n, timeout, min_n, linger, replace=replace)
        batch = without_lost(whole.arena, _drawn, draws, terms, beta, None if out is None else OutAllocator(out))
        draws.deliver()
        return batch if out is None or len(batch) < n else out.become(batch)

    def update_priorities(self, keys: Any, priorities: Any, *, timeout: float | None = 60) -> int:
        """Set priorities by the keys of this mixture's batches. Returns how many of the items were live.

        Args:
            keys: uint64[n], from a batch of this mixture.
            priorities: n numbers, numpy or torch on any device.
            timeout: as in `Table.update_priorities`, for each table.

        Raises:
            ValueError: a table refuses its priorities, or there are not n of them; nothing was changed.
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
        """An iterator over batches that are drawn ahead; arguments as in `Table.loader`."""
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


def load_mixture(
    store: str, weights: dict[str, float], columns: tuple[str, ...] | None, seed: int | None, readonly: bool
) -> Mixture:
    """Unpickle a mixture, in the process that loads it."""

    def attach(session: Session) -> Mixture:
        return Mixture(session, {name: open_table(session, name, 0) for name in weights}, weights, columns, seed)

    return loaded(attach, store, readonly)


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
    if part._store_name != store:
        raise ValueError(f"{part!r} is of another store than {store!r}: a mixture draws from the tables of one store")
    whole = sum(part.weights.values())
    return {name: weight / whole for name, weight in part.weights.items()}
