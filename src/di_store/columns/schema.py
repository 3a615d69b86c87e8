"""The columns of a stream: declared with `Spec`s, spaces or an example, or inferred from the first step."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from di_store.base import config, dtypes, tree
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, SchemaMismatch, shown
from di_store.base.frozen import dataclass
from di_store.columns.column import FLAGS, REWARD, Column, Lead, all_scalars, as_array, is_number, leading, shape_text

_PYTHON_TYPES: tuple[tuple[type, str], ...] = ((bool, "?"), (int, "i8"), (float, "f4"), (complex, "c8"))
_MAX_COLUMNS = 4096


@dataclass(frozen=True)
class Spec:
    """The type of one column's rows.

    Attributes:
        shape: shape of one row. One int stands for a tuple of one. None as the first dimension makes the column ragged:
            its rows vary in length.
        dtype: anything that ``np.dtype`` takes, a torch or ml_dtypes dtype, or a name such as "bfloat16".
        max: the longest length of a ragged row; None: no bound, and the table then needs `max_bytes`.
        late: steps may leave this column out: `Table.update` writes it afterwards. Items whose batches hold the column
            can be sampled once their first row has it. A late column takes twice its bytes, and has a fixed shape.

    Raises:
        ValueError: None elsewhere in `shape`, dimensions below 0, `max` without a ragged dimension, an unusable dtype.
        A table refuses a dimension above 2^31 - 1, and rows of 4 GiB or more.
    """

    shape: tuple[int | None, ...]
    dtype: Any
    max: int | None = None
    late: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "late", config.flag("late", self.late))
        given: Any = self.shape
        several = isinstance(given, Iterable) and getattr(given, "ndim", 1) != 0
        sizes = config.listed("shape", given, "a tuple of whole numbers") if several else (given,)
        object.__setattr__(self, "shape", tuple(_dimension(size, at, given) for at, size in enumerate(sizes)))
        storage, extension = dtypes.resolve(self.dtype)
        object.__setattr__(self, "dtype", extension or storage)
        if self.max is not None:
            if not self.ragged:
                raise ValueError(
                    f"Spec(max={shown(self.max)}) bounds a ragged dimension, "
                    f"but shape={shown(self.shape)} has none (None)"
                )
            object.__setattr__(self, "max", config.count("Spec(max=)", self.max, minimum=1))

    @property
    def ragged(self) -> bool:
        """Whether rows vary in length."""
        return self.shape[:1] == (None,)


def _dimension(size: Any, at: int, shape: Any) -> int | None:
    if size is None:
        if at:
            raise ValueError(f"shape={shown(shape)}: only the first dimension may be None (of varying length)")
        return None
    try:
        number = operator.index(size)
    except (TypeError, ValueError, RuntimeError):  # torch raises the others for values that it cannot convert
        raise TypeError(f"shape={shown(shape)}: {shown(size)} is not a whole number") from None
    if number < 0:
        raise ValueError(f"shape={shown(shape)}: a dimension of {number} is below 0")
    return number


class Schema:
    """Ordered columns with distinct names. No name is also an inner node in the path of another name.

    Attributes:
        columns: the columns, in order.
        names: names of the columns, in the same order.
    """

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self.columns = columns
        self.names = tuple(column.name for column in columns)
        self._by_name = {column.name: column for column in columns}
        if all(column.row_bytes == 0 for column in self.columns):
            names = ", ".join(map(repr, self.names[:6]))
            raise ValueError(
                f"a schema has at least one column that is not empty: with {names} alone a row holds no bytes"
            )
        if len(self.columns) > _MAX_COLUMNS:
            raise ValueError(
                f"{len(self.columns)} columns are more than {_MAX_COLUMNS}: combine columns of the same type "
                "into one array"
            )
        for name in self.names:
            if "\0" in name:  # no list of columns may hold it
                raise ValueError(f"column {shown(name)} contains a NUL character: give it another name")
        if len(self._by_name) != len(self.columns):
            raise ValueError("a schema has two columns of the same name")
        tree.unflatten(self._by_name)  # raises for a leaf that is also an inner node

    def __repr__(self) -> str:
        return f"Schema(columns={self.columns!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.columns == other.columns

    def __hash__(self) -> int:
        return hash(self.columns)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Column:
        return self._by_name[name]

    @classmethod
    def from_tree(cls, declared: Mapping[str, Any]) -> Schema:
        """The schema that a nested dict declares.

        Args:
            declared: leaves are anything with `.shape` and `.dtype` (`Spec`, Gymnasium spaces, arrays and tensors of
                an example step), or Python numbers (bool, int64, float32). ``terminated`` and ``truncated`` are bool,
                ``reward`` is float32 unless declared as another float, in any case.

        Raises:
            ValueError: a leaf without a usable type; the text names its path. TypeError: no dict, or keys not text.
        """
        leaves = tree.flatten(declared, what="schema")
        return cls(tuple(_declared(name, leaf) for name, leaf in leaves.items()))

    @classmethod
    def infer(cls, step: Mapping[str, Any], lanes: Lead = None) -> Schema:
        """The schema that a first step declares.

        Args:
            step: nested dict of numbers, arrays, tensors. Python bool, int, float give bool, int64, float32. ``reward``
                always gives float32, and ``terminated`` and ``truncated`` always give bool.
            lanes: leading axes of every leaf, which are not part of a row: None, n, or ``(T, n)``.

        Raises:
            SchemaMismatch: a leaf without the leading axes, or of a type that columns cannot hold. ValueError and
                TypeError as `tree.flatten`.
        """
        leaves = tree.flatten(step)
        return cls(tuple(_inferred(name, leaf, leading(lanes)) for name, leaf in leaves.items()))

    def select(self, wanted: str | Iterable[str], *, option: str = "columns") -> tuple[str, ...]:
        """Names of the columns that `wanted` names, with inner nodes resolved; ValueError for unknown names."""
        return tree.select(self.names, wanted, option=option)

    def coerce(
        self, step: Mapping[str, Any], lanes: Lead = None, *, optional: Iterable[str] = (), partial: bool = False
    ) -> dict[str, Array | list[Array]]:
        """All of a step's leaves in their columns' form, by name: the slow path of writing.

        Args:
            step: nested dict.
            lanes: leading axes of every leaf, see `Column.coerce`.
            optional: columns that may be missing, such as those an earlier `next=` has given.
            partial: any column may be missing (the `next=` and `final=` arguments).

        Raises:
            SchemaMismatch: missing or unknown columns, or a value that does not fit.
        """
        leaves = tree.flatten(step)
        for name in leaves:
            if name not in self._by_name:
                raise self.unknown(name, leaves[name])
        if not partial and len(leaves) < len(self.columns):
            spared = set(optional)
            spared |= {column.name for column in self.columns if column.late}
            missing = [name for name in self.names if name not in leaves and name not in spared]
            if missing:
                listed = ", ".join(f"{name!r} ({self[name].type_text})" for name in missing[:6])
                raise SchemaMismatch(f"missing column {listed}", remedy="every step gives every column of its schema")
        return {name: self._by_name[name].coerce(leaf, lanes) for name, leaf in leaves.items()}

    def unknown(self, name: str, leaf: Any) -> SchemaMismatch:
        """The error for a leaf whose path is not the name of a column."""
        remedy = "columns are fixed once declared: leave it out, or make the table with schema="
        below = [each for each in self.names if tree.is_below(each, name)]
        above = next((each for each in self.names if tree.is_below(name, each)), None)
        if below:
            listed = ", ".join(map(repr, below[:6]))
            return SchemaMismatch(
                f"column {name!r}: expected a dict of {listed}, got a {type(leaf).__name__}", remedy=remedy
            )
        if above is not None:
            expected = self[above].type_text
            return SchemaMismatch(f"column {above!r}: expected {expected}, got a dict with {name!r}", remedy=remedy)
        return SchemaMismatch(
            f"column {name!r} is not in the schema{tree.did_you_mean(name, self.names)}", remedy=remedy
        )

    @property
    def fixed_row_bytes(self) -> int:
        """Bytes of one row's fixed columns."""
        return sum(column.element_bytes for column in self.columns if not column.ragged)

    @property
    def row_bytes(self) -> int | None:
        """Bytes of one row at most; None if a ragged column has no bound."""
        sizes = [column.row_bytes for column in self.columns]
        return None if None in sizes else sum(size or 0 for size in sizes)

    @property
    def dominant(self) -> Column:
        """The column that takes most bytes per row; a column without a bound counts as the largest."""
        return max(self.columns, key=lambda column: float("inf") if column.row_bytes is None else column.row_bytes)

    @classmethod
    def union(cls, schemas: Mapping[str, Schema]) -> Schema:
        """The columns of a stream that several tables share.

        Args:
            schemas: schemas by table name, for the error texts.

        Raises:
            SchemaMismatch: two tables declare a column differently, or one declares a column where the other has a
            group.
        """
        merged: dict[str, tuple[str, Column]] = {}
        for table, schema in schemas.items():
            for column in schema:
                other, known = merged.setdefault(column.name, (table, column))
                if known != column:
                    bounds = {bound for bound in (known.max_rows, column.max_rows) if bound is not None}
                    if not known.ragged or _unbounded(known) != _unbounded(column):
                        raise SchemaMismatch(
                            f"column {column.name!r} is {_told(known)} in table {other!r} and {_told(column)} in "
                            f"table {table!r}",
                            remedy=(
                                "tables of one writer share their columns: declare it the same way in both, or "
                                "use two writers"
                            ),
                        )
                    merged[column.name] = (other, _unbounded(known, min(bounds)))
        try:
            return cls(tuple(column for _, column in merged.values()))
        except ValueError as error:
            raise SchemaMismatch(
                str(error), remedy="tables of one writer share their columns; use two writers"
            ) from None

    def difference(self, other: Schema) -> str:
        """Differences between two schemas as text for people; "" if there are none. The order of columns is ignored."""
        parts = [f"{name!r} is only in the first" for name in self.names if name not in other]
        parts += [f"{name!r} is only in the second" for name in other.names if name not in self]
        for column in self:
            if column.name in other and other[column.name] != column:
                here, there = (
                    c.type_text + (f" max={c.max_rows}" if c.max_rows else "") + (" late" if c.late else "")
                    for c in (column, other[column.name])
                )
                parts.append(f"{column.name!r} is {here} in the first, {there} in the second")
        return "; ".join(parts)

    def specs(self) -> dict[str, Any]:
        """The columns as a nested dict of `Spec`."""
        return tree.unflatten(
            {
                column.name: Spec(
                    (None, *column.shape) if column.ragged else column.shape,
                    column.extension or column.dtype,
                    column.max_rows,
                    late=column.late,
                )
                for column in self.columns
            }
        )

    def to_plain(self) -> list[dict[str, Any]]:
        """The columns as plain data, exact, for storage."""
        return [
            {
                "name": column.name,
                "dtype": column.extension or dtypes.describe(column.dtype),
                "shape": list(column.shape),
                "ragged": column.ragged,
                "max_rows": column.max_rows,
                **({"late": True} if column.late else {}),
            }
            for column in self.columns
        ]

    @classmethod
    def from_plain(cls, plain: Any) -> Schema:
        """The schema that `to_plain` described.

        Raises:
            CorruptData: the data do not describe a schema.
        """
        try:
            return cls(tuple(_restored(entry) for entry in plain))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise CorruptData(f"the stored schema cannot be read: {error}") from None


