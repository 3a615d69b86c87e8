"""The bytes of ragged values in a table: measured over all items of a small table, otherwise estimated from some."""

from __future__ import annotations

from collections.abc import Iterator

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, StoreError
from di_store.layout.plan import ReadPlan
from di_store.replay.handle import TableHandle

ROWS_LOOKED_AT = 1 << 14
"""Rows that one call of `stats()` measures in a table with ragged columns; takes some milliseconds."""
_SLOTS_LOOKED_AT = 1 << 20  # at most so many slots are searched for items, since most may be empty
_PATIENCE_SECONDS = 0.02  # to wait for the table's lock
_ITEMS_AT_ONCE = 64
_DAMAGED_LOOKED_AT = 16  # after so many damaged items the measurement ends
_LOOKS = 3  # attempts, if every item found was removed before it was measured


def ragged_bytes(handle: TableHandle, plan: ReadPlan, size: int) -> int:
    """Bytes of the ragged values in a batch of all items; `size`: number of items in the table.

    If the items have more than `ROWS_LOOKED_AT` rows, the number is estimated from some of them. 0 if no item could be
    measured.
    """
    items = rows = total = 0
    view = plan.native["view"]
    longest = max(
        view["n_step"], view["horizon"], (view["burn_in"] + view["length"]) * view["stride"], view["max_length"]
    )
    try:
        reader = handle.reader()
        for _ in range(_LOOKS):
            for keys in _evenly(handle.native, size, max(1, min(_ITEMS_AT_ONCE, ROWS_LOOKED_AT // longest))):
                found = _measured(reader, keys)
                items, rows, total = items + found[0], rows + found[1], total + found[2]
                if rows >= ROWS_LOOKED_AT:
                    break
            if rows:
                break
    except StoreError:
        pass  # another process holds the lock, the table was dropped, or there is no memory for measuring
    return total * size // items if items else 0


def _evenly(table: _core.Table, size: int, most: int) -> Iterator[Array]:
    """Keys of live items in parts of up to `most`, each spread evenly over the table; a small table: all its items."""
    if size <= ROWS_LOOKED_AT:
        keys = table.keys(0, size, _PATIENCE_SECONDS)
        parts = -(-len(keys) // most)
        for part in range(parts):
            yield keys[part::parts]
        return
    for start in range(0, _SLOTS_LOOKED_AT, 1 << 12):
        keys = table.keys(start, 1 << 12, _PATIENCE_SECONDS, spread=True)
        for at in range(0, len(keys), most):
            yield keys[at : at + most]


def _measured(reader: _core.Reader, keys: Array) -> tuple[int, int, int]:
    """Items, rows and bytes of undamaged items.

    A damaged item counts as many rows, so that the caller stops after `_DAMAGED_LOOKED_AT` damaged items.
    """
    try:
        found = reader.measure(keys, _PATIENCE_SECONDS)
        return found.items, found.rows, found.bytes
    except CorruptData:
        if len(keys) == 1:
            return 0, ROWS_LOOKED_AT // _DAMAGED_LOOKED_AT, 0
        left, right = _measured(reader, keys[::2]), _measured(reader, keys[1::2])
        return left[0] + right[0], left[1] + right[1], left[2] + right[2]
