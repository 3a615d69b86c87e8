"""The newest values of each column of a writer, and the windows of these values that become items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from di_store.adapters.reverb.forms import Array, Kind
from di_store.adapters.reverb.nest import Path

_SPARE_BYTES = 1 << 20
_SPARE_ROWS = 64


def as_array(value: Any) -> Array:
    """A value of a step as numpy array; text becomes a Python object."""
    found = value if isinstance(value, np.ndarray) else np.asarray(value)
    return found.astype(object) if found.dtype.kind in "SUT" else found


class HistoryColumn:
    """The newest values of one column, one row after the other in memory.

    Steps are numbered from 0 on, across episodes. Rows move to the front when the array is full, so a step's row is its
    number minus `base`.

    Attributes:
        path: path of the leaf in a step.
        keep: how many of the newest steps can be used in items.
        rows: ``[room, …]``.
        bytes: the same memory as bytes; None: the values are Python objects.
        size: bytes of a value.
        base: number of the step in the first row.
        end: one more than the number of the newest step.
        last_hole: number of the newest step without a value; -1: all have one.
    """

    __slots__ = ("base", "bytes", "dtype", "end", "keep", "last_hole", "path", "rows", "shape", "size", "values")

    def __init__(self, path: Path, keep: int, first: Array, step: int) -> None:
        self.path, self.keep = path, keep
        self.dtype, self.shape = first.dtype, first.shape
        self.size = first.nbytes
        self.base = self.end = step
        self.last_hole = step - 1
        self._allocate()

    def _allocate(self) -> None:
        spare = min(_SPARE_ROWS, _SPARE_BYTES // max(1, self.size))
        self.rows: Array = np.empty((max(2 * self.keep, self.keep + spare), *self.shape), self.dtype)
        self.values = bytearray(len(self.rows))  # 1 where a row has a value
        plain = self.dtype != object and self.size > 0
        self.bytes = self.rows.reshape(-1).view(np.uint8).data if plain else None

    def widen(self, keep: int) -> None:
        """Keep more steps from now on."""
        if keep <= self.keep:
            return
        old, held, base, end = self.rows, self.values, self.base, self.end
        self.keep = keep
        self._allocate()
        self.rows[: end - base] = old[: end - base]
        self.values[: end - base] = held[: end - base]

    def check(self, value: Array) -> None:
        """Raise `ValueError` if a value differs in type or shape from earlier values."""
        if value.dtype != self.dtype:
            raise ValueError(
                f"Tensor of wrong dtype provided for column {self.path}. Got {_type_name(value.dtype)} but expected "
                f"{_type_name(self.dtype)}."
            )
        if value.shape != self.shape:
            raise ValueError(
                f"Tensor of incompatible shape provided for column {self.path}. Got {_shape_text(value.shape)} which "
                f"is incompatible with {_shape_text(self.shape)}."
            )

    def put(self, step: int, value: Array) -> None:
        """Set the value of the newest step, or of the step after it."""
        row = step - self.base
        if row == len(self.rows):
            row = self._move()
        if self.bytes is None:
            self.rows[row, ...] = value  # of objects, not the array that holds them
        else:
            self.rows[row] = value
        self.values[row] = 1
        if step == self.end:
            self.end = step + 1
        elif self.last_hole == step:
            self.last_hole = self.base + self.values.rfind(0, 0, row)

    def skip(self, step: int) -> None:
        """Leave the next step without a value."""
        row = step - self.base
        if row == len(self.rows):
            row = self._move()
        self.values[row] = 0
        self.end = step + 1
        self.last_hole = step

    def _move(self) -> int:
        """Move the rows that are still needed to the front. Returns the number of the row after them."""
        kept = self.keep
        first = len(self.rows) - kept
        self.rows[:kept] = self.rows[first:]
        self.values[:kept] = self.values[first:]
        self.base += first
        return kept

    def holds(self, begin: int, end: int) -> bool:
        """Whether the steps from `begin` to before `end` have values and can be used."""
        if begin < self.base or begin < self.end - self.keep or end > self.end:
            return False
        return begin > self.last_hole or 0 not in self.values[begin - self.base : end - self.base]


_TYPE_NAMES = {"float64": "double", "float32": "float", "float16": "half"}


def _type_name(dtype: np.dtype[Any]) -> str:
    return _TYPE_NAMES.get(dtype.name, str(dtype.name))


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


class TrajectoryColumn:
    """Values of one column of an item: references to values that a writer holds.

    Args:
        data_references: anything with `shape`, `dtype`, `expired` and `numpy()`.
        squeeze: whether the item has a single value without a time axis.
        path: path for messages.
    """

    __slots__ = ("_cells", "begin", "column", "count", "is_squeezed", "steps")

    column: HistoryColumn | None
    steps: Sequence[int] | None
    """The steps whose values these are, in `column`; None: `count` steps from `begin` on."""

    def __init__(self, data_references: Sequence[Any], *, squeeze: bool = False, path: Path | None = None) -> None:
        if squeeze and len(data_references) != 1:
            raise ValueError(
                f"Columns must contain exactly one data reference when squeeze set, got {len(data_references)}"
            )
        if any(reference is None for reference in data_references):
            raise _none_inside(path, data_references)
        self._cells: tuple[Any, ...] | None = tuple(data_references)
        self.column = self.steps = None
        self.begin, self.count, self.is_squeezed = 0, len(self._cells), squeeze

    @classmethod
    def of(
        cls, column: HistoryColumn, begin: int, count: int, squeeze: bool, steps: Sequence[int] | None = None
    ) -> TrajectoryColumn:
        """The values of `count` consecutive steps, or of these steps."""
        self = cls.__new__(cls)
        self.column, self.begin, self.count, self.is_squeezed = column, begin, count, squeeze
        self.steps, self._cells = steps, None
        return self

    @property
    def _references(self) -> tuple[Any, ...]:
        if self._cells is None:
            assert self.column is not None
            steps = range(self.begin, self.begin + self.count) if self.steps is None else self.steps
            self._cells = tuple(_cell(self.column, step) for step in steps)
        return self._cells

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return iter(self._references)

    def __getitem__(self, val: Any) -> TrajectoryColumn:
        found = self._references
        if isinstance(val, int):
            return TrajectoryColumn([found[val]], squeeze=True)
        if isinstance(val, slice):
            return TrajectoryColumn(found[val])
        if isinstance(val, list):
            return TrajectoryColumn([found[place] for place in val])
        raise TypeError(f"TrajectoryColumn indices must be integers or slices, not {type(val)}")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        found: np.dtype[Any] = (self.column or self._references[0]).dtype
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `numpy()`."""
        found = tuple((self.column or self._references[0]).shape)
        return found if self.is_squeezed else (self.count, *found)

    @property
    def kind(self) -> Kind:
        """Type and shape."""
        return self.dtype, self.shape

    @property
    def valid(self) -> bool:
        """Whether all values are still held."""
        column = self.column
        if column is None:
            return not any(cell.expired for cell in self._references)
        if self.steps is None:
            return column.holds(self.begin, self.begin + self.count)
        return all(column.holds(step, step + 1) for step in self.steps)

    @property
    def expired(self) -> bool:
        """Whether a value is no longer held, as data references tell it."""
        return not self.valid

    def numpy(self) -> Array:
        """The values, stacked, as a copy.

        Raises:
            RuntimeError: the writer no longer holds them.
        """
        if not self.valid:
            raise RuntimeError("Cannot convert TrajectoryColumn with expired data references to numpy array.")
        column = self.column
        if column is None:
            cells = [np.asarray(cell.numpy()) for cell in self._references]
            return cells[0] if self.is_squeezed else np.stack(cells)
        if self.steps is not None:
            return column.rows[[step - column.base for step in self.steps]]
        row = self.begin - column.base
        found = column.rows[row] if self.is_squeezed else column.rows[row : row + self.count]
        return np.array(found, column.dtype)


