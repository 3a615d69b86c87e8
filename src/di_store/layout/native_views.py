"""A view in the core's form: the rows that an item covers, and the columns that it reads besides those of its steps."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from di_store import _core
from di_store._core import Tail, ViewKind
from di_store.columns.column import Column
from di_store.columns.schema import Schema
from di_store.policy.view_columns import frame_stacks
from di_store.policy.views import NEXT, Episode, Group, Sequence, Transition, View

Plan: TypeAlias = "dict[str, Any]"


def check_limits(view: View) -> None:
    """Refuse a view whose items are larger than the core can hold.

    Raises:
        ValueError: more rows in an item, or frames in a stack, than the core supports.
    """
    stacks = view.frame_stack if isinstance(view, (Transition, Sequence)) else None
    _core.check_view(_native_view(view, max((stacks or {}).values(), default=1)))


def native_view(view: View, schema: Schema) -> Plan:
    """A view in the core's form."""
    return _native_view(view, max(frame_stacks(view, schema).values(), default=1))


def _native_view(view: View, stack: int) -> Plan:
    plan: Plan = {
        "kind": ViewKind.STEP if isinstance(view, Group) else ViewKind[type(view).__name__.upper()],
        "n_step": 1,
        "horizon": 0,
        "stack": stack,
        "length": 1,
        "period": 1,
        "burn_in": 0,
        "max_length": 1,
        "tail": Tail.PAD,
        "cross_episodes": False,
        "bootstrap": False,
        "random_start": False,
        "stride": 1,
    }
    if isinstance(view, Transition):
        plan |= {"n_step": view.n_step, "horizon": view.horizon if view.future else 0}
    elif isinstance(view, Sequence):
        plan |= {
            "length": view.length,
            "period": view.rows_added,
            "burn_in": view.burn_in,
            "tail": Tail[view.tail.upper()],
        }
        plan |= {"cross_episodes": view.cross_episodes, "bootstrap": bool(view.bootstrap)}
        plan |= {"random_start": view.start == "random", "stride": view.stride}
    elif isinstance(view, Episode):
        plan |= {"max_length": view.max_length, "bootstrap": bool(view.bootstrap)}
    return plan


def observed_columns(view: View, schema: Schema) -> tuple[str, ...]:
    """Columns that an item takes from the row after its last step."""
    if isinstance(view, Transition):
        return schema.select(view.obs, option="obs") if view.obs else ()
    if isinstance(view, (Sequence, Episode)) and view.bootstrap:
        return schema.select(view.bootstrap, option="bootstrap")
    return ()


def future_columns(view: View, schema: Schema) -> tuple[str, ...]:
    """Columns that an item also shows at a later step."""
    return schema.select(view.future, option="future") if isinstance(view, Transition) and view.future else ()


def first_columns(view: View, schema: Schema) -> tuple[str, ...]:
    """Columns that an item holds once, from its first step."""
    return schema.select(view.first, option="first") if isinstance(view, Sequence) and view.first else ()


def finished_schema(view: View, schema: Schema) -> Schema:
    """Columns of a transition that is inserted whole: the outputs themselves, stacked frames included."""
    if not isinstance(view, Transition):
        return schema
    stacks = frame_stacks(view, schema)
    columns = [
        replace(column, shape=(stacks[column.name], *column.shape)) if column.name in stacks else column
        for column in schema
    ]
    by_name = {column.name: column for column in columns}
    columns += [replace(by_name[name], name=NEXT + name) for name in observed_columns(view, schema)]
    if "discount" not in schema:
        columns.append(Column("discount", np.dtype(np.float32)))
    columns.append(Column("steps", np.dtype(np.int64)))
    return Schema(tuple(columns))
