"""The store of an adapter: the one given by `store=`, or a store of its own.

Every adapter takes ``store=`` and ``table=`` in this way, and has `.store` and `.table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

import di_store

StoreLike: TypeAlias = "di_store.Store | str | Mapping[str, Any] | None"
"""What ``store=`` takes: a store (of this machine, a connected one, one of a cluster), the name of one, or a dict of
`di_store.open`'s options. None: the adapter opens one of its own."""

NO_KEY = np.uint64(2**64 - 1)
"""Stands in place of a key where there is no item."""
MOST_STAGED = 64
"""Writes that a buffer gathers before they reach its table."""
_LEAST_MEMORY = 8 << 20


def given_store(store: StoreLike) -> di_store.Store | None:
    """The store that ``store=`` names; None: no store was given.

    Raises:
        TypeError: the argument names no store. Other errors as in `di_store.open`.
    """
    if store is None or isinstance(store, di_store.Store):
        return store
    if isinstance(store, str):
        return di_store.open(store)
    if isinstance(store, Mapping):
        return di_store.open(**store)
    raise TypeError(
        f"store= is a {type(store).__name__}: give a store, its name, or a dict of di_store.open's options, such "
        'as store={"memory": "4GiB", "disk": "/data/replay"}'
    )


def own_store(needed: int, what: str, lower: str, *, spare: int = 0) -> di_store.Store:
    """A store for one adapter alone, without a disk tier.

    Args:
        needed: bytes that the adapter's tables need.
        what: the subject of the error, in the plural.
        lower: the argument that makes `needed` smaller, for the error.
        spare: bytes that the store gets in addition, if the machine has them.

    Raises:
        di_store.CapacityError: the machine has less memory.
    """
    needed = max(needed, _LEAST_MEMORY)
    try:
        return di_store.open(memory=needed + spare)
    except di_store.CapacityError:
        pass
    try:
        return di_store.open(memory=needed)
    except di_store.CapacityError as error:
        raise di_store.CapacityError(
            f"{what} need {needed / 2**30:.1f} GiB, more than this machine has",
            remedy=f'lower {lower}, or give a store with a disk tier: store={{"disk": "/data/replay"}}',
        ) from error


def table_of(store: di_store.Store, name: str, size: str, **options: Any) -> di_store.Table:
    """The table of this name in a given store: an existing one with its rows, or a new one.

    Args:
        store: the given store.
        name: name of the table.
        size: the argument of the adapter that sets the capacity.
        options: options of `Store.create_table`.

    Raises:
        ValueError: the existing table holds another number of items. di_store.TableExists: it has other columns.
    """
    table = store.create_table(name, exist_ok=True, **options)
    if table.capacity != options["capacity"]:
        raise ValueError(
            f"table {name!r} of the store holds {table.capacity:,} items, and {size} asks for "
            f"{options['capacity']:,}: give its original size, or table= another name"
        )
    return table


class MadeAtFirst:
    """`store` and `table` of a buffer, also if the first write creates the table, because it decides the columns."""

    _given: di_store.Store | None = None
    _rows: Any = None
    _first_call = "add"

    def _made(self) -> Any:
        """What has the attributes `store` and `table`; None: nothing was written yet."""
        return self._rows

    @property
    def store(self) -> di_store.Store:
        """The store of the rows. For a store of its own, this raises as `table` does."""
        found: di_store.Store = self._given if self._given is not None else self._there().store
        return found

    @property
    def table(self) -> di_store.Table:
        """The table of the rows; if there are several, the first one.

        Raises:
            RuntimeError: nothing was written yet, so there is no table.
        """
        found: di_store.Table = self._there().table
        return found

    def _there(self) -> Any:
        if (made := self._made()) is None:
            raise no_table_yet(self._first_call)
        return made


def no_table_yet(call: str) -> RuntimeError:
    """The error if a table is asked for before the first write."""
    return RuntimeError(f"the table does not exist yet: the first {call}() creates it")


def rows_are_gone(count: int, table: str) -> di_store.StoreError:
    """The error if an adapter's rows are missing, for example because another program wrote to its table."""
    return di_store.StoreError(
        f"{count} of the rows are gone from table {table!r}: another process wrote to it or removed them",
        remedy="only one adapter may write to a table; reset() the buffer to continue without these rows",
    )
