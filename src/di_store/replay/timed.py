"""Sequences and episodes that are inserted whole: turns their leaves ``[time, …]`` into rows."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from di_store._core import ITEM_NO_NEXT
from di_store.base import tree
from di_store.base.errors import SchemaMismatch
from di_store.columns.schema import Schema
from di_store.layout.native_views import first_columns, observed_columns
from di_store.policy.views import Episode, Sequence
from di_store.replay.stream import kind_of, leading_rows, rows_limit

ItemRows: TypeAlias = "tuple[int, int, int]"
"""The rows of one item, the steps among them, and its flags."""

_ITEMS = "every leaf of extend() has the items as leading axis"
_ROWS = "every leaf of an item has its rows as leading axis; those named in bootstrap= may have one more"


class TimedItems:
    """Turns leaves ``[time, …]`` of items of one view into rows."""

    def __init__(self, view: Sequence | Episode) -> None:
        self._view = view
        self._has_next = bool(view.bootstrap)
        self._longest = view.max_length if isinstance(view, Episode) else view.steps_spanned

    def schema(self, leaves: dict[str, Any]) -> Schema:
        """The columns that a first sequence or episode declares: those of its rows."""
        first = self._view.first if isinstance(self._view, Sequence) else ()
        own = {
            name: leaf if any(tree.is_below(name, node) for node in first) else _first_row(name, leaf)
            for name, leaf in leaves.items()
        }
        return Schema.infer(tree.unflatten(own))

    def rows(self, leaves: dict[str, Any], schema: Schema) -> tuple[dict[str, Any], ItemRows]:
        """All leaves with the same leading axis: the steps, and one more row if `bootstrap` columns have it.

        Returns:
            Rows by column, and the item's `ItemRows`.

        Raises:
            SchemaMismatch: leaves of different lengths, or too long for the view.
        """
        once = set(first_columns(self._view, schema))
        behind = set(observed_columns(self._view, schema))
        lengths = {name: _length(name, leaf, "rows") for name, leaf in leaves.items() if name not in once}
        steps = min(lengths.values(), default=1)
        longest = self._longest
        if not 1 <= steps <= longest:
            name = min(lengths, key=lambda each: lengths[each], default="")
            raise SchemaMismatch(
                f"column {name!r}: expected 1 to {longest} rows, got {steps}",
                remedy=f"an item of {self._view!r} has at most {longest}: cut it, or append it through writer()",
            )
        more = {name for name, length in lengths.items() if length == steps + 1 and name in behind}
        for name, length in lengths.items():
            if length != steps and name not in more:
                raise SchemaMismatch(
                    f"column {name!r}: expected {steps} rows as in other columns, got {length}", remedy=_ROWS
                )
        if more and more != behind & set(lengths):
            raise SchemaMismatch(f"columns {sorted(behind)} need {steps + 1} rows each, or {steps} each", remedy=_ROWS)
        total = steps + (1 if more else 0)
        flags = ITEM_NO_NEXT if self._has_next and total == steps else 0
        return {name: _aligned(schema, name, leaf, once, total) for name, leaf in leaves.items()}, (total, steps, flags)

    def joined(self, values: list[dict[str, Any]], schema: Schema) -> tuple[dict[str, Any], list[ItemRows], int]:
        """Rows of several items by column, one item after the other; the items' `ItemRows`; the number of rows."""
        timed = [self.rows(value, schema) for value in values]
        total = rows_limit(sum(rows for _, (rows, _, _) in timed))
        return {name: _joined([rows[name] for rows, _ in timed]) for name in values[0]}, [it for _, it in timed], total


def split(leaves: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """Split leaves ``[n, …]`` into n items, each a dict by column.

    Raises:
        SchemaMismatch: the leading axis of a leaf is not n.
    """
    for name, leaf in leaves.items():
        if (length := _length(name, leaf, "items")) != n:
            raise SchemaMismatch(f"column {name!r}: expected {n} items, got {length}", remedy=_ITEMS)
    return [{name: leaf[at] for name, leaf in leaves.items()} for at in range(n)]


def _length(name: str, leaf: Any, what: str) -> int:
    """Length of a leaf's leading axis; `SchemaMismatch` if the leaf has no such axis."""
    length = leading_rows(leaf)
    if length is None:
        raise SchemaMismatch(
            f"column {name!r}: expected a leading axis of {what}, got a {kind_of(leaf)}",
            remedy=_ITEMS if what == "items" else _ROWS,
        )
    return length


def _first_row(name: str, leaf: Any) -> Any:
    if _length(name, leaf, "rows") == 0:
        raise SchemaMismatch(f"column {name!r}: expected at least one row, got 0", remedy=_ROWS)
    return leaf[0]


def _joined(parts: list[Any]) -> Any:
    """Rows of several items concatenated."""
    if isinstance(parts[0], list):
        return [row for part in parts for row in part]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _aligned(schema: Schema, name: str, leaf: Any, once: set[str], total: int) -> Any:
    """A leaf with `total` rows: a column given once per item is repeated; a leaf one row short repeats its last row."""
    column = schema[name]
    if name in once:
        row = column.coerce(leaf)
        return [row] * total if column.ragged else np.ascontiguousarray(np.broadcast_to(row, (total, *column.shape)))
    rows = column.coerce(leaf, len(leaf))
    if len(leaf) == total:
        return rows
    return [*rows, rows[-1]] if isinstance(rows, list) else np.concatenate([rows, rows[-1:]])
