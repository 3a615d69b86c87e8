"""What the figures mean, in words."""

from __future__ import annotations

from collections.abc import Mapping

from di_store.base.sizes import seconds_text
from di_store.replay.stats import TableStats

WAITS_FOR = {
    "lock": "a lock that another process holds",
    "room": "room in the store",
    "items": "items",
    "limiter": "the table's limiter, which lets the next one pass",
    "object": "an object that is not there yet",
    "weights": "newer weights",
    "memory": "memory",
    "table": "a table that is not there yet",
}
"""What each kind of wait is for, where no limiter tells more."""

STATES = {
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "ended",
    "D": "in the kernel",
    "gone": "gone",
    "unknown": "unknown",
}
"""States of a process that does not simply run, as /proc abbreviates them."""


def wait_text(kind: str, table: str | None, tables: Mapping[str, TableStats]) -> str:
    """What a thread waits for: the limiter's reason with its counts, where a limiter holds it back."""
    reason = ""
    if table is not None and table in tables and kind in ("items", "limiter"):
        limiter = tables[table]["limiter"]
        reason = limiter["sample_reason"] if kind == "items" else limiter["insert_reason"]
    if kind == "room" and table is not None:
        reason = "room among the bytes of its table"
    return reason or WAITS_FOR[kind]


def limiter_text(table: TableStats) -> str:
    """Which side the limiter holds back, and why."""
    limiter = table["limiter"]
    if limiter["reason"]:
        return f"{limiter['state']}: {limiter['reason']}"
    return f"open, last insert {seconds_text(table['seconds_since_insert'])} ago"


def process_state(state: str, alive: bool) -> str:
    """What a process does, as far as it matters to a store, such as "runs", "stopped" or "dead"."""
    return STATES.get(state, "runs") if alive else "dead"
