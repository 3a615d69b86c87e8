"""Changes a table's capacity and its other settings while it is in use."""

from __future__ import annotations

from functools import partial
from typing import Any

from di_store.base.errors import CapacityError
from di_store.layout.shape import native_changes, slots_for
from di_store.policy.changes import check_changes
from di_store.replay.handle import Size, TableHandle, held_reserve


def resize_table(handle: TableHandle, capacity: int, seconds: float) -> None:
    """`Table.resize`; `seconds`: to wait for locks, negative: no limit."""
    settings = handle.settings
    handle.native.require_filled()
    stats = handle.native.stats()
    least = int(stats["limiter"]["max_diff"]) if settings.queued else int(stats["limiter"]["min_size"])
    if capacity < least:
        raise CapacityError(
            f"capacity={capacity} is below the {least} items that the limiter of table {handle.name!r} needs",
            remedy="change it first with table.configure(limiter=)",
        )
    handle.resize(partial(_resized, handle, capacity, seconds), seconds)


def _resized(handle: TableHandle, capacity: int, seconds: float, now: dict[str, Any]) -> Size:
    """The size of a table for `capacity` items; `now`: `stats` of the core's table.

    Raises:
        CapacityError: the store has no room for the items.
    """
    schema, slots, reserve = handle.schema, int(now["slots"]), held_reserve(now)
    if schema is not None:
        needed = handle.needs_resized(schema, capacity, now)
        handle.make_room(needed, slots_for(capacity, handle.settings.view), now, seconds)
        reserve = needed.reserve
    return capacity, max(slots_for(capacity, handle.settings.view), slots), reserve


def configure_table(handle: TableHandle, changes: dict[str, Any], seconds: float) -> None:
    """`Table.configure`; `changes`: its arguments by name."""
    capacity = handle.native.capacity
    checked = check_changes(handle.settings, capacity, **changes)
    handle.native.configure(*native_changes(checked), seconds)
