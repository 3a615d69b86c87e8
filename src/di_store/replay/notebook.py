"""Stores, tables and batches as HTML, for notebooks. Names and values are shown as text, and cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from di_store.base.errors import StoreError
from di_store.base.sizes import format_size, seconds_text
from di_store.base.tree import flatten
from di_store.columns.column import range_text, shape_text
from di_store.columns.ragged import Ragged

_MOST_LETTERS, _MOST_ROWS = 240, 50
_MOST_BYTES = 64 << 20
"""The range of a larger array is not looked for, which would take long."""
_FACTS = ("keys", "priorities", "probabilities", "weights", "times_sampled", "versions", "episodes", "starts")


def html_of(shown: Any) -> str:
    """A store, a table or a batch as HTML. For one that cannot be read, such as a closed store: why, in one line."""
    if hasattr(shown, "table_size"):
        return _page(f"Batch of {len(shown)} from {shown.table_size:,} items", _table(_BATCH, _batch(shown)))
    try:
        stats = shown.stats()
        if "tables" in stats:
            tables = [_table_row(each) for each in stats["tables"].values()]
            return _page(repr(shown), _table((), _store(stats)), _table(_TABLES, tables) if tables else "")
        if not stats["live"]:
            return _page(f"{shown!r} was dropped")
        schema = shown.schema
    except (StoreError, OSError) as error:
        return _page(f"{shown!r}: {error}")
    columns = {} if schema is None else flatten(schema)
    rows = [(name, each.dtype, shape_text(each.shape)) for name, each in columns.items()]
    return _page(repr(shown), _table((), _settings(stats)), _table(_COLUMNS, rows) if rows else "")


# -- stores and tables ---------------------------------------------------------------------------------------------

_TABLES = ("table", "items", "capacity", "bytes", "limiter")
_COLUMNS = ("column", "dtype", "shape")


def _store(stats: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    used = stats["memory"] - stats["free"]
    yield "memory", f"{format_size(used)} of {format_size(stats['memory'])}"
    yield "pinned by readers", format_size(stats["pinned"])
    if stats["disk"] is not None:
        yield "disk", f"{format_size(stats['disk']['files'])} of {format_size(stats['disk']['capacity'])}"
    yield "objects", f"{stats['objects']:,}"
    yield "processes", len(stats["clients"])
    for each in stats["waiters"]:
        yield f"pid {each['pid']} waits", f"{each['reason']}, since {seconds_text(each['seconds'])}"


def _table_row(stats: Mapping[str, Any]) -> tuple[object, ...]:
    size = format_size(stats["used_bytes"])
    return stats["name"], f"{stats['size']:,}", _capacity(stats), size, _limiter(stats["limiter"])


def _settings(stats: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    yield "items", f"{stats['size']:,} of {_capacity(stats)}{'; finished' if stats['finished'] else ''}"
    yield from ((name, stats[name]) for name in ("view", "sampler", "remover"))
    yield "limiter", _limiter(stats["limiter"])
    yield "inserts, samples", f"{stats['inserts']:,}, {stats['samples']:,}"
    yield "last insert", f"{seconds_text(stats['seconds_since_insert'])} ago; open writers: {stats['writers']}"
    yield "bytes", f"{format_size(stats['used_bytes'])} used, {format_size(stats['reserve_bytes'])} reserved"


def _capacity(stats: Mapping[str, Any]) -> str:
    return "any number" if stats["capacity"] is None else f"{stats['capacity']:,}"


def _limiter(stats: Mapping[str, Any]) -> str:
    return f"{stats['kind']}, {stats['state']}{': ' if stats['reason'] else ''}{stats['reason']}"


# -- batches -------------------------------------------------------------------------------------------------------

_BATCH = ("column", "dtype", "shape", "values")


def _batch(batch: Any) -> Iterator[tuple[object, ...]]:
    columns = batch.data if isinstance(batch.data, dict) else {"values": batch.data}
    if columns:
        yield from ((name, *_array(value)) for name, value in flatten(columns).items())
    yield from ((f"batch.{name}", *_array(getattr(batch, name))) for name in _FACTS)


def _array(value: Any) -> tuple[str, str, str]:
    """Type, shape and range of what a batch holds for a column."""
    if isinstance(value, Ragged):
        dtype, rows, values = _array(value.values)
        return dtype, f"{shape_text(value.lead)} of {rows}", values
    if not isinstance(value, np.ndarray):  # tensors, whose values may lie on a device; Python values
        shape = tuple(getattr(value, "shape", (len(value),)))
        return str(getattr(value, "dtype", type(value).__name__)), shape_text(shape), str(getattr(value, "device", ""))
    if value.dtype.kind not in "biuf" or not 0 < value.nbytes <= _MOST_BYTES:
        return str(value.dtype), shape_text(value.shape), ""
    return str(value.dtype), shape_text(value.shape), range_text(value)


# -- HTML ----------------------------------------------------------------------------------------------------------


def _page(title: str, *parts: str) -> str:
    return f"<div><code>{_text(title)}</code>{''.join(parts)}</div>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    every = list(rows)
    lines = ["".join(f"<td>{_text(cell)}</td>" for cell in row) for row in every[:_MOST_ROWS]]
    if len(every) > _MOST_ROWS:
        lines.append(f"<td>and {len(every) - _MOST_ROWS:,} more</td>")
    if heads:
        lines.insert(0, "".join(f"<th>{_text(head)}</th>" for head in heads))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _text(value: object) -> str:
    text = str(value)
    cut = text if len(text) <= _MOST_LETTERS else text[:_MOST_LETTERS] + "…"
    return escape("".join(one if one.isprintable() else repr(one)[1:-1] for one in cut))
