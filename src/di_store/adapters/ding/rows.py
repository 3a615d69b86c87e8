"""The items of a buffer in push order, with their data in tables."""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from ding.data.buffer import BufferedData
from ding.utils import fastcopy

import di_store
from di_store.adapters.ding.forms import DingColumns, NoColumnsError, described, flat, packed, unpacked
from di_store.adapters.stores import MOST_STAGED

_NOTHING = type(None)
_on_cpu, _live, _number = attrgetter("is_cpu"), attrgetter("_live"), attrgetter("_number")
_MOST_FORMS = 4
"""Forms that get a table of columns; data of further forms are stored as whole values."""


class StoredData(BufferedData):  # type: ignore[misc]
    """An item of a buffer. The data are an object of this process, or are read from the store at each use."""

    __slots__ = ("_key", "_live", "_number", "_place", "_rows", "index", "meta")

    def __init__(self, rows: DataRows, index: str, number: int, meta: dict[Any, Any]) -> None:
        self._rows, self._number, self.index, self.meta = rows, number, index, meta
        self._place: FormTable
        self._key: int | None  # None: it is not written yet
        self._live: Any

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "_live"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._live = None
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def data(self) -> Any:
        """The data that were pushed, or assigned since."""
        with self._rows.lock:
            return self._rows.read([self])[0]

    @data.setter
    def data(self, datum: Any) -> None:
        self._rows.replace(self, datum)

    def __repr__(self) -> str:
        return f"{BufferedData.__name__}(index={self.index!r}, meta={self.meta!r})"


fastcopy.dispatch[StoredData] = lambda item: BufferedData(item.data, item.index, fastcopy.copy(item.meta))


class FormTable:
    """A table for data of one form, or for whole values if `columns` is None."""

    def __init__(self, table: di_store.Table, columns: DingColumns | None) -> None:
        self.table, self.columns = table, columns

    def read(self, keys: list[int]) -> list[Any]:
        """The data of items of the table.

        Raises:
            LookupError: an item is no longer there.
        """
        batch = self.table.peek(np.array(keys, np.uint64))
        if batch.live is not None and not batch.live.all():
            raise LookupError("the item was removed from the buffer: keep its data, not the item")
        if self.columns is None:
            return [unpacked(value) for value in batch.data]
        return self.columns.data(batch.data)


