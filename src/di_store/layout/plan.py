"""Plans of reading and writing for the core: the layout of rows in chunks, and the outputs made from a table's columns.

The operations: ``native/rows/views.h``. The layout of rows: ``native/base/layout.h``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from di_store import _core
from di_store._core import ColumnPlace, Number, Op, ViewKind
from di_store.base import dtypes
from di_store.base.tree import path_of, select
from di_store.columns.column import Column
from di_store.columns.schema import Schema
from di_store.layout.native_views import (
    Plan,
    finished_schema,
    first_columns,
    future_columns,
    native_view,
    observed_columns,
)
from di_store.policy.view_columns import check_columns, frame_stacks, last_rows
from di_store.policy.views import FUTURE, NEXT, Episode, Group, Opaque, Sequence, Transition, View

WIDE_BYTES = 512
"""Columns of at least this many bytes per row are stored column by column; smaller ones share the row's record."""

VALUE = "value"
"""The one column of a table of Python values: their encoded bytes."""

OPAQUE_SCHEMA = Schema((Column(VALUE, np.dtype(np.uint8), (), ragged=True),))

_HEAP_SLOT_BYTES = 8
_LATE_ROW_BYTES = 12  # which late values of a row are there, and who waits for them

# --- layouts ----------------------------------------------------------------------------------------------------------


class ColumnPosition(msgspec.Struct, frozen=True):
    """The place of a column.

    Attributes:
        kind: in the row's record, column by column, in the chunk's heap, or among the late values.
        row_bytes: bytes of one row; in the heap: of one element.
        offset: offset in the record, in bytes. In the heap: offset of the slot in the record that locates the value.
            For a late column: offset in each copy of the row's late values.
        index: number of a wide or late column among the columns of its kind.
        before: for a wide column: bytes per row of all wide columns before it.
    """

    kind: ColumnPlace
    row_bytes: int
    offset: int = 0
    index: int = 0
    before: int = 0


class Layout(msgspec.Struct, frozen=True):
    """The layout of one row of a stream in its chunks.

    Attributes:
        columns: columns in the order of their numbers.
        sparse: names of columns that are stored only where a sequence starts.
        places: places of the columns.
        record_bytes: bytes of a row's record.
        wide: number of columns that are stored column by column.
        wide_bytes: bytes per row of all wide columns together.
        late_bytes: bytes of one copy of a row's late values.
    """

    columns: tuple[Column, ...]
    sparse: frozenset[str]
    places: tuple[ColumnPosition, ...]
    record_bytes: int
    wide: int
    wide_bytes: int
    late_bytes: int = 0

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The numbers from which the core computes the bytes of a chunk."""
        return self.record_bytes, self.wide_bytes, self.wide, self.late_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, without values of varying length."""
        late = 2 * self.late_bytes + _LATE_ROW_BYTES if self.late_bytes else 0
        return self.record_bytes + self.wide_bytes + late

    def late_bits(self, names: Iterable[str]) -> int:
        """The late columns among `names`, as the bits of their numbers."""
        wanted = set(names)
        pairs = zip(self.columns, self.places, strict=True)
        return sum(1 << place.index for column, place in pairs if column.late and column.name in wanted)

    @property
    def types(self) -> str:
        """The types of the columns: layouts of equal names and types are equal."""
        described = [[*_described(column), column.name in self.sparse] for column in self.columns]
        return msgspec.json.encode(described).decode()

    def number(self, name: str) -> int:
        """The column's number, or -1."""
        return next((at for at, column in enumerate(self.columns) if column.name == name), -1)

    def numbers(self, names: Iterable[str]) -> list[int]:
        """Numbers of the columns in `names` that the layout has."""
        return [at for name in names if (at := self.number(name)) >= 0]

    def publish(self, arena: _core.Arena, seconds: float) -> int:
        """Store the layout; returns its number. Equal layouts are stored once.

        Raises:
            CapacityError: no room for the layout.
        """
        columns = [
            {
                "name": column.name,
                "place": place.kind,
                "row_bytes": place.row_bytes,
                "offset": place.offset,
                "index": place.index,
                "before": place.before,
            }
            for place, column in zip(self.places, self.columns, strict=True)
        ]
        layout = {
            "columns": columns,
            "record_bytes": self.record_bytes,
            "column_wise": self.wide,
            "column_bytes": self.wide_bytes,
            "late_bytes": self.late_bytes,
            "types": self.types,
        }
        return arena.publish_layout(layout, seconds)

    def native_columns(self) -> list[Plan]:
        """The columns in the form of the core's writer."""
        return [native_column(column) for column in self.columns]


