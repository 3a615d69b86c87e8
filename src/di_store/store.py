"""The store: one named arena of shared memory with objects, weights and tables in it."""

from __future__ import annotations

import copy
import hashlib
import os
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from di_store import _core
from di_store.base import config
from di_store.base.errors import (
    BY_NAME,
    AccessDenied,
    ObjectNotFound,
    StoreClosed,
    StoreError,
    StoreFull,
    TableExists,
    TableNotFound,
    Timeout,
)
from di_store.base.sizes import budget_bytes
from di_store.lowering.plan import read_plan
from di_store.lowering.reserve import Reckoning, check_room, reckon, reckon_without_rows
from di_store.objects import codec
from di_store.objects import refs as objects_
from di_store.objects import weights as weights_
from di_store.objects.refs import Ref
from di_store.objects.weights import Published
from di_store.policy.combination import NOT_GIVEN, check_combination
from di_store.policy.settings import Settings, check_durability, check_table_name, make_settings
from di_store.policy.views import Step
from di_store.replay.handle import TableHandle
from di_store.replay.mixture import Mixture, check_shares
from di_store.replay.stats import store_stats, table_stats
from di_store.replay.table import Table
from di_store.replay.writer import Writer, forget_writers
from di_store.runtime import waits
from di_store.runtime.waits import check_timeout

ATTACH = 2
"""The core's number for a store that must be there."""
LOCK_SECONDS = 5.0
"""How long attaching may wait for others that attach at this moment where its timeout is 0."""
_MEMORY, _MINUTE, _NOW = "memory", 60, 0  # defaults, known by identity: odd arguments may not compare

_core.set_python(BY_NAME, codec.encode, codec.decode, waits.log_wait)
os.register_at_fork(
    before=_core.before_fork, after_in_parent=_core.after_fork_parent, after_in_child=_core.after_fork_child
)
os.register_at_fork(after_in_child=forget_writers)

_versions: dict[str, dict[str, int]] = {}
"""By store, the version of each name that this process last got from `latest`."""


