"""Texts for people: the wait of a thread, the state of a limiter, the state of a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from di_store.base.sizes import format_size, seconds_text
from di_store.replay.stats import TableStats

WAITS_FOR = {
    "lock": "a lock that another process holds",
    "room": "room in the store",
    "items": "items",
    "limiter": "the table's limiter, to let the next call pass",
    "object": "an object that is not there yet",
    "weights": "newer weights",
    "memory": "memory",
    "table": "a table that is not there yet",
}
"""What each kind of wait is for, if no limiter gives a more precise reason."""

STATES = {
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "ended",
    "D": "in the kernel",
    "gone": "gone",
    "unknown": "unknown",
}
"""Texts for process states, by their letter in /proc/PID/stat. All other letters mean "runs"."""


class RoomNeed(NamedTuple):
    """Bytes of a store when a call waits for room. `wanted`: the bytes that the call needs; 0: not known."""

    wanted: int = 0
    free: int = 0
    reserved: int = 0  # for tables


NOT_KNOWN = RoomNeed()


def wait_text(kind: str, table: str | None, tables: Mapping[str, TableStats], room: RoomNeed = NOT_KNOWN) -> str:
    """The reason of a thread's wait; for a limiter, its reason with the counts.

    Args:
        kind: as `WaiterStats.kind`.
        table: name of the table that it waits for, if any.
        tables: statistics of the store's tables by name.
        room: room in the store, for the kind "room".
    """
    reason = ""
    if table is not None and table in tables and kind in ("items", "limiter"):
        limiter = tables[table]["limiter"]
        reason = limiter["sample_reason"] if kind == "items" else limiter["insert_reason"]
    if kind == "room":
        reason = _room_text(table, tables, room)
    return reason or WAITS_FOR[kind]


def _room_text(table: str | None, tables: Mapping[str, TableStats], room: RoomNeed) -> str:
    where = WAITS_FOR["room"] if table is None else "room among the bytes of its table"
    if not room.wanted:
        return where
    free = f"{format_size(room.free)} free, {format_size(room.reserved)} reserved for tables"
    if table is not None and table in tables:
        free = f"{format_size(tables[table]['used_bytes'])} of its {format_size(tables[table]['reserve_bytes'])} used"
    return f"{where}: {format_size(room.wanted)} wanted, {free}"


def limiter_text(table: TableStats) -> str:
    """Whether the limiter makes inserts or samples wait, and why; otherwise the time since the last insert."""
    limiter = table["limiter"]
    if limiter["reason"]:
        return f"{limiter['state']}: {limiter['reason']}"
    return f"open, last insert {seconds_text(table['seconds_since_insert'])} ago"


def process_state(state: str, alive: bool) -> str:
    """A process state in words, such as "runs", "stopped" or "dead"; `state`: as `ClientStats.state`."""
    return STATES.get(state, "runs") if alive else "dead"