def native_column(column: Column) -> Plan:
    """A column in the form with which the core reads its values from a call's arguments."""
    return {
        "path": path_of(column.name),
        "name": column.name,
        "dtype": column.dtype,
        "shape": column.shape,
        "ragged": column.ragged,
        "max_rows": -1 if column.max_rows is None else column.max_rows,
        "bytes": column.element_bytes,
    }


def _described(column: Column) -> list[Any]:
    dtype = column.extension or dtypes.describe(column.dtype)
    return [dtype, list(column.shape), column.ragged]


def make_layout(schema: Schema, sparse: frozenset[str] = frozenset()) -> Layout:
    """Place the columns: small ones in the record, by descending alignment so that no padding is needed between them.

    Raises:
        ValueError: more columns than a row can have.
    """
    if len(schema) > _core.MAX_COLUMNS:
        raise ValueError(
            f"a row of {len(schema)} columns: at most {_core.MAX_COLUMNS} are possible; combine related "
            "values into one array in one column"
        )
    in_record: list[tuple[int, int]] = []  # (bytes, number)
    found: dict[int, ColumnPosition] = {}
    wide = wide_bytes = late = late_bytes = 0
    for number, column in enumerate(schema.columns):
        if column.late:
            found[number] = ColumnPosition(ColumnPlace.LATE, column.element_bytes, late_bytes, index=late)
            late += 1
            late_bytes += -(-column.element_bytes // 8) * 8
        elif column.ragged or column.name in sparse:
            in_record.append((_HEAP_SLOT_BYTES, number))
        elif column.element_bytes < WIDE_BYTES:
            in_record.append((column.element_bytes, number))
        else:
            found[number] = ColumnPosition(ColumnPlace.COLUMN, column.element_bytes, index=wide, before=wide_bytes)
            wide += 1
            wide_bytes += column.element_bytes
    if late > _core.MOST_LATE:
        raise ValueError(
            f"{late} late columns: at most {_core.MOST_LATE} are possible; combine columns of the same type "
            "into one array"
        )
    offset, widest = 0, 1
    for size, number in sorted(in_record, key=lambda each: (-_alignment(each[0]), each[1])):
        column = schema.columns[number]
        kind = ColumnPlace.HEAP if column.ragged or column.name in sparse else ColumnPlace.RECORD
        found[number] = ColumnPosition(kind, column.element_bytes, offset)
        offset += size
        widest = max(widest, _alignment(size))
    record = -(-offset // widest) * widest
    places = tuple(found[number] for number in range(len(schema)))
    return Layout(schema.columns, sparse, places, record, wide, wide_bytes, late_bytes)


def _alignment(size: int) -> int:
    return math.gcd(size, 8) if size else 1  # an empty column asks for none


def sparse_columns(tables: Iterable[tuple[View, Schema]]) -> frozenset[str]:
    """Columns of a stream that need to be stored only where a sequence starts, because all its tables have ``first=``.

    Not for windows that may start at any row.
    """
    wanted: set[str] = set()
    dense: set[str] = set()
    for view, schema in tables:
        first: set[str] = set()
        grid = isinstance(view, Sequence) and view.tail != "shift" and not view.cross_episodes and view.start == "grid"
        if isinstance(view, Sequence) and grid and view.first:
            first = set(schema.select(view.first, option="first"))
        wanted |= first
        dense |= {column.name for column in schema if column.name not in first or not column.element_bytes}
    return frozenset(wanted - dense)


# --- reading ----------------------------------------------------------------------------------------------------------


class ReadPlan(msgspec.Struct, frozen=True):
    """The plan by which batches of one table are read.

    Attributes:
        native: the plan for the core's Reader.
        names: names of all outputs, in order.
        ragged: path and rows of the time axis (0: none) of each ragged output, by its number.
        output_bytes: bytes of one example, by output; 0 for ragged outputs.
    """

    native: Plan
    names: tuple[str, ...]
    ragged: Mapping[int, tuple[tuple[str, ...], int]]
    output_bytes: tuple[int, ...]

    @property
    def item_bytes(self) -> int:
        """Bytes of one example, without ragged outputs."""
        return sum(self.output_bytes)

    def bytes_of(self, which: list[int] | None) -> int:
        """Bytes of one example with these outputs, without ragged ones."""
        return self.item_bytes if which is None else sum(self.output_bytes[at] for at in which)

    def which(self, columns: str | Iterable[str] | None) -> list[int] | None:
        """Numbers of the outputs that `columns` names; None: all. ValueError for unknown names."""
        if columns is None:
            return None
        chosen = set(select(self.names, columns))
        return [number for number, name in enumerate(self.names) if name in chosen]


class _Outputs:
    """Collects the outputs of one view."""

    def __init__(self, view: View, schema: Schema) -> None:
        self.view = native_view(view, schema)
        self.columns = list(finished_schema(view, schema).names)
        self.stacks = frame_stacks(view, schema)
        self.last = last_rows(view, schema)
        self.found: list[Plan] = []

    def column(self, op: Op, column: Column, *, name: str = "", boot: int = 0, finished: str = "") -> None:
        """An output copied from a column."""
        stack = self.stacks.get(column.name, 1) if op in (Op.STACK, Op.NEXT_STACK, Op.WINDOW) else 1
        time = self.last.get(column.name, self.time) if op == Op.WINDOW else 1
        rows = (stack - 1 + time + boot,) if op == Op.WINDOW else (stack,) if op in (Op.STACK, Op.NEXT_STACK) else ()
        self._add(op, name or column.name, column.value_dtype, (*rows, *column.shape), column.element_bytes)
        self.found[-1] |= {
            "column": self.columns.index(column.name),
            "stack": stack,
            "time": time,
            "boot": boot,
            "skip": self.time - time if op == Op.WINDOW else 0,
            "ragged": column.ragged,
            "shape": column.shape if column.ragged else (*rows, *column.shape),
            "finished": self.columns.index(finished) if finished else -1,
            "rows": rows[0] if rows else 0,
        }

    def group(self, size: int) -> None:
        """Give every output an axis of a group's rows. The core gathers each row by itself."""
        for found in self.found:
            found["rows"] = size
            if not found["ragged"]:
                found["shape"] = (size, *found["shape"])

    def computed(self, op: Op, name: str, dtype: str, shape: tuple[int, ...] = (), finished: str = "") -> None:
        """An output that is computed."""
        element = np.dtype(dtype)
        timed = op in (Op.MASK, Op.IS_FIRST)
        row_bytes = element.itemsize if timed else element.itemsize * math.prod(shape)
        self._add(op, name, element, shape, row_bytes)
        self.found[-1]["time"] = self.time if timed else 1
        self.found[-1]["finished"] = self.columns.index(finished) if finished else -1

    def _add(self, op: Op, name: str, dtype: Any, shape: tuple[int, ...], row_bytes: int) -> None:
        self.found.append(
            {
                "path": path_of(name),
                "name": name,
                "op": op,
                "column": 0,
                "row_bytes": row_bytes,
                "stack": 1,
                "time": 1,
                "boot": 0,
                "skip": 0,
                "ragged": False,
                "finished": -1,
                "finished_number": Number.F4,
                "dtype": dtype,
                "shape": shape,
                "rows": 0,
            }
        )

    @property
    def time(self) -> int:
        """Rows of the view's time axis."""
        kind = self.view["kind"]
        if kind == ViewKind.SEQUENCE:
            return int(self.view["burn_in"]) + int(self.view["length"])
        return int(self.view["max_length"]) if kind == ViewKind.EPISODE else 1


def read_plan(view: View, schema: Schema, columns: Iterable[str] | None) -> ReadPlan:
    """The plan for reading a table of this view and these columns.

    Args:
        view: view of the table.
        schema: columns of the table.
        columns: the columns that batches hold; None: all.

    Raises:
        ValueError: the view cannot work with these columns, or `columns` names an unknown one.
    """
    if not isinstance(view, Opaque):
        check_columns(view, schema)
    kept = set(schema.names if columns is None else schema.select(columns))
    outputs = _Outputs(view, schema)
    reward = discount = None
    if isinstance(view, Transition):
        reward, discount = _transition(view, schema, kept, outputs)
    elif isinstance(view, (Sequence, Episode)):
        _windows(view, schema, kept, outputs)
    else:
        for column in schema:
            if column.name in kept:
                outputs.column(Op.ROW, column)
        if isinstance(view, Group):
            if view.short:
                outputs.computed(Op.MASK, "mask", "?")
            outputs.group(view.size)
    native = {
        "view": outputs.view,
        "gamma": view.gamma if isinstance(view, Transition) else 1.0,
        "pad_zero": isinstance(view, Transition) and view.frame_pad == "zero",
        "columns": outputs.columns,
        "reward": reward,
        "discount": discount,
        "outputs": outputs.found,
    }
    ragged = {at: (each["path"], each["rows"]) for at, each in enumerate(outputs.found) if each["ragged"]}
    sizes = tuple(0 if each["ragged"] else each["dtype"].itemsize * math.prod(each["shape"]) for each in outputs.found)
    return ReadPlan(native, tuple(each["name"] for each in outputs.found), ragged, sizes)


def _windows(view: Sequence | Episode, schema: Schema, kept: set[str], outputs: _Outputs) -> None:
    first = set(first_columns(view, schema))
    bootstrap = set(observed_columns(view, schema))
    for column in schema:
        if column.name not in kept:
            continue
        if column.name in first:
            outputs.column(Op.ROW if column.ragged else Op.FIRST, column)
        else:
            outputs.column(Op.WINDOW, column, boot=1 if column.name in bootstrap else 0)
    outputs.computed(Op.MASK, "mask", "?", (outputs.time,))
    outputs.computed(Op.LENGTHS, "lengths", "i8")
    if isinstance(view, Sequence) and view.cross_episodes:
        outputs.computed(Op.IS_FIRST, "is_first", "?", (outputs.time,))


def _transition(view: Transition, schema: Schema, kept: set[str], outputs: _Outputs) -> tuple[Plan, Plan | None]:
    """Adds the outputs. Returns the columns from which reward and discount are computed."""
    observed = observed_columns(view, schema)
    for column in schema:
        if column.name not in kept or column.name == "discount":
            continue
        if column.name == view.reward:
            outputs.computed(Op.REWARD, column.name, "f4", column.shape)
        elif column.name in ("terminated", "truncated"):
            outputs.column(Op.LAST, column)
        else:
            outputs.column(Op.STACK if column.name in outputs.stacks else Op.ROW, column)
    for name in observed:
        if name in kept:
            op = Op.NEXT_STACK if name in outputs.stacks else Op.NEXT
            outputs.column(op, schema[name], name=NEXT + name, finished=NEXT + name)
    for name in future_columns(view, schema):
        if name in kept:
            outputs.column(Op.FUTURE, schema[name], name=FUTURE + name)
    if view.future:
        outputs.computed(Op.FUTURE_STEPS, FUTURE + "steps", "i8")
    discount = next((column for column in schema if column.name == "discount"), None)
    outputs.computed(Op.DISCOUNT, "discount", "f4", discount.shape if discount else (), finished="discount")
    outputs.found[-1]["finished_number"] = _number(discount) if discount else Number.F4
    outputs.computed(Op.STEPS, "steps", "i8", finished="steps")
    outputs.found[-1]["finished_number"] = Number.I8
    return _numbered(schema[view.reward], outputs), None if discount is None else _numbered(discount, outputs)


def _numbered(column: Column, outputs: _Outputs) -> Plan:
    number = outputs.columns.index(column.name)
    return {"column": number, "number": _number(column), "count": math.prod(column.shape)}


def _number(column: Column) -> Number:
    code = "U1" if column.dtype.kind == "b" else column.dtype.str[1:].upper()
    if code not in Number.__members__:
        raise ValueError(f"column {column.name!r} is {column.type_text}: Transition needs float32 or float64 there")
    return Number[code]
