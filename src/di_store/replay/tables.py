"""The tables of a store in one session: creating, opening and dropping them; writers and mixtures over several."""

from __future__ import annotations

import os
import time
from _blake2 import blake2b  # hashlib offers it too, and brings OpenSSL
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import msgspec

from di_store import _core
from di_store.base import config
from di_store.base.disk import path_text
from di_store.base.errors import CapacityError, TableExists, TableNotFound
from di_store.layout.native_views import check_limits
from di_store.layout.plan import read_plan
from di_store.layout.reserve import TableNeeds, grow, make_room, needs_without_rows, table_needs
from di_store.layout.shape import UNLIMITED, table_shape
from di_store.policy.compression import Compress
from di_store.policy.limiters import Limiter
from di_store.policy.options import (
    NOT_GIVEN,
    NotGiven,
    check_table_name,
    imported_settings,
)
from di_store.policy.samplers import Sampler
from di_store.policy.settings import Settings
from di_store.replay.archive import ArchiveReader
from di_store.replay.handle import TableHandle
from di_store.replay.importing import Import, closed_limiter
from di_store.replay.local_mixture import LocalMixture
from di_store.replay.local_table import LocalTable, local_table
from di_store.replay.local_writer import LocalWriter
from di_store.replay.stats import TableStats, table_stats
from di_store.replay.table import Table, backend_of
from di_store.replay.table_backend import TableBackend
from di_store.runtime.waits import lock_seconds
from di_store.session import Session


