"""A mixture of tables in this process's memory."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from di_store.base.dtypes import Array
from di_store.base.errors import StoreError
from di_store.replay.batch import Batch
from di_store.replay.keys import plain, shards_of
from di_store.replay.local_table import LocalTable, local_table
from di_store.replay.lost import without_lost
from di_store.replay.mixture import Mixture, MixtureBackend
from di_store.replay.mixture_source import MixtureDraws, MixtureSource, OutAllocator, TableChoice
from di_store.replay.sampling import Terms, check_fits, copied
from di_store.runtime.deadline import Deadline
from di_store.session import Session, loaded


def _drawn(draws: MixtureDraws, terms: Terms, beta: float | None, allocate: OutAllocator | None) -> Batch:
    draws.draw(terms)
    try:
        return copied(draws, beta, allocate)
    except BaseException:  # also Ctrl-C: nobody gets the batch
        draws.give_back()
        raise


class LocalMixture(MixtureBackend):
    """A mixture of tables of a store that this process is attached to."""

    tables: list[LocalTable]

    def __init__(
        self,
        session: Session,
        tables: Mapping[str, LocalTable],
        weights: Mapping[str, float],
        columns: tuple[str, ...] | None,
        seed: int | None,
    ) -> None:
        self.store = session.name
        self.weights = dict(weights)
        self.tables = list(tables.values())
        self._session = session
        self._columns = columns
        self._seed = seed
        self._ended: StoreError | None = None
        handles = [table.open() for table in self.tables]
        self._source: MixtureSource | None = MixtureSource(handles, TableChoice(list(weights.values()), seed), columns)
        session.follow(self, LocalMixture._end_with)

    @property
    def session(self) -> Session:
        return self._session

    def shown(self) -> str:
        return f"store {self.store!r}"

    def pickled(self) -> tuple[Any, ...]:
        return load_mixture, (self.store, self.weights, self._columns, self._seed, self._session.readonly)

    def check_open(self) -> None:
        self._open()

    def sample(self, terms: Terms, beta: float | None, columns: str | Iterable[str] | None, out: Batch | None) -> Batch:
        whole, n = self._open(), terms.n
        check_fits(whole.arena, n)
        whole.check(terms)
        draws = (whole if columns is None else whole.only(columns)).begin(n)
        draws.leasing = self
        batch = without_lost(whole.arena, _drawn, draws, terms, beta, None if out is None else OutAllocator(out))
        draws.deliver()
        return batch if out is None or len(batch) < n else out.become(batch)

    def source(self, columns: str | Iterable[str] | None) -> MixtureSource:
        found = self._open().only(columns)
        found.leasing = self
        return found

    def update_priorities(self, keys: Array, priorities: Array, deadline: Deadline) -> int:
        self._open()
        places, own = shards_of(keys), plain(keys)
        for place, table in enumerate(self.tables):
            table.open().native.check_priorities(priorities[places == place])
        return sum(
            table.update_priorities(own[places == place], priorities[places == place], deadline)
            for place, table in enumerate(self.tables)
            if (places == place).any()
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
        for table in self.tables:
            table.writable()
        return source


def load_mixture(
    store: str, weights: dict[str, float], columns: tuple[str, ...] | None, seed: int | None, readonly: bool
) -> Mixture:
    """Unpickle a mixture, in the process that loads it."""

    def attach(session: Session) -> LocalMixture:
        return LocalMixture(session, {name: local_table(session, name, 0) for name in weights}, weights, columns, seed)

    return Mixture(loaded(attach, store, readonly))