class ColumnHistory:
    """A column in `TrajectoryWriter.history`, indexed by the steps since the last end of an episode."""

    __slots__ = ("_column", "_first", "_path")

    def __init__(self, column: HistoryColumn, first: Callable[[], int]) -> None:
        self._column, self._first, self._path = column, first, column.path

    def __len__(self) -> int:
        return self._column.end - self._first()

    def __iter__(self) -> Iterator[TrajectoryColumn | None]:
        column = self._column
        for step in range(self._first(), column.end):
            yield _cell(column, step) if column.holds(step, step + 1) else None

    def __getitem__(self, val: Any) -> TrajectoryColumn:
        column = self._column
        first = self._first()
        count = column.end - first
        if isinstance(val, slice) and val.step in (None, 1):
            begin, end, _ = val.indices(count)
            end = max(begin, end)
            if (val.start is None or val.start >= -count) and column.holds(first + begin, first + end):
                return TrajectoryColumn.of(column, first + begin, end - begin, False)
            raise _none_inside((*self._path, val), self._shown())
        if isinstance(val, int):
            step = self._step(val, first, count)
            return _cell(column, step)
        if isinstance(val, slice):
            steps = [first + place for place in range(*val.indices(count))]
        elif isinstance(val, list):
            steps = [self._step(each, first, count) for each in val]
        else:
            raise TypeError(f"_ColumnHistory indices must be integers or slices, not {type(val)}")
        if not all(column.holds(step, step + 1) for step in steps):
            raise _none_inside((*self._path, val), self._shown())
        return TrajectoryColumn.of(column, 0, len(steps), False, steps)

    def _step(self, place: int, first: int, count: int) -> int:
        if place >= count:
            raise IndexError("list index out of range")
        step = first + (place if place >= 0 else place + count)
        if place < -count or not self._column.holds(step, step + 1):
            raise _none_inside((*self._path, place), self._shown())
        return step

    def _shown(self) -> list[str]:
        return ["None" if cell is None else "value" for cell in self]

    def __repr__(self) -> str:
        return f"ColumnHistory(path={self._path}, refs={self._shown()})"


def _cell(column: HistoryColumn, step: int) -> TrajectoryColumn:
    """The value of one step."""
    return TrajectoryColumn.of(column, step, 1, True)


def _none_inside(path: Path | None, references: Sequence[Any]) -> ValueError:
    return ValueError(
        f"TrajectoryColumns cannot contain any None data references: TrajectoryColumn at path {path} got "
        f"{list(references)[-20:]}."
    )
