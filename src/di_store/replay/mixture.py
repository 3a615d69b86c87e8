"""Mixtures: each example of a batch comes from a table drawn with probability proportional to its weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from di_store._core import LeaseEnd
from di_store.base import config
from di_store.base.dtypes import Array
from di_store.base.errors import StoreError, TableNotFound, shown
from di_store.base.lacks import Lacks
from di_store.replay.batch import Batch, host_array, key_array, leased_keys
from di_store.replay.keys import MOST_SHARDS, plain, shards_of
from di_store.replay.laws import draw_terms
from di_store.replay.lease import ANY_LEASE, Lease, ack_how
from di_store.replay.loader import Following, Loader, LoaderOptions
from di_store.replay.prefetch import DrawSource
from di_store.replay.sampling import Terms
from di_store.replay.table_backend import TableBackend
from di_store.runtime.deadline import Deadline

if TYPE_CHECKING:
    from typing_extensions import Unpack

Shares: TypeAlias = "Mapping[str, float] | Mapping[Mixture, float] | Mapping[str | Mixture, float]"
"""Weights by table name or mixture. A mixture's weight is divided among its tables in proportion to their weights."""


class MixtureBackend(ABC):
    """The backend of a `Mixture`: calls on its tables, wherever they are.

    Attributes:
        weights: weight of each table by name.
        tables: the tables, in the order of `weights`.
        store: name of the store that has the tables.
        kind: the kind of handle, in words for an error.
        lacks: the calls and options that this kind of mixture lacks, each with the reason.
    """

    kind = "mixture"
    lacks: ClassVar[Lacks] = {}
    weights: dict[str, float]
    tables: Sequence[TableBackend]
    store: str

    @property
    @abstractmethod
    def session(self) -> Following:
        """The session that loaders end with."""

    @property
    def name(self) -> str:
        """Names of its tables, for an error."""
        return ", ".join(self.weights)

    def where(self) -> str:
        """Its place, in words for an error: continues the sentence after its name."""
        return f"is of {self.shown()}"

    @abstractmethod
    def shown(self) -> str:
        """The store for people."""

    @abstractmethod
    def pickled(self) -> tuple[Any, ...]:
        """The data for another handle of the mixture, as ``__reduce__`` returns them."""

    @abstractmethod
    def check_open(self) -> None:
        """Raise the error of a closed handle."""

    def size(self) -> int:
        """Number of items of all tables."""
        return sum(table.size() for table in self.tables)

    @abstractmethod
    def sample(self, terms: Terms, beta: float | None, columns: str | Iterable[str] | None, out: Batch | None) -> Batch:
        """As `Mixture.sample`."""

    @abstractmethod
    def source(self, columns: str | Iterable[str] | None) -> DrawSource:
        """The source of a loader."""

    @abstractmethod
    def update_priorities(self, keys: Array, priorities: Array, deadline: Deadline) -> int:
        """As `Mixture.update_priorities`."""

    def end_leases(self, keys: Array, numbers: Any, how: LeaseEnd, deadline: Deadline) -> int:
        """As `Mixture.ack` and `Mixture.give_back`. `numbers`: of the draws, by table, or `ANY_LEASE`."""
        return self._in_each(keys, numbers, lambda table, own, number: table.end_leases(own, number, how, deadline))

    def extend_leases(self, keys: Array, numbers: Any, seconds: float, deadline: Deadline) -> int:
        """As `Lease.extend`."""
        return self._in_each(
            keys, numbers, lambda table, own, number: table.extend_leases(own, number, seconds, deadline)
        )

    def pickled_lease(self, numbers: Any, keys: Array) -> tuple[Any, ...]:
        """What ``Lease.__reduce__`` returns."""
        return load_lease, (*self.pickled(), numbers, keys)

    def _in_each(self, keys: Array, numbers: Any, call: Callable[[TableBackend, Array, int], int]) -> int:
        """The sum of a call on each table's leases. If it fails in one table, the others' are made first."""
        self.check_open()
        places, own = shards_of(keys), plain(keys)
        made = 0
        failed: StoreError | None = None
        for place, table in enumerate(self.tables):
            mine = places == place
            if not mine.any():
                continue
            number = numbers if numbers == ANY_LEASE else numbers[place]
            if number == ANY_LEASE and numbers != ANY_LEASE:  # nothing was drawn from this table
                continue
            try:
                made += call(table, own[mine], number)
            except TableNotFound:  # it was dropped, and its leases with it
                pass
            except StoreError as error:
                failed = failed or error
        try:
            if failed is not None:
                raise failed
        finally:
            del failed  # the error keeps this frame
        return made


