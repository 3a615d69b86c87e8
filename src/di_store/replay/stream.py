"""Builds the core's writer from tables and their columns: the layout, the chunks, and the settings of each table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from di_store import _core
from di_store._core import Autoreset
from di_store.base import tree
from di_store.base.config import MAX_COUNT, real
from di_store.base.dtypes import Array
from di_store.base.errors import CapacityError, SchemaMismatch, shown
from di_store.base.warned import warn
from di_store.columns.column import FLAGS, Column
from di_store.columns.schema import Schema
from di_store.layout.native_views import finished_schema, first_columns, native_view, observed_columns
from di_store.layout.plan import Layout, make_layout, sparse_columns
from di_store.layout.reserve import ChunkHeap, Cut, chunk_heap, cut_for_all, cut_for_one
from di_store.policy.views import NEED_ENDS, Group, Transition
from di_store.replay.batch import host_array
from di_store.replay.handle import Size, TableHandle, held_reserve, slots_now

_ENDS_ALIKE = ("done", "dones", "terminal", "is_last")
"""Names that other libraries use for the end of an episode. They do not tell a terminal state from a truncation."""


def check_ends(handles: Sequence[TableHandle], names: Iterable[str]) -> None:
    """Refuse a stream that marks the end of episodes by a column that the tables' views do not read.

    Without such a column and without a flag, warn once per table: the program may call `end_episode` instead.

    Args:
        handles: handles of the tables.
        names: names of the stream's columns.

    Raises:
        SchemaMismatch: a column ``done``, ``dones``, ``terminal`` or ``is_last``, and neither ``terminated`` nor
        ``truncated``.
    """
    columns = tuple(names)
    needing = [handle for handle in handles if isinstance(handle.settings.view, NEED_ENDS)]
    if not needing or any(name in columns for name in FLAGS):
        return
    view = type(needing[0].settings.view).__name__
    if found := next((name for name in _ENDS_ALIKE if name in columns), None):
        raise SchemaMismatch(
            f"column {found!r} ends no episode, and {view} of table {needing[0].name!r} needs to know how "
            "episodes end: its items would continue into the next episode",
            remedy="write 'terminated' (nothing follows: no bootstrap) and 'truncated' (cut off: bootstrap), as "
            f"env.step returns them; rename {found!r} if it means something else",
        )
    fresh = [handle for handle in needing if not handle.ends_warned]
    if not fresh:
        return
    below = [name for name in columns if name.rpartition("/")[2] in (*FLAGS, *_ENDS_ALIKE)]
    for handle in fresh:
        handle.ends_warned = True
    warn(
        f"table {fresh[0].name!r}: steps with neither 'terminated' nor 'truncated' end no episode, and {view} needs to "
        "know where episodes end: write both as env.step returns them, or call writer.end_episode()"
        + (f"; {below[0]!r} is nested in another dict, so it is no flag" if below else "")
    )


def step_schema(handles: Sequence[TableHandle], step: Any, lead: tuple[int, ...], seconds: float) -> None:
    """Declare the columns of a first step for those tables that have no columns yet.

    A column that another table of the stream has declared keeps its type.

    Args:
        handles: handles of the stream's tables.
        step: nested dict of leaves ``[*lead, …]``.
        lead: leading axes of the leaves: time and lanes, as far as the call has them.
        seconds: seconds to wait for locks that stopped processes hold; negative: no limit.

    Raises:
        SchemaMismatch, ValueError, CapacityError: as in `Store.create_table` with that schema.
    """
    known = {handle.name: handle.schema for handle in handles if handle.schema is not None}
    declared = Schema.union({name: schema for name, schema in known.items() if schema is not None}) if known else None
    leaves = tree.flatten(step)
    check_ends(handles, {**leaves, **dict.fromkeys(declared.names if declared else ())})
    fresh = {name: leaf for name, leaf in leaves.items() if declared is None or name not in declared}
    inferred = Schema.infer(tree.unflatten(fresh), lead or None).columns if fresh else ()
    by_name = {column.name: column for column in inferred}
    columns = tuple(by_name.get(name) or (declared[name] if declared else by_name[name]) for name in leaves)
    schema = Schema(columns)
    without = [handle for handle in handles if handle.schema is None]
    for handle in without:  # all of them first: what one table refuses is declared for none
        handle.check_declarable(schema)
    for handle in without:
        handle.declare(schema, seconds)


def build_native(
    handles: Sequence[TableHandle],
    lanes: int | None,
    autoreset: Autoreset,
    seconds: float,
    session: bytes | None = None,
) -> tuple[_core.Writer, Schema]:
    """The core's writer over tables whose columns are declared, and the columns of its steps.

    Args:
        handles: handles of the tables.
        lanes: as in `Table.writer`.
        autoreset: who resets ended episodes.
        seconds: seconds to wait for locks that stopped processes hold; negative: no limit.
        session: session of a remote writer, 16 bytes. Its calls are numbered, and marks record their progress.
    """
    schemas = {handle.name: _schema_of(handle) for handle in handles}
    schema = next(iter(schemas.values())) if len(schemas) == 1 else Schema.union(schemas)
    check_ends(handles, schema.names)
    plan = writer_plan(handles, schema, lanes, autoreset, seconds)
    if len(handles) > 1:
        for handle in handles:
            _widen(handle, schema, Cut(plan["chunk_bytes"], plan["least_rows"]), lanes or 1, seconds)
    plan["session"] = session
    return _core.Writer(handles[0].arena, plan, seconds), schema


def build_inserter(handle: TableHandle, turn: _core.Turn, seconds: float) -> tuple[_core.Writer, Schema]:
    """The core's writer for items that are inserted whole, and the columns of their rows.

    Args:
        handle: handle of the table.
        turn: turn of the threads that insert.
        seconds: seconds to wait for locks that stopped processes hold; negative: no limit.
    """
    schema = finished_schema(handle.settings.view, _schema_of(handle))
    plan = writer_plan([handle], schema, None, Autoreset.OFF, seconds)
    plan |= {"terminated": -1, "truncated": -1, "discount": -1, "counted": False}
    plan["turn"] = turn
    for _, versions, name in tracked_versions([handle], schema):
        plan |= {"versions": versions, "weights": name}
    if isinstance(view := handle.settings.view, Transition):
        plan |= {"steps": schema.names.index("steps"), "n_step": view.n_step}
    return _core.Writer(handle.arena, plan, seconds), schema


def build_restorer(handle: TableHandle, schema: Schema, seconds: float) -> tuple[_core.Writer, Layout]:
    """The core's writer for rows and items of an exported table, and the layout of its rows.

    Args:
        handle: handle of the table.
        schema: schema of the rows.
        seconds: seconds to wait for locks that stopped processes hold; negative: no limit.
    """
    plan = writer_plan([handle], schema, None, Autoreset.OFF, seconds)
    plan |= {"terminated": -1, "truncated": -1, "discount": -1, "version": -1, "counted": False, "restores": True}
    for table in plan["tables"]:
        table["track_version"] = False
    sparse = sparse_columns([(handle.settings.view, _schema_of(handle))]) & set(schema.names)
    return _core.Writer(handle.arena, plan, seconds), make_layout(schema, sparse)


def _schema_of(handle: TableHandle) -> Schema:
    schema = handle.schema
    assert schema is not None, "columns are declared before a writer is built"
    return schema


def _widen(handle: TableHandle, schema: Schema, cut: Cut, lanes: int, seconds: float) -> None:
    """Raise a table's reserve to the needs of its share of this stream's chunks.

    These chunks have columns of the other tables too, and their size suits all of them. Best effort: with too little
    memory, the table evicts items before it reaches its capacity; this is counted, and a warning is shown.
    """
    for reserved in sorted({handle.settings.lanes, min(handle.settings.lanes, lanes)}, reverse=True):
        try:
            handle.resize(partial(_widened, handle, schema, cut, reserved), seconds)
        except CapacityError:
            continue
        return


def _widened(handle: TableHandle, schema: Schema, cut: Cut, lanes: int, now: dict[str, Any]) -> Size | None:
    """The size of a table in a stream with chunks of this size (`cut`); None: it has that size already."""
    capacity, held = int(now["capacity"]), held_reserve(now)
    needed = handle.needs(schema, capacity, cut=cut, lanes=lanes).reserve
    items, open_bytes = max(held.item_bytes, needed.item_bytes), max(held.open_bytes, needed.open_bytes)
    wide = held.with_parts(items, open_bytes, handle.settings.max_bytes)
    if smaller := needed.chunk_block < int(now["chunk_block"]):
        wide = wide._replace(chunk_block=needed.chunk_block, chunk_head=needed.chunk_head)
    return (capacity, slots_now(now, handle.settings.view), wide) if smaller or wide != held else None


def writer_plan(
    handles: Sequence[TableHandle], schema: Schema, lanes: int | None, autoreset: Autoreset, seconds: float
) -> dict[str, Any]:
    """The plan by which the core writes these columns into these tables; arguments as in `build_native`."""
    arena = handles[0].arena
    sparse = sparse_columns([(handle.settings.view, _schema_of(handle)) for handle in handles]) & set(schema.names)
    layout = make_layout(schema, sparse)
    number = layout.publish(arena, seconds)
    heap = _stream_heap(handles, schema, sparse, layout)
    cut = _cut(handles, schema, layout, heap, lanes or 1)
    tables = [_sink(handle, layout, version_column(schema) is not None) for handle in handles]
    by_name = {column.name: column for column in schema}
    discount = by_name.get("discount") if any(table["weighted"] for table in tables) else None
    version = version_column(schema)
    return {
        "layout": number,
        "columns": layout.native_columns(),
        "tables": tables,
        "lanes": lanes or 1,
        "vector": lanes is not None,
        "autoreset": autoreset,
        "terminated": layout.number("terminated"),
        "truncated": layout.number("truncated"),
        "discount": layout.number("discount") if discount is not None else -1,
        "discount_f8": discount is not None and discount.dtype.itemsize == 8,
        "discount_count": int(np.prod(discount.shape)) if discount is not None else 1,
        "version": layout.number("version") if version is not None else -1,
        "version_bytes": version.dtype.itemsize if version is not None else 8,
        "chunk_bytes": cut.target,
        "least_rows": cut.least_rows,
        "pack_rows": max(handle.settings.pack_rows for handle in handles),
        "heap_bytes_per_row": heap.per_row,
        "heap_row_max": heap.row_max,
        "unbounded": [at for at, column in enumerate(layout.columns) if column.row_bytes is None],
        "late": [at for at, column in enumerate(layout.columns) if column.late],
        "float_bytes": [_float_bytes(column) for column in layout.columns],
        "coerce": coercer(schema.columns),
        "final_columns": _final_columns(handles, layout),
    }


def version_column(schema: Schema) -> Column | None:
    """The column with the version of the weights that produced a row.

    None: there is no such column, and rows get the version that the writing process last fetched.
    """
    found = next((column for column in schema if column.name == "version"), None)
    if found is None or found.ragged or found.shape != ():
        return None
    return found if found.dtype.kind in "iu" and found.dtype.itemsize in (4, 8) else None


def tracked_versions(handles: Iterable[TableHandle], schema: Schema) -> list[tuple[int, dict[str, int], str]]:
    """The tables whose rows get the version that this process last fetched.

    For each table: its position in `handles`, the process's versions by the name of the weights, and this name.
    """
    if version_column(schema) is not None:
        return []
    named = [(position, handle.versions, handle.settings.weights) for position, handle in enumerate(handles)]
    return [(position, versions, name) for position, versions, name in named if name is not None]


def _cut(handles: Sequence[TableHandle], schema: Schema, layout: Layout, heap: ChunkHeap, lanes: int) -> Cut:
    if len(handles) == 1:
        needed = handles[0].needs(_schema_of(handles[0]))
        return cut_for_one(handles[0].settings, needed, layout, heap.per_row, lanes)
    tables = [(handle.settings, handle.needs(schema)) for handle in handles]
    return cut_for_all(tables, layout, heap.per_row, lanes)


def _final_columns(handles: Sequence[TableHandle], layout: Layout) -> list[int]:
    """Columns that Gymnasium's ``final_obs`` holds: those that the views read from the next row, else all of `obs`."""
    names: dict[str, None] = {}
    for handle in handles:
        names |= dict.fromkeys(observed_columns(handle.settings.view, _schema_of(handle)))
    if not names:
        names = dict.fromkeys(column.name for column in layout.columns if tree.is_below(column.name, "obs"))
    return layout.numbers(names)


