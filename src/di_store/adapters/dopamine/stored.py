"""The table of a buffer's arrays, and the code that all kinds of elements share."""

from __future__ import annotations

from collections.abc import Mapping

import di_store
from di_store.adapters.rows import Rows


def new_rows(specs: Mapping[str, di_store.Spec], slots: int, store: di_store.Store | None, table: str) -> Rows:
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
            f"table {table!r} of the store is there already, and which elements its rows belong to is not in it",
            remedy="load the buffer's pickle, which goes on with the table; or give table= another name",
        )
    return Rows(specs, slots, option="max_capacity=", store=store, table=table)


class InTable:
    """Elements whose arrays lie in a table."""

    _rows: Rows | None = None

    @property
    def rows(self) -> Rows | None:
        """The arrays; None if there are none yet."""
        return self._rows

    def close(self) -> None:
        """Drop the table."""
        if self._rows is not None:
            self._rows.store.drop_table(self._rows.table.name)
