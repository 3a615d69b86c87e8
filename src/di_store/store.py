"""The store: one named arena of shared memory with objects, weights and tables in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

from di_store import _core
from di_store.base import config
from di_store.base.disk import budget_of_writes, new_capacity
from di_store.base.errors import ObjectNotFound, StoreFull, Timeout, of_core
from di_store.base.sizes import budget_bytes
from di_store.objects import codec
from di_store.objects.access import Objects
from di_store.objects.draft import Draft, reserve
from di_store.objects.refs import Ref, id_of, ids_of, ref_of
from di_store.objects.weights import Published, Weights
from di_store.observe.stats import StoreStats, store_stats
from di_store.policy.compression import Compression
from di_store.policy.limiters import Limiter
from di_store.policy.options import NOT_GIVEN, NotGiven, TableOptions
from di_store.policy.samplers import Remover, Sampler
from di_store.policy.views import Step, View
from di_store.replay.lost import drop_lost
from di_store.replay.mixture import Mixture, Shares
from di_store.replay.table import Table
from di_store.replay.tables import Tables
from di_store.replay.writer import Writer, forget_writers
from di_store.runtime import waits
from di_store.runtime.waits import check_timeout
from di_store.session import Session, loaded
from di_store.snapshot import durable, taking

_MEMORY, _MINUTE, _NOW = "memory", 60, 0  # defaults, compared by identity: `==` of an argument may fail or be slow

_core.set_python(of_core, codec.encode, codec.decode, waits.log_wait)
os.register_at_fork(
    before=_core.before_fork, after_in_parent=_core.after_fork_parent, after_in_child=_core.after_fork_child
)
os.register_at_fork(after_in_child=forget_writers)


class Store:
    """A handle of one store; thread-safe. Pickles as its name and attaches when loaded."""

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
        """End this handle: later calls on it, its tables, writers and loaders raise `StoreClosed`.

        Durable tables are written first. Arrays stay valid; the store is unmapped when the last handle and the last
        array are gone. If this was the last of all handles, what nobody needs any more of `disk=` is removed by then,
        unless a stopped process holds a background thread up: it waits 5 seconds for that.
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
        # mutant: handles-forget-that-they-only-read
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
            memory: as `open`; a smaller one gives pages back. None: as it is.
            disk_capacity: as `open`, of a store with a disk tier. None: as it is.
            write_budget: likewise. What was written before does not count any more.

        Raises:
            CapacityError: below what is in use or reserved, or beyond what the machine allows. StoreFull: the
            filesystem of the disk tier has no room. Memory is changed first; the one that is refused was not changed.
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

        With `disk=` it also reads all rows on disk, at the speed of the drive, and compares them with their checksums;
        100 damaged chunks at most have a line of their own.

        Args:
            repair: also compute wrong derived data again, and remove the items of damaged chunks.
        """
        wanted = config.flag("repair", repair)
        arena = self._session.writable() if wanted else self._session.arena
        findings = arena.check(wanted, waits.CALL_SECONDS) + arena.check_disk(wanted, waits.CALL_SECONDS)
        if wanted:
            drop_lost(arena, marked=True)
        return findings

    def sync(self, *, timeout: float | None = 600) -> None:
        """Return when all that was done to what has ``durability="disk"`` before the call is on disk.

        Rows of tables, and that objects were deleted: `put` and `publish` return only when theirs are.

        Raises:
            Timeout: another process was writing them for so long. StoreFull, StoreError, OSError: the folder cannot be
            written.
        """
        durable.sync(self._session.writable(), check_timeout(timeout))

    def checkpoint(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float | None = 600,
        progress: taking.Progress | None = None,
    ) -> None:
        """Write all of the store, as it is at one instant, to a folder, while everybody goes on. `restore` reads it.

        Tables with their items, priorities, counts, limiters, order and random numbers, objects and weights. At the
        instant all calls wait while items are copied, 11 ms for a million items; rows are written afterwards. A later
        checkpoint of this store in the same folder adds what has changed. Until it is complete the one before is
        there, also if the process is killed. Memory: 56 bytes per item while it runs.

        Args:
            path: a folder on a local drive; made if it is not there. Best on the filesystem of `disk=`: what lies there
                already is linked, not copied.
            timeout: seconds to wait for another checkpoint in that folder; None: no limit.
            progress: called with the bytes that are written, and how many there are.

        Raises:
            StoreFull: the filesystem has no room. Timeout: another process is making a checkpoint there. AccessDenied,
            StoreError, OSError: the folder cannot be written.
        """
        taking.checkpoint(self._session.arena, path, timeout, progress)

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
            value: arrays, tensors, nested containers of them, scalars, text, bytes; anything else is pickled with its
                buffers out of band.
            id: 40 hex characters; None: a new one.
            ttl: seconds after which it is deleted; None: it stays until `delete`.
            durability: "disk": returns when it is on disk, and it is there again when a store is opened with this
                folder; needs a store with `disk=`. "memory": it ends with the store.
            timeout: seconds to wait for room.

        Raises:
            ObjectExists: the id is taken. StoreFull: no room in time. CapacityError: it can never fit.
        """
        # mutant: put-copies-twice
        if id is None and ttl is None and durability is _MEMORY and (timeout is _MINUTE or check_timeout(timeout) != 0):
            try:
                return ref_of(self._put(value, None, 0.0))
            except (StoreFull, Timeout):  # no room, or a lock is held: try again below with the timeout
                pass
        return self._objects.put(value, id, ttl, timeout, durability)

    def reserve(
        self, spec: Any, *, id: str | None = None, ttl: float | None = None, timeout: float | None = 60
    ) -> Draft:
        """Room for a value that is written in place: arrays in shared memory, that `Draft.seal` makes an object.

        Saves the copy of `put`. Nobody can read it before it is sealed; if this process dies, it is freed.

        Args:
            spec: `Spec`, or anything with shape and dtype; or a nested dict of them.
            id: 40 hex characters; None: a new one.
            ttl: seconds from now after which it is deleted; None: it stays until `delete`.
            timeout: seconds to wait for room.

        Raises:
            ObjectExists: the id is taken. StoreFull: no room in time. CapacityError: it can never fit.
            ValueError: a leaf without shape or dtype, or of no fixed size.
        """
        return reserve(self._session, spec, id, ttl, timeout)

    def get(self, ref: Ref | str, *, timeout: float | None = 0, copy: bool | None = None) -> Any:
        """The value of an object, its leaves as they were put; read from disk if it left memory.

        Args:
            ref: as `put` gave it.
            timeout: seconds to wait until it exists and is sealed.
            copy: None: numpy read-only in place, torch copied. False: torch in place too; an in-place write to it kills
                the process. True: writable copies.

        Raises:
            ObjectNotFound: it does not exist in time.
            CorruptData, StoreFull: it left memory, and is damaged on disk; or nothing has room for it.
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
        """`put` each value: all of them or none. Returns their refs. With "disk" they are written to disk together."""
        return self._objects.put_many(values, ids, timeout, durability)

    def get_many(self, refs: Iterable[Ref | str], *, timeout: float | None = 0, copy: bool | None = None) -> list[Any]:
        """`get` each ref, under one deadline. Returns the values."""
        return self._objects.get_many(refs, timeout, None if copy is None else config.flag("copy", copy))

    def wait(
        self, refs: Iterable[Ref | str], num_returns: int = 1, timeout: float | None = 60
    ) -> tuple[list[Ref], list[Ref]]:
        """Wait until `num_returns` of the objects exist. Returns the refs of those, and all other refs."""
        return self._objects.wait(refs, num_returns, timeout)

    def contains(self, ref: Ref | str) -> bool:
        """Whether the object exists and is sealed."""
        return self._session.arena.contains(id_of(ref), waits.CALL_SECONDS)

    def delete(self, refs: Ref | str | Iterable[Ref | str]) -> int:
        """Delete objects. Returns how many existed. One that is being read is freed when its last array is gone.

        That durable ones are deleted is on disk after `sync` or `close`; until then they may be there again after a
        power cut, but not after a kill.
        """
        return self._session.writable().delete(ids_of(refs), waits.CALL_SECONDS)

    def keys(self, start: Ref | str | None = None, n: int = 1000) -> list[Ref]:
        """Refs of up to `n` objects in the order of their ids, those after `start`; None: from the first."""
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
            name: of the weights; those that begin with "di-store/" are the library's own.
            tree: any value that `put` takes; None counts a version whose weights travel elsewhere.
            keep: how many of the newest versions stay readable.
            group: of nodes that get it, of a store in a cluster (docs/cluster.md).
            durability: "disk": returns when it is on disk. It is there again when a store is opened with this folder,
                and stays readable until a newer version is durable. Needs a store with `disk=`.
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
        """The newest version of `name`, above `newer_than`, or exactly `version`; None if there is none in time.

        `group`: as in `publish`.
        """
        return self._weights.latest(name, newer_than, version, timeout, group)

    # -- tables -------------------------------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        *,
        capacity: int | None,
        view: View = Step(),  # noqa: B008 - immutable
        schema: Any = None,
        sampler: Sampler | NotGiven = NOT_GIVEN,
        remover: Remover | NotGiven = NOT_GIVEN,
        limiter: Limiter | NotGiven = NOT_GIVEN,
        max_times_sampled: int | NotGiven = NOT_GIVEN,
        max_bytes: int | str | None = None,
        lanes: int = 64,
        weights: str | None = None,
        max_staleness: int | None = None,
        initial_priority: float | str = "max",
        columns: str | Iterable[str] | None = None,
        compress: Compression = "auto",
        durability: str = "memory",
        sync_every: float = 10.0,
        seed: int | None = None,
        exist_ok: bool = False,
        timeout: float | None = 60,
    ) -> Table:
        """Make a table.

        Args:
            name: 1 to 100 bytes of text.
            capacity: items; None: as many as `max_bytes` hold.
            view: how rows become examples.
            schema: nested dict of anything with `.shape` and `.dtype`; None: the first step declares it.
            sampler: default Uniform().
            remover: chooses the item to evict when it is full; default Fifo().
            limiter: makes inserts or draws wait; default MinSize(1).
            max_times_sampled: draws after which an item is removed; default 0, no limit.
            max_bytes: of its rows; None: no limit but the store's.
            lanes: number of lanes for whose open episodes room is reserved.
            weights: name of the published weights whose versions items carry.
            max_staleness: how many versions an item may be older than the newest.
            initial_priority: of items without one: "max" (the largest ever given, at least 1.0) or a number.
            columns: which of the stream's columns batches hold; None: all.
            compress: of its rows on disk: "auto" where they become two thirds or less; `Compress(expect=)` also counts
                upon it when the table is made; None: never.
            durability: "disk": at most `sync_every` and a second are lost when the machine stops; needs a store with
                `disk=`, whose folder `open` makes the table from again. "memory": it ends with the store.
            sync_every: seconds, at least 1.
            seed: of its draws; None: from the store's.
            exist_ok: return an existing table of that name, if view, schema, sampler and remover are equal.
            timeout: seconds to wait for another process that makes or drops a table.

        Raises:
            TableExists: the name is taken. CapacityError: it would not fit; nothing was reserved. ValueError: settings
            that cannot work; the text explains the mechanism.
        """
        options = TableOptions(
            view=view,
            schema=schema,
            sampler=sampler,
            remover=remover,
            limiter=limiter,
            max_times_sampled=max_times_sampled,
            capacity=capacity,
            max_bytes=max_bytes,
            lanes=lanes,
            weights=weights,
            max_staleness=max_staleness,
            initial_priority=initial_priority,
            columns=columns,
            durability=durability,
            seed=seed,
            compress=compress,
            sync_every=sync_every,
        )
        made = self._tables.create(name, options, exist_ok, timeout)
        if durability == "disk":
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
        """Make a table from the file that `Table.export` wrote. Nothing can be drawn from it before all is there.

        It has the settings, rows, items, priorities, counts of draws and versions of the exported table, in the order
        of insertion; rows that items share are stored once. Keys and numbers of episodes are new. The limiter counts
        anew, as after `Table.configure`. Takes time in proportion to items and rows. In this process's memory are one
        part of the file, 16 MiB of rows or one row, and 150 bytes an item. With `disk=` rows go to disk meanwhile.

        Args:
            path: of the file.
            name: of the table; None: as it was exported.
            capacity: items, at least as many as the file holds; not given: as exported.
            sampler: not given: as exported.
            limiter: a queue stays a queue; not given: as exported.
            allow_pickle: read Python values of an `Opaque` table that were pickled, or are instances of classes of
                yours. Later reads of such a value run code that the file names: only for files that you trust.
            timeout: seconds to wait for room and locks.

        Raises:
            CorruptData: no exported table, or damaged. LayoutMismatch: another version of the format. TableExists: the
            name is taken. CapacityError: it does not fit. StoreFull: there is no room in time. ValueError: `capacity`,
            `sampler` or `limiter` contradict the other settings; or pickled values without `allow_pickle`. OSError: of
            the file. In all cases there is no table afterwards.
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
            TableNotFound: it does not exist in time. ValueError: no table can have this name.
        """
        return self._tables.open(name, timeout)

    def drop_table(self, name: str, *, timeout: float | None = 60) -> None:
        """Remove a table and free its bytes; later calls on it raise `TableNotFound`.

        So do calls of writers whose stream it shares with other tables: these writers and their open episodes end.
        """
        self._tables.drop(name, timeout)

    def writer(self, tables: Sequence[Table | str], *, lanes: int | None = None, autoreset: Any = None) -> Writer:
        """A writer whose stream several tables share: steps hold the union of their columns.

        Args:
            tables: tables of this store, or their names.
            lanes: as `Table.writer`.
            autoreset: as `Table.writer`.
        """
        return self._tables.writer(tables, lanes, autoreset)

    def mix(self, weights: Shares, *, columns: str | Iterable[str] | None = None, seed: int | None = None) -> Mixture:
        """A mixture: batches from up to 256 tables, each example from one of them.

        The tables must give the same columns. A table without columns is checked when it gets some.

        Args:
            weights: by table name or `Mixture`: its share of the elements, >= 0; shares need not sum to 1. A mixture's
                share is divided among its tables.
            columns: those that batches hold if `sample` names none, for tables that have only these in common; None:
                all.
            seed: of the choice of tables; None: another one each time.

        Raises:
            TableNotFound: a name that is no table. ValueError: no table, too many, a negative share, or all are 0; two
                tables give different columns.
        """
        return self._tables.mix(weights, columns, seed)
