"""What is going on in a store, as nested dicts; read without locks, but for the lengths of ragged values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, StoreError
from di_store.lowering.plan import ReadPlan
from di_store.policy.limiters import UNBOUNDED, MinSize, SamplesPerInsert
from di_store.policy.settings import UNLIMITED
from di_store.replay.handle import TableHandle

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

ROWS_LOOKED_AT = 1 << 14
"""Of a table with ragged columns, by one call of `stats()`: some milliseconds."""
_SLOTS_LOOKED_AT = 1 << 20  # for so many rows, where most slots are empty
_PATIENCE_SECONDS = 0.02  # for the table's lock
_ITEMS_AT_ONCE = 64
_DAMAGED_LOOKED_AT = 16
_LOOKS = 3  # while all items go before they are looked at


def table_stats(handle: TableHandle) -> dict[str, Any]:
    """Counts, bytes and the limiter's state of one table.

    ``bytes_stored`` is what its chunks take, ``bytes_logical`` what its items would take if each held its own copy: see
    `Table.stats`.
    """
    found = dict(handle.native.stats())
    if found["capacity"] >= UNLIMITED:
        found["capacity"] = None
    if found["max_bytes"] >= UNLIMITED:
        found["max_bytes"] = None
    plan = handle.read_plan()
    found["bytes_stored"] = found["used_bytes"]
    found["bytes_logical"] = found["size"] * plan.item_bytes if plan is not None else 0
    if plan is not None and plan.ragged and found["size"]:
        found["bytes_logical"] += _ragged_bytes(handle, plan, found["size"])
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


def _ragged_bytes(handle: TableHandle, plan: ReadPlan, size: int) -> int:
    """Bytes of the ragged values in a batch of all items; of many, by the mean of some; 0 where none can be seen."""
    items = rows = total = 0
    view = plan.native["view"]
    longest = max(view["n_step"], view["burn_in"] + view["length"], view["max_length"])
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
        pass  # held up, dropped, or without memory to look
    return total * size // items if items else 0


def _evenly(table: _core.Table, size: int, most: int) -> Iterator[Array]:
    """Keys of live items, in parts of up to `most` that each lie evenly among all; of all items, where they are few."""
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
    """Items, rows and bytes, without those of damaged items, of which few are looked for."""
    try:
        return reader.measure(keys, _PATIENCE_SECONDS)
    except CorruptData:
        if len(keys) == 1:
            return 0, ROWS_LOOKED_AT // _DAMAGED_LOOKED_AT, 0
        left, right = _measured(reader, keys[::2]), _measured(reader, keys[1::2])
        return left[0] + right[0], left[1] + right[1], left[2] + right[2]


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
