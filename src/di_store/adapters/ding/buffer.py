"""`Buffer`, a replacement for DI-engine's `DequeBuffer`."""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Iterable
from functools import partial
from operator import attrgetter
from typing import Any

import hickle
from ding.data.buffer import Buffer as DingBuffer
from ding.data.buffer import BufferedData, DequeBuffer, apply_middleware
from ding.data.buffer.deque_buffer import BufferIndex
from ding.utils import fastcopy
from ditk import logging

import di_store
from di_store.adapters.ding.forms import packed, unpacked
from di_store.adapters.ding.rows import DataRows, StoredData
from di_store.adapters.stores import StoreLike, given_store, no_table_yet

_index, _meta = attrgetter("index"), attrgetter("meta")
_draw = DequeBuffer.sample.__wrapped__  # without its middleware


class Buffer(DequeBuffer):  # type: ignore[misc]
    """A replacement for `DequeBuffer`: same calls, same middleware, and with the same seed the same batches.

    Its data lie in a store of its own. Tensors, arrays, numbers, and nested dicts, lists and trees of them become
    columns of a table; other values are stored as they are. `meta` stays in this process.

    Drawn data are copies, except for the newest items if they are small (`keep`). To change stored data, call `update`,
    or assign to `data` of an item of `storage`.

    Args:
        size: number of items; the oldest are removed first.
        sliced: whether groups are cut at multiples of `unroll_len`.
        keep: how many of the newest items also stay in this process as the objects that were pushed. Only dicts or
            trees of tensors of up to 1 KiB together are kept. Batches of kept items take no longer than DI-engine's. 0:
            none.
        store: the store of the data, see `adapters.stores.StoreLike`; None: a store of its own.
        table: name of the table there.
    """

    def __init__(
        self,
        size: int,
        sliced: bool = False,
        *,
        keep: int = 20_000,
        store: StoreLike = None,
        table: str = "data",
    ) -> None:
        DingBuffer.__init__(self, size=size)
        self.sliced = sliced
        self._keep = keep
        self._rows = DataRows(size, keep, given_store(store), table)

    @property
    def store(self) -> di_store.Store:
        """The store of the data."""
        return self._rows.store

    @property
    def table(self) -> di_store.Table:
        """The table of the data of the first form that was pushed.

        Raises:
            RuntimeError: nothing was pushed yet, so there is no table.
        """
        if not (tables := self._rows.tables):
            raise no_table_yet("push")
        return tables[0]

    @property
    def storage(self) -> deque[StoredData]:
        """The items, oldest first. Reading `data` of an item reads from the store."""
        return self._rows.items

    @property
    def indices(self) -> DataRows:
        """Positions of items: ``indices.get(index)``, ``indices.has(index)``."""
        return self._rows

    @property
    def meta_index(self) -> dict[Any, Any]:
        """For each key of `meta` that was used for grouping: the values of all items."""
        return self._rows.meta_index

    @meta_index.setter
    def meta_index(self, values: dict[Any, Any]) -> None:
        self._rows.meta_index = values

    # -- writing ------------------------------------------------------------------------------------------------

    def push(self, *given: Any, **named: Any) -> Any:
        """Add an item, ``push(data, meta=None)``.

        As `DequeBuffer.push`, but a microsecond faster through the middleware. Middleware can see whether an argument
        was passed by name.
        """
        call: Any = self._push
        for middleware in reversed(self._middleware):
            call = partial(middleware, "push", call)
        return call(*given, **named)

    def _push(self, data: Any, meta: dict[Any, Any] | None = None) -> Any:
        with self._rows.lock:
            item = self._rows.push(data, {} if meta is None else meta)
            return BufferedData(data, item.index, item.meta)

    @apply_middleware("update")  # type: ignore[untyped-decorator]
    def update(self, index: str, data: Any | None = None, meta: dict[Any, Any] | None = None) -> bool:
        """Replace data, meta or both of an item; None keeps the old value. Returns False if there is no such item."""
        rows = self._rows
        with rows.lock:
            try:
                position = rows.get(index)
            except KeyError:
                return False
            item = rows.items[position]
            if data is not None:
                rows.replace(item, data)
            if meta is not None:
                item.meta = meta
                for name, values in rows.meta_index.items():
                    values[position] = meta.get(name)
            return True

    @apply_middleware("delete")  # type: ignore[untyped-decorator]
    def delete(self, indices: str | Iterable[str]) -> None:
        """Remove one item or several; items that are not there are ignored."""
        with self._rows.lock:
            self._rows.remove([indices] if isinstance(indices, str) else indices)

    @apply_middleware("clear")  # type: ignore[untyped-decorator]
    def clear(self) -> None:
        """Remove all items."""
        with self._rows.lock:
            self._rows.clear()

    # -- reading ------------------------------------------------------------------------------------------------

    @apply_middleware("sample")  # type: ignore[untyped-decorator]
    def sample(
        self,
        size: int | None = None,
        indices: list[str] | None = None,
        replace: bool = False,
        sample_range: slice | None = None,
        ignore_insufficient: bool = False,
        groupby: str | None = None,
        unroll_len: int | None = None,
    ) -> list[Any]:
        """Draw items with Python's `random`, or take the items with the given indices, as `DequeBuffer.sample` does."""
        rows = self._rows
        with rows.lock:
            if indices and not groupby and not sample_range and not unroll_len:
                if size and size != len(indices):
                    raise AssertionError("Size and indices length must be equal.")
                drawn: list[Any] = [rows.find(index) for index in indices]
            elif size and not (indices or replace or sample_range or groupby or unroll_len):
                drawn = self._draw_once(size, ignore_insufficient)
            else:
                drawn = _draw(self, size, indices, replace, sample_range, ignore_insufficient, groupby, unroll_len)
            if drawn and type(drawn[0]) is list:
                flat = iter(self._loaded([item for group in drawn for item in group]))
                return [[next(flat) for _ in group] for group in drawn]
            return self._loaded(drawn)

    def _draw_once(self, size: int, ignore_insufficient: bool) -> list[StoredData]:
        try:
            return random.sample(self.storage, k=size)
        except ValueError:
            if not ignore_insufficient:
                raise ValueError(f"There are less than {size} records/groups in buffer({self.count()})") from None
        logging.warning(f"nothing was sampled: {size} items were asked for, and the buffer holds {self.count()}")
        return []

    def _independence(self, buffered_samples: list[Any]) -> list[Any]:
        """Do nothing: `DataRows.read` copies data that are drawn twice."""
        return buffered_samples

    def _loaded(self, items: list[StoredData]) -> list[Any]:
        """The result that DI-engine's buffer would return.

        Each draw of an item that was drawn twice gets its own `meta`.
        """
        found = [*map(BufferedData, self._rows.read(items), map(_index, items), map(_meta, items))]
        if len(set(map(id, items))) < len(items):
            seen: set[int] = set()
            for item, result in zip(items, found, strict=True):
                if id(item) in seen:
                    result.meta = fastcopy.copy(item.meta)
                seen.add(id(item))
        return found

    def get(self, idx: int) -> Any:
        """The item at a position, counted from the oldest."""
        with self._rows.lock:
            return self._loaded([self.storage[idx]])[0]

    def get_by_index(self, index: str) -> Any:
        """The item with this index; KeyError if there is none."""
        with self._rows.lock:
            return self._loaded([self._rows.find(index)])[0]

    # -- copies and files ---------------------------------------------------------------------------------------

    def __copy__(self) -> Buffer:
        """A view: the same items, with middleware of its own."""
        copied = type(self).__new__(type(self))
        DingBuffer.__init__(copied, size=self.size)
        copied.sliced, copied._keep, copied._rows = self.sliced, self._keep, self._rows
        return copied

    def save_data(self, file_name: str) -> None:
        """Write all items to a file, which `DequeBuffer` can load too."""
        if folder := os.path.dirname(file_name):
            os.makedirs(folder, exist_ok=True)
        items = deque(self._items(), maxlen=self.size)
        index = BufferIndex(self.size, [(item.index, place) for place, item in enumerate(items)])
        hickle.dump((items, index, self.meta_index), file_name)

    def load_data(self, file_name: str) -> None:
        """Replace all items with those of a file, which may come from `DequeBuffer`."""
        loaded = DequeBuffer(size=self.size)
        loaded.load_data(file_name)  # DI-engine's own code reads the pickles in it
        self._fill(loaded.storage, loaded.meta_index)

    def _items(self) -> list[Any]:
        with self._rows.lock:
            return self._loaded([*self.storage])

    def _fill(self, items: Iterable[Any], meta_index: dict[Any, Any]) -> None:
        rows = self._rows
        with rows.lock:
            rows.clear()
            for item in items:
                rows.push(item.data, item.meta, item.index)
            rows.meta_index = meta_index

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the items themselves: the loaded buffer has a store of its own.

        With a given store, pickle the names of its tables.
        """
        state = self.__dict__.copy()
        if self._rows.given:
            return state
        del state["_rows"]
        items = [(packed(item.data), item.meta, item.index) for item in self._items()]
        return state | {"items": items, "groups": self.meta_index}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_rows" in state:
            self.__dict__.update(state)
            return
        items, groups = state.pop("items"), state.pop("groups")
        self.__dict__.update(state)
        self._rows = DataRows(self.size, self._keep)
        self._fill([BufferedData(unpacked(data), index, meta) for data, meta, index in items], groups)
