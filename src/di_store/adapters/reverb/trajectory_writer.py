"""`TrajectoryWriter`: items made of any windows of the steps of an episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from di_store.adapters.reverb import nest
from di_store.adapters.reverb.errors import ReverbError
from di_store.adapters.reverb.forms import OBJECTS, TEXTS, Array, ItemForm, Kind, told
from di_store.adapters.reverb.history import ColumnHistory, HistoryColumn, TrajectoryColumn, as_array
from di_store.adapters.reverb.pending import Sender
from di_store.adapters.reverb.reverb_types import TensorSpec
from di_store.adapters.reverb.served import ServedTable, Service

_CONTAINERS = (dict, list, tuple)


class TrajectoryWriter:
    """Appends steps to a history, and creates items from windows of it. Made by `Client.trajectory_writer`.

    For one thread. An item is in its table when `create_item` returns, unless the limiter makes it wait: then a thread
    inserts it later.
    """

    def __init__(self, connect: Callable[[], Service], num_keep_alive_refs: int, validate_items: bool = True) -> None:
        self._connect, self._keep, self._validate = connect, num_keep_alive_refs, validate_items
        self._columns: dict[nest.Path, HistoryColumn | None] = {}
        self._configured: dict[nest.Path, int] = {}
        self._structure: Any = None
        self._history: Any = None
        self._names: Any = None  # keys of the last step, if it was a plain dict of leaves
        self._by_name: list[tuple[Any, HistoryColumn]] = []
        self._step = 0  # number of the next step, or of the open one
        self._first = 0  # number of the first step in the history
        self._episode_first = 0
        self._open = False
        self._sender = Sender()
        self._items = ItemRows()

    def __enter__(self) -> TrajectoryWriter:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None or not issubclass(kind, ReverbError):
            self.flush()

    def __del__(self) -> None:
        if hasattr(self, "_sender"):
            self.close()

    @property
    def history(self) -> Any:
        """The columns, in the structure of the steps: index them to get windows.

        Raises:
            RuntimeError: nothing was appended yet.
        """
        if self._history is not None:
            return self._history
        if self._structure is None:
            raise RuntimeError("history cannot be accessed before `append` is called at least once.")
        found = [self._column_history(path) for path, _ in nest.flatten_with_path(self._structure)]
        history = nest.unflatten_as(self._structure, found)
        if None not in self._columns.values():
            self._history = history
        return history

    def _column_history(self, path: nest.Path) -> ColumnHistory:
        column = self._columns[path]
        if column is None:  # only None was ever given for it
            column = HistoryColumn(path, self._keep, np.empty((), object), self._step + self._open)
        return ColumnHistory(column, self._first_step)

    def _first_step(self) -> int:
        return self._first

    @property
    def episode_steps(self) -> int:
        """Number of steps since the last `end_episode`, without an open step."""
        return self._step - self._episode_first

    def configure(self, path: nest.Path, *, num_keep_alive_refs: int, max_chunk_length: int | None) -> None:
        """Keep another number of steps of one column. `max_chunk_length` has no effect, as nothing is compressed."""
        if num_keep_alive_refs < 1:
            raise ValueError(f"num_keep_alive_refs ({num_keep_alive_refs}) must be a positive integer")
        if max_chunk_length is not None and not 1 <= max_chunk_length <= num_keep_alive_refs:
            raise ValueError(
                f"max_chunk_length ({max_chunk_length}) must be None or a positive integer <= num_keep_alive_refs "
                f"({num_keep_alive_refs})"
            )
        self._configured[path] = num_keep_alive_refs
        if (column := self._columns.get(path)) is not None:
            column.widen(num_keep_alive_refs)

    # -- steps --------------------------------------------------------------------------------------------------

    def append(self, data: Any, *, partial_step: bool = False) -> None:
        """Add a step, or a part of one.

        Args:
            data: a nested structure. A leaf of earlier steps may be missing or None.
            partial_step: whether the next call continues this step.

        Raises:
            ValueError: another type or shape than before, or a leaf that the open step already has. Nothing was added.
        """
        if not self._append_plain(data, partial_step):
            self._append_any(data, partial_step)
        if not partial_step:
            self._step += 1
        self._open = partial_step

    def _append_plain(self, data: Any, partial_step: bool) -> bool:
        """Add a whole step that is a dict of leaves with the same keys as the previous step.

        Returns whether the step is such a dict.
        """
        if self._open or partial_step or type(data) is not dict or data.keys() != self._names:
            return False
        found = []
        for name, column in self._by_name:
            value = data[name]
            if type(value) is not np.ndarray:
                if value is None or isinstance(value, _CONTAINERS):
                    return False
                value = as_array(value)
            if value.dtype != column.dtype or value.shape != column.shape:
                if value.dtype.kind in "SU":
                    value = as_array(value)
                column.check(value)
            found.append((column, value))
        step = self._step
        for column, value in found:
            column.put(step, value)
        return True

    def _append_any(self, data: Any, partial_step: bool) -> None:
        leaves = nest.flatten_with_path(data)
        found = [(path, None if leaf is None else as_array(leaf)) for path, leaf in leaves]
        new = [path for path, _ in leaves if path not in self._columns]
        step = self._step
        for path, value in found:
            column = self._columns.get(path)
            if value is None or column is None:
                continue
            if self._open and column.end > step and column.holds(step, step + 1):
                raise ValueError(
                    f"Field {path} has already been set in the active step by previous (partial) append call and thus "
                    f"must be omitted or set to None but got: {value}"
                )
            column.check(value)
        if new:
            structure = nest.map_structure(_none, data)
            self._structure = structure if self._structure is None else nest.union(self._structure, structure)
            self._history = None
        for path, value in found:
            column = self._columns.get(path)
            if column is None:
                if value is not None:
                    column = self._new_column(path, value)
                self._columns[path] = column
                self._history = None
            if column is not None and value is not None:
                column.put(step, value)
        for column in self._columns.values():
            if column is not None and column.end <= step:
                column.skip(step)
        self._remember(data, partial_step)

    def _new_column(self, path: nest.Path, value: Array) -> HistoryColumn:
        """A column whose first value comes with this step: earlier steps have none."""
        keep = max(self._keep, self._configured.get(path, 0))
        first = max(self._first, self._step - keep)
        column = HistoryColumn(path, keep, value, first)
        for step in range(first, self._step):
            column.skip(step)
        return column

    def _remember(self, data: Any, partial_step: bool) -> None:
        """Remember the form of a step, so that steps of the same form are added faster."""
        self._names = None
        whole = not self._open and not partial_step and type(data) is dict and len(data) == len(self._columns)
        if whole and not any(value is None or isinstance(value, _CONTAINERS) for value in data.values()):
            found = [(name, self._columns[(name,)]) for name in data if (name,) in self._columns]
            self._by_name = [(name, column) for name, column in found if column is not None]
            if len(self._by_name) == len(data):
                self._names = set(data)

    # -- items --------------------------------------------------------------------------------------------------

    def create_item(self, table: str, priority: float, trajectory: Any) -> None:
        """Insert an item, without waiting for the limiter.

        Args:
            table: name of the table.
            priority: priority of the item.
            trajectory: a structure of `TrajectoryColumn`s, which indexing `history` gives.

        Raises:
            TypeError: a leaf is no `TrajectoryColumn`. ValueError: a value is no longer held, the item does not fit the
            table's signature, or there is no such table.
        """
        columns = nest.flatten(trajectory)
        if not all(isinstance(column, TrajectoryColumn) for column in columns):
            raise TypeError(f"All leaves of `trajectory` must be `TrajectoryColumn` but got {trajectory}")
        served = self._connect().table(table)
        row = self._items.row(served, columns, self._validate)
        if priority != priority or priority < 0:
            raise ValueError(f"priority {priority}: give a number >= 0")
        self._sender.send(served, row, priority)

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Wait until at most this many items wait for limiters.

        Raises:
            DeadlineExceededError: more items still waited after `timeout_ms`; they will still be inserted.
        """
        if block_until_num_items < 0:
            raise ValueError(f"block_until_num_items must be >= 0, got {block_until_num_items}")
        self._sender.wait(block_until_num_items, _seconds(timeout_ms if timeout_ms is None or timeout_ms > 0 else None))

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
        """Begin a new episode, and wait until all items are in their tables.

        Args:
            clear_buffers: whether the history is cleared too.
            timeout_ms: as in `flush`; the episode ends in any case.
        """
        if self._open:
            self._step, self._open = self._step + 1, False
        self._episode_first = self._step
        if clear_buffers:
            self._first = self._step
        self._sender.wait(0, _seconds(timeout_ms))

    def close(self) -> None:
        """Drop items that still wait. Call `flush` first to keep them."""
        self._sender.close()


