"""`Table.export`: reads a table while it is in use, and writes it to a file, each row once."""

from __future__ import annotations

import itertools
import os
from typing import Any

import msgspec
import numpy as np

from di_store import _core
from di_store._core import ITEM_FINISHED
from di_store.base.disk import path_text
from di_store.base.dtypes import Array
from di_store.base.frozen import dataclass
from di_store.base.tree import path_of
from di_store.columns.column import Column
from di_store.columns.schema import Schema
from di_store.layout.native_views import finished_schema, native_view, observed_columns
from di_store.layout.plan import read_plan
from di_store.layout.shape import UNLIMITED
from di_store.policy.limiters import Bounds, with_bounds
from di_store.policy.samplers import Prioritized
from di_store.policy.views import Group, Opaque, Step
from di_store.replay.archive import FORMAT, ITEM_FACTS, VERSION, ArchiveCounts, ArchiveManifest, ArchiveWriter, members
from di_store.replay.handle import TableHandle
from di_store.replay.lost import without_lost

_PART_BYTES = 16 << 20
"""Rows are gathered into parts of about this size, and read in pieces of at most this size."""
_MOST_ITEMS = 8_192
"""Items that are read in one call: each takes an entry in this process's ledger meanwhile."""
_MOST_WALKED = 1 << 20
"""Rows of the items of one call, each counted once for every item that covers it: the core lists them in memory."""


@dataclass(frozen=True)
class Exported:
    """The result of `Table.export`.

    Attributes:
        items: number of items, including those that wait for late columns.
        skipped: items that were in the table when the export began, but left it before they were read.
        rows: number of rows; a row that belongs to several items counts once.
        bytes: size of the file.
    """

    items: int
    skipped: int
    rows: int
    bytes: int


def export_table(handle: TableHandle, path: str | os.PathLike[str], seconds: float) -> Exported:
    """`Table.export`; `seconds`: to wait for the table's lock, negative: no limit."""
    if isinstance(handle.settings.view, Group):
        raise ValueError(
            f"table {handle.name!r} has view={handle.settings.view!r}, and export() writes no groups in this version: "
            "export a table with view=Step() over the same stream"
        )
    stats = handle.native.stats()
    live, waiting = handle.native.keys(0, UNLIMITED, seconds, leased=True), handle.native.waiting(seconds)
    keys = np.concatenate([live, waiting])
    facts = {name: np.zeros(len(keys), dtype) for name, dtype in ITEM_FACTS}
    facts["key"][:], facts["row"][:] = keys, -1
    with ArchiveWriter(path_text(path)) as archive:
        parts = _write_rows(handle, archive, keys, facts, seconds)
        kept = facts["row"] >= 0
        for name, _ in ITEM_FACTS:
            archive.array(f"items/{name}", facts[name][kept])
        items, late = int(kept.sum()), int(kept[len(live) :].sum())
        archive.manifest(_manifest(handle, stats, parts, items, late, len(keys) - items))
    return Exported(items, len(keys) - items, sum(map(sum, parts.values())), archive.bytes)


def _manifest(
    handle: TableHandle, stats: dict[str, Any], parts: dict[str, list[int]], items: int, waiting: int, skipped: int
) -> ArchiveManifest:
    capacity, staleness, limits = int(stats["capacity"]), int(stats["max_staleness"]), stats["limiter"]
    bounds = Bounds(limits["min_size"], limits["ratio"], limits["min_diff"], limits["max_diff"])
    settings = msgspec.structs.replace(
        handle.settings,
        capacity=None if capacity >= UNLIMITED else capacity,
        limiter=with_bounds(handle.settings.limiter, bounds),
        max_staleness=None if staleness < 0 else staleness,
        schema=None,
    )
    schema, sampler = None if handle.opaque else handle.schema, handle.sampler()
    return ArchiveManifest(
        format=FORMAT,
        version=VERSION,
        name=handle.name,
        settings=msgspec.json.decode(settings.to_text()),
        alpha=sampler.alpha if isinstance(sampler, Prioritized) else None,
        beta=sampler.beta if isinstance(sampler, Prioritized) else None,
        columns=None if schema is None else schema.to_plain(),
        counts=ArchiveCounts(stats["epoch"], stats["latest_epoch"], stats["rng_counter"], stats["max_priority"]),
        items=items,
        waiting=waiting,
        skipped=skipped,
        rows=parts["rows"],
        whole=parts["whole"],
    )


