"""Rows that are found by their slots, in a table that several processes write and read.

Each process keeps its own list of the items in the slots (`SlotRows.keys`). Processes share only the table:

* Every row has its slot as a column. A process that finds a key without an item looks at the table's new items, and
    takes over their keys (`SlotRows.follow`). So keys may be old, but are never wrong.
* In turn: slots are written one after the other, as in a ring. The table's capacity is the number of slots, so it
  evicts exactly the rows whose slots are written, in one step.
* Out of turn (rows that are changed in place): the table gets room for a second row of every slot. A new row is
  inserted first, then the old one is deleted, so that readers always find one. Memory is freed in blocks of rows that
  were written together, so from time to time all rows are written again in order.
* The ring continues after the slot of the newest row that was written in turn. A row that is changed in place is
    marked, to tell the two cases apart: its slot s is written as ~s, unless it was that newest row.

Writers must take turns, as TorchRL's buffers do by their lock; readers need not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

import di_store
from di_store.adapters.stored_array import Array
from di_store.adapters.stores import NO_KEY
from di_store.adapters.torchrl.forms import SLOT

_NO_KEYS = np.full(1, NO_KEY)
_AT_ONCE = 512
"""Rows that are written at once out of turn, for which there is room in addition to those of all slots."""
_LISTED = 4_096
"""Keys that the table finds by position at once."""
_TRIES = 100
"""How often rows are looked up again if other processes overwrite them meanwhile."""


class SlotRows:
    """Slots 0 … `slots` − 1, each of which may hold a row.

    Args:
        table: the table of the rows, which `NamedRows` makes.
        slots: number of slots.

    Attributes:
        keys: uint64[slots]: the item that each slot held when this process last looked.
        expected: the slot where the ring continues, from a caller that has just read it; None: `write` reads it.
    """

    def __init__(self, table: di_store.Table, slots: int) -> None:
        self.table, self.slots = table, slots
        self.keys = np.full(slots, NO_KEY)
        self.expected: int | None = None
        self._last: Array = _NO_KEYS  # uint64[1]: the newest item that this process knows
        self._loose = False  # whether slots were written out of turn
        self._moved = 0  # rows that were written out of turn since all rows were in order
        self._end = self._last, 0  # the newest item, and where the ring goes on behind it
        self._ring = np.arange(slots, dtype=np.int32)
        self._whole: dict[str, Array] = {}
        self._prioritized = isinstance(table.sampler, di_store.Prioritized)

    def __len__(self) -> int:
        return min(len(self.table), self.slots)

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, slots: Array, columns: Mapping[str, Array], turn: bool) -> None:
        """Write rows.

        Args:
            slots: int[n]; for repeated slots the last row counts.
            columns: all columns, ``[n, …]``.
            turn: whether the ring continues after the last of these rows; False: they are changed in place.
        """
        if len(slots) > self.slots:
            slots = slots[-self.slots :]
            columns = {name: value[-self.slots :] for name, value in columns.items()}
        numbers = marks = slots.astype(np.int32)
        end = (int(numbers[-1]) + 1) % self.slots
        if not turn:
            end = self.next_slot()
            marks = np.where(numbers == (end - 1) % self.slots, numbers, ~numbers)
        if self._in_turn(numbers):
            self._insert(numbers, marks, columns, None)
        else:
            if turn and self.expected is None and not self._is_newest(self._last):
                self.follow()  # behind the rows that are written now, those of others are not looked for
            self._replace(numbers, marks, columns)
        self._end = self._last, end

    def next_slot(self) -> int:
        """Where the ring continues: after the row that any process wrote last, except rows changed in place."""
        newest, slot = self._end
        if not len(self.table):
            return 0
        if not self._is_newest(newest):
            self.follow()
            slot = self._look_for_end()
            self._end = self._last, slot
        return slot

    def expect(self) -> None:
        """Let the next write rely on `next_slot`, which was just called."""
        self.expected = self._end[1]

    def _look_for_end(self) -> int:
        """The slot after the newest row that was not changed in place."""
        count = len(self.table)
        for end in range(count, 0, -_AT_ONCE):
            first = max(0, end - _AT_ONCE)
            keys = self.table.keys(first, end - first)
            marks = self.table.peek(keys, columns=(f"row/{SLOT}",)).data["row"][SLOT]
            if len(found := np.flatnonzero(marks >= 0)):
                return (int(marks[found[-1]]) + 1) % self.slots
        return count % self.slots

    def _in_turn(self, slots: Array) -> bool:
        """Whether a table that evicts its oldest rows evicts those of these slots."""
        if self._loose or self.table.capacity != self.slots:
            self._loose = True
            return False
        first, count = int(slots[0]), len(slots)
        if count > 1:
            expected = self._ring[first : first + count]
            if len(expected) < count:
                expected = np.concatenate((expected, self._ring[: count - len(expected)]))
            if not np.array_equal(slots, expected):
                return False
        follows = self.keys[first - 1] == self._last[0]
        if count == self.slots or (follows and first == self.expected) or not len(self.table):
            return True
        if not follows or not self._is_newest(self._last):
            self.follow()
        return bool(self.keys[first - 1] == self._last[0])

    def _is_newest(self, key: Array) -> bool:
        """Whether the item with this key, uint64[1], is the newest one."""
        return int(self.table.positions(key)[0]) == len(self.table) - 1

    def _insert(self, slots: Array, marks: Array, columns: Mapping[str, Array], priority: Any) -> None:
        keys = self.table.extend({"row": {**columns, SLOT: marks}}, priority=priority)
        self.keys[slots] = keys
        self._last = keys[-1:]
        for name, whole in self._whole.items():
            whole[slots] = columns[name]

    def _replace(self, slots: Array, marks: Array, columns: Mapping[str, Array]) -> None:
        """Write rows out of turn."""
        last = np.unique(slots[::-1], return_index=True)[1]
        if len(last) < len(slots):
            last = np.sort(len(slots) - 1 - last)
            slots, marks = slots[last], marks[last]
            columns = {name: value[last] for name, value in columns.items()}
        if not self._loose or self.table.capacity == self.slots:
            self.table.resize(capacities(self.slots)[1])
            self._loose = True
        for begin in range(0, len(slots), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            old = self.keys[slots[part]]
            batch = self.table.peek(old, columns=(f"row/{SLOT}",))
            live: Any = batch.live
            priorities = batch.priorities if self._prioritized and live.all() else None
            self._insert(slots[part], marks[part], {name: value[part] for name, value in columns.items()}, priorities)
            if live.any():
                self.table.delete(old[live])
        self._moved += len(slots)
        if self._moved >= max(self.slots // 2, _AT_ONCE):
            self._put_in_order()

    def _put_in_order(self) -> None:
        """Write all rows again, oldest first, so that their memory has no gaps."""
        self._moved = 0
        self.follow()
        every = self.table.keys()
        for begin in range(0, len(every), _AT_ONCE):
            keys = every[begin : begin + _AT_ONCE]
            batch = self.table.peek(keys)
            assert batch.live is not None
            if not batch.live.all():
                continue
            rows = batch.data["row"]
            marks = rows.pop(SLOT)
            slots = _slots_of(marks)
            current = np.flatnonzero(self.keys[slots] == keys)  # others were left by a process that was killed
            if len(current):
                columns = {name: value[current] for name, value in rows.items()}
                priorities = batch.priorities[current] if self._prioritized else None
                self._insert(slots[current], marks[current], columns, priorities)
            self.table.delete(keys)

    def clear(self) -> None:
        """Remove all rows."""
        self.table.reset()
        if self._loose:
            self.table.resize(self.slots)
            self._loose = False
        self.keys.fill(NO_KEY)
        self._last, self._moved = _NO_KEYS, 0
        self._whole.clear()

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, slots: Array, columns: list[str]) -> dict[str, Array]:
        """Columns of slots, ``[n, …]``, new arrays; zeros for slots that hold nothing.

        Args:
            slots: int[n].
            columns: names as in the table's batches, ``row/…``.

        Raises:
            IndexError: there is no such slot.
        """
        keys = self.keys[slots]
        batch = self.table.peek(keys, columns=columns)
        found: dict[str, Array] = batch.data["row"] if batch.data else {}
        if batch.live is not None and not batch.live.all():
            self._read_again(slots, keys, np.flatnonzero(~batch.live), columns, found)
        return found

    def _read_again(self, slots: Array, keys: Array, gone: Array, columns: list[str], found: dict[str, Array]) -> None:
        """Read the rows that other processes overwrote. Only these are read, because a batch may be large.

        Args:
            slots: int[n].
            keys: uint64[n], the keys that were read for these slots.
            gone: int[m]: which of these items did not exist.
            columns: as `read` has them.
            found: the columns read so far; the missing rows are written into them.
        """
        for _ in range(_TRIES):
            self.follow()
            current = self.keys[slots[gone]]
            if np.array_equal(current, keys[gone]):
                return
            keys[gone] = current
            batch = self.table.peek(current, columns=columns)
            for name, column in found.items():
                column[gone] = batch.data["row"][name]
            if batch.live is None or batch.live.all():
                return
            gone = gone[~batch.live]

    def known_keys(self, slots: Any) -> Array:
        """Keys of slots as this process drew or wrote them. Unknown keys are looked up."""
        keys: Array = self.keys[slots]
        if (keys == NO_KEY).any():
            self.follow()
            keys = self.keys[slots]
        return keys

    def whole(self, name: str) -> Array:
        """A column of all slots, ``[slots, …]``. Later calls and writes keep it up to date."""
        if name in self._whole:
            self.follow()
            return self._whole[name]
        parts = [self._ring[begin : begin + _LISTED] for begin in range(0, self.slots, _LISTED)]
        self._whole[name] = np.concatenate([self.read(part, [f"row/{name}"])[name] for part in parts])
        return self._whole[name]

    def draw(self, count: int, columns: list[str]) -> tuple[Array, di_store.Batch]:
        """A batch of the table's sampler: its slots int[count], and the batch."""
        batch = self.table.sample(count, columns=[*columns, f"row/{SLOT}"])
        slots = _slots_of(batch.data["row"].pop(SLOT))
        self.keys[slots] = batch.keys
        return slots, batch

    # -- other processes ----------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Take over the keys of rows that other processes wrote."""
        wanted = [f"row/{name}" for name in (SLOT, *self._whole)]
        for keys in self._new_keys():
            batch = self.table.peek(keys, columns=wanted)
            live = batch.live
            assert live is not None
            if not live.any():
                continue
            rows = batch.data["row"]
            slots = _slots_of(rows[SLOT][live])
            self.keys[slots] = keys[live]
            for name, whole in self._whole.items():
                whole[slots] = rows[name][live]

    def _new_keys(self) -> Iterator[Array]:
        """Keys of the items that are newer than the last one that this process knows, oldest first."""
        table = self.table
        for _ in range(_TRIES + 2 * self.slots // _LISTED):
            start = int(table.positions(self._last)[0]) + 1
            count = min(len(table) - start, _LISTED)
            if count <= 0:
                return
            try:
                keys = table.at(np.arange(start, start + count))
            except ValueError:  # emptied meanwhile
                continue
            yield keys
            self._last = keys[-1:]


def capacities(slots: int) -> tuple[int, int]:
    """Capacities of a table of this many slots: while all slots are written in turn, and afterwards."""
    return slots, 2 * slots + _AT_ONCE


def _slots_of(marks: Array) -> Array:
    """Slots from the table's slot column."""
    slots: Array = marks ^ (marks >> 31)
    return slots


def row_columns(names: Iterable[str]) -> list[str]:
    """Names of columns as in the table's batches."""
    return [f"row/{name}" for name in names]
