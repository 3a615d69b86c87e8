"""The interface of a table's backend, by which `Table` reaches a table wherever it is.

There are three: a table in this process's memory (`LocalTable`), a table of a remote store (`client/table`), and a
table in parts on several nodes (`cluster/shards/sharded_table`). Arguments are checked already: keys are uint64 arrays,
times are deadlines.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Protocol

from di_store import _core
from di_store._core import LeaseEnd
from di_store.base.dtypes import Array
from di_store.base.errors import RowsLost
from di_store.base.lacks import Lacks, lacking
from di_store.columns.schema import Schema
from di_store.policy.samplers import Sampler
from di_store.policy.settings import Settings
from di_store.replay.batch import Batch
from di_store.replay.exporting import Exported
from di_store.replay.handle import TableHandle, not_now
from di_store.replay.incomplete import Found
from di_store.replay.keys import GoneKey
from di_store.replay.loader import Following
from di_store.replay.prefetch import DrawSource
from di_store.replay.sampling import Terms
from di_store.replay.stats import TableStats
from di_store.replay.writer import WriterBackend
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import Steps, run

AT_ONCE = 65_536
"""For a batch of more examples, `sample` first checks that it fits in memory."""


class Puts(Protocol):
    """Inserts an item at once."""

    @property
    def put(self) -> Callable[[Any, Any, Any], Array | None]:
        """Takes value, priority and timeout; returns the item's key, or None if nothing was inserted."""


class NothingAtOnce:
    """Inserts nothing at once."""

    put = staticmethod(not_now)


