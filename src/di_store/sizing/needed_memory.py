"""Estimates how much memory a table needs, before the store exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from di_store import _core
from di_store.layout.native_views import check_limits
from di_store.layout.plan import read_plan
from di_store.layout.reserve import MIB, needs_without_rows, table_needs
from di_store.policy.options import TableOptions, check_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

OWN_BYTES = 2 * MIB
"""What a store itself needs: its header and index, and the notes of some ten processes (measured: 0.5 MiB, and 0.1 MiB
each)."""


def needed_memory(**options: Unpack[TableOptions]) -> int:
    """The smallest ``memory=``, in bytes, with which `Store.create_table` with these options succeeds.

    The result includes 2 MiB for the store itself. A store with several tables needs at most the sum. Add room for
    objects, for weights, and for undelivered batches of tables whose draws use items up.

    Args:
        options: as in `Store.create_table`. `schema` may be left out only with `max_bytes`. Removers other than Fifo()
            evict in another order, and need more memory.

    Raises:
        ValueError: neither `schema` nor `max_bytes` is given; or the settings cannot work, as in `Store.create_table`.
        CapacityError: no store can hold such rows or so many items.
    """
    settings = check_options(options, 0)
    check_limits(settings.view)
    if settings.schema is None and settings.max_bytes is None:
        raise ValueError("needed_memory() needs schema=, the type of the rows, or max_bytes=")
    if settings.schema is None:
        needed = needs_without_rows(settings)
    else:
        read_plan(settings.view, settings.schema, settings.columns)
        needed = table_needs(settings, settings.schema, settings.capacity)
    return _core.least_budget(needed.total + OWN_BYTES)
