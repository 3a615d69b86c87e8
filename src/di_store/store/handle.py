"""The handle of a store: a named arena of shared memory that holds objects, weights and tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from di_store import _core
from di_store.base import config
from di_store.base.disk import budget_of_writes, new_capacity
from di_store.base.errors import ObjectNotFound, StoreFull, Timeout, of_core
from di_store.base.sizes import budget_bytes
from di_store.checkpoint.store import capture, durable
from di_store.objects import codec
from di_store.objects.access import Objects
from di_store.objects.draft import Draft, reserve
from di_store.objects.refs import Ref, id_of, ids_of, ref_of
from di_store.objects.weights import Published, Weights
from di_store.observe.stats import StoreStats, store_stats
from di_store.policy.limiters import Limiter
from di_store.policy.options import NOT_GIVEN, NotGiven, TableOptions
from di_store.policy.samplers import Sampler
from di_store.replay.lost import drop_lost
from di_store.replay.mixture import Mixture, Shares
from di_store.replay.table import Table
from di_store.replay.tables import Tables
from di_store.replay.writer import Writer, forget_writers
from di_store.runtime import waits
from di_store.runtime.waits import check_timeout
from di_store.session import Session, loaded

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MEMORY, _MINUTE, _NOW = "memory", 60, 0  # defaults, compared by identity: `==` of an argument may fail or be slow

_core.set_python(of_core, codec.encode, codec.decode, waits.log_wait)
os.register_at_fork(
    before=_core.before_fork, after_in_parent=_core.after_fork_parent, after_in_child=_core.after_fork_child
)
os.register_at_fork(after_in_child=forget_writers)


class Store:
    """A handle of one store; thread-safe. It pickles as the store's name and attaches when it is unpickled."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._objects = Objects(session)
        self._weights = Weights(session)
        self._tables = Tables(session)
        # The core's methods themselves, for speed; `close` replaces them.
        self._put: Callable[[Any, bytes | None, float], bytes] = (
            session.refuse_to_write if session.readonly else session.arena.put
        )
        self._get: Callable[[bytes, bool | None], Any] = session.arena.get

    # -- the handle ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The store's name."""
        return self._session.name

    def close(self) -> None:
        """Close this handle: later calls on it, its tables, writers and loaders raise `StoreClosed`.

        Durable tables are written first. Arrays stay valid: the store is unmapped when the last handle and the last
        array are gone. The last handle also removes files in `disk=` that are no longer needed. It waits up to 5
        seconds for background threads; if a stopped process holds these up, the files may stay.
        """
        durable.before_close(self._session)
        self._put = self._get = self._session.refuse
        self._session.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.name!r}{' (closed)' if self._session.ended() else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return loaded, (Store, self.name, self._session.readonly)

    def resize(
        self,
        memory: int | float | str | None = None,
        *,
        disk_capacity: int | str | None = None,
        write_budget: int | str | None = None,
    ) -> None:
        """Change the limits of memory and disk while the store is in use.

        Args:
            memory: as in `open`; a smaller limit gives pages back to the system. None: unchanged.
            disk_capacity: as in `open`, for a store with a disk tier. None: unchanged.
            write_budget: as in `open`. Bytes that were written before no longer count. None: unchanged.

        Raises:
            CapacityError: the limit is below what is in use or reserved, or above what the machine allows. StoreFull:
            the filesystem of the disk tier has no room. Memory is changed first. A refused limit keeps its old value.
        """
        arena = self._session.writable()
        capacity = None if disk_capacity is None else new_capacity(arena.disk, disk_capacity)
        writes = budget_of_writes(arena.disk, write_budget)
        if memory is None and capacity is None and write_budget is None:
            raise TypeError("resize() changes memory= or disk_capacity= or write_budget=: give one of them")
        if memory is not None:
            arena.resize(budget_bytes(memory), waits.CALL_SECONDS)
        if capacity is not None:
            arena.resize_disk(capacity, waits.CALL_SECONDS)
        if write_budget is not None:
            arena.set_write_budget(writes)

    def stats(self) -> StoreStats:
        """Bytes, clients, waiters and tables as nested dicts. Takes no locks except those of `Table.stats`."""
        return store_stats(self._session.arena, self._tables.stats())

    def check(self, repair: bool = False) -> list[str]:
        """Compare derived data with the data that it is computed from. Returns one line for each difference.

        For a store with `disk=`, the call also reads all rows on disk, at the speed of the drive, and compares them
        with their checksums. It reports at most 100 damaged chunks one by one.

        Args:
            repair: also recompute wrong derived data, and remove the items of damaged chunks.
        """
        wanted = config.flag("repair", repair)
        arena = self._session.writable() if wanted else self._session.arena
        findings = arena.check(wanted, waits.CALL_SECONDS) + arena.check_disk(wanted, waits.CALL_SECONDS)
        if wanted:
            drop_lost(arena, marked=True)
        return findings

    def sync(self, *, timeout: float | None = 600) -> None:
        """Wait until earlier changes to data with ``durability="disk"`` are on disk.

        This covers rows of tables and deletes of objects. Durable objects are on disk when `put` or `publish` returns.

        Raises:
            Timeout: another process was writing the tables for all of `timeout`. StoreFull, StoreError, OSError: the
            folder cannot be written.
        """
        durable.sync(self._session.writable(), check_timeout(timeout))

    def checkpoint(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float | None = 600,
        progress: capture.Progress | None = None,
    ) -> None:
        """Save the whole store, as it is at one instant, to a folder. Other processes keep working. `restore` reads it.

        A checkpoint holds objects, weights, and tables with items, priorities, counts, limiters, order and random
        numbers. All calls wait while the items are copied, 11 ms for a million items; rows are written afterwards. A
        later checkpoint of this store in the same folder writes only what has changed. The previous checkpoint stays
        readable until the new one is complete, even if the process is killed. A checkpoint takes 56 bytes of memory per
        item.

        Args:
            path: a folder on a local drive; created if it does not exist. On the filesystem of `disk=`, rows that are
                already on disk are linked instead of copied.
            timeout: seconds to wait for another checkpoint in that folder; None: no limit.
            progress: called with the number of bytes written so far and the total.

        Raises:
            StoreFull: the filesystem has no room. Timeout: another process is making a checkpoint there. AccessDenied,
            StoreError, OSError: the folder cannot be written.
        """
        capture.checkpoint(self._session.arena, path, timeout, progress)

    # -- objects ------------------------------------------------------------------------------------------------

    def put(
        self,
        value: Any,
        *,
        id: str | None = None,
        ttl: float | None = None,
        durability: str = "memory",
        timeout: float | None = 60,
    ) -> Ref:
        """Copy a value into the store, once. Returns its ref.

        Args:
            value: arrays, tensors, nested containers of them, scalars, text, bytes; any other value is pickled with its
                buffers out of band.
            id: 40 hex characters; None: a new id.
            ttl: seconds until the object is deleted; None: it stays until `delete`.
            durability: "memory": the object ends with the store. "disk": `put` returns once the object is on disk, and
                `open` with the same folder restores it; needs a store with `disk=`.
            timeout: seconds to wait for room.

        Raises:
            ObjectExists: the id is taken. StoreFull: no room within `timeout`. CapacityError: the value can never fit.
        """
        if id is None and ttl is None and durability is _MEMORY and (timeout is _MINUTE or check_timeout(timeout) != 0):
            try:
                return ref_of(self._put(value, None, 0.0))
            except (StoreFull, Timeout):  # no room, or a lock is held: try again below with the timeout
                pass
        return self._objects.put(value, id, ttl, timeout, durability)

    def reserve(
        self, spec: Any, *, id: str | None = None, ttl: float | None = None, timeout: float | None = 60
    ) -> Draft:
        """Reserve room for a value that is written in place. Returns a `Draft`, which `Draft.seal` makes an object.

        This saves the copy of `put`. Nobody can read the object before `seal`. If this process dies, the room is freed.

        Args:
            spec: `Spec`, or anything with shape and dtype; or a nested dict of them.
            id: 40 hex characters; None: a new id.
            ttl: seconds from now until the object is deleted; None: it stays until `delete`.
            timeout: seconds to wait for room.

        Raises:
            ObjectExists: the id is taken. StoreFull: no room within `timeout`. CapacityError: the value can never fit.
            ValueError: a leaf has no shape or dtype, or no fixed size.
        """
        return reserve(self._session, spec, id, ttl, timeout)

    def get(self, ref: Ref | str, *, timeout: float | None = 0, copy: bool | None = None) -> Any:
        """Read an object. An object that was moved to disk is read from there.

        Args:
            ref: the ref that `put` returned, or its text.
            timeout: seconds to wait until the object exists and is sealed.
            copy: None: numpy arrays are read-only views of shared memory, torch tensors are copied. False: tensors are
                views too; an in-place write to one kills the process. True: all arrays are writable copies.

        Raises:
            ObjectNotFound: the object does not exist within `timeout`. CorruptData: the object is damaged on disk.
            StoreFull: the object is on disk, and there is no room to read it.
        """
        if copy is not None:
            copy = config.flag("copy", copy)
        if timeout is not _NOW:
            check_timeout(timeout)
        try:
            return self._get(ref.raw if type(ref) is Ref else id_of(ref), copy)
        except (ObjectNotFound, StoreFull, Timeout):
            seconds = check_timeout(timeout)
            if seconds == 0:
                raise
        return self._objects.get(id_of(ref), seconds, copy)

    def put_many(
        self,
        values: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        durability: str = "memory",
        timeout: float | None = 60,
    ) -> list[Ref]:
        """`put` all values or none. Returns their refs. With "disk" they are written to disk together."""
        return self._objects.put_many(values, ids, timeout, durability)

    def get_many(self, refs: Iterable[Ref | str], *, timeout: float | None = 0, copy: bool | None = None) -> list[Any]:
        """`get` all refs under one deadline. Returns the values."""
        return self._objects.get_many(refs, timeout, None if copy is None else config.flag("copy", copy))

    def wait(
        self, refs: Iterable[Ref | str], num_returns: int = 1, timeout: float | None = 60
    ) -> tuple[list[Ref], list[Ref]]:
        """Wait until `num_returns` of the objects exist. Returns the refs of these objects, and all other refs."""
        return self._objects.wait(refs, num_returns, timeout)

    def contains(self, ref: Ref | str) -> bool:
        """Whether the object exists and is sealed."""
        return self._session.arena.contains(id_of(ref), waits.CALL_SECONDS)

    def delete(self, refs: Ref | str | Iterable[Ref | str]) -> int:
        """Delete objects. Returns how many existed. An object in use is freed when its last array is gone.

        Deletes of durable objects are on disk once `sync` or `close` returns. Before that, deleted objects can come
        back after a power cut, but not after a kill.
        """
        return self._session.writable().delete(ids_of(refs), waits.CALL_SECONDS)

    def keys(self, start: Ref | str | None = None, n: int = 1000) -> list[Ref]:
        """Refs of up to `n` objects in the order of their ids, beginning after `start`; None: from the first."""
        return self._objects.keys(start, n)

    # -- weights ------------------------------------------------------------------------------------------------

    def publish(
        self,
        name: str,
        tree: Any,
        *,
        keep: int = 1,
        group: Any = None,
        durability: str = "memory",
        timeout: float | None = 60,
    ) -> int:
        """Publish the next version of `name`. Returns its number.

        Args:
            name: name of the weights. Names that begin with "di-store/" are reserved.
            tree: any value that `put` takes; None counts a version whose weights are sent another way.
            keep: how many of the newest versions stay readable.
            group: group of nodes that receive the version, for a store in a cluster (docs/cluster.md).
            durability: "disk": `publish` returns once the version is on disk. `open` with the same folder restores it,
                and it stays readable until a newer version is durable. Needs a store with `disk=`.
            timeout: seconds to wait for room.
        """
        return self._weights.publish(name, tree, keep, group, timeout, durability)

    def latest(
        self,
        name: str,
        *,
        newer_than: int | None = None,
        version: int | None = None,
        timeout: float | None = 0,
        group: Any = None,
    ) -> Published | None:
        """The newest version of `name` above `newer_than`, or exactly `version`; None if none comes within `timeout`.

        `group`: as in `publish`.
        """
        return self._weights.latest(name, newer_than, version, timeout, group)

    # -- tables -------------------------------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        *,
        exist_ok: bool = False,
        timeout: float | None = 60,
        **options: Unpack[TableOptions],
    ) -> Table:
        """Make a table. `capacity` is required, all other options have defaults.

        Args:
            name: 1 to 100 bytes of text.
            capacity: number of items; None: as many as fit `max_bytes`.
            view: how rows become examples; default Step().
            schema: nested dict of anything with `.shape` and `.dtype`; None: the first step declares it.
            sampler: chooses the items to draw; default Uniform().
            remover: chooses the item to evict when the table is full; default Fifo().
            limiter: makes inserts or draws wait; default MinSize(1).
            max_times_sampled: number of draws after which an item is removed; default 0, no limit.
            max_bytes: limit on the bytes of the table's rows; None: only the store's limit.
            lanes: number of lanes for whose open episodes room is reserved; default 64.
            weights: name of the published weights whose versions items carry.
            max_staleness: how many versions an item may be older than the newest.
            initial_priority: priority of items that get none: "max", the default (the largest ever given, at least
                1.0), or a number.
            columns: which of the stream's columns batches hold; None: all.
            compress: compression of rows on disk. "auto", the default: where they shrink to two thirds or less.
                `Compress(expect=)`: also reserve less room for the table. None: never.
            durability: "disk": a machine crash loses at most `sync_every` plus one second, and `open` with the same
                folder restores the table; needs a store with `disk=`. "memory", the default: it ends with the store.
            sync_every: seconds between writes of a durable table, at least 1; default 10.
            seed: seed of the table's draws; None: derived from the store's seed.
            exist_ok: return an existing table of that name, if view, schema, sampler and remover are equal.
            timeout: seconds to wait for another process that makes or drops a table.

        Raises:
            TableExists: the name is taken. CapacityError: the table would not fit; nothing was reserved. ValueError:
            the settings cannot work; the text explains why.
        """
        made = self._tables.create(name, options, exist_ok, timeout)
        if options.get("durability") == "disk":
            durable.begin(self._session.arena)
        return made

    def import_table(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        *,
        capacity: int | NotGiven | None = NOT_GIVEN,
        sampler: Sampler | NotGiven = NOT_GIVEN,
        limiter: Limiter | NotGiven = NOT_GIVEN,
        allow_pickle: bool = False,
        timeout: float | None = 60,
    ) -> Table:
        """Make a table from a file that `Table.export` wrote. Nothing can be drawn from it until it is complete.

        The new table has the settings, rows, items, priorities, counts of draws and versions of the exported table, in
        insertion order. Rows that items share are stored once. Keys and episode numbers are new. The limiter starts
        counting as after `Table.configure`. The call takes time in proportion to items and rows. This process needs
        memory for one part of the file (16 MiB of rows, or one row) and 150 bytes per item. With `disk=`, rows that
        exceed memory go to disk.

        Args:
            path: the file.
            name: name of the table; None: as exported.
            capacity: number of items, at least as many as the file holds; default: as exported.
            sampler: default: as exported.
            limiter: default: as exported. A queue must stay a queue.
            allow_pickle: accept values of an `Opaque` table that were pickled or are instances of your classes. Reading
                such a value later runs code that the file names: use it only for files that you trust.
            timeout: seconds to wait for room and locks.

        Raises:
            CorruptData: the file is damaged or no exported table. LayoutMismatch: another version of the format.
            TableExists: the name is taken. CapacityError: the table does not fit. StoreFull: no room within `timeout`.
            ValueError: `capacity`, `sampler` or `limiter` contradict the other settings; or there are pickled values,
            without `allow_pickle`. OSError: the file cannot be read. After any of these errors there is no table.
        """
        return self._tables.import_table(
            path,
            name,
            capacity=capacity,
            sampler=sampler,
            limiter=limiter,
            allow_pickle=allow_pickle,
            timeout=timeout,
        )

    def table(self, name: str, timeout: float | None = 0) -> Table:
        """The table of that name.

        Raises:
            TableNotFound: the table does not exist within `timeout`. ValueError: no table can have this name.
        """
        return self._tables.open(name, timeout)

    def drop_table(self, name: str, *, timeout: float | None = 60) -> None:
        """Remove a table and free its bytes. Later calls on the table raise `TableNotFound`.

        Writers over this and other tables end with their open episodes; their calls raise `TableNotFound` too.
        """
        self._tables.drop(name, timeout)

    def writer(self, tables: Sequence[Table | str], *, lanes: int | None = None, autoreset: Any = None) -> Writer:
        """A writer for several tables that share one stream. Each step holds the union of their columns.

        Args:
            tables: tables of this store, or their names.
            lanes: as in `Table.writer`.
            autoreset: as in `Table.writer`.
        """
        return self._tables.writer(tables, lanes, autoreset)

    def mix(self, weights: Shares, *, columns: str | Iterable[str] | None = None, seed: int | None = None) -> Mixture:
        """A mixture: its batches draw each example from one of up to 256 tables.

        The tables must give the same columns. A table without columns is checked when it gets some.

        Args:
            weights: share of the examples, >= 0, by table name or `Mixture`; shares need not sum to 1. The share of a
                mixture is divided among its tables.
            columns: columns of batches if `sample` names none, for tables that have only these in common; None: all.
            seed: seed of the choice of tables; None: a new seed each time.

        Raises:
            TableNotFound: there is no table of a name. ValueError: no table, too many, a negative share, or all shares
            are 0; or two tables give different columns.
        """
        return self._tables.mix(weights, columns, seed)