def _stream_heap(handles: Sequence[TableHandle], schema: Schema, sparse: frozenset[str], layout: Layout) -> ChunkHeap:
    found = [chunk_heap(handle.settings, schema, sparse, handle.example_bytes) for handle in handles]
    row_max, bounded = max(heap.row_max for heap in found), all(heap.bounded for heap in found)
    return ChunkHeap(max(heap.per_row for heap in found), row_max, bounded)


def _float_bytes(column: Column) -> int:
    """Bytes of a float, or of one half of a complex number; 0: the column's values are compared bit by bit."""
    if column.extension == "bfloat16":
        return 2
    size = {"f": column.dtype.itemsize, "c": column.dtype.itemsize // 2}.get(column.dtype.kind, 0)
    return size if size in (2, 4, 8) else 0


def _sink(handle: TableHandle, layout: Layout, versioned: bool) -> dict[str, Any]:
    view, schema = handle.settings.view, _schema_of(handle)
    return {
        "table": handle.native,
        "view": native_view(view, schema),
        "observed": layout.numbers(observed_columns(view, schema)),
        "first": [at for at in layout.numbers(first_columns(view, schema)) if layout.columns[at].name in layout.sparse],
        "track_version": handle.settings.weights is not None and not versioned,
        "weighted": isinstance(view, Transition) and "discount" in schema,
        "needs": layout.late_bits(handle.batch_columns(schema)),
        "group": layout.number(view.by) if isinstance(view, Group) else -1,
    }


def coercer(columns: Sequence[Column]) -> Callable[[int, Any, tuple[int, ...]], Any]:
    """The function that the core calls to convert a value: the column's number, the value, its leading axes."""

    def coerce(number: int, value: Any, lead: tuple[int, ...]) -> Any:
        return columns[number].coerce(value, lead or None)

    return coerce


def check_lane(lane: Any, lanes: int) -> None:
    """Check `lane=` against the writer's number of lanes, before its first step declares columns.

    Raises:
        TypeError: not an int, int array or bool mask. ValueError: a lane does not exist or is named twice.
    """
    if lane is None:
        return
    if isinstance(lane, (bool, str)):
        raise TypeError("lane= is an int, an int array or a bool mask with one flag for each lane")
    try:
        named: Array = np.atleast_1d(np.asarray(lane))
    except (RuntimeError, TypeError, ValueError) as error:  # such as a tensor that needs a gradient
        raise TypeError(f"lane= is an int, an int array or a bool mask: {error}") from None
    if named.ndim != 1 or (named.size and named.dtype.kind not in "iub"):
        raise TypeError("lane= is an int, an int array or a bool mask, each with one axis at most")
    if named.dtype == np.bool_:
        if named.size != lanes:
            raise ValueError(f"lane= as a mask needs one flag for each of the {lanes} lanes")
        return
    for number in named.tolist():
        if not 0 <= number < lanes:
            raise ValueError(f"lane={number}: this writer has lanes 0 to {lanes - 1}")
    if len(set(named.tolist())) != named.size:
        raise ValueError(f"lane={named.tolist()} names a lane twice")


def check_priority(priority: Any) -> None:
    """Check `priority=` as the core does, before a first row declares columns.

    Raises:
        TypeError: not a number or an array of numbers. ValueError: NaN, infinite or negative.
    """
    if priority is None:
        return
    if isinstance(priority, (int, float)):
        real("priority", priority, why="nothing was written")
        return
    given = host_array(priority, "priority", "a number, or one for each row")
    if not (np.isfinite(given) & (given >= 0)).all():
        raise ValueError("priority=: priorities must be finite and at least 0; nothing was written")


def autoreset_mode(mode: Any) -> Autoreset:
    """The core's value for Gymnasium's AutoresetMode, given as that enum or its name.

    None means that the program resets its environments itself.

    Raises:
        ValueError: unknown mode.
    """
    if mode is None:
        return Autoreset.OFF
    value = getattr(mode, "value", mode)
    text = value.replace("_", "").replace("-", "").lower() if isinstance(value, str) else ""
    known = {"disabled": Autoreset.OFF, "nextstep": Autoreset.NEXT_STEP, "samestep": Autoreset.SAME_STEP}
    if text not in known:
        raise ValueError(
            f'autoreset={shown(mode)}: give envs.metadata["autoreset_mode"] ("next_step" or "same_step"), '
            "or None where the program resets by itself"
        )
    return known[text]


def rows_of(steps: Any) -> int:
    """Length of the leading axis of a nested dict's first leaf.

    Raises:
        TypeError: no dict. ValueError: an empty dict, or nested too deep. SchemaMismatch: the leaf has no such axis.
    """
    leaf, depth = steps, 0
    while type(leaf) is dict or (type(leaf) is not np.ndarray and isinstance(leaf, Mapping)):  # the last test is slow
        depth += 1
        if depth > tree.MAX_DEPTH:
            raise ValueError(f"steps are nested more than {tree.MAX_DEPTH} deep; does a dict hold itself?")
        if not leaf:
            raise ValueError("an empty dict holds no column: give at least one, or leave the empty dict out")
        leaf = next(iter(leaf.values()))
    if leaf is steps:
        raise TypeError(f"steps are a nested dict of columns with a leading axis, not a {type(steps).__name__}")
    rows = leading_rows(leaf)
    if rows is None:
        raise SchemaMismatch(
            f"extend() needs a leading axis in every leaf, got a {kind_of(leaf)}", remedy="append() takes one step"
        )
    return rows_limit(rows)


def leading_rows(leaf: Any) -> int | None:
    """Length of a leaf's leading axis; None: the leaf has none."""
    try:
        return len(leaf)
    except (TypeError, RuntimeError):  # RuntimeError: a nested tensor of layout=torch.strided
        return None


def kind_of(leaf: Any) -> str:
    """The type of a leaf without a leading axis, for errors."""
    if getattr(leaf, "is_nested", False):
        return "nested tensor of layout=torch.strided, which does not give its sizes: make it with layout=torch.jagged"
    return type(leaf).__name__


def rows_limit(rows: int) -> int:
    """`rows`, if it does not exceed `MAX_COUNT`, the limit of one call.

    Raises:
        ValueError: the number exceeds the limit.
    """
    if rows > MAX_COUNT:
        raise ValueError(f"{rows} rows in one call are above {MAX_COUNT}, the limit of a call: use several calls")
    return rows