class DataRows:
    """The items of a buffer and of its views.

    Args:
        size: number of items; the oldest are removed first.
        keep: how many of the newest items also keep their data as objects, if these are small.
        store: the store of the tables; None: a store of its own.
        table: name of the first table; tables of other forms get a number.

    Attributes:
        store: the store of the tables.
        given: whether the store was given.
        items: in push order.
        meta_index: by key of `meta` that was used for grouping: its values by item.
        lock: held while the items are used.
    """

    def __init__(self, size: int, keep: int, store: di_store.Store | None = None, table: str = "data") -> None:
        self._keep, self._table = keep, table
        self.store, self.given = store or di_store.open(memory="fit"), store is not None
        self.items: deque[StoredData] = deque(maxlen=size)
        self.meta_index: dict[Any, Any] = {}
        self.lock = threading.RLock()
        self._size, self._pushed = size, 0
        self._prefix = uuid.uuid4().hex[:16]
        self._numbers: dict[str, int] = {}  # of the items, by index
        self._places: dict[Any, FormTable] = {}
        self._live_places: dict[Any, FormTable] = {}  # by `flat`'s form, of data that stay live
        self._staged: list[tuple[StoredData, list[Any]]] = []  # live items that are not written yet
        self._in_order = True  # one table, whose order is that of the items: it evicts by itself

    def __len__(self) -> int:
        return len(self.items)

    @property
    def tables(self) -> list[di_store.Table]:
        """The tables, in the order in which they were made."""
        return [place.table for place in self._places.values()]

    # -- where an item is ---------------------------------------------------------------------------------------

    def get(self, index: str) -> int:
        """The position of an item; KeyError if there is none."""
        number = self._numbers[index]
        guess = number - self.items[0]._number
        if 0 <= guess < len(self.items) and self.items[guess]._number == number:
            return guess
        # Items were deleted, so it lies further left.
        return bisect_left(self.items, number, hi=min(guess + 1, len(self.items)), key=_number)

    def has(self, index: str) -> bool:
        """Whether there is an item with this index."""
        return index in self._numbers

    def find(self, index: str) -> StoredData:
        """The item with this index; KeyError if there is none."""
        return self.items[self.get(index)]

    # -- writing ------------------------------------------------------------------------------------------------

    def push(self, datum: Any, meta: dict[Any, Any], index: str | None = None) -> StoredData:
        """Add an item, and remove the oldest items if there is no room.

        Raises:
            di_store.CapacityError: `size` such items need more memory than the machine has.
        """
        number = self._pushed
        index = index or f"{self._prefix}{number:016x}"
        item = StoredData(self, index, number, meta)
        self._write(item, datum)
        self._pushed = number + 1
        self._numbers[index] = number
        items = self.items
        if len(items) == self._size:
            oldest = items[0]
            key = self._written(oldest) if oldest._key is None else oldest._key
            self._numbers.pop(oldest.index, None)
            if not self._in_order:
                oldest._place.table.delete([key])
        items.append(item)
        if len(items) > self._keep and (older := items[-1 - self._keep])._live is not None:
            self._written(older)
            older._live = None
        for name, values in self.meta_index.items():
            values.append(meta.get(name))
        return item

    def replace(self, item: StoredData, datum: Any) -> None:
        """Give an item other data."""
        with self.lock:
            place, key = item._place, self._written(item)
            self._write(item, datum)
            self._written(item)
            place.table.delete([key])
            self._in_order = False

    def _write(self, item: StoredData, datum: Any) -> None:
        """Add a row for an item, or stage it if the datum stays live."""
        form, leaves = flat(datum) if self._live_places else (None, [])
        place = self._live_places.get(form)
        if place is None:
            self._write_described(item, datum)
            return
        item._place, item._key, item._live = place, None, datum
        self._staged.append((item, leaves))
        if self.given or len(self._staged) == MOST_STAGED:
            self._flush()

    def _write_described(self, item: StoredData, datum: Any) -> None:
        """The same for a form without live data so far, and for data that never stay live."""
        leaves: list[Any] = []
        item._key = item._live = None
        try:
            form = described(datum, leaves)
            item._place = place = self._places.get(form) or self._new_place(form, leaves)
            if place.columns is not None:
                self._flush()
                item._key = int(place.table.insert(place.columns.row(leaves))[0])
                if self._keep and place.columns.live and all(map(_on_cpu, leaves)):
                    item._live = datum
                    if (found := flat(datum)[0]) is not None:
                        self._live_places[found] = place
                return
        except NoColumnsError:
            pass
        item._place = place = self._places.get(None) or self._new_place(None, [])
        item._key = int(place.table.insert(packed(datum))[0])

    def _written(self, item: StoredData) -> int:
        """The key of an item's row."""
        if item._key is None:
            self._flush()
        assert item._key is not None
        return item._key

    def _flush(self) -> None:
        """Write the staged rows."""
        if not self._staged:
            return
        by_place: dict[FormTable, list[tuple[StoredData, list[Any]]]] = {}
        for each in self._staged:
            by_place.setdefault(each[0]._place, []).append(each)
        self._staged = []
        for place, staged in by_place.items():
            assert place.columns is not None
            for begin in range(0, len(staged), self._size):
                part = staged[begin : begin + self._size]
                keys = place.table.extend(place.columns.rows([leaves for _, leaves in part])).tolist()
                for (item, _), key in zip(part, keys, strict=True):
                    item._key = key

    def _new_place(self, form: Any, leaves: list[Any]) -> FormTable:
        """A table for this form, or for whole values if the form gets no table of its own."""
        columns = None
        if form is not None:
            if len(self._places) > _MOST_FORMS:
                raise NoColumnsError
            columns = DingColumns(form, leaves)
        # One row more than items: a new row is written before an old one is removed.
        options: dict[str, Any] = {"capacity": self._size + 1}
        try:
            number = len(self._places)
            table = self.store.create_table(
                f"{self._table}-{number}" if number else self._table,
                view=di_store.Opaque() if columns is None else di_store.Step(),
                schema=None if columns is None else columns.schema,
                **options,
            )
        except di_store.SchemaMismatch as error:  # a type that tables lack
            raise NoColumnsError from error
        except di_store.TableExists as error:
            raise di_store.TableExists(
                f"{error.message}, and it does not hold the order of a buffer's items",
                remedy="load the buffer's pickle, which continues with the table; or give table= another name",
            ) from error
        place = self._places[form] = FormTable(table, columns)
        self._in_order = len(self._places) == 1
        return place

    def remove(self, indices: Iterable[str]) -> None:
        """Remove items; items that are not there are ignored."""
        positions = sorted({self.get(index) for index in indices if self.has(index)})
        if not positions:
            return
        gone = [self.items[position] for position in positions]
        keys: dict[FormTable, list[int]] = {}
        for item in gone:
            keys.setdefault(item._place, []).append(self._written(item))
            self._numbers.pop(item.index, None)
        for place, those in keys.items():
            place.table.delete(np.array(those, np.uint64))
        indexed = [values for values in self.meta_index.values() if len(values) == len(self.items)]
        for values in (self.items, *indexed):
            for position in reversed(positions):
                del values[position]

    def clear(self) -> None:
        """Remove all items."""
        self._staged.clear()
        for place in self._places.values():
            place.table.reset()
        self.items.clear()
        self.meta_index.clear()
        self._numbers.clear()

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, items: Sequence[StoredData]) -> list[Any]:
        """The data of items: the objects of items that are live, copies for all others."""
        found = [*map(_live, items)]
        if _NOTHING in map(type, found) or len(set(map(id, items))) < len(items):
            return self._read_mixed(items, found)
        return found

    def _read_mixed(self, items: Sequence[StoredData], found: list[Any]) -> list[Any]:
        """The same if some items are not live or occur several times: these are copied."""
        by_place: dict[FormTable, list[int]] = {}
        seen: set[int] = set()
        for number, item in enumerate(items):
            if item._live is None:
                by_place.setdefault(item._place, []).append(number)
            elif id(item) in seen:
                found[number] = fastcopy.copy(item._live)
            seen.add(id(item))
        for place, numbers in by_place.items():
            data = place.read([self._written(items[number]) for number in numbers])
            for number, datum in zip(numbers, data, strict=True):
                found[number] = datum
        return found

    # -- pickling -----------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """The names of the tables, and the rows of the items: a loaded buffer reads and writes the same rows."""
        with self.lock:
            self._flush()
            return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.lock, self._prefix = threading.RLock(), uuid.uuid4().hex[:16]
        known: dict[FormTable, set[int | None]] = {place: set() for place in self._places.values()}
        for item in self.items:
            known[item._place].add(item._key)
        held = {place: place.table.keys().tolist() for place in known}
        there = {place: set(keys) for place, keys in held.items()}
        self.remove([item.index for item in self.items if item._key not in there[item._place]])
        for place, keys in held.items():
            newest = max((at for at, key in enumerate(keys) if key in known[place]), default=-1)
            for key in keys[newest + 1 :]:
                self._adopt(place, key)

    def _adopt(self, place: FormTable, key: int) -> None:
        """A row that was written after the pickle becomes an item without `meta`."""
        number = self._pushed
        item = StoredData(self, f"{self._prefix}{number:016x}", number, {})
        item._place, item._key, item._live = place, key, None
        if len(self.items) == self._size:
            self.remove([self.items[0].index])
        self._pushed = number + 1
        self._numbers[item.index] = number
        self.items.append(item)
        for values in self.meta_index.values():
            values.append(None)