def _told(column: Column) -> str:
    return column.type_text + (" and late" if column.late else "")


def _unbounded(column: Column, max_rows: int | None = None) -> Column:
    return Column(column.name, column.dtype, column.shape, column.ragged, max_rows, column.extension)


def _restored(entry: Any) -> Column:
    plain, name, bound = entry["dtype"], entry["name"], entry["max_rows"]
    if not isinstance(name, str) or not isinstance(entry["ragged"], bool):
        raise TypeError(f"column {name!r} is malformed")
    storage, extension = dtypes.resolve(
        plain if isinstance(plain, str) and plain in dtypes.EXTENSIONS else dtypes.parse(plain)
    )
    shape = tuple(config.count("dimension", size, minimum=0) for size in entry["shape"])
    return Column(
        name,
        storage,
        shape,
        entry["ragged"],
        None if bound is None else config.count("max", bound, minimum=1),
        extension,
        config.flag("late", entry.get("late", False)),
    )


def _declared(name: str, leaf: Any) -> Column:
    """The column that a leaf of `schema=` declares; ValueError with its path."""
    if isinstance(leaf, Spec):
        shape, dtype, bound = leaf.shape, leaf.dtype, leaf.max
    elif is_number(leaf):
        shape, dtype, bound = (), _python_type(leaf), None
    else:
        shape, dtype, bound = getattr(leaf, "shape", None), getattr(leaf, "dtype", None), None  # type: ignore[assignment]
        if not isinstance(shape, tuple) or dtype is None:
            raise ValueError(f"schema {name!r}: {_undeclared(leaf)}")
    try:
        storage, extension = dtypes.resolve(dtype)
        if name in FLAGS:
            storage, extension = np.dtype(np.bool_), ""
        elif name == REWARD and storage.kind in "biu" and not extension:
            storage = np.dtype(np.float32)
        spec = Spec(shape, extension or storage, bound)
        late = isinstance(leaf, Spec) and leaf.late
        ragged = spec.ragged
        sizes = tuple(size for size in spec.shape if size is not None)
        return Column(name, storage, sizes, ragged, spec.max, extension, late)
    except (TypeError, ValueError) as error:
        raise ValueError(f"schema {name!r}: {error}") from None


