"""The table of a buffer's arrays, and the code that all kinds of elements share."""

from __future__ import annotations

from collections.abc import Mapping

import di_store
from di_store.adapters.ring import Ring
from di_store.adapters.stored_array import Array


def new_rows(specs: Mapping[str, di_store.Spec], slots: int, store: di_store.Store | None, table: str) -> Ring:
    """Rows in a table of their own.

    Args:
        specs: type of each column's row.
        slots: number of rows.
        store: the store of the table; None: a store of its own.
        table: name of the table.

    Raises:
        di_store.TableExists: the store has such a table. di_store.CapacityError: the table does not fit.
    """
    if store is not None and any(name == table for name in store.stats()["tables"]):
        raise di_store.TableExists(
            f"table {table!r} already exists in the store, and does not say which elements its rows belong to",
            remedy="load the buffer's pickle, which continues with the table; or give table= another name",
        )
    return Ring(specs, slots, option="max_capacity=", store=store, table=table)


class InTable:
    """Elements whose arrays lie in a table."""

    _rows: Ring | None = None

    @property
    def rows(self) -> Ring | None:
        """The arrays; None if there are none yet."""
        return self._rows

    def close(self) -> None:
        """Drop the table."""
        if self._rows is not None:
            self._rows.store.drop_table(self._rows.table.name)

    def _changed(self) -> Array:
        """Find the rows of the table again: bool[slots], True for slots that now hold another row, or none."""
        assert self._rows is not None
        before = self._rows.keys.copy()
        self._rows.take_over()
        changed: Array = before != self._rows.keys
        return changed
