"""`Store.import_table`: fills a new table from the file of an exported one.

Until the import is complete, the table's limiter lets nothing pass (`BEING_IMPORTED`). Rows are written piece by piece,
each with the items that it completes, so that its chunks can go to disk. At the end the items get their insertion
order, and the limiter opens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import msgspec
import numpy as np

from di_store import _core
from di_store._core import BEING_IMPORTED, ITEM_FINISHED, ITEM_NO_NEXT
from di_store.base import tree
from di_store.base.dtypes import Array
from di_store.base.errors import CapacityError, CorruptData, SchemaMismatch
from di_store.columns.ragged import Ragged
from di_store.columns.schema import Schema
from di_store.layout.native_views import check_limits, finished_schema, native_view, observed_columns
from di_store.layout.plan import VALUE, make_layout, read_plan
from di_store.layout.shape import UNLIMITED, LimiterNumbers, limiter_numbers, native_changes
from di_store.objects.codec.plain import is_plain
from di_store.policy.changes import UNCHANGED, check_changes
from di_store.policy.limiters import Limiter
from di_store.policy.options import NOT_GIVEN, check_table_name, imported_settings
from di_store.policy.samplers import Prioritized
from di_store.policy.settings import Settings
from di_store.policy.views import Opaque
from di_store.replay.archive import ITEM_FACTS, KINDS, ArchiveManifest, ArchiveReader, members
from di_store.replay.batch import blob_head
from di_store.replay.handle import TableHandle
from di_store.replay.stream import build_restorer
from di_store.runtime.waits import InsertWait, run

_AT_ONCE = 65_536
"""Items that are inserted in one call."""
_PIECE_BYTES = 1 << 20
"""Bytes of rows that are written in one call. They stay in memory until their items are there."""


def closed_limiter(limiter: Limiter) -> LimiterNumbers:
    """The limiter of a table that is still being filled."""
    ratio, low, high, _, queued, weights = limiter_numbers(limiter)
    return ratio, low, high, BEING_IMPORTED, queued, weights


class Import:
    """The content of a file. Before the table is made, everything is checked that needs no rows.

    Raises:
        CorruptData: no exported table, or damaged. LayoutMismatch: another version of the format.
    """

    def __init__(self, archive: ArchiveReader, allow_pickle: bool) -> None:
        self._archive, self._allow_pickle = archive, allow_pickle
        self._manifest = manifest = archive.manifest
        self.name = manifest.name
        with archive.checked():
            check_table_name(manifest.name)
            try:
                self._read_settings(manifest)
            except CorruptData as error:  # the store is sound
                raise ValueError(error.message) from None
        self.items = manifest.items
        shape = (manifest.items,)
        self._facts = {name: archive.array(f"items/{name}", dtype, shape) for name, dtype in ITEM_FACTS}

    def _read_settings(self, manifest: ArchiveManifest) -> None:
        own = Settings.from_text(msgspec.json.encode(manifest.settings).decode())
        self.settings = imported_settings(own, NOT_GIVEN, NOT_GIVEN, NOT_GIVEN)
        self.schema = None if manifest.columns is None else Schema.from_plain(manifest.columns)
        check_limits(own.view)
        if self.schema is not None:
            read_plan(own.view, self.schema, own.columns)
            make_layout(finished_schema(own.view, self.schema))

    def check_capacity(self, capacity: int | None) -> None:
        """CapacityError if the capacity is less than the number of items in the file."""
        if capacity is not None and capacity < self.items:
            raise CapacityError(
                f"capacity={capacity}, and the file holds {self.items} items",
                remedy=f"give capacity={self.items} or more; table.resize() makes it smaller afterwards, and evicts",
            )

    def fill(self, handle: TableHandle, timeout: float | None, seconds: float) -> None:
        """Write the rows and insert the items into the new, closed table; then open it.

        Args:
            handle: handle of the table.
            timeout: seconds to wait for room.
            seconds: `timeout` in the core's form.
        """
        priorities = np.append(self._facts["priority"], self._manifest.counts.max_priority)
        own = handle.settings.sampler == self.settings.sampler
        with self._archive.checked() if own else nullcontext():
            handle.native.check_priorities(priorities)
        keys = self._insert(handle, timeout, seconds)
        counts, most = self._manifest.counts, handle.settings.max_bytes
        restored = (counts.epoch, counts.latest_epoch, counts.rng_counter, counts.max_priority)
        with self._archive.checked():
            handle.native.restore((*restored, UNLIMITED if most is None else most), keys, seconds)
        alpha, beta = self._manifest.alpha, self._manifest.beta
        kept = own and isinstance(handle.settings.sampler, Prioritized)
        with self._archive.checked():
            changes = check_changes(
                handle.settings,
                self.items,
                limiter=None,
                alpha=alpha if kept else None,
                beta=beta if kept else UNCHANGED,
                max_staleness=UNCHANGED,
            )
        _, new_alpha, new_beta, _ = native_changes(changes)
        limiter = limiter_numbers(handle.settings.limiter)
        handle.native.configure(limiter, new_alpha, new_beta, None, seconds, True)

    def _insert(self, handle: TableHandle, timeout: float | None, seconds: float) -> Array:
        """Write the rows and insert the items in the order of their rows. Returns their keys, in the file's order."""
        facts = self._facts
        whole = (facts["flags"] & ITEM_FINISHED) != 0
        limit = handle.settings.max_times_sampled
        if self.items and limit and int(facts["times_sampled"].max()) >= limit:
            raise self._archive.damaged("an item was drawn as often as max_times_sampled allows")
        keys = np.zeros(self.items, np.uint64)
        parts = zip(KINDS, (self._manifest.rows, self._manifest.whole), (~whole, whole), strict=True)
        for name, rows, chosen in parts:
            numbers = np.flatnonzero(chosen)
            numbers = numbers[np.argsort(facts["row"][numbers], kind="stable")]
            kind = _Kind(self._archive, handle, name, rows, facts, numbers, self._allow_pickle)
            try:
                kind.restore(keys, timeout, seconds)
            finally:
                kind.close()
        return keys


