"""Estimates how much memory a table needs, before the store exists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from di_store import _core
from di_store.layout.native_views import check_limits
from di_store.layout.plan import read_plan
from di_store.layout.reserve import MIB, needs_without_rows, table_needs
from di_store.policy.limiters import Limiter
from di_store.policy.options import NOT_GIVEN, NotGiven, TableOptions, check_options
from di_store.policy.samplers import Remover, Sampler
from di_store.policy.views import Step, View

OWN_BYTES = 2 * MIB
"""Of a store: its header and index, and what some ten processes note there (measured: 0.5 MiB, and 0.1 MiB each)."""


def needed_memory(
    *,
    capacity: int | None,
    view: View = Step(),  # noqa: B008 - immutable
    schema: Any = None,
    sampler: Sampler | NotGiven = NOT_GIVEN,
    remover: Remover | NotGiven = NOT_GIVEN,
    limiter: Limiter | NotGiven = NOT_GIVEN,
    max_times_sampled: int | NotGiven = NOT_GIVEN,
    max_bytes: int | str | None = None,
    lanes: int = 64,
    columns: str | Iterable[str] | None = None,
) -> int:
    """The smallest ``memory=``, in bytes, with which `Store.create_table` with these options succeeds.

    The result includes 2 MiB for the store itself. A store with several tables needs at most the sum. Add room for
    objects, for weights, and for undelivered batches of tables whose draws use items up.

    Args:
        capacity: number of items; None: as many as fit `max_bytes`.
        view: how rows become examples.
        schema: nested dict of anything with `.shape` and `.dtype`. It may be left out only with `max_bytes`.
        sampler: default Uniform().
        remover: default Fifo(). Removers that evict in another order need more memory.
        limiter: default MinSize(1).
        max_times_sampled: number of draws after which an item is removed; default 0, no limit.
        max_bytes: limit on the bytes of the table's rows.
        lanes: number of lanes for whose open episodes room is reserved.
        columns: columns that batches hold; None: all.

    Raises:
        ValueError: neither `schema` nor `max_bytes` is given; or the settings cannot work, as in `Store.create_table`.
        CapacityError: no store can hold such rows or so many items.
    """
    options = TableOptions(
        view=view,
        schema=schema,
        sampler=sampler,
        remover=remover,
        limiter=limiter,
        max_times_sampled=max_times_sampled,
        capacity=capacity,
        max_bytes=max_bytes,
        lanes=lanes,
        weights=None,
        max_staleness=None,
        initial_priority="max",
        columns=columns,
        durability="memory",
        seed=0,
    )
    settings = check_options(options, 0)
    check_limits(view)
    if settings.schema is None and settings.max_bytes is None:
        raise ValueError("needed_memory() needs schema=, the type of the rows, or max_bytes=")
    if settings.schema is None:
        needed = needs_without_rows(settings)
    else:
        read_plan(settings.view, settings.schema, settings.columns)
        needed = table_needs(settings, settings.schema, settings.capacity)
    return _core.least_budget(needed.total + OWN_BYTES)