class Store:
    """A handle of one store; thread-safe. Pickles as its name and attaches when loaded."""

    def __init__(self, arena: _core.Arena, *, seed: int | None = None, readonly: bool = False) -> None:
        self._arena_or_none: _core.Arena | None = arena
        self._name: str = arena.name
        self._seed = arena.seed if seed is None else seed
        self._put: Any = self._refuse_put if readonly else arena.put
        self._get: Any = arena.get
        remedy = 'it was opened with mode="r"; use "rw"'
        only = AccessDenied(f"this handle of store {self._name!r} only reads", remedy=remedy)
        self._readonly = only if readonly else None
        # By id. A plain dict, since threads add to it while another goes through it.
        self._followers: dict[int, weakref.ref[Any]] = {}
        self._versions = _versions.setdefault(arena.stats()["uuid"], {})

    # -- the handle ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The store's name."""
        return self._name

    @property
    def _arena(self) -> _core.Arena:
        arena = self._arena_or_none  # once: another thread may close this handle
        if arena is None:
            raise self._closed()
        return arena

    def _closed(self) -> StoreError:
        return StoreClosed(f"this handle of store {self._name!r} was closed")

    def _writable(self) -> _core.Arena:
        if self._readonly is not None:
            raise copy.copy(self._readonly)
        return self._arena

    def _writer(self) -> Store:
        self._writable()
        return self

    def close(self) -> None:
        """End this handle: later calls on it, its tables, writers and loaders raise `StoreClosed`.

        Arrays stay what they are; the mapping goes with the last handle and array.
        """
        self._put = self._get = self._refuse
        self._arena_or_none = None  # first: who begins to follow from now on sees it
        for reference in list(self._followers.values()):
            if (follower := reference()) is not None:
                follower._end_with(self._closed())

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self._name!r}{' (closed)' if self._arena_or_none is None else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # mutant: handles-forget-that-they-only-read
        return type(self)._load, (self._name, self._readonly is not None)

    @staticmethod
    def _load(name: str, readonly: bool = False) -> Store:
        """A pickled handle, in the process that loads it."""
        return Store(_core.Arena.open(name, ATTACH, 0, 0, waits.CALL_SECONDS), readonly=readonly)

    @staticmethod
    def _load_table(store: str, name: str, readonly: bool = False) -> Table:
        loaded = Store._load(store, readonly)
        try:
            return loaded.table(name)
        except BaseException:
            loaded.close()
            raise

    @staticmethod
    def _load_mixture(store: str, weights: dict[str, float], seed: int | None, readonly: bool = False) -> Mixture:
        loaded = Store._load(store, readonly)
        try:
            return loaded.mix(weights, seed=seed)
        except BaseException:
            loaded.close()
            raise

    def _follow(self, follower: Any) -> None:
        """End it when this handle ends; `StoreClosed` if it has ended by now."""
        key, known = id(follower), self._followers
        known[key] = weakref.ref(follower, lambda _: known.pop(key, None))
        if self._arena_or_none is None:
            self.close()
            raise self._closed()

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self._closed()

    def _refuse_put(self, *_: Any, **__: Any) -> Any:
        self._writable()

    def resize(self, memory: int | float | str) -> None:
        """Another hard cap, while everybody goes on; a smaller one gives pages back.

        Raises:
            CapacityError: below what is in use or reserved, or beyond what the machine allows; nothing was changed.
        """
        arena = self._writable()
        arena.resize(budget_bytes(memory), waits.CALL_SECONDS)

    def stats(self) -> dict[str, Any]:
        """Bytes, clients, waiters and tables as nested dicts, read without locks."""
        arena = self._arena
        tables = {}
        for name in arena.tables():
            native = arena.table(name)
            if native is not None:
                try:
                    tables[name] = table_stats(TableHandle(arena, native, self._versions))
                except TableNotFound:
                    continue  # dropped meanwhile
        return store_stats(arena, tables)

    def check(self, repair: bool = False) -> list[str]:
        """Compare everything derived with what it is derived from; a line for each contradiction found.

        Args:
            repair: also put right what can be derived.
        """
        wanted = config.flag("repair", repair)
        return (self._writable() if wanted else self._arena).check(wanted, waits.CALL_SECONDS)

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
        """Copy a value into the store, once.

        Args:
            value: arrays, tensors, nested containers of them, scalars, text, bytes; anything else is pickled with its
                buffers out of band.
            id: 40 hex characters; None: a fresh one.
            ttl: seconds after which it is deleted; None: it stays until `delete`.
            durability: only "memory" in this version.
            timeout: seconds to wait for room.

        Raises:
            ObjectExists: the id is taken. StoreFull: no room in time. CapacityError: it can never fit.
        """
        # mutant: put-copies-twice
        if id is None and ttl is None and durability is _MEMORY and (timeout is _MINUTE or check_timeout(timeout) != 0):
            try:
                return Ref(self._put(value, None, 0.0))
            except (StoreFull, Timeout):  # no room, or a lock is held up: from now on with the call's timeout
                pass
        check_durability(durability)
        raw = None if id is None else objects_.parse_id(id)
        seconds = objects_.check_ttl(ttl)
        return Ref(objects_.put_waiting(self._writer(), value, raw, seconds, check_timeout(timeout)))

    def get(self, ref: Ref | str, *, timeout: float | None = 0, copy: bool | None = None) -> Any:
        """The value of an object, its leaves as they were put.

        Args:
            ref: as `put` gave it.
            timeout: seconds to wait until it is there and sealed.
            copy: None: numpy read-only in place, torch copied. False: torch in place too; an in-place write to it kills
                the process. True: writable copies.

        Raises:
            ObjectNotFound: it is not there in time.
        """
        if copy is not None:
            copy = config.flag("copy", copy)
        if timeout is not _NOW:
            check_timeout(timeout)
        try:
            return self._get(ref._bytes if type(ref) is Ref else objects_.id_of(ref), copy)
        except (ObjectNotFound, Timeout):
            seconds = check_timeout(timeout)
            if seconds == 0:
                raise
        return objects_.get_waiting(self, objects_.id_of(ref), seconds, copy)

    def put_many(
        self, values: Iterable[Any], *, ids: Sequence[str] | None = None, timeout: float | None = 60
    ) -> list[Ref]:
        """`put` each; all of them or none."""
        return objects_.put_all(self._writer(), values, ids, check_timeout(timeout))

    def get_many(self, refs: Iterable[Ref | str], *, timeout: float | None = 0, copy: bool | None = None) -> list[Any]:
        """`get` each, under one deadline."""
        flag = None if copy is None else config.flag("copy", copy)
        return objects_.get_all(self, refs, check_timeout(timeout), flag)

    def wait(
        self, refs: Iterable[Ref | str], num_returns: int = 1, timeout: float | None = 60
    ) -> tuple[list[Ref], list[Ref]]:
        """Wait until `num_returns` of the objects are there: those that are, and the others."""
        return objects_.wait_for(self, refs, num_returns, check_timeout(timeout))

    def contains(self, ref: Ref | str) -> bool:
        """Whether the object is there and sealed."""
        return self._arena.contains(objects_.id_of(ref), waits.CALL_SECONDS)

    def delete(self, refs: Ref | str | Iterable[Ref | str]) -> int:
        """Delete objects; how many were there. One that is being read is freed when its last array goes."""
        arena = self._writable()
        return arena.delete(objects_.ids_of(refs), waits.CALL_SECONDS)

    def keys(self, start: Ref | str | None = None, n: int = 1000) -> list[Ref]:
        """Refs of up to `n` objects in the order of their ids, those behind `start`."""
        return objects_.list_keys(self._arena, start, n)

    # -- weights ------------------------------------------------------------------------------------------------

    def publish(self, name: str, tree: Any, *, keep: int = 1, group: Any = None, timeout: float | None = 60) -> int:
        """Publish the next version of `name`; its number.

        Args:
            name: of the weights.
            tree: any value that `put` takes; None counts a version whose weights travel elsewhere.
            keep: how many of the newest versions stay readable.
            group: not in this version.
            timeout: seconds to wait for room.
        """
        return weights_.publish(self._writer(), name, tree, keep, group, check_timeout(timeout))

    def latest(
        self,
        name: str,
        *,
        newer_than: int | None = None,
        version: int | None = None,
        timeout: float | None = 0,
    ) -> Published | None:
        """The newest version of `name`; None when nothing is newer at the deadline."""
        found = weights_.latest(self, name, newer_than, version, check_timeout(timeout))
        if found is not None:
            self._versions[name] = found.version
        return found

    # -- tables -------------------------------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        *,
        capacity: int | None,
        view: Any = Step(),  # noqa: B008 - immutable
        schema: Any = None,
        sampler: Any = NOT_GIVEN,
        remover: Any = NOT_GIVEN,
        limiter: Any = NOT_GIVEN,
        max_times_sampled: Any = NOT_GIVEN,
        max_bytes: int | str | None = None,
        lanes: int = 64,
        weights: str | None = None,
        max_staleness: int | None = None,
        initial_priority: float | str = "max",
        columns: str | Iterable[str] | None = None,
        durability: str = "memory",
        seed: int | None = None,
        exist_ok: bool = False,
        timeout: float | None = 60,
    ) -> Table:
        """Make a table.

        Args:
            name: 1 to 100 bytes of text.
            capacity: items; None: as many as `max_bytes` hold.
            view: how rows become examples.
            schema: nested dict of anything with `.shape` and `.dtype`; None: the first step declares the columns.
            sampler: default Uniform().
            remover: what goes when it is full; default Fifo().
            limiter: when inserts and draws wait; default MinSize(1).
            max_times_sampled: draws after which an item goes; default 0, no limit.
            max_bytes: of its rows.
            lanes: open at once, for which room is reserved.
            weights: name of the published weights whose versions items carry.
            max_staleness: versions an item may lie behind.
            initial_priority: of items without one: "max" (the largest ever given, at least 1.0) or a number.
            columns: which of the stream's columns batches hold; None: all.
            durability: only "memory" in this version.
            seed: of its draws; None: from the store's.
            exist_ok: return the table that is there, if view, schema, sampler and remover are equal.
            timeout: seconds to wait for another process that makes or drops a table.

        Raises:
            TableExists: the name is taken. CapacityError: it would not fit; nothing was reserved. ValueError: settings
            that cannot work; the text explains the mechanism.
        """
        self._writable()
        check_table_name(name)
        found = check_combination(sampler, remover, limiter, max_times_sampled, capacity, max_bytes, view)
        number = self._table_seed(name) if seed is None else config.count("seed", seed, minimum=0, maximum=2**63 - 1)
        rest = {
            "lanes": lanes,
            "weights": weights,
            "max_staleness": max_staleness,
            "initial_priority": initial_priority,
            "columns": columns,
            "durability": durability,
        }
        settings, seconds = make_settings(found, schema, number, rest), check_timeout(timeout)
        return self._create(name, settings, config.flag("exist_ok", exist_ok), -1.0 if seconds is None else seconds)

    def table(self, name: str, timeout: float | None = 0) -> Table:
        """The table of that name.

        Raises:
            TableNotFound: it is not there in time. ValueError: no table can be called so.
        """
        arena = self._arena
        seconds = check_timeout(timeout)
        native = arena.table(check_table_name(name))
        if native is None:
            native = self._await_table(name, seconds)
        return self._table(native)

    def drop_table(self, name: str, *, timeout: float | None = 60) -> None:
        """Remove a table and free its bytes; those who use it get `TableNotFound`.

        So do writers whose stream it shares with other tables: they end, and so do their open episodes.
        """
        seconds = check_timeout(timeout)
        check_table_name(name)
        self._writable().drop_table(name, -1.0 if seconds is None else seconds)

    def writer(self, tables: Sequence[Table | str], *, lanes: int | None = None, autoreset: Any = None) -> Writer:
        """A writer whose stream several tables share: steps hold the union of their columns.

        Args:
            tables: tables of this store, or their names.
            lanes: as `Table.writer`.
            autoreset: as `Table.writer`.
        """
        self._writable()
        if isinstance(tables, (str, Table)):
            raise TypeError(f"store.writer() takes a list of tables: write store.writer([{tables!r}])")
        every = config.listed("tables", tables, "a list of tables")
        listed = [self.table(each) if isinstance(each, str) else each for each in every]
        if not listed or any(not isinstance(each, Table) for each in listed):
            raise TypeError("store.writer() takes a list of tables")
        names = [each.name for each in listed]
        if len(set(names)) != len(names):
            raise ValueError(f"store.writer() was given a table twice: {names}")
        for each in listed:
            each._writable()
        foreign = [each.name for each in listed if each._store.name != self._name]
        if foreign:
            raise ValueError(f"tables {foreign} belong to another store")
        made = Writer([each._open() for each in listed], lanes, autoreset, single=False)
        self._follow(made)
        return made

    def mix(self, weights: Mapping[str, float], *, seed: int | None = None) -> Mixture:
        """Batches from several tables, every element from one of them by weight."""
        shares = check_shares(weights)
        number = seed if seed is None else config.count("seed", seed, minimum=0, maximum=2**63 - 1)
        return Mixture(self, {name: self.table(name) for name in shares}, shares, number)

    # -- inside -------------------------------------------------------------------------------------------------

    def _create(self, name: str, settings: Settings, exist_ok: bool, seconds: float) -> Table:
        arena, began = self._writable(), time.monotonic()
        if exist_ok and (known := arena.table(name)) is not None:
            return self._existing(known, settings)
        if arena.table(name) is not None:
            raise TableExists(f"store {self._name!r} has a table {name!r} already")
        needed = self._reckon(name, settings, seconds)
        try:
            left = seconds if seconds < 0 else max(0.0, seconds - (time.monotonic() - began))
            shape = settings.shape(name, needed.reserve, needed.item_bytes)
            native = _core.Table.create(arena, shape, left)
        except TableExists:
            if not exist_ok or (known := arena.table(name)) is None:
                raise
            native = None
        if native is None:  # somebody was faster
            assert known is not None
            return self._existing(known, settings)
        made = self._table(native)
        made._open().publish_layout(left)
        return made

    def _table(self, native: _core.Table) -> Table:
        made = Table(self, TableHandle(self._arena, native, self._versions))
        self._follow(made)
        return made

    def _await_table(self, name: str, seconds: float | None) -> _core.Table:
        """A table that somebody is still to create."""
        with waits.Wait(self._arena, seconds, f"table {name!r}") as wait:
            while wait.left > 0:
                arena = self._arena
                wait.pause(arena.wait_table, arena.room_seq(), "nobody has created it yet", at_most=max(wait.left, 0.0))
                if (native := arena.table(name)) is not None:
                    return native
        raise TableNotFound(f"store {self._name!r} has no table {name!r}")

    def _existing(self, native: _core.Table, settings: Settings) -> Table:
        found = self._table(native)
        handle = found._open()
        difference = handle.settings.difference(settings)
        if not difference and settings.schema is not None and handle.settings.schema is None:
            known = handle.schema  # what the first step has declared
            difference = "schema: none is declared there yet, the first step will" if known is None else ""
            if known is not None and (text := known.difference(settings.schema)):
                difference = f"schema: {text} (the first is the table's)"
        if difference:
            raise TableExists(f"table {found.name!r} exists with other settings: {difference}")
        return found

    def _reckon(self, name: str, settings: Settings, seconds: float) -> Reckoning:
        """What to reserve now; nothing yet where a first step is still to tell the columns."""
        if settings.schema is None:
            needed = reckon_without_rows(settings)
        else:
            read_plan(settings.view, settings.schema, settings.columns)
            needed = reckon(settings, settings.schema, settings.capacity)
        check_room(name, needed, self._arena.available(seconds))
        return needed

    def _table_seed(self, name: str) -> int:
        digest = hashlib.blake2b(f"{self._seed}:{name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1
