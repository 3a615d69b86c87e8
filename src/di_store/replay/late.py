"""Late columns: values that are written after their step was appended."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from di_store.base import tree
from di_store.base.dtypes import Array
from di_store.base.errors import SchemaMismatch, shown
from di_store.columns.column import Column
from di_store.columns.schema import Schema
from di_store.policy.views import Episode, Group, Sequence
from di_store.replay.handle import TableHandle
from di_store.replay.stream import kind_of, leading_rows


def update_late(handle: TableHandle, keys: Array, values: Any, row: Any, seconds: float) -> int:
    """`Table.update`; `seconds`: to wait for locks, negative: no limit."""
    leaves = tree.flatten(values, what="values")
    schema = handle.schema
    if schema is None:
        raise SchemaMismatch(
            f"table {handle.name!r} has no columns yet", remedy="late columns are declared with create_table(schema=)"
        )
    columns = [_late_column(schema, name, leaf) for name, leaf in leaves.items()]
    first, count, lead = _range(handle, row, leaves, len(keys))
    numbers = {name: at for at, name in enumerate(handle_columns(handle))}
    given = [(numbers[column.name], _rows(column, leaves[column.name], lead)) for column in columns]
    return handle.reader().update(keys, given, first, count, seconds) if len(keys) else 0


def handle_columns(handle: TableHandle) -> list[str]:
    """The columns by the numbers that the core's reader has for them."""
    plan = handle.read_plan()
    assert plan is not None, "the columns are declared"
    found: list[str] = plan.native["columns"]
    return found


def _late_column(schema: Schema, name: str, leaf: Any) -> Column:
    if name not in schema:
        raise schema.unknown(name, leaf)
    if not schema[name].late:
        raise SchemaMismatch(
            f"column {name!r} is not late: its values stay as their step gave them",
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
        raise TypeError(f"row={shown(row)} is no whole number") from None
    return first, 1, (n,)


def _rows(column: Column, leaf: Any, lead: tuple[int, ...]) -> Array:
    if leading_rows(leaf) is None and lead == (1,) and np.shape(leaf) == column.shape:
        leaf = np.asarray(leaf)[None]  # one item, and its value without an axis of items
    made = column.coerce(leaf, lead)
    assert isinstance(made, np.ndarray)
    return made
