"""Late columns: values that are written after their step was appended."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from di_store import _core
from di_store.base import tree
from di_store.base.dtypes import Array
from di_store.base.errors import SchemaMismatch, shown
from di_store.columns.column import Column
from di_store.columns.schema import Schema
from di_store.layout.plan import native_column
from di_store.policy.views import Episode, Group, Sequence
from di_store.replay.handle import TableHandle
from di_store.replay.stream import coercer, kind_of, leading_rows

_FAR = 2**63 - 1
"""A row that no item has, and the largest number that the core takes."""


def update_late(
    handle: TableHandle, keys: Array, values: Any, row: Any, seconds: float, lease: int | None = None
) -> int:
    """`Table.update`, for values of any form. Later calls may use `TableHandle.write_late`, made here.

    `lease`: as in `TableBackend.update`.
    """
    leaves = tree.flatten(values, what="values")
    schema = handle.schema
    if schema is None:
        raise SchemaMismatch(
            f"table {handle.name!r} has no columns yet", remedy="late columns are declared with create_table(schema=)"
        )
    columns = [_late_column(schema, name, leaf) for name, leaf in leaves.items()]
    first, count, lead = _range(handle, row, leaves, len(keys))
    native, numbers = _late_writer(handle, schema)
    given = [(numbers[column.name], _rows(column, leaves[column.name], lead)) for column in columns]
    return native.write(keys, given, first, count, lease, seconds) if len(keys) else 0


def _late_writer(handle: TableHandle, schema: Schema) -> tuple[_core.LateWriter, dict[str, int]]:
    """The core's writer of late columns, and its numbers for the table's columns."""
    plan = handle.read_plan()
    assert plan is not None, "the columns are declared"
    numbers = {name: at for at, name in enumerate(plan.native["columns"])}
    if handle.late is None:
        late = [column for column in schema if column.late]
        handle.late = _core.LateWriter(
            handle.native,
            {
                "view": plan.native["view"],
                "columns": plan.native["columns"],
                "late": [native_column(column) for column in late],
                "numbers": [numbers[column.name] for column in late],
                "coerce": coercer(late),
            },
        )
        handle.write_late = handle.late.write_now
    return handle.late, numbers


def _late_column(schema: Schema, name: str, leaf: Any) -> Column:
    if name not in schema:
        raise schema.unknown(name, leaf)
    if not schema[name].late:
        raise SchemaMismatch(
            f"column {name!r} is not late: its values cannot change after their step was written",
            remedy=f"declare it in schema= as Spec({schema[name].shape}, {schema[name].type_name!r}, late=True)",
        )
    return schema[name]


def _range(handle: TableHandle, row: Any, leaves: dict[str, Any], n: int) -> tuple[int, int, tuple[int, ...]]:
    """First step and number of steps for the core (0 steps: all), and the leading axes of the values."""
    if row is None:
        if not isinstance(handle.settings.view, (Sequence, Episode, Group)):
            raise ValueError(
                f"row=None means all steps of a Sequence, Episode or Group; items of {handle.settings.view} have one"
            )
        name, leaf = next(iter(leaves.items()))
        shape = np.shape(leaf)
        if len(shape) < 2:
            raise SchemaMismatch(f"column {name!r}: row=None needs leaves [n, time, …], got a {kind_of(leaf)}")
        return int(shape[1]), 0, (n, int(shape[1]))
    try:
        first = operator.index(row)
    except TypeError:
        raise TypeError(f"row={shown(row)} is not a whole number") from None
    return max(-_FAR - 1, min(first, _FAR)), 1, (n,)


def _rows(column: Column, leaf: Any, lead: tuple[int, ...]) -> Array:
    if leading_rows(leaf) is None and lead == (1,) and np.shape(leaf) == column.shape:
        leaf = np.asarray(column.coerce(leaf, None))[None]  # one item, and its value without an axis of items
    made = column.coerce(leaf, lead)
    assert isinstance(made, np.ndarray)
    return made