def _write_rows(
    handle: TableHandle, archive: ArchiveWriter, keys: Array, facts: dict[str, Array], seconds: float
) -> dict[str, list[int]]:
    """Write the rows of the items and fill in their facts. Returns the rows of each part, by kind."""
    schema = handle.schema
    parts: dict[str, list[int]] = {"rows": [], "whole": []}
    if schema is None or not len(keys):
        return parts
    episodes, starts, rows, flags = handle.native.places(keys, seconds)
    there, whole = rows > 0, (flags & ITEM_FINISHED) != 0
    for kind, chosen in (("rows", there & ~whole), ("whole", there & whole)):
        numbers = np.flatnonzero(chosen)
        if not len(numbers):
            continue
        numbers = numbers[np.lexsort((starts[numbers], episodes[numbers]))]
        fresh = _new_rows(episodes[numbers], starts[numbers], rows[numbers].astype(np.int64))
        source = _ItemReader(handle, schema, kind)
        sink = _Sink(archive, source.schema, kind)
        row_bytes = max(source.row_bytes, int(handle.native.stats()["used_bytes"]) // max(int(fresh.sum()), 1), 1)
        most = min(_MOST_ITEMS, max(1, _MOST_WALKED // int(rows[numbers].max())))
        for begin, end in _pieces(fresh, max(1, _PART_BYTES // row_bytes), most):
            looked = numbers[begin : end + 1]  # one more: whether the last row is a step of the next item
            items = source.read(keys[looked], end - begin, sink, seconds)
            for name, values in zip(("row", *_FACTS), items, strict=True):
                facts[name][numbers[begin:end]] = values
        sink.flush()
        parts[kind] = sink.parts
    return parts


_EPISODES, _STARTS = 7, 8
"""Positions of these arrays in what the core's reader returns."""
_FACTS = ("rows", "back", "flags", "times_sampled", "version", "priority", "epochs")


def _new_rows(episodes: Array, starts: Array, rows: Array) -> Array:
    """Estimated number of rows that each item adds to those of the previous item."""
    ends, fresh = starts + rows, rows.copy()
    same = episodes[1:] == episodes[:-1]
    fresh[1:] = np.where(same, np.minimum(rows[1:], np.maximum(ends[1:] - ends[:-1], 0)), rows[1:])
    found: Array = fresh
    return found


def _pieces(fresh: Array, most_rows: int, most_items: int) -> list[tuple[int, int]]:
    """Ranges of items, limited in items and in added rows; at least one item each."""
    ends, pieces, begin = np.cumsum(fresh), [], 0
    while begin < len(fresh):
        before = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, before + most_rows, "right"))
        end = max(begin + 1, min(end, begin + most_items))
        pieces.append((begin, end))
        begin = end
    return pieces


class _ItemReader:
    """Reads the rows of items of one kind."""

    def __init__(self, handle: TableHandle, schema: Schema, kind: str) -> None:
        view = handle.settings.view
        self.schema = finished_schema(view, schema) if kind == "whole" else schema
        plan = read_plan(view if isinstance(view, Opaque) else Step(), self.schema, None)
        observed = () if isinstance(view, Opaque) else observed_columns(view, schema)
        self._observed = [self.schema.names.index(name) for name in observed]
        self._late = [column.name for column in self.schema if column.late]
        self._list = _core.RowList(handle.native, native_view(view, schema), self._late)
        self._reader = _core.Reader(handle.native, plan.native)
        self._arena = handle.arena
        self.row_bytes = plan.item_bytes

    def read(self, keys: Array, count: int, sink: _Sink, seconds: float) -> tuple[Array, ...]:
        """Pass on the new rows of the first `count` items. Returns these items' facts, first rows first."""
        items, finals, late, whole, final = without_lost(
            self._arena, self._reader.rows, self._list, keys, count, self._observed, seconds
        )
        columns = {
            column.name: _merged(column, finals, whole[0], final[0] if number in self._observed else None)
            for number, column in enumerate(self.schema)
        }
        every: list[tuple[Any, Any]] = list(zip(whole, final, strict=True))
        sink.add(columns, _joined(finals, *every[_EPISODES]), _joined(finals, *every[_STARTS]), finals, late)
        return items


def _leaf(data: Any, name: str) -> Any:
    for part in path_of(name):
        data = data[part]
    return data


def _joined(finals: Array, whole: Array, final: Array | None) -> Array:
    """Rows of two arrays in their order; zeros in place of `final` if that is None."""
    if not finals.any():
        return np.array(whole)
    out = np.zeros((len(finals), *whole.shape[1:]), whole.dtype)
    out[~finals] = whole
    if final is not None:
        out[finals] = final
    return out


def _merged(column: Column, finals: Array, whole: Any, final: Any) -> Any:
    """One column of all rows: an array, or values and lengths of a ragged one."""
    mine = _leaf(whole, column.name)
    other = None if final is None else _leaf(final, column.name)
    if not column.ragged:
        plain = _joined(finals, _stored(mine, column), None if other is None else _stored(other, column))
        return plain.reshape(len(finals), *column.shape)
    values, ends = mine
    lengths = np.diff(ends)
    if not finals.any():
        return np.array(_stored(values, column)), lengths
    rows, behind = iter(_rows(values, ends)), iter(() if other is None else _rows(*other))
    empty = values[:0]
    every = [next(behind, empty) if is_final else next(rows) for is_final in finals.tolist()]
    found = np.concatenate([empty, *every])
    return _stored(found, column), np.fromiter(map(len, every), np.int64, len(every))


def _rows(values: Array, ends: Array) -> list[Array]:
    bounds = ends.tolist()
    return [values[begin:end] for begin, end in itertools.pairwise(bounds)]


def _stored(values: Array, column: Column) -> Array:
    """The values in their stored type; an extension type is stored as raw bytes."""
    return values.view(column.dtype) if column.extension and values.dtype != column.dtype else values


class _Sink:
    """Gathers rows of one kind and writes them in parts."""

    def __init__(self, archive: ArchiveWriter, schema: Schema, kind: str) -> None:
        self._archive, self._schema, self._kind = archive, schema, kind
        self._names = members(schema)
        self._late = any(column.late for column in schema)
        self._columns: dict[str, list[Any]] = {name: [] for name in schema.names}
        self._segments: list[Array] = []
        self._finals: list[Array] = []
        self._there: list[Array] = []
        self._rows = self._bytes = self._written = 0
        self._last = (-1, -1)
        self.parts: list[int] = []

    def add(self, columns: dict[str, Any], episodes: Array, starts: Array, finals: Array, late: Array) -> None:
        """Add rows."""
        if not len(finals):
            return
        for name, values in columns.items():
            self._columns[name].append(values)
            self._bytes += sum(each.nbytes for each in values) if isinstance(values, tuple) else values.nbytes
        before = np.concatenate([[self._last], np.stack([episodes, starts], axis=1)[:-1]])
        begins = np.flatnonzero((before[:, 0] != episodes) | (before[:, 1] + 1 != starts))
        self._segments.append(np.stack([self._written + self._rows + begins, episodes[begins], starts[begins]], axis=1))
        self._last = int(episodes[-1]), int(starts[-1])
        self._finals.append(finals)
        self._there.append(late)
        self._rows += len(finals)
        if self._bytes >= _PART_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the gathered rows as a part."""
        if not self._rows:
            return
        folder = f"{self._kind}/{len(self.parts):05}"
        for column in self._schema:
            found, member = self._columns[column.name], self._names[column.name]
            if column.ragged:
                lengths = np.concatenate([each[1] for each in found])
                self._archive.array(f"{folder}/ends/{member}", np.cumsum(lengths))
                self._archive.array(f"{folder}/data/{member}", np.concatenate([each[0] for each in found]))
            else:
                self._archive.array(f"{folder}/data/{member}", found[0] if len(found) == 1 else np.concatenate(found))
            found.clear()
        self._archive.array(f"{folder}/segments", np.concatenate(self._segments).astype(np.int64))
        self._archive.array(f"{folder}/final", np.concatenate(self._finals))
        if self._late:
            self._archive.array(f"{folder}/late", np.concatenate(self._there))
        self.parts.append(self._rows)
        self._written += self._rows
        self._rows = self._bytes = 0
        for each in (self._segments, self._finals, self._there):
            each.clear()
