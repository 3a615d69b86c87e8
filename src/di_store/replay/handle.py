"""One table in this process: the core's table, its settings, its columns, and its reader."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from di_store import _core
from di_store.base import config
from di_store.base.dtypes import Array
from di_store.base.errors import CapacityError, CorruptData, StoreError, Timeout
from di_store.base.tree import unflatten
from di_store.base.warned import warn
from di_store.columns.schema import Schema
from di_store.layout.native_views import finished_schema
from di_store.layout.plan import OPAQUE_SCHEMA, VALUE, ReadPlan, make_layout, read_plan, sparse_columns
from di_store.layout.reserve import Claims, Cut, Reserve, TableNeeds, grow, items_kept, make_room, table_needs
from di_store.layout.shape import UNLIMITED, slots_for
from di_store.policy.samplers import Prioritized, Sampler
from di_store.policy.settings import Settings, identity_in
from di_store.policy.view_columns import check_columns
from di_store.policy.views import Group, Opaque, Step, View
from di_store.replay.batch import Batch, load_values, wrap_ragged
from di_store.replay.lost import without_lost

Size = tuple[int, int, Reserve]
"""Capacity, least number of slots, reserve."""


def held_reserve(now: dict[str, Any]) -> Reserve:
    """The reserve that a table asked for; `now`: `stats` of the core's table."""
    return Reserve(int(now["reserve_wanted"]), int(now["reserve_open"]))


def slots_now(now: dict[str, Any], view: View) -> int:
    """Slots that the table's capacity needs; `now`: `stats` of the core's table."""
    capacity = int(now["capacity"])
    return slots_for(None if capacity >= UNLIMITED else capacity, view)