class ItemRows:
    """Makes rows of tables from the columns of items."""

    def __init__(self) -> None:
        self._forms: dict[tuple[Any, ...], tuple[ItemForm, dict[str, Any]] | None] = {}
        self._room: Array = np.empty(4096, np.uint8)
        self._memory = self._room.data

    def row(self, table: ServedTable, columns: list[TrajectoryColumn], validate: bool) -> dict[str, Any]:
        """The row of an item. Its array is overwritten by the next call."""
        for column in columns:
            if not column.valid or column.count == 0:
                raise ValueError(
                    f"column {columns.index(column)} of the item is empty or refers to values that the writer no "
                    "longer holds (num_keep_alive_refs)"
                )
        places = [(column.column, column.count, column.is_squeezed) for column in columns]
        key: tuple[Any, ...] = (table, *places)
        known: Any = self._forms.get(key, _UNKNOWN)
        if known is _UNKNOWN:
            known = self._prepare(key, table, columns, validate)
        if known is None:
            return {"form": np.uint64(TEXTS), "item": told([column.numpy() for column in columns])}
        form: ItemForm = known[0]
        row: dict[str, Any] = known[1]
        self._fill(form, row, columns)
        return row

    def _fill(self, form: ItemForm, row: dict[str, Any], columns: list[TrajectoryColumn]) -> None:
        """Write the bytes of an item into the array of its row."""
        if form.total > len(self._room):
            self._grow(form.total)
        if (item := row.get("item")) is None:
            item = row["item"] = self._room[: form.total]
        memory = self._memory
        for column, (_, _, start), end in zip(columns, form.columns, form.ends, strict=True):
            source = column.column
            if source is None or column.steps is not None or source.bytes is None:
                array = column.numpy()
                np.ndarray(array.shape, array.dtype, item, start)[...] = array
            else:
                begin = (column.begin - source.base) * source.size
                memory[start:end] = source.bytes[begin : begin + end - start]

    def _prepare(
        self, key: tuple[Any, ...], table: ServedTable, columns: list[TrajectoryColumn], validate: bool
    ) -> tuple[ItemForm, dict[str, Any]] | None:
        kinds = [column.kind for column in columns]
        if validate:
            check_signature(table, kinds)
        found = None
        if not any(dtype == OBJECTS for dtype, _ in kinds):
            form = table.declare(kinds)
            found = form, {"form": form.key}
        if not any(column.column is None for column in columns):
            if len(self._forms) > 10_000:
                self._forms.clear()
            self._forms[key] = found
        return found

    def _grow(self, size: int) -> None:
        self._room = np.empty(2 * size, np.uint8)
        self._memory = self._room.data
        for known in self._forms.values():
            if known is not None:
                known[1].pop("item", None)


_UNKNOWN: Any = object()


def check_signature(table: ServedTable, kinds: list[Kind]) -> None:
    """Raise `ValueError` if an item with such columns does not fit the table's signature."""
    wanted = table.spec.columns
    if wanted is None:
        return
    given = [TensorSpec(shape, dtype) for dtype, shape in kinds]
    fits = len(wanted) == len(kinds) and all(
        spec.matches(shape, dtype) for spec, (dtype, shape) in zip(wanted, kinds, strict=True)
    )
    if not fits:
        raise ValueError(
            f"Unable to create item in table '{table.spec.name}': the item's columns {given} do not fit the signature "
            f"{table.spec.signature}"
        )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1_000


def _none(_: Any) -> None:
    return None