_RESTORED = ("rows", "back", "flags", "times_sampled", "version", "priority", "epochs")
_NOT_THERE = "an item covers rows that are not there"


class _Kind:
    """The rows of one folder of the file, and the items over them: `numbers` of `facts`, by first row."""

    def __init__(
        self,
        archive: ArchiveReader,
        handle: TableHandle,
        kind: str,
        parts: list[int],
        facts: dict[str, Array],
        numbers: Array,
        allow_pickle: bool,
    ) -> None:
        self._archive, self._handle, self._kind, self._parts = archive, handle, kind, parts
        self._facts, self._numbers = facts, numbers
        self._allow_pickle = allow_pickle
        self._rows = sum(parts)
        self._inserted = 0  # of `numbers`
        self._native: _core.Writer | None = None
        self._segments = np.empty((0, 3), np.int64)  # first row, episode, step
        self._raws = np.empty(0, np.int64)  # raw row number of each segment's first row, once it is written
        self._end = 0  # raw row number after all that are written
        self._finals = np.empty(0, np.int64)  # numbers of rows that hold only an observation

    def close(self) -> None:
        """Release the written chunks; chunks with items stay."""
        if self._native is not None:
            self._native.close()

    def restore(self, keys: Array, timeout: float | None, seconds: float) -> None:
        """Write all rows, and insert the items with the part that completes them.

        Args:
            keys: keys of all items of the file; this fills in those of these items.
            timeout: seconds to wait for room.
            seconds: as `timeout`, as the core takes it.
        """
        if not self._rows:
            if len(self._numbers):
                raise self._archive.damaged(_NOT_THERE)
            return
        if self._handle.schema is None and not self._handle.opaque:
            raise self._archive.damaged("it holds rows and no columns")
        self._read_segments()
        ends = self._check_items()
        for written in self._write_rows(timeout, seconds):
            self._insert(int(np.searchsorted(ends, written, "right")), written, keys, timeout)

    # -- rows ---------------------------------------------------------------------------------------------------

    def _write_rows(self, timeout: float | None, seconds: float) -> Iterator[int]:
        """Write part after part in pieces; yields how many rows are written."""
        handle, view = self._handle, self._handle.settings.view
        schema = None if isinstance(view, Opaque) else handle.schema
        names = None
        begin = 0
        for number, count in enumerate(self._parts):
            if not count:
                raise self._archive.damaged("it has an empty part")
            folder = f"{self._kind}/{number:05}"
            if self._native is None:
                if schema is None:
                    ends = self._archive.array(f"{folder}/ends/{VALUE}", np.int64, (count,))
                    handle.reserve_opaque(int(np.diff(ends, prepend=0).max()), seconds)
                    schema = handle.schema
                assert schema is not None
                if self._kind == "whole":
                    schema = finished_schema(view, schema)
                self._native, layout = build_restorer(handle, schema, seconds)
                observed = () if isinstance(view, Opaque) else observed_columns(view, schema)
                names = members(schema), layout.numbers(observed)
            assert names is not None
            assert schema is not None
            leaves = self._read_part(folder, count, schema, names[0])
            late = self._late(folder, count, schema)
            for span in _pieces(leaves, count):
                rows = tree.unflatten({name: _cut(leaf, span) for name, leaf in leaves.items()})
                self._write(rows, late[span], slice(begin + span.start, begin + span.stop), names[1], timeout)
                yield begin + span.stop
            begin += count

    def _read_segments(self) -> None:
        """Read which episodes and steps the rows are, and which hold only an observation."""
        segments, finals, begin = [], [], 0
        for number, count in enumerate(self._parts):
            folder = f"{self._kind}/{number:05}"
            found = self._archive.table(f"{folder}/segments", np.int64, 3)
            final = self._archive.array(f"{folder}/final", np.bool_, (count,))
            if len(found) and (found[0, 0] < begin or found[-1, 0] >= begin + count):
                raise self._archive.damaged("an episode begins outside its part")
            segments.append(found)
            finals.append(np.flatnonzero(final) + begin)
            begin += count
        self._segments, self._finals = np.concatenate(segments), np.concatenate(finals)
        rows, steps = self._segments[:, 0], self._segments[:, 2]
        sound = len(rows) and rows[0] == 0 and (np.diff(rows) > 0).all()
        if not sound or steps.min() < 0 or steps.max() >= 2**31:
            raise self._archive.damaged("its episodes do not cover its rows")
        self._raws = np.zeros(len(rows), np.int64)

    def _read_part(self, folder: str, count: int, schema: Schema, names: dict[str, str]) -> dict[str, Any]:
        leaves: dict[str, Any] = {}
        for column in schema:
            member = names[column.name]
            if not column.ragged:
                leaves[column.name] = self._archive.array(
                    f"{folder}/data/{member}", column.dtype, (count, *column.shape)
                )
                continue
            ends = self._archive.array(f"{folder}/ends/{member}", np.int64, (count,))
            offsets = np.concatenate([np.zeros(1, np.int64), ends])
            if (np.diff(offsets) < 0).any():
                raise self._archive.damaged(f"the lengths of column {column.name!r} are wrong")
            values = self._archive.array(f"{folder}/data/{member}", column.dtype, (int(ends[-1]), *column.shape))
            leaves[column.name] = Ragged(values, offsets)
        if self._handle.opaque and not self._allow_pickle:
            _refuse_pickles(self._archive, leaves[VALUE])
        return leaves

    def _late(self, folder: str, count: int, schema: Schema) -> Array:
        """The late columns that rows have, as bits by row."""
        if not any(column.late for column in schema):
            return np.zeros(count, np.uint32)
        return self._archive.array(f"{folder}/late", np.uint32, (count,))

    def _write(
        self, rows: dict[str, Any], late: Array, span: slice, observed: list[int], timeout: float | None
    ) -> None:
        """Write rows of one part."""
        count = span.stop - span.start
        first = int(np.searchsorted(self._segments[:, 0], span.start, "right")) - 1
        last = int(np.searchsorted(self._segments[:, 0], span.stop, "left"))
        here = self._segments[first:last]
        lengths = np.diff(np.append(here[:, 0], span.stop))
        numbers = np.arange(span.start, span.stop)
        lengths[0] -= span.start - here[0, 0]
        begins, episodes, steps = (np.repeat(here[:, at], lengths) for at in range(3))
        finals = np.zeros(count, np.bool_)
        mine = slice(*np.searchsorted(self._finals, [span.start, span.stop]).tolist())
        finals[self._finals[mine] - span.start] = True
        native = self._native
        assert native is not None
        given = (rows, episodes, steps + numbers - begins, finals, late, observed)
        try:
            raws: Array = self._waited(partial(native.restore_rows, *given), native, timeout)
        except SchemaMismatch as error:
            raise self._archive.damaged(error.message) from None
        begun = int(np.searchsorted(self._segments[:, 0], span.start, "left"))
        self._raws[begun:last] = raws[self._segments[begun:last, 0] - span.start]
        self._end = int(raws[-1]) + 1

    def _waited(self, call: Callable[[], Any], native: _core.Writer, timeout: float | None) -> Any:
        """Call the core, repeatedly while it is blocked."""
        made = call()
        if not isinstance(made, _core.Blocked):
            return made
        handle = self._handle
        with InsertWait(handle.arena, timeout, f"import into table {handle.name!r}") as wait:
            while isinstance(made, _core.Blocked):
                run(wait.pausing_for(made, handle.native, handle.arena))
                handle.check_open()
                made = native.resume() if made.passed else call()
        return made

    # -- items --------------------------------------------------------------------------------------------------

    def _check_items(self) -> Array:
        """The number of rows that must be written for each item and all earlier ones.

        Raises:
            CorruptData: items over rows that do not follow each other, or that hold no steps.
        """
        handle, view = self._handle, self._handle.settings.view
        first, rows, back, flags, version = (
            self._facts[name][self._numbers] for name in ("row", "rows", "back", "flags", "version")
        )
        end = first + rows
        sound = (first >= 0) & (rows > 0) & (end <= self._rows) & (flags < 16) & (version >= -1)
        if not sound.all():
            raise self._archive.damaged(_NOT_THERE)
        schema = handle.schema
        plan = {} if isinstance(view, Opaque) or schema is None else native_view(view, schema)
        kind = plan.get("kind")
        behind = (kind == _core.ViewKind.TRANSITION or bool(plan.get("bootstrap"))) & (
            (flags & (ITEM_NO_NEXT | ITEM_FINISHED)) == 0
        )
        own_end = end - behind
        crosses = bool(plan.get("cross_episodes"))
        inside = np.searchsorted(self._finals, own_end) - np.searchsorted(self._finals, first)
        if (own_end - first <= back).any() or (back >= plan.get("stack", 1)).any() or (not crosses and inside.any()):
            raise self._archive.damaged("an item has no step, or counts an observation as a step")
        # Where rows do not follow the ones before, items do not go on.
        breaks = self._segments[:, 0] if not crosses else self._segments[self._segments[:, 2] != 0, 0]
        if (np.searchsorted(breaks, first, "right") != np.searchsorted(breaks, end - 1, "right")).any():
            raise self._archive.damaged("an item continues beyond its last row")
        ends: Array = np.maximum.accumulate(end)
        return ends

    def _insert(self, ready: int, written: int, keys: Array, timeout: float | None) -> None:
        """Insert the items up to `ready`, whose rows are written, and release chunks that no later item needs."""
        native, facts = self._native, self._facts
        assert native is not None
        while self._inserted < ready:
            end = min(ready, self._inserted + _AT_ONCE)
            chosen = self._numbers[self._inserted : end]
            items = (self._raw_rows(facts["row"][chosen]), *(facts[name][chosen] for name in _RESTORED))
            later = facts["row"][self._numbers[end : end + 1]]
            needed = self._raw_rows(later[later < written]).tolist() or [self._end]
            with self._archive.checked():
                made = self._waited(partial(native.restore_items, items, needed[0]), native, timeout)
            keys[chosen] = made[0][0]
            self._inserted = end

    def _raw_rows(self, rows: Array) -> Array:
        segment = np.searchsorted(self._segments[:, 0], rows, "right") - 1
        found: Array = self._raws[segment] + rows - self._segments[segment, 0]
        return found


def _pieces(leaves: dict[str, Any], count: int) -> Iterator[slice]:
    """The rows of a part in pieces of about `_PIECE_BYTES`."""
    size = sum((leaf.values if isinstance(leaf, Ragged) else leaf).nbytes for leaf in leaves.values())
    rows = max(1, count * _PIECE_BYTES // max(size, 1))
    return (slice(first, min(first + rows, count)) for first in range(0, count, rows))


def _cut(leaf: Any, span: slice) -> Any:
    if not isinstance(leaf, Ragged):
        return leaf[span]
    offsets = leaf.offsets[span.start : span.stop + 1]
    return Ragged(leaf.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def _refuse_pickles(archive: ArchiveReader, values: Ragged) -> None:
    """ValueError if reading one of the values would run code that the file names."""
    for blob in _blobs(values):
        header, _, _ = blob_head(blob.data)
        with archive.checked():
            plain = is_plain(header)
        if not plain:
            raise ValueError(
                "the file holds pickled Python objects or names of classes, and reading them can run any "
                "code: give allow_pickle=True if you trust the file"
            )


def _blobs(values: Ragged) -> Iterator[Array]:
    for begin, end in itertools.pairwise(values.offsets.tolist()):
        yield values.values[begin:end]