class TableHandle:
    """The part of a table that writers, loaders and mixtures use. Each process that attaches makes its own."""

    def __init__(self, arena: _core.Arena, native: _core.Table, versions: dict[str, int]) -> None:
        self.arena = arena
        self.native = native
        self.versions = versions
        self.name: str = native.name
        config_text = native.config()
        self.settings = Settings.from_text(config_text)
        self.identity = identity_in(config_text)
        self.opaque = self.settings.opaque
        self.opened_outdated = native.taken_over  # another node of the cluster had the table already
        self._schema = OPAQUE_SCHEMA if self.opaque else self.settings.schema
        self._declared = self.settings.schema is not None
        self._read_plan: ReadPlan | None = None
        self._reader: _core.Reader | None = None
        # The core's peek; None until there is a reader.
        self.peek: Callable[[Array, float | None, list[int] | None], Any] | None = None
        self.late: _core.LateWriter | None = None
        self.write_late: Callable[[Any, Any, Any, Any], int | None] = not_now  # `late.write_now`, once that is made
        self._which: dict[Any, list[int] | None] = {None: None}
        self.example_bytes = 0
        self.closed: StoreError | None = None  # set when the table's handle ends: calls that wait raise it
        self.special = False
        self.keeps_encoded = False  # whether batches of an `Opaque` table hold the bytes of its values
        self.inserted = False  # whether this process has inserted whole items
        self._warned = False
        self.left_out_warned = False
        self.ends_warned = False

    def check_open(self) -> None:
        """Raise the error of a closed handle. Each call raises a copy, because several threads may raise the error."""
        if self.closed is not None:
            raise copy.copy(self.closed)

    # -- columns ------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> Schema | None:
        """The table's columns; None until they are declared."""
        if self._schema is None:
            text = self.native.schema()
            if text:
                self._schema = _schema_from(text)
        return self._schema

    def sampler(self) -> Sampler:
        """The sampler with its current exponents."""
        sampler = self.settings.sampler
        if not isinstance(sampler, Prioritized):
            return sampler
        return replace(sampler, alpha=float(self.native.stats()["alpha"]), beta=self.native.beta)

    def declare(self, schema: Schema, seconds: float) -> Schema:
        """Declare the columns from those of the first step, unless another process has already declared them.

        Args:
            schema: schema of the first step.
            seconds: seconds to wait for locks that stopped processes hold; negative: no limit.

        Returns: The table's columns: these, or those of a process that declared them earlier.

        Raises:
            ValueError: the table's view does not allow these columns. CapacityError: the table would not fit.
        """
        known = self.schema
        if known is not None:
            return known
        self.check_declarable(schema)
        text = msgspec.json.encode(schema.to_plain()).decode()
        self._declare(text, schema, seconds)
        self._schema = _schema_from(self.native.schema())
        self.publish_layout(seconds)
        return self._schema

    def check_declarable(self, schema: Schema) -> None:
        """Refuse columns that the table cannot have, before anything is declared.

        Raises:
            ValueError: the table's view does not allow these columns, or there are too many.
        """
        check_columns(self.settings.view, schema)
        read_plan(self.settings.view, schema, self.settings.columns)
        make_layout(schema)

    def publish_layout(self, seconds: float) -> None:
        """Store the layout of the table's own rows now, so that a writer can be opened later in a full store."""
        if (schema := self.schema) is None:
            return
        try:
            make_layout(schema, sparse_columns([(self.settings.view, schema)])).publish(self.arena, seconds)
        except (CapacityError, Timeout):
            return  # opening a writer tries again, and raises if there is still no room

    def reserve_opaque(self, example_bytes: int, seconds: float) -> None:
        """Reserve memory for a table of Python values, estimated from the bytes of the first value."""
        if self.example_bytes or self._declared:
            return
        self.example_bytes = max(64, example_bytes)
        if self.native.schema():
            return
        self._declare("[]", OPAQUE_SCHEMA, seconds)

    def _declare(self, text: str, schema: Schema, seconds: float) -> None:
        """Check that the table fits with these columns, declare them, and reserve its memory."""
        stats = self.native.stats()
        capacity = int(stats["capacity"])
        needed = self.needs(schema, capacity)
        self.make_room(needed, slots_now(stats, self.settings.view), stats, seconds)
        if self.native.declare_schema(text, needed.reserve, needed.item_bytes, seconds):
            self.resize(partial(self._declared_size, schema, capacity), seconds)

    def _declared_size(self, schema: Schema, before: int, now: dict[str, Any]) -> Size | None:
        """The size with all slots, which a table gets once its columns are known; None: it has all slots already.

        If the capacity is no longer `before`, another process has resized the table: compute its reserve again.
        """
        capacity, slots = int(now["capacity"]), slots_now(now, self.settings.view)
        if capacity != before:
            return capacity, slots, self.needs(schema, capacity).reserve
        return (capacity, slots, held_reserve(now)) if slots > int(now["slots"]) else None

    def resize(self, size_of: Callable[[dict[str, Any]], Size | None], seconds: float) -> None:
        """Give the table a size that depends on its figures; compute it again if another process changed them.

        Args:
            size_of: computes the size from `stats` of the core's table; None: leave the size as it is.
            seconds: to wait for locks that stopped processes hold; negative: no limit.

        Raises:
            CapacityError: no room; nothing was changed.
        """
        done = False
        while not done:
            now = self.native.stats()
            size = size_of(now)
            seen = int(now["capacity"]), int(now["reserve_wanted"]), int(now["reserve_open"])
            try:
                done = size is None or self.native.resize(*size, seen, seconds)
            except CapacityError:
                if size is None or not self.arena.fit:
                    raise
                _, slots, reserve = size
                has, _, more = self.native.claims(slots, seconds)
                wanted = reserve.in_memory if self.arena.tiered else reserve.bytes
                grow(self.arena, max(0, wanted - has) + more, seconds)
                done = self.native.resize(*size, seen, seconds)

    def make_room(self, needed: TableNeeds, slots: int, now: dict[str, Any], seconds: float) -> None:
        """Refuse a size that the table cannot get, before anything is taken (`reserve.make_room`).

        Args:
            needed: the needs at the new size.
            slots: item slots at the new size.
            now: `stats` of the core's table.
            seconds: seconds to wait for locks that stopped processes hold; negative: no limit.

        Raises:
            CapacityError: the table does not fit.
        """
        memory, tiers, more = self.native.claims(slots, seconds)
        chunks = Reserve(int(now["reserve_wanted"]), 0, int(now["chunk_block"])).chunks
        needed = msgspec.structs.replace(needed, meta_bytes=more)
        make_room(self.arena, self.name, needed, seconds, Claims(memory, tiers, chunks))

    def needs(
        self, schema: Schema, capacity: int | None = None, *, cut: Cut | None = None, lanes: int | None = None
    ) -> TableNeeds:
        """`table_needs` for `capacity`, in the core's form (`UNLIMITED` for none); None: the present capacity."""
        items = self.native.capacity if capacity is None else capacity
        return table_needs(self.settings, schema, None if items >= UNLIMITED else items, self.example_bytes, cut, lanes)

    def needs_resized(self, schema: Schema, capacity: int, now: dict[str, Any]) -> TableNeeds:
        """The table's needs for another capacity, including later additions to its reserve.

        Streams shared with other tables (`stream.build_native`), and Python values larger than the first one, add to
        the reserve. The part for items is scaled with the capacity. The part for open chunks stays, and so does the
        smallest chunk size.

        Args:
            schema: schema of its rows.
            capacity: number of items.
            now: `stats` of the core's table.
        """
        needed, before = self.needs(schema, capacity), int(now["capacity"])
        held, alone = held_reserve(now), self.needs(schema, before).reserve
        items = needed.reserve.item_bytes
        if before < UNLIMITED:  # else the reserve is `max_bytes`, which says nothing about what an item needs
            more = max(0, held.item_bytes - alone.item_bytes)
            # The same rounding in both directions, so that growing and then shrinking restores the reserve.
            share = items_kept(self.settings, capacity) / items_kept(self.settings, before)
            if self.opaque:
                share = min(1.0, share)  # the core raises an opaque table's reserve itself as it grows
            items += round(more * share)
        open_bytes = needed.reserve.open_bytes + max(0, held.open_bytes - alone.open_bytes)
        kept = needed.reserve.with_parts(items, open_bytes, self.settings.max_bytes)
        block = int(now["chunk_block"])
        if 0 < block < min(alone.chunk_block, kept.chunk_block):
            kept = kept._replace(chunk_block=block, chunk_head=int(now["chunk_head"]))
        return msgspec.structs.replace(needed, reserve=kept)

    # -- reading ------------------------------------------------------------------------------------------------

    def reader(self) -> _core.Reader:
        """The core's reader.

        Raises:
            Timeout: the table has no columns yet, so nothing was ever written.
        """
        if self._reader is None:
            plan = self.read_plan()
            if plan is None:
                raise Timeout(f"table {self.name!r} cannot be read yet", "nothing was written to it")
            self.special = bool(plan.ragged)
            # No lock: two threads may each make a reader, and both readers work.
            self._reader = _core.Reader(self.native, plan.native)
            self.peek = self._reader.peek
        return self._reader

    def read_plan(self) -> ReadPlan | None:
        """The plan by which batches are built from rows; None until the columns are declared."""
        if self._read_plan is None and (schema := self.schema) is not None:
            self._read_plan = read_plan(self.settings.view, schema, self.settings.columns)
        return self._read_plan

    def batch_columns(self, schema: Schema) -> tuple[str, ...]:
        """Names of the columns that batches hold; `schema`: the table's."""
        chosen = self.settings.columns
        return schema.names if chosen is None else schema.select(chosen)

    def which(self, columns: str | Iterable[str] | None) -> list[int] | None:
        """Numbers of the outputs that `columns` names; None: all."""
        if type(columns) is tuple:
            try:
                return self._which[columns]  # only checked names are in it
            except (KeyError, TypeError):
                pass
        key = columns if columns is None or type(columns) is str else config.names("columns", columns)
        if key not in self._which:
            plan = self.read_plan()
            if plan is None:
                return None
            self._which[key] = plan.which(key)
        return self._which[key]

    def bytes_of(self, which: list[int] | None) -> int:
        """Bytes of one example with these outputs, without its ragged outputs."""
        plan = self.read_plan()
        return 0 if plan is None else plan.bytes_of(which)

    def episodes_of(self, keys: Array) -> Array:
        """Numbers of the episodes of these items, int64[n]; -1: not in the table."""
        batch = self.batch(without_lost(self.arena, self.reader().peek, keys, None, self.which(())))
        found: Array = np.where(np.asarray(batch.live), batch.episodes, -1)
        return found

    def allocate(self, n: int, which: list[int] | None, make: Callable[[str, Any, Any], Any]) -> dict[str, Any]:
        """Arrays for the fixed-size outputs of a batch of n, for the core's `out`."""
        plan = self.read_plan()
        assert plan is not None
        found: dict[str, Any] = {}
        for number, output in enumerate(plan.native["outputs"]):
            if (which is None or number in which) and not output["ragged"]:
                found[output["name"]] = make(output["name"], (n, *output["shape"]), output["dtype"])
        return unflatten(found) if found else {}

    def warn_evicted(self) -> bool:
        """Warn once if items were evicted before `capacity` was reached; returns whether it has ever warned."""
        if not self._warned and (evicted := self.native.evicted_for_room):
            self._warned = True
            warn(
                f"table {self.name!r}: {evicted} items were evicted before capacity: {self._why_evicted()}, see "
                "`evicted_for_room` in table.stats()"
            )
        return self._warned

    def _why_evicted(self) -> str:
        """Why items need more bytes than was estimated. Precise if this process has inserted whole items."""
        schema, view = self.schema, self.settings.view
        if not self.inserted or schema is None or isinstance(view, (Step, Opaque, Group)):
            shrunk = ", rows that shrink less than Compress(expect=)" if self.settings.expect > 1 else ""
            full = ", or the disk gave less room than it has (store.stats()['disk'])" if self.arena.tiered else ""
            return (
                "their rows need more bytes than was estimated (short episodes, long ragged rows, more lanes than "
                f"lanes=, items inserted whole{shrunk}){full}; raise capacity=, max_bytes= or lanes="
            )
        whole, shared = finished_schema(view, schema).fixed_row_bytes, schema.fixed_row_bytes
        each = f"a row of {whole:,} bytes in place of {shared:,}" if whole > shared else "all rows of each"
        return (
            f"insert() and extend() store items whole, {each}: inserted items cannot share frames, next observations "
            "and rows with others as those of a writer do; write steps through table.writer(), or raise capacity= or "
            "max_bytes="
        )

    def batch(self, parts: tuple[Any, ...], draws: _core.Draws | None = None) -> Batch:
        """The core's parts as a `Batch`.

        Args:
            parts: parts of a batch.
            draws: the batch's draws, if they are not delivered yet.

        Raises:
            StoreError: values of an `Opaque` table cannot be loaded (`load_values`). The draws of these items are
                delivered, and all other draws are given back.
        """
        plan = self._read_plan
        if plan is not None and plan.ragged:
            if self.opaque:
                pair = parts[0].get(VALUE)
                return Batch(pair or () if self.keeps_encoded else self._values(pair, parts[1], draws), *parts[1:])
            wrap_ragged(parts[0], dict(plan.ragged), len(parts[1]))
        return Batch(*parts)

    def _values(self, pair: Any, keys: Array, draws: _core.Draws | None) -> list[Any]:
        if pair is None:  # columns=()
            return []
        try:
            return load_values(keys, *pair, what=f"table {self.name!r}")
        except StoreError as error:
            if draws is not None and error.places:
                self.reader().deliver_some(draws, error.places)
            raise


def episodes_reader(handle: TableHandle) -> Callable[[Array], Array]:
    """`TableHandle.episodes_of` for `Items`, which do not keep the handle alive: -1 for all once it is deleted."""
    reference = weakref.ref(handle)

    def read(keys: Array) -> Array:
        found = reference()
        return np.full(len(keys), -1, np.int64) if found is None else found.episodes_of(keys)

    return read


def not_now(*_arguments: Any) -> None:
    """Replaces an optional call of the core that is not there yet; does nothing."""


def _schema_from(text: str) -> Schema:
    try:
        return Schema.from_plain(msgspec.json.decode(text))
    except msgspec.DecodeError as error:
        raise CorruptData(f"the stored schema cannot be read: {error}") from None