class Mixture:
    """Samples from several tables of one store. It pickles as the tables' names, the weights and the seed.

    In a process that unpickles a mixture, and in a forked child, the random choice of tables restarts from the seed.
    """

    def __init__(self, backend: MixtureBackend) -> None:
        self._backend = backend

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each table by name; a table's probability is its weight divided by the sum of all weights."""
        return dict(self._backend.weights)

    def __len__(self) -> int:
        return self._backend.size()

    def __repr__(self) -> str:
        return f"<Mixture {self._backend.weights!r} of {self._backend.shown()}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._backend.pickled()

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
        lease: float | None = None,
    ) -> Batch:
        """Draw n examples as `Table.sample` does.

        ``batch.source``, int32[n], is the table of each example, as its position in `weights`. Examples of one table
        are adjacent. The highest byte of a key holds the same position, so pass these keys only to the mixture's
        `update_priorities`. Columns come in the order of the mixture's first table, in every batch.

        Raises:
            Timeout: not enough items in time; the draws are given back. EndOfData: a table is finished and has too few
            items left. ValueError: a table that had no columns when the mixture was made now has different columns.
        """
        terms, beta = draw_terms(self._backend, n, timeout, min_n, beta, out, replace, lease, {"linger": linger})
        return self._backend.sample(terms, beta, columns, out)

    def ack(self, leased: Any, *, counts: bool = True, timeout: float | None = 60) -> int:
        """Acknowledge leased items of this mixture's batches, in each table as `Table.ack` does.

        Args:
            leased: as in `Table.ack`. Keys have the number of their table in the highest byte.
            counts: as in `Table.ack`.
            timeout: as in `Table.ack`, for all tables together.

        Returns: How many leases it ended. Items of a table that was dropped do not count.

        Raises:
            ValueError: the batch was drawn without ``lease=``, or from a table.
            Timeout: a table's lock was not available; the leases in the other tables are ended.
        """
        return self._backend.end_leases(*leased_keys(leased, mixed=True), ack_how(counts), Deadline.given(timeout))

    def give_back(self, leased: Any, *, timeout: float | None = 60) -> int:
        """Undo the draws of leased items, as `Table.give_back` does. Arguments and result as in `ack`."""
        return self._backend.end_leases(*leased_keys(leased, mixed=True), LeaseEnd.RETURNED, Deadline.given(timeout))

    def update_priorities(self, keys: Any, priorities: Any, *, timeout: float | None = 60) -> int:
        """Set priorities by the keys of this mixture's batches. Returns how many of the items were live.

        Args:
            keys: uint64[n], from a batch of this mixture.
            priorities: n numbers, numpy or torch on any device.
            timeout: as in `Table.update_priorities`, for each table.

        Raises:
            ValueError: a table refuses its priorities, or there are not n of them; nothing was changed.
        """
        keys, priorities = key_array(keys), host_array(priorities)
        if len(keys) != len(priorities):
            raise ValueError(f"update_priorities: {len(keys)} keys but {len(priorities)} priorities")
        return self._backend.update_priorities(keys, priorities, Deadline.given(timeout))

    def loader(self, batch_size: int, **options: Unpack[LoaderOptions]) -> Loader:
        """An iterator over batches that are drawn ahead; options as in `Table.loader`."""
        return Loader(self._backend, self._backend.source(options.get("columns")), batch_size, options)


def backend_of(mixture: Mixture) -> MixtureBackend:
    """The mixture's backend."""
    return mixture._backend


def load_lease(load: Any, arguments: tuple[Any, ...], numbers: Any, keys: Array) -> Lease:
    """Unpickle a lease; `load` and `arguments` are those of its mixture."""
    return Lease(backend_of(load(*arguments)), numbers, keys)


def checked_mix(
    store: str, weights: Any, columns: Any, seed: Any
) -> tuple[dict[str, float], tuple[str, ...] | None, int | None]:
    """The checked arguments of `Store.mix`; raises as `flat_shares`."""
    shares = flat_shares(store, weights)
    number = seed if seed is None else config.count("seed", seed, minimum=0, maximum=2**63 - 1)
    return shares, None if columns is None else config.names("columns", columns), number


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
    if part._backend.store != store:
        raise ValueError(f"{part!r} is of another store than {store!r}: a mixture draws from the tables of one store")
    whole = sum(part.weights.values())
    return {name: weight / whole for name, weight in part.weights.items()}