class Tables:
    """Implements the calls of `Store` that concern tables."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def settle(self, name: str, settings: Settings, exist_ok: bool, timeout: float | None) -> LocalTable:
        """`create` with checked settings."""
        check_limits(settings.view)
        if isinstance(settings.compress, Compress) and not self._session.arena.tiered:
            raise ValueError(
                f"compress={settings.compress} is for rows on disk, and the store has none: open it with disk=, or "
                "leave compress= out"
            )
        if settings.durability == "disk" and not self._session.arena.tiered:
            raise ValueError(
                'durability="disk" keeps the table in the folder of the disk tier, and the store has none: open it '
                "with disk=, or leave durability= out"
            )
        return self._create(name, settings, exist_ok, lock_seconds(timeout))

    def import_table(
        self,
        path: str | os.PathLike[str],
        name: str | None,
        *,
        capacity: int | NotGiven | None,
        sampler: Sampler | NotGiven,
        limiter: Limiter | NotGiven,
        allow_pickle: bool,
        timeout: float | None,
    ) -> LocalTable:
        """`Store.import_table`."""
        arena, seconds = self._session.writable(), lock_seconds(timeout)
        with ArchiveReader(path_text(path)) as archive:
            file = Import(archive, config.flag("allow_pickle", allow_pickle))
            name = check_table_name(file.name if name is None else name)
            if arena.table(name) is not None:
                raise TableExists(f"store {self._session.name!r} has a table {name!r} already")
            settings = imported_settings(file.settings, capacity, sampler, limiter)
            if not arena.tiered:
                settings = msgspec.structs.replace(settings, compress="auto")
            check_limits(settings.view)
            if capacity is not NOT_GIVEN:
                file.check_capacity(settings.capacity)
            settings = msgspec.structs.replace(settings, schema=file.schema)
            needed = self._needed(name, settings, seconds)
            shape = table_shape(settings, name, needed.reserve, needed.item_bytes)
            shape |= {"limiter": closed_limiter(settings.limiter), "max_bytes": UNLIMITED}
            with archive.checked() if sampler is NOT_GIVEN else nullcontext():  # initial_priority, with alpha
                made = LocalTable(self._session, _core.Table.create(arena, shape, seconds))
            try:
                file.fill(made.open(), timeout, seconds)
            except BaseException:  # also Ctrl-C: no half of a table stays
                arena.drop_table(name, seconds)
                raise
        return made

    def open(self, name: str, timeout: float | None) -> LocalTable:
        """`Store.table`."""
        return local_table(self._session, name, timeout)

    def drop(self, name: str, seconds: float) -> None:
        """`Store.drop_table`; `seconds`: to wait for locks, negative: no limit."""
        self._session.writable().drop_table(name, seconds)

    def writer(self, tables: list[TableBackend], lanes: int | None, autoreset: Any) -> LocalWriter:
        """`Store.writer`."""
        self._session.writable()
        own = [each for each in tables if isinstance(each, LocalTable)]
        handles = [each.writable() for each in own]
        if foreign := [each.name for each in tables if each not in own or each.session.name != self._session.name]:
            raise ValueError(f"tables {foreign} belong to another store")
        return LocalWriter(self._session, handles, lanes, autoreset, single=False)

    def stats(self, locks: bool = True) -> dict[str, TableStats]:
        """`Table.stats` of every table, by name; `locks`: as in `table_stats`."""
        arena, found = self._session.arena, {}
        for name in arena.tables():
            if (native := arena.table(name)) is not None:
                with suppress(TableNotFound):  # dropped meanwhile
                    found[name] = table_stats(TableHandle(arena, native, self._session.versions), locks)
        return found

    def mix(self, weights: dict[str, float], columns: tuple[str, ...] | None, seed: int | None) -> LocalMixture:
        """`Store.mix`."""
        return LocalMixture(self._session, {name: self.open(name, 0) for name in weights}, weights, columns, seed)

    def _create(self, name: str, settings: Settings, exist_ok: bool, seconds: float) -> LocalTable:
        arena, began = self._session.writable(), time.monotonic()
        if (known := arena.table(name)) is not None:
            return self._existing(known, settings, exist_ok)
        needed = self._needed(name, settings, seconds)
        left = seconds if seconds < 0 else max(0.0, seconds - (time.monotonic() - began))
        shape = table_shape(settings, name, needed.reserve, needed.item_bytes)
        try:
            native = self._made(shape, needed, left)
        except TableExists:  # another process has created it meanwhile
            if not exist_ok or (known := arena.table(name)) is None:
                raise
        else:
            made = LocalTable(self._session, native)
            made.open().publish_layout(left)
            return made
        return self._existing(known, settings, exist_ok)

    def _made(self, shape: dict[str, Any], needed: TableNeeds, seconds: float) -> _core.Table:
        arena = self._session.arena
        try:
            return _core.Table.create(arena, shape, seconds)
        except CapacityError:  # another process has taken the room since `_needed` looked
            if not arena.fit:
                raise
            grow(arena, needed.meta_bytes + needed.reserve.bytes, seconds)
            return _core.Table.create(arena, shape, seconds)

    def _existing(self, native: _core.Table, settings: Settings, exist_ok: bool) -> LocalTable:
        """The existing table, if `exist_ok` and its settings are the same; else `TableExists`."""
        if not exist_ok:
            raise TableExists(f"store {self._session.name!r} has a table {native.name!r} already")
        found = LocalTable(self._session, native)
        handle = found.open()
        if difference := handle.settings.difference(settings, found.schema()):
            raise TableExists(f"table {found.name!r} exists with other settings: {difference}")
        return found

    def _needed(self, name: str, settings: Settings, seconds: float) -> TableNeeds:
        """The memory to reserve now: without a schema, nothing for rows until a first step declares the columns."""
        if settings.schema is None:
            needed = needs_without_rows(settings)
        else:
            read_plan(settings.view, settings.schema, settings.columns)
            needed = table_needs(settings, settings.schema, settings.capacity)
        make_room(self._session.arena, name, needed, seconds)
        return needed


def seed_of(store_seed: int, name: str) -> int:
    """The seed of a table without `seed=`: 63 bits of a BLAKE2b hash of the store's seed and the table's name."""
    digest = blake2b(f"{store_seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def checked_tables(tables: Any, opened: Callable[[str], Table]) -> list[TableBackend]:
    """The tables of `Store.writer`; `opened`: opens tables given by name.

    Raises: ValueError, TypeError: no table, a table given twice, or an object that is no table.
    """
    if isinstance(tables, (str, Table)):
        raise TypeError(f"store.writer() takes a list of tables: write store.writer([{tables!r}])")
    every = config.listed("tables", tables, "a list of tables")
    found = [opened(each) if isinstance(each, str) else each for each in every]
    if not found:
        raise ValueError("store.writer([]): give at least one table")
    if any(not isinstance(each, Table) for each in found):
        raise TypeError("store.writer() takes a list of tables, or of their names")
    names = [each.name for each in found]
    if len(set(names)) != len(names):
        raise ValueError(f"store.writer() was given a table twice: {names}")
    return [backend_of(each) for each in found]