def _undeclared(leaf: Any) -> str:
    if isinstance(getattr(leaf, "spaces", None), tuple):
        return "a Tuple space has no names for its parts: use a Dict space"
    if isinstance(leaf, type) and issubclass(leaf, (np.generic, bool, int, float)):
        return f"{leaf.__name__} has no shape: write Spec((), {leaf.__name__!r})"
    what = shown(leaf) if isinstance(leaf, (str, tuple, list, type(None))) else f"a {type(leaf).__name__}"
    return f"{what} has no fixed .shape and .dtype: write Spec(shape, dtype), with None as first dimension if rows vary"


def _python_type(value: Any) -> str:
    return next(name for kind, name in _PYTHON_TYPES if isinstance(value, kind))


def _inferred(name: str, leaf: Any, lead: tuple[int, ...]) -> Column:
    """The column that a leaf of the first step declares."""
    if isinstance(leaf, (str, bytes)):
        width = max(len(leaf), 1)
        kind = "U" if isinstance(leaf, str) else "S"
        raise SchemaMismatch(
            f"column {name!r}: the first step gives {leaf[:20]!r}, whose greatest length is unknown",
            remedy=f"declare it in schema=: Spec((), '{kind}{width}'), or Spec((None,), 'u1', max=…) for any length",
        )
    array, extension, _ = as_array(leaf, name)
    if array.shape[: len(lead)] != lead:
        raise SchemaMismatch(
            f"column {name!r}: expected {shape_text((*lead, '…'))}, got shape {shape_text(array.shape)}",  # type: ignore[arg-type]
            remedy="with lanes= every leaf has the lanes as leading axis; a writer without lanes= takes single steps",
        )
    storage = array.dtype
    if name in FLAGS:
        storage, extension = np.dtype(np.bool_), ""
    elif name == REWARD:
        storage, extension = np.dtype(np.float32), ""
    elif is_number(leaf) or (isinstance(leaf, (list, tuple)) and _python_scalars(leaf)):
        storage = np.dtype({"b": "?", "i": "i8", "u": "i8", "f": "f4", "c": "c8"}[array.dtype.kind])
    try:
        return Column(name, storage.newbyteorder("="), array.shape[len(lead) :], extension=extension)
    except ValueError as error:
        raise SchemaMismatch(str(error), remedy="or declare the columns with schema=") from None


def _python_scalars(value: list[Any] | tuple[Any, ...]) -> bool:
    entry: Any = value
    while isinstance(entry, (list, tuple)) and entry:
        entry = entry[0]
    return is_number(entry) and all_scalars(value)
