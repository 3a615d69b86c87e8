"""The interface of a store's backend, by which `Store` reaches a store wherever it is.

There are three: a store in this process's memory (`LocalStore`), a remote store (`client/store`), and the store of this
machine as a node of a cluster (`cluster/node_store`). Arguments are checked already: ids are bytes, times are
deadlines.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from di_store.base import config
from di_store.base.lacks import Lack, Lacks, check_option, lacking
from di_store.checkpoint.store.capture import Progress
from di_store.objects.access import Objects
from di_store.objects.draft import Draft
from di_store.objects.refs import Ref
from di_store.objects.weights import Published, Weights
from di_store.observe.stats import StoreStats
from di_store.policy.limiters import Limiter
from di_store.policy.options import LANES, NotGiven
from di_store.policy.samplers import Sampler
from di_store.policy.settings import Settings
from di_store.replay.mixture import MixtureBackend
from di_store.replay.table_backend import TableBackend
from di_store.replay.writer import WriterBackend
from di_store.runtime.deadline import Deadline

HERE = "here"
"""As ``node=``: on this machine."""
_OF_A_CLUSTER = Lack(
    "is for a store of a cluster, as di_store.cluster.attach() or di_store.cluster.ray.store() gives it", "leave it out"
)
ALONE: Lacks = dict.fromkeys(("group", "copies", "node", "shards", "draw"), _OF_A_CLUSTER)
"""The options that a store in no cluster does not have."""


class Place(NamedTuple):
    """The place of a new table in a cluster: the options of `Store.create_table` for it."""

    node: Any = HERE
    shards: Any = None
    draw: Any = None


class ImportChanges(NamedTuple):
    """The settings that `Store.import_table` changes of the table in the file."""

    capacity: int | NotGiven | None
    sampler: Sampler | NotGiven
    limiter: Limiter | NotGiven


class StoreBackend(ABC):
    """One store, for `Store`. The methods of `Store` with the same names describe the calls.

    Attributes:
        kind: the kind of store, in words for an error.
        lacks: the calls and options that this kind of store lacks, each with the reason.
        in_steps: objects and weights whose calls are made in steps too, for asyncio; None: the store has others too.
        lanes: default of the option ``lanes=`` of a new table.
        put_now: puts a value without waiting, and returns its id; raises StoreFull or Timeout: call `put`. For a store
            in memory this is the core's own method.
        get_now: reads an object without waiting; raises ObjectNotFound, StoreFull or Timeout: call `get`.
        alone: whether an object that `get_now` does not find cannot be elsewhere.
    """

    kind = "store"
    lacks: Lacks = {}  # noqa: RUF012 - replaced, not changed
    lanes = LANES
    alone = False
    in_steps: tuple[Objects, Weights] | None = None
    put_now: Callable[[Any, bytes | None, float], bytes]
    get_now: Callable[[bytes, bool | None], Any]

    @property
    @abstractmethod
    def name(self) -> str:
        """The store's name."""

    @property
    def address(self) -> str | None:
        """As `Store.address`."""
        return None

    @property
    @abstractmethod
    def seed(self) -> int:
        """The store's seed, from which its tables' seeds are derived."""

    @abstractmethod
    def shown(self) -> str:
        """The store for people."""

    def where(self) -> str:
        """The store's place, in words for errors of missing calls: continues the sentence after its name."""
        return "is here"

    @abstractmethod
    def ended(self) -> bool:
        """Whether `close` was called."""

    @abstractmethod
    def pickled(self) -> tuple[Any, ...]:
        """The data for another handle of the store, as ``__reduce__`` returns them."""

    @abstractmethod
    def close(self) -> None: ...

    # -- the store ----------------------------------------------------------------------------------------------

    @abstractmethod
    def resize(self, memory: Any, disk_capacity: Any, write_budget: Any) -> None:
        """As `Store.resize`; at least one limit is given."""

    @abstractmethod
    def stats(self) -> StoreStats: ...

    @abstractmethod
    def check(self, repair: bool) -> list[str]: ...

    @abstractmethod
    def sync(self, copies: int | None, deadline: Deadline) -> None: ...

    def checkpoint(self, path: str | os.PathLike[str], progress: Progress | None, deadline: Deadline) -> None:
        """As `Store.checkpoint`."""
        raise lacking(self, "checkpoint")

    # -- objects ------------------------------------------------------------------------------------------------

    @abstractmethod
    def put(self, value: Any, raw: bytes | None, ttl: float, durability: str, copies: int, deadline: Deadline) -> Ref:
        """As `Store.put`. `ttl` 0: it stays."""

    def reserve(self, spec: Any, raw: bytes | None, ttl: float, deadline: Deadline) -> Draft:
        """As `Store.reserve`. `ttl` 0: it stays."""
        raise lacking(self, "reserve")

    @abstractmethod
    def get(self, raw: bytes, copy: bool | None, deadline: Deadline) -> Any: ...

    @abstractmethod
    def put_many(
        self, values: Sequence[Any], raws: Sequence[bytes | None], durability: str, deadline: Deadline
    ) -> list[Ref]: ...

    @abstractmethod
    def get_many(self, raws: list[bytes], copy: bool | None, deadline: Deadline) -> list[Any]: ...

    @abstractmethod
    def wait(self, refs: list[Ref], num_returns: int, deadline: Deadline) -> tuple[list[Ref], list[Ref]]: ...

    @abstractmethod
    def contains(self, raw: bytes) -> bool: ...

    @abstractmethod
    def delete(self, raws: list[bytes]) -> int: ...

    @abstractmethod
    def keys(self, start: Ref | None, n: int) -> list[Ref]: ...

    # -- weights ------------------------------------------------------------------------------------------------

    @abstractmethod
    def publish(self, name: str, tree: Any, keep: int, group: Any, durability: str, deadline: Deadline) -> int: ...

    @abstractmethod
    def latest(
        self, name: str, newer_than: int | None, version: int | None, group: Any, deadline: Deadline
    ) -> Published | None: ...

    # -- tables -------------------------------------------------------------------------------------------------

    @abstractmethod
    def create_table(
        self, name: str, settings: Settings, place: Place, exist_ok: bool, deadline: Deadline
    ) -> TableBackend: ...

    def import_table(
        self,
        path: str | os.PathLike[str],
        name: str | None,
        changes: ImportChanges,
        allow_pickle: bool,
        deadline: Deadline,
    ) -> TableBackend:
        """As `Store.import_table`."""
        raise lacking(self, "import_table")

    @abstractmethod
    def table(self, name: str, deadline: Deadline) -> TableBackend: ...

    @abstractmethod
    def drop_table(self, name: str, deadline: Deadline) -> None: ...

    @abstractmethod
    def writer(self, tables: list[TableBackend], lanes: int | None, autoreset: Any) -> WriterBackend:
        """As `Store.writer`. Each table has another name."""

    @abstractmethod
    def mix(self, weights: dict[str, float], columns: tuple[str, ...] | None, seed: int | None) -> MixtureBackend:
        """As `Store.mix`. `weights`: of tables."""


def check_copies(there: StoreBackend, copies: Any, default: int | None = None) -> int:
    """``copies=``; ValueError, TypeError: this kind of store has no copies, or the value is no number of nodes.

    `default`: a number that every kind of store takes.
    """
    wanted = config.count("copies", copies, minimum=1)
    if wanted != default:
        check_option(there, "copies", copies)
    return wanted


def check_place(there: StoreBackend, place: Place) -> Place:
    """The place of a new table; ValueError: this kind of store has no other places."""
    for option, value, default in zip(Place._fields, place, Place(), strict=True):
        if value != default:
            check_option(there, option, value)
    return place
