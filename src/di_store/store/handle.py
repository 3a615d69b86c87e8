"""The handle of a store: a named arena of shared memory that holds objects, weights and tables.

`Store` has the signature, the docstring and the argument checks of each call. Its `StoreBackend` knows where the store
is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from di_store.base import config
from di_store.base.errors import ObjectNotFound, StoreFull, Timeout
from di_store.base.lacks import check_option
from di_store.checkpoint.store.capture import Progress
from di_store.objects.draft import Draft
from di_store.objects.refs import Ref, checked_ids, checked_new, id_of, ids_of, listed, new_ref, waited_for
from di_store.objects.weights import Published, check_published
from di_store.observe.stats import StoreStats
from di_store.policy.limiters import Limiter
from di_store.policy.options import NOT_GIVEN, NotGiven, TableOptions, check_options, check_table_name
from di_store.policy.samplers import Sampler
from di_store.replay.mixture import Mixture, Shares, checked_mix
from di_store.replay.shown import repr_html
from di_store.replay.table import Table
from di_store.replay.tables import checked_tables, seed_of
from di_store.replay.writer import Writer
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import check_timeout
from di_store.store.aio_store import AioStore
from di_store.store.backend import HERE, ImportChanges, Place, StoreBackend, check_copies, check_place

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Defaults, compared by identity: `==` of an argument may fail or be slow.
_MEMORY, _MINUTE, _NOW, _ONE = "memory", 60, 0, 1


class Store:
    """A handle of one store, wherever it is; thread-safe.

    It pickles as the store's name, or a remote store's address, and attaches when it is unpickled.
    """

    def __init__(self, backend: StoreBackend) -> None:
        self._backend = backend
        self._put, self._get = backend.put_now, backend.get_now  # here too, for speed

    # -- the handle ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The store's name."""
        return self._backend.name

    @property
    def address(self) -> str | None:
        """The address where a store of `connect` is served; None: the store is in this process's memory."""
        return self._backend.address

    def close(self) -> None:
        """Close this handle: later calls on it, its tables, writers and loaders raise `StoreClosed`.

        Durable tables are written first. Arrays stay valid: the store is unmapped when the last handle and the last
        array are deleted. The last handle also removes files in `disk=` that are no longer needed. It waits up to 5
        seconds for background threads; if a stopped process holds these up, the files may stay.
        """
        self._backend.close()
        self._put, self._get = self._backend.put_now, self._backend.get_now

    @property
    def aio(self) -> AioStore:
        """`put`, `get`, `wait`, `publish` and `latest` for asyncio, of a store in this process's memory."""
        return AioStore(self._backend)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self._backend.shown()}{' (closed)' if self._backend.ended() else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._backend.pickled()

    _repr_html_ = repr_html

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
        if memory is None and disk_capacity is None and write_budget is None:
            raise TypeError("resize() changes memory= or disk_capacity= or write_budget=: give one of them")
        self._backend.resize(memory, disk_capacity, write_budget)

    def stats(self) -> StoreStats:
        """Bytes, clients, waiters and tables as nested dicts. Takes no locks except those of `Table.stats`."""
        return self._backend.stats()

    def check(self, repair: bool = False) -> list[str]:
        """Compare derived data with the data that it is computed from. Returns one line for each difference.

        For a store with `disk=`, the call also reads all rows on disk, at the speed of the drive, and compares them
        with their checksums. It reports at most 100 damaged chunks one by one.

        Args:
            repair: also recompute wrong derived data, and remove the items of damaged chunks.
        """
        return self._backend.check(config.flag("repair", repair))

    def sync(self, *, timeout: float | None = 600, copies: int | None = None) -> None:
        """Wait until earlier changes to data with ``durability="disk"`` are on disk.

        This covers rows of tables and deletes of objects. Durable objects are on disk when `put` or `publish` returns.
        In a cluster, the durable tables of this machine's store are then also on the disks of other nodes, from which
        `di-store serve --rejoin` restores them if this machine is lost (docs/backups.md). A later call sends only what
        has changed. If a call is interrupted, the other nodes keep the previous state.

        Args:
            timeout: seconds; None: no limit.
            copies: in a cluster, number of nodes that have the tables on disk, including this one; None: 2.

        Raises:
            Timeout: another process wrote the tables all the time. StoreFull, StoreError, OSError: a folder cannot be
            written. CapacityError: too few nodes with a disk answer. NodeUnavailable: a node stopped answering.
        """
        wanted = None if copies is None else check_copies(self._backend, copies)
        self._backend.sync(wanted, Deadline.given(timeout))

    def checkpoint(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float | None = 600,
        progress: Progress | None = None,
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
        self._backend.checkpoint(path, progress, Deadline.given(timeout))

    # -- objects ------------------------------------------------------------------------------------------------

    def put(
        self,
        value: Any,
        *,
        id: str | None = None,
        ttl: float | None = None,
        durability: str = "memory",
        copies: int = 1,
        timeout: float | None = 60,
    ) -> Ref:
        """Copy a value into the store, once. Returns its ref.

        Args:
            value: arrays, tensors, containers of them, scalars, text, bytes; others are pickled, buffers out of band.
            id: 40 hex characters; None: a new id.
            ttl: seconds until the object is deleted; None: it stays until `delete`.
            durability: "memory": the object ends with the store. "disk": `put` returns once the object is on disk, and
                `open` with the same folder restores it; needs a store with `disk=`.
            copies: in a cluster, number of nodes that hold the object when the call returns.
            timeout: seconds to wait for room.

        Raises:
            ObjectExists: the id is taken. StoreFull: no room within `timeout`. CapacityError: the value can never fit,
            or the cluster has fewer nodes than `copies`. NodeUnavailable: one of these nodes does not answer.
        """
        plain = id is None and ttl is None and durability is _MEMORY and copies is _ONE
        if plain and (timeout is _MINUTE or check_timeout(timeout) != 0):
            try:
                ref = new_ref(Ref)
                ref.raw = self._put(value, None, 0.0)
                return ref
            except (StoreFull, Timeout):  # no room, or a lock is held: try again below with the timeout
                pass
        config.choice("durability", durability, ("memory", "disk"))
        wanted = 1 if type(copies) is int and copies == 1 else check_copies(self._backend, copies, default=1)
        return self._backend.put(value, *checked_new(id, ttl), durability, wanted, Deadline.given(timeout))

    def reserve(
        self, spec: Any, *, id: str | None = None, ttl: float | None = None, timeout: float | None = 60
    ) -> Draft:
        """Reserve room for a value that is written in place. Returns a `Draft`, which `Draft.seal` makes an object.

        This avoids `put`'s copy. Nobody can read the object before `seal`. If this process dies, the room is freed.

        Args:
            spec: `Spec`, or anything with shape and dtype; or a nested dict of them.
            id: as in `put`.
            ttl: as in `put`, from now.
            timeout: seconds to wait for room.

        Raises:
            ObjectExists: the id is taken. StoreFull: no room within `timeout`. CapacityError: the value can never fit.
            ValueError: a leaf has no shape or dtype, or no fixed size.
        """
        return self._backend.reserve(spec, *checked_new(id, ttl), Deadline.given(timeout))

    def get(self, ref: Ref | str, *, timeout: float | None = 0, copy: bool | None = None) -> Any:
        """Read an object. An object that was moved to disk is read from there.

        In a cluster, an object of another node is copied here first, if there is room.

        Args:
            ref: the ref that `put` returned, or its text.
            timeout: seconds to wait until the object exists and is sealed.
            copy: None: numpy arrays are read-only views of shared memory, torch tensors are copied. False: tensors are
                views too; an in-place write to one kills the process. True: all arrays are writable copies.

        Raises:
            ObjectNotFound: the object does not exist within `timeout`. CorruptData: the object is damaged on disk.
            StoreFull: the object is on disk, and there is no room to read it. NodeUnavailable: the object's node does
            not answer.
        """
        if copy is not None:
            copy = config.flag("copy", copy)
        if timeout is not _NOW:
            check_timeout(timeout)
        try:
            return self._get(ref.raw if type(ref) is Ref else id_of(ref), copy)
        except (ObjectNotFound, StoreFull, Timeout):
            deadline = Deadline.given(timeout)
            if deadline.timeout == 0 and self._backend.alone:
                raise
        return self._backend.get(id_of(ref), copy, deadline)

    def put_many(
        self,
        values: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        durability: str = "memory",
        timeout: float | None = 60,
    ) -> list[Ref]:
        """`put` all values or none. Returns their refs. With "disk" they are written to disk together."""
        if isinstance(values, dict):
            raise TypeError("put_many() takes a list of values, not one dict: use put() for one value")
        every = config.listed("values", values, "put_many() a list of values; put() stores one")
        raws = checked_ids(ids, len(every))
        config.choice("durability", durability, ("memory", "disk"))
        return self._backend.put_many(every, raws, durability, Deadline.given(timeout))

    def get_many(self, refs: Iterable[Ref | str], *, timeout: float | None = 0, copy: bool | None = None) -> list[Any]:
        """`get` all refs under one deadline. Returns the values. Arrays from another machine share their memory."""
        copy = None if copy is None else config.flag("copy", copy)
        return self._backend.get_many([id_of(ref) for ref in listed(refs)], copy, Deadline.given(timeout))

    def wait(
        self, refs: Iterable[Ref | str], num_returns: int = 1, timeout: float | None = 60
    ) -> tuple[list[Ref], list[Ref]]:
        """Wait until `num_returns` of the objects exist. Returns the refs of these objects, and all other refs."""
        pending, wanted = waited_for(refs, num_returns)
        return self._backend.wait(pending, wanted, Deadline.given(timeout))

    def contains(self, ref: Ref | str) -> bool:
        """Whether the object exists and is sealed."""
        return self._backend.contains(id_of(ref))

    def delete(self, refs: Ref | str | Iterable[Ref | str]) -> int:
        """Delete objects. Returns how many existed. An object in use is freed when its last array is deleted.

        Deletes of durable objects are on disk once `sync` or `close` returns. Before that, deleted objects can come
        back after a power cut, but not after a kill. Other nodes of a cluster that have read an object may read it for
        another 50 s.
        """
        return self._backend.delete(ids_of(refs))

    def keys(self, start: Ref | str | None = None, n: int = 1000) -> list[Ref]:
        """Refs of up to `n` objects in the order of their ids, beginning after `start`; None: from the first.

        In a cluster: only objects that were put on this machine.
        """
        return self._backend.keys(None if start is None else Ref(id_of(start)), config.count("n", n, minimum=0))

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
            keep: number of newest versions that stay readable.
            group: in a cluster, the group of nodes that receive the version (docs/cluster.md). The call returns once
                the version is in this store; the agents send it on. None: the version stays here.
            durability: "disk": `publish` returns once the version is on disk. `open` with the same folder restores it,
                and it stays readable until a newer version is durable. Needs a store with `disk=`.
            timeout: seconds to wait for room.

        Raises:
            StoreFull: no room within `timeout`; the version number did not change. StoreError: another process has
            taken over the name of a group. NodeUnavailable: the directory of the cluster does not answer. ValueError:
            the name belongs to another group, or to a group although `group` is not given.
        """
        if group is not None:
            check_option(self._backend, "group", group)
        kept = check_published(name, tree, keep, durability)
        return self._backend.publish(name, tree, kept, group, durability, Deadline.given(timeout))

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

        `group`: makes this node of a cluster a member of that group.
        """
        if group is not None:
            check_option(self._backend, "group", group)
        return self._backend.latest(name, newer_than, version, group, Deadline.given(timeout))

    # -- tables -------------------------------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        *,
        node: str | Sequence[str] = HERE,
        shards: str | None = None,
        draw: str | None = None,
        exist_ok: bool = False,
        timeout: float | None = 60,
        **options: Unpack[TableOptions],
    ) -> Table:
        """Make a table. `capacity` is required, all other options have defaults.

        Args:
            name: 1 to 100 bytes of text; unique in a cluster.
            capacity: number of items; None: as many as fit `max_bytes`.
            view: how rows become examples; default Step().
            schema: nested dict of anything with `.shape` and `.dtype`; None: the first step declares it.
            sampler: chooses the items to draw; default Uniform().
            remover: chooses the item to evict when the table is full; default Fifo().
            limiter: makes inserts or draws wait; default MinSize(1).
            max_times_sampled: number of draws after which an item is removed; default 0, no limit.
            max_bytes: limit on the bytes of the table's rows; None: only the store's limit.
            lanes: number of lanes for whose open episodes room is reserved; default 64, in a cluster 1,024.
            weights: name of the published weights whose versions items carry.
            max_staleness: how many versions an item may be older than the newest.
            initial_priority: priority of items inserted without one: "max", the default (the largest ever given, at
                least 1.0), or a number.
            columns: the columns of the stream that batches hold; None: all.
            compress: compression of rows on disk. "auto", the default: rows that shrink to two thirds or less are
                compressed. `Compress(expect=)`: also reserve less room for the table. None: never.
            durability: "disk": a machine crash loses at most `sync_every` plus one second, and `open` with the same
                folder restores the table; needs a store with `disk=`. "memory", the default: it ends with the store.
            sync_every: seconds between writes of a durable table, at least 1; default 10.
            seed: seed of the table's draws; None: derived from the store's seed.
            node: in a cluster, node of the table's rows: "here", a machine, a store or ``host:port``. With `shards`:
                the nodes that get a shard, which should be the learners' nodes; all if not given.
            shards: in a cluster. None: the table lies on one node. "learners": the table is split into parts, one on
                each node.
            draw: for a table in parts. "local" (None): a learner draws from its node's part. "mass": from all parts.
            exist_ok: return an existing table of that name, if view, schema, sampler and remover are equal. If the
                node's store has such a table of its own, it becomes the cluster's.
            timeout: seconds to wait for another process that makes or drops a table.

        Raises:
            TableExists: the name is taken. CapacityError: the table would not fit; nothing was reserved. ValueError:
            the settings cannot work; the text explains why. NodeUnavailable: the cluster's directory or the node does
            not answer, or there is no such node.
        """
        check_table_name(name)
        place = check_place(self._backend, Place(node, shards, draw))
        given: Any = {"lanes": self._backend.lanes, **options}
        settings = check_options(given, seed_of(self._backend.seed, name))
        again, deadline = config.flag("exist_ok", exist_ok), Deadline.given(timeout)
        return Table(self._backend.create_table(name, settings, place, again, deadline))

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
            CorruptData: the file is damaged or no exported table. LayoutMismatch: it has another format version.
            TableExists: the name is taken. CapacityError: the table does not fit. StoreFull: no room within `timeout`.
            ValueError: `capacity`, `sampler` or `limiter` contradict the other settings; or there are pickled values,
            without `allow_pickle`. OSError: the file cannot be read. After any of these errors there is no table.
        """
        flag, changes = config.flag("allow_pickle", allow_pickle), ImportChanges(capacity, sampler, limiter)
        return Table(self._backend.import_table(path, name, changes, flag, Deadline.given(timeout)))

    def table(self, name: str, timeout: float | None = 0) -> Table:
        """The table of that name.

        Raises:
            TableNotFound: the table does not exist within `timeout`. ValueError: no table can have this name.
            NodeUnavailable: the table's node does not answer, or is lost.
        """
        return Table(self._backend.table(check_table_name(name), Deadline.given(timeout)))

    def drop_table(self, name: str, *, timeout: float | None = 60) -> None:
        """Remove a table and free its bytes. Later calls on the table raise `TableNotFound`.

        Writers over this and other tables end with their open episodes; their calls raise `TableNotFound` too. In a
        cluster, a table whose node is lost is forgotten.
        """
        self._backend.drop_table(check_table_name(name), Deadline.given(timeout))

    def writer(self, tables: Sequence[Table | str], *, lanes: int | None = None, autoreset: Any = None) -> Writer:
        """A writer for several tables that share one stream. Each step holds the union of their columns.

        `tables`: of this store, or their names; in a cluster, all on one node. Others as in `Table.writer`.
        """
        return Writer(self._backend.writer(checked_tables(tables, self.table), lanes, autoreset))

    def mix(self, weights: Shares, *, columns: str | Iterable[str] | None = None, seed: int | None = None) -> Mixture:
        """A mixture: its batches draw each example from one of up to 256 tables, which must give the same columns.

        A table without columns is checked once its columns are declared.

        Args:
            weights: share of the examples, >= 0, by table name or `Mixture`; shares need not sum to 1. The share of a
                mixture is divided among its tables.
            columns: of batches if `sample` names none, for tables that have only these in common; None: all.
            seed: seed of the choice of tables; None: a new seed each time.

        Raises:
            TableNotFound: a named table does not exist. ValueError: no table, too many, negative or no shares, or two
            tables give different columns.
        """
        return Mixture(self._backend.mix(*checked_mix(self.name, weights, columns, seed)))


def backend_of(store: Store) -> StoreBackend:
    """The store's backend."""
    return store._backend