class TableBackend(ABC):
    """One table, for `Table`. The methods of `Table` with the same names describe the calls.

    Attributes:
        kind: the kind of table, in words for an error.
        name: the table's name.
        session: the session that loaders end with.
        lacks: the calls that this kind of table lacks, each with the reason.
        in_memory: whether calls are made in steps too, for asyncio.
        handle: the table in this process's memory; None: the table is elsewhere, or the store's handle is closed.
        inserter: inserts at once if it can.
        repeats: whether a batch may hold an item twice.
        prioritized: the core's table, if the table has a `beta` and is in this process's memory.
        sample_now: the core's attempt to draw at once. Returns a batch or its parts, or else the state from which
            `sample` continues. None: not made yet, or the table is elsewhere.
        update_now: the core's own `update_priorities`; None: as for `sample_now`.
        ack_now: the core's own `end_leases`; None: as for `sample_now`.
    """

    kind = "table"
    name: str
    lacks: ClassVar[Lacks] = {}
    in_memory = False
    handle: TableHandle | None = None
    inserter: Puts = NothingAtOnce()
    repeats = True
    prioritized: _core.Table | None = None
    sample_now: Callable[[int, float | None, list[int] | None, bool], Any] | None = None
    update_now: Callable[[Array, Array, float], int] | None = None
    ack_now: Callable[[Array, int, LeaseEnd, float], int] | None = None

    @property
    @abstractmethod
    def session(self) -> Following:
        """See above."""

    @property
    @abstractmethod
    def settings(self) -> Settings:
        """The settings with which the table was made."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Text that distinguishes the table from others of its name, here or on another node."""

    @abstractmethod
    def shown(self) -> str:
        """The table for people."""

    def where(self) -> str:
        """The table's place, in words for errors of missing calls: continues the sentence after its name."""
        return "is here"

    @abstractmethod
    def pickled(self) -> tuple[Any, ...]:
        """The data for another handle of the table, as ``__reduce__`` returns them."""

    # -- what it is like ----------------------------------------------------------------------------------------

    @abstractmethod
    def schema(self, deadline: Deadline | None = None) -> Schema | None:
        """The declared columns. `deadline` None, here and below: a minute, if the table is elsewhere."""

    @abstractmethod
    def capacity(self) -> int | None: ...

    @abstractmethod
    def sampler(self) -> Sampler: ...

    @abstractmethod
    def size(self) -> int:
        """Number of items."""

    @abstractmethod
    def stats(self, deadline: Deadline | None = None) -> TableStats: ...

    # -- writing ------------------------------------------------------------------------------------------------

    @abstractmethod
    def writer(self, lanes: int | None, autoreset: Any, deadline: Deadline | None = None) -> WriterBackend:
        """As `Table.writer`. `deadline` None: as long as it takes."""

    def insert(self, value: Any, priority: Any, deadline: Deadline) -> Array:
        return run(self.inserting(value, priority, deadline))

    def extend(self, batch: Any, priority: Any, deadline: Deadline) -> Array:
        return run(self.inserting(batch, priority, deadline, one=False))

    def inserting(self, value: Any, priority: Any, deadline: Deadline, one: bool = True) -> Steps[Array]:
        """`insert` in steps; `one` False: `extend`."""
        raise AssertionError("the table is elsewhere")

    # -- reading ------------------------------------------------------------------------------------------------

    def first_sample(self, n: int, beta: float | None, which: list[int] | None, distinct: bool) -> Any:
        """Make `sample_now`, and call it; None: there is none."""
        return None

    def lease_now(self, n: int, beta: float | None, lease: Any, distinct: bool) -> Batch | None:
        """Draw with a lease at once; None: not possible now, or `lease` has to be checked."""
        return None

    def sample(
        self, found: Any, terms: Terms, beta: float | None, columns: str | Iterable[str] | None, out: Batch | None
    ) -> Batch:
        """As `Table.sample`. `found`: the result of `sample_now`, or None. `beta` None: the sampler's."""
        return run(self.sampling(found, terms, beta, columns, out))

    def sampling(
        self, found: Any, terms: Terms, beta: float | None, columns: str | Iterable[str] | None, out: Batch | None
    ) -> Steps[Batch]:
        """`sample` in steps."""
        raise AssertionError("the table is elsewhere")

    def draw(self, terms: Terms, columns: str | Iterable[str] | None, out: Batch | None = None) -> Batch:
        """As `sample`, with the sampler's own beta, for a step of a longer call."""
        found = None
        whole = columns is None and out is None and terms.min_n == terms.n <= AT_ONCE
        if whole and terms.lease is None and (terms.replace or self.repeats):
            beta = None if (native := self.prioritized) is None else native.beta
            try:
                found = (self.sample_now or self.first_sample)(terms.n, beta, None, not terms.replace)
            except RowsLost:
                pass  # `sample` draws again, and removes their items
        if type(found) is tuple:
            return Batch(*found)
        return found if type(found) is Batch else self.sample(found, terms, None, columns, out)

    @abstractmethod
    def peek(self, keys: Array, columns: str | Iterable[str] | None, deadline: Deadline | None = None) -> Batch: ...

    @abstractmethod
    def source(self, columns: str | Iterable[str] | None, timeout: float | Deadline | None = None) -> DrawSource:
        """The source of a loader. `timeout`: of one batch."""

    @abstractmethod
    def keys(self, start: int, n: int, deadline: Deadline) -> Array: ...

    def at(self, positions: Any, deadline: Deadline) -> Array:
        """As `Table.at`."""
        raise lacking(self, "at")

    def positions(self, keys: Array, deadline: Deadline) -> Array:
        """As `Table.positions`."""
        raise lacking(self, "positions")

    @abstractmethod
    def evicted(self, deadline: Deadline) -> Iterator[GoneKey]: ...

    def incomplete(self, deadline: Deadline) -> Found:
        """The incomplete groups of a table of groups."""
        raise lacking(self, "incomplete")

    def export(self, path: str | os.PathLike[str], deadline: Deadline) -> Exported:
        """As `Table.export`."""
        raise lacking(self, "export")

    # -- changing -----------------------------------------------------------------------------------------------

    @abstractmethod
    def update(self, keys: Array, values: Any, row: Any, deadline: Deadline, lease: int | None = None) -> int:
        """As `Table.update`. `lease`: acknowledges the leases with this number; None: none."""

    @abstractmethod
    def end_leases(self, keys: Array, number: int, how: LeaseEnd, deadline: Deadline) -> int:
        """As `Table.ack` and `Table.give_back`. `number`: of the draw, or `ANY_LEASE`."""

    @abstractmethod
    def extend_leases(self, keys: Array, number: int, seconds: float, deadline: Deadline) -> int:
        """As `Lease.extend`. A lease that was pickled may be loaded on another machine."""

    @abstractmethod
    def pickled_lease(self, number: int, keys: Array) -> tuple[Any, ...]:
        """What ``Lease.__reduce__`` returns."""

    @abstractmethod
    def update_priorities(self, keys: Array, priorities: Array, deadline: Deadline) -> int: ...

    @abstractmethod
    def delete(self, keys: Array, deadline: Deadline) -> int: ...

    @abstractmethod
    def reset(self, deadline: Deadline) -> None: ...

    @abstractmethod
    def resize(self, capacity: int, deadline: Deadline) -> None: ...

    @abstractmethod
    def configure(self, changes: dict[str, Any], deadline: Deadline) -> None:
        """As `Table.configure`; `changes`: its arguments by name."""

    @abstractmethod
    def finish(self, deadline: Deadline) -> None: ...
