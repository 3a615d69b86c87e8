"""The items of a buffer, in the order of their push, with their data in tables."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from ding.data.buffer import BufferedData
from ding.utils import fastcopy

import di_store
from di_store.adapters.ding.forms import Columns, NoColumnsError, changed, described, packed, unpacked

_MOST_FORMS = 4
"""Forms that get a table of columns; data of further forms are stored as whole values."""


class Stored(BufferedData):  # type: ignore[misc]
    """An item of a buffer, whose data are read from the store at each use, and written to it when assigned."""

    __slots__ = ("_kept", "_key", "_number", "_place", "_rows", "index", "meta")

    def __init__(self, rows: Rows, index: str, number: int, written: Written, meta: dict[Any, Any]) -> None:
        self._rows, self._number, (self._place, self._key, self._kept) = rows, number, written
        self.index, self.meta = index, meta

    @property
    def data(self) -> Any:
        """A copy of what was pushed, or assigned since."""
        return self._rows.read([self])[0]

    @data.setter
    def data(self, datum: Any) -> None:
        self._rows.replace(self, datum)

    def __repr__(self) -> str:
        return f"{BufferedData.__name__}(index={self.index!r}, meta={self.meta!r})"

    def plain(self, datum: Any) -> Any:
        """What DI-engine's buffer returns for this item."""
        return BufferedData(datum, self.index, self.meta)


fastcopy.dispatch[Stored] = lambda item: BufferedData(item.data, item.index, fastcopy.copy(item.meta))


class Place:
    """A table for data of one form, or with `columns` None for whole values."""

    def __init__(self, table: di_store.Table, columns: Columns | None) -> None:
        self.table, self.columns = table, columns

    def read(self, keys: list[int]) -> list[Any]:
        """The data of items of the table.

        Raises:
            LookupError: one is no longer there.
        """
        batch = self.table.peek(np.array(keys, np.uint64))
        if batch.live is not None and not batch.live.all():
            raise LookupError("the item was removed from the buffer: keep its data, not the item")
        if self.columns is None:
            return [unpacked(value) for value in batch.data]
        return self.columns.data(batch.data)


Written: TypeAlias = tuple[Place, int, tuple[Any, ...] | None]
"""Where a datum is: table, key, and its tensors if they are kept."""


