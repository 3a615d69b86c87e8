"""What is going on in a store, as nested dicts; read without locks."""

from __future__ import annotations

from typing import Any

from di_store import _core
from di_store.handle import TableHandle
from di_store.limiters import UNBOUNDED, MinSize, SamplesPerInsert
from di_store.settings import UNLIMITED

ROLES = ((1, "writer"), (2, "learner"), (4, "tool"))
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


def table_stats(handle: TableHandle) -> dict[str, Any]:
    """Counts, bytes and the limiter's state of one table.

    ``bytes_stored`` is what its chunks take, ``bytes_logical`` what its items would take if each held its own copy.
    """
    found = dict(handle.native.stats())
    if found["capacity"] >= UNLIMITED:
        found["capacity"] = None
    if found["max_bytes"] >= UNLIMITED:
        found["max_bytes"] = None
    plan = handle.read_plan()
    found["bytes_stored"] = found["used_bytes"]
    found["bytes_logical"] = found["size"] * plan.item_bytes if plan is not None else 0
    insert, sample = found.pop("insert_blocked"), found.pop("sample_blocked")
    limiter = dict(found["limiter"])
    limiter["kind"] = _limiter_kind(handle, limiter)
    limiter["state"] = "inserts wait" if insert else "samples wait" if sample else "flowing"
    limiter["reason"] = insert or sample
    limiter["insert_reason"], limiter["sample_reason"] = insert, sample
    found["limiter"] = limiter
    found["view"] = repr(handle.settings.view)
    found["sampler"] = repr(handle.settings.sampler)
    found["remover"] = repr(handle.settings.remover)
    return found


def _limiter_kind(handle: TableHandle, numbers: dict[str, Any]) -> str:
    """The class of the limiter in force, which `configure` may have changed."""
    if handle.settings.queued:
        return type(handle.settings.limiter).__name__
    return MinSize.__name__ if numbers["max_diff"] >= UNBOUNDED else SamplesPerInsert.__name__


def store_stats(arena: _core.Arena, tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Bytes, clients, waiters and tables of a store.

    ``live + pinned + pending + free == memory``: bytes in use that nobody reads right now (chunks, tables' metadata and
    the store's own included), objects being read, deleted objects still being read, and what is not in use.
    """
    found = dict(arena.stats())
    used = found["object_pages"] + found["chunk_pages"] + found["meta"] + found["fixed"]
    found["memory"] = found["budget"]
    found["live_objects_bytes"] = found["live"]
    found["free"] = max(0, found["budget"] - used)
    found["pinned"] -= min(found["pinned"], found["pending"])  # the core counts deleted ones that are read in both
    found["live"] = found["budget"] - found["free"] - found["pinned"] - found["pending"]
    for client in found["clients"]:
        mine = [waiting for waiting in found["waiters"] if waiting["slot"] == client["slot"]]
        client["waiting"] = max(mine, key=lambda waiting: waiting["since_seconds"], default=None)
        client["roles"] = [name for bit, name in ROLES if client["role"] & bit]
    found["waiters"] = [_waiter(waiting, tables) for waiting in found["waiters"]]
    found["tables"] = tables
    return found


def _waiter(waiting: dict[str, Any], tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One thread that waits: what for, why, for how long, and who holds it up."""
    kind, table = waiting["kind"], waiting["table"]
    reason = ""
    if table in tables and kind in ("items", "limiter"):
        limiter = tables[table]["limiter"]
        reason = limiter["sample_reason"] if kind == "items" else limiter["insert_reason"]
    if kind == "room" and table is not None:
        reason = "room among the bytes of its table"
    return {
        "slot": waiting["slot"],
        "pid": waiting["pid"],
        "thread": waiting["thread"],
        "kind": kind,
        "table": table,
        "reason": reason or WAITS_FOR[kind],
        "seconds": waiting["since_seconds"],
        "culprit": waiting["culprit_pid"],
        "culprit_name": waiting["culprit_name"],
    }
