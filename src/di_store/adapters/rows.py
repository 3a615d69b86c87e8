"""Rows of equal columns in a table, found by their slots: for libraries whose buffers are arrays indexed by slot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

import di_store
from di_store.adapters.casts import zeros
from di_store.adapters.stores import (
    MOST_STAGED,
    NO_KEY,
    STAGED_BYTES,
    StoreLike,
    check_rows_are_there,
    given_store,
    held_rows,
    own_store,
    table_of,
)

Array: TypeAlias = "np.ndarray[Any, Any]"

_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
_AT_ONCE = 4_096
"""Rows that are read in one call while they are copied."""


class Rows:
    """Slots 0 … `slots` − 1 of a ring in a table. Each slot may hold a row.

    Writes to consecutive slots are gathered, and reach the table together. Ring and table both drop the oldest rows, so
    the table evicts the rows whose slots are written again. In a given store, rows that the table already holds keep
    their slots.

    Args:
        specs: type of each column's row.
        slots: number of slots.
        chunk: number of rows that one call usually writes.
        option: the argument that sets the size, which errors name.
        copies: arrays ``[slots, …]`` of all columns, which the caller reads itself; None: none. Rows are assigned to
            their slots in these arrays, and gathered there.
        store: store of the table; None: a store of its own.
        table: name of the table.

    Attributes:
        keys: uint64[slots]: which item of the table each slot holds.
        store: store of the table.
        table: table of the rows.
        given: whether the store was given, so that others may look into it.
        newest: slot of the newest row that the table already held; -1: none.
    """

    def __init__(
        self,
        specs: Mapping[str, di_store.Spec],
        slots: int,
        *,
        chunk: int = 1,
        option: str,
        copies: dict[str, Array] | None = None,
        store: StoreLike = None,
        table: str = "rows",
    ) -> None:
        self.specs, self.slots, self._chunk, self._copies = dict(specs), slots, chunk, copies
        self.keys = np.full(slots, NO_KEY)
        # Names that cannot name a column are numbered.
        self._names = {
            name: name if _PLAIN.fullmatch(name) else f"column{number}" for number, name in enumerate(self.specs)
        }
        # Below a common name no column is one that tables treat in a special way, as they do "reward".
        schema: dict[str, Any] = {"row": {self._names[name]: spec for name, spec in self.specs.items()}}
        options: dict[str, Any] = {"capacity": slots, "view": di_store.Step(), "schema": schema, "lanes": 1}
        given = given_store(store)
        self.given, self.newest = given is not None, -1
        if given is None:
            self.store = own_store(di_store.needed_memory(**options), f"{slots:,} rows of these columns", option)
            self.table = self.store.create_table(table, **options)
        else:
            self.store, schema["slot"] = given, di_store.Spec((), np.int64)
            self.table = table_of(given, table, option, **options)
        self._chosen: dict[tuple[str, ...], list[str]] = {}
        self._in_order, self._next = True, -1  # whether slots were written one after the other, and the next one
        self._held = 0  # slots that were written one after the other
        self._stage()
        if self.given:
            self._take_over()

    def _stage(self) -> None:
        row = sum(zeros((1,), spec).nbytes for spec in self.specs.values())
        self.limit = max(self._chunk, min(MOST_STAGED * self._chunk, STAGED_BYTES // max(row, 1)))
        # Of `_staged`, the rows that were gathered begin at `_first` if it holds all slots, otherwise at 0.
        self._staged = self._copies or {name: zeros((self.limit,), spec) for name, spec in self.specs.items()}
        self._first = self._count = 0

    def _take_over(self) -> None:
        """Find the slots of the rows that the table holds."""
        held = held_rows(self.table)
        if len(held.keys):
            self.keys[held.slots], self.newest, self._in_order = held.keys, int(held.slots[-1]), False

    def match(self) -> Array:
        """Find the rows of the table again: bool[slots], True for slots that now hold another row, or none."""
        before = self.keys.copy()
        self.keys.fill(NO_KEY)
        self._take_over()
        changed: Array = before != self.keys
        return changed

    # -- writing ------------------------------------------------------------------------------------------------

    def place(self, slot: int, count: int) -> tuple[dict[str, Array], slice]:
        """Arrays of all columns, and the slice for `count` rows (at most `limit`) of the slots from `slot` on."""
        begin = self._count
        if begin and (slot != self._first + begin or begin + count > self.limit):
            self.flush()
            begin = 0
        if begin == 0:
            self._first = slot
        self._count = begin + count
        if self._copies is not None:
            begin = slot
        return self._staged, slice(begin, begin + count)

    def write(self, slot: int, columns: Mapping[str, Array]) -> None:
        """Write rows of the slots from `slot` on: leaves ``[n, …]`` of all columns."""
        count = len(next(iter(columns.values())))
        for begin in range(0, count, self.limit):
            end = min(begin + self.limit, count)
            staged, part = self.place(slot + begin, end - begin)
            for name, value in columns.items():
                staged[name][part] = value[begin:end]

    def flush(self) -> None:
        """Write the gathered rows to the table."""
        if not (count := self._count):
            return
        self._count, names, slots = 0, self._names, slice(self._first, self._first + count)
        self._in_order = self._in_order and self._next in (-1, self._first, self._first + self.slots)
        if not self._in_order:  # the table would evict rows of other slots
            self.table.delete(self.keys[slots])
        part = slice(count) if self._copies is None else slots
        rows: dict[str, Any] = {"row": {names[name]: staged[part] for name, staged in self._staged.items()}}
        if self.given:
            rows["slot"] = np.arange(slots.start, slots.stop)
        self.keys[slots] = self.table.extend(rows)
        self._next = slots.stop
        self._held = min(self._held + count, self.slots) if self._in_order else 0

    def drop_copies(self) -> None:
        """Stop writing into `copies`."""
        self.flush()
        self._copies = None
        self._stage()

    def clear(self) -> None:
        """Remove all rows."""
        self._count = 0
        self.table.reset()
        self.keys.fill(NO_KEY)
        self._in_order, self._next, self._held = True, -1, 0

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, slots: Any, names: Iterable[str]) -> tuple[dict[str, Array], Array | None]:
        """Columns of these slots, new arrays with leaves ``[n, …]``; and bool[n]: which slots hold a row, None: all do.

        Args:
            slots: indexes, or a slice.
            names: names of the columns.
        """
        if self._count:
            self.flush()
        names = tuple(names)
        if (columns := self._chosen.get(names)) is None:
            columns = self._chosen[names] = [f"row/{self._names[name]}" for name in names]
        keys = self.keys[slots]
        batch = self.table.peek(keys, columns=columns)
        rows = batch.data["row"]
        if self.given:
            check_rows_are_there(self.table, keys, batch.live)
        live = None if self._held == self.slots else batch.live
        if live is not None and live.all():
            live = None
        return {name: rows[self._names[name]] for name in names}, live

    def pieces(self, oldest: int) -> Iterator[tuple[int, dict[str, Array]]]:
        """All rows, oldest first, in pieces: the first slot and the columns, as `write` of other rows takes them.

        Args:
            oldest: the slot that is written next.
        """
        for first, last in ((oldest, self.slots), (0, oldest)):
            for begin in range(first, last, _AT_ONCE):
                part = slice(begin, min(begin + _AT_ONCE, last))
                data, live = self.read(part, self.specs)
                held = np.ones(part.stop - begin, bool) if live is None else live
                edges = np.flatnonzero(np.diff(np.concatenate(([False], held, [False]))))
                for start, end in edges.reshape(-1, 2).tolist():
                    yield begin + start, {name: each[start:end] for name, each in data.items()}

    # -- pickling -----------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """The table by name, and the keys: what is loaded reads and writes the same rows."""
        self.flush()
        state = self.__dict__ | {"_copies": None}
        del state["_staged"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._stage()