class Rows:
    """The items of a buffer and of its views.

    Args:
        size: items, of which the oldest are removed first.
        keep: how many of the newest items keep their tensors, if small, beside what is stored.

    Attributes:
        items: in the order of their push.
        meta_index: values of a key of `meta` by item, for keys that were grouped by.
        lock: held by whoever uses the items.
    """

    def __init__(self, size: int, keep: int) -> None:
        self._keep = keep
        self.items: deque[Stored] = deque(maxlen=size)
        self.meta_index: dict[Any, Any] = {}
        self.lock = threading.RLock()
        self._size, self._pushed = size, 0
        self._prefix = uuid.uuid4().hex[:16]
        self._loaded: dict[str, int] = {}  # numbers of items that came with an index of another buffer
        self._store = di_store.open(memory="fit")
        self._places: dict[Any, Place] = {}
        self._last: Place | None = None
        self._in_order = True  # one table, whose order is that of the items: it evicts by itself

    def __len__(self) -> int:
        return len(self.items)

    # -- where an item is ---------------------------------------------------------------------------------------

    def get(self, index: str) -> int:
        """The position of an item; KeyError: there is none."""
        return self._position(index)

    def has(self, index: str) -> bool:
        """Whether there is an item with this index."""
        try:
            self._position(index)
        except KeyError:
            return False
        return True

    def find(self, index: str) -> Stored:
        """The item with this index; KeyError: there is none."""
        return self.items[self._position(index)]

    def _position(self, index: str) -> int:
        number = self._number(index)
        if number is None or not self.items:
            raise KeyError(index)
        low = 0
        guess = number - self.items[0]._number
        if 0 <= guess < len(self.items) and self.items[guess]._number == number:
            return guess
        high = min(guess, len(self.items) - 1)  # items were deleted, so it lies further left
        while low <= high:
            middle = (low + high) // 2
            found = self.items[middle]._number
            if found == number:
                return middle
            low, high = (middle + 1, high) if found < number else (low, middle - 1)
        raise KeyError(index)

    def _number(self, index: Any) -> int | None:
        if not isinstance(index, str):
            return None
        if index.startswith(self._prefix):
            return int(index[16:], 16)
        return self._loaded.get(index)

    # -- writing ------------------------------------------------------------------------------------------------

    def push(self, datum: Any, meta: dict[Any, Any], index: str | None = None) -> Stored:
        """Add an item, and remove the oldest where there is no room.

        Raises:
            di_store.CapacityError: `size` such data need more memory than the machine has.
        """
        written = self._write(datum)
        number, self._pushed = self._pushed, self._pushed + 1
        if index is None:
            index = f"{self._prefix}{number:016x}"
        else:
            self._loaded[index] = number
        item = Stored(self, index, number, written, meta)
        if len(self.items) == self._size and (not self._in_order or self._loaded):
            oldest = self.items[0]
            self._loaded.pop(oldest.index, None)
            if not self._in_order:
                oldest._place.table.delete([oldest._key])
        self.items.append(item)
        if len(self.items) > self._keep:
            self.items[-1 - self._keep]._kept = None
        for name, values in self.meta_index.items():
            values.append(meta.get(name))
        return item

    def replace(self, item: Stored, datum: Any) -> None:
        """Give an item other data."""
        with self.lock:
            place, key = item._place, item._key
            item._place, item._key, item._kept = self._write(datum)
            place.table.delete([key])
            self._in_order = False

    def _write(self, datum: Any) -> Written:
        """Add a row."""
        leaves: list[Any] = []
        try:
            form = described(datum, leaves)
            place = self._places.get(form) or self._new_place(form, leaves)
            if place.columns is not None:
                keys = place.table.insert(place.columns.row(leaves))
                return place, int(keys[0]), place.columns.kept(datum) if self._keep else None
        except NoColumnsError:
            pass
        place = self._places.get(None) or self._new_place(None, [])
        return place, int(place.table.insert(packed(datum))[0]), None

    def _new_place(self, form: Any, leaves: list[Any]) -> Place:
        """A table; for whole values where this form gets none."""
        columns = None
        if form is not None:
            if len(self._places) > _MOST_FORMS:
                raise NoColumnsError
            columns = Columns(form, leaves)
        # One row more than items: a new row is written before an old one is removed.
        options: dict[str, Any] = {"capacity": self._size + 1}
        try:
            table = self._store.create_table(
                f"data{len(self._places)}",
                view=di_store.Opaque() if columns is None else di_store.Step(),
                schema=None if columns is None else columns.schema,
                **options,
            )
        except di_store.SchemaMismatch as error:  # a type that tables lack
            raise NoColumnsError from error
        place = self._places[form] = Place(table, columns)
        self._in_order = len(self._places) == 1
        return place

    def remove(self, indices: Iterable[str]) -> None:
        """Remove items; those that are not there are left out."""
        positions = sorted({self._position(index) for index in indices if self.has(index)})
        if not positions:
            return
        gone = [self.items[position] for position in positions]
        keys: dict[Place, list[int]] = {}
        for item in gone:
            keys.setdefault(item._place, []).append(item._key)
            self._loaded.pop(item.index, None)
        for place, those in keys.items():
            place.table.delete(np.array(those, np.uint64))
        indexed = [values for values in self.meta_index.values() if len(values) == len(self.items)]
        for values in (self.items, *indexed):
            for position in reversed(positions):
                del values[position]

    def clear(self) -> None:
        """Remove all items."""
        for place in self._places.values():
            place.table.reset()
        self.items.clear()
        self.meta_index.clear()
        self._loaded.clear()

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, items: Sequence[Stored]) -> list[Any]:
        """The data of items; no two have memory in common."""
        if not items:
            return []
        place, kept = items[0]._place, [item._kept for item in items if item._kept is not None]
        if len(kept) == len(items) and len(set(map(id, items))) == len(items) and not changed(kept):
            if len(self._places) == 1 and place.columns is not None:
                return place.columns.again(kept)
        elif len(self._places) == 1 and not kept:
            return place.read([item._key for item in items])
        return self._read_mixed(items)

    def _read_mixed(self, items: Sequence[Stored]) -> list[Any]:
        """The data of items of which only some have kept their tensors, or which are of several forms."""
        found: list[Any] = [None] * len(items)
        by_place: dict[Place, list[int]] = {}
        seen: set[int] = set()
        for number, item in enumerate(items):
            kept = item._kept
            if kept is not None and item._place.columns is not None and id(item) not in seen:
                if changed([kept]):
                    item._kept = None
                else:
                    found[number] = item._place.columns.again([kept])[0]
                    seen.add(id(item))
                    continue
            by_place.setdefault(item._place, []).append(number)
        for place, numbers in by_place.items():
            data = place.read([items[number]._key for number in numbers])
            for number, datum in zip(numbers, data, strict=True):
                found[number] = datum
        return found
