"""What is going on in a store: bytes, processes, who waits; read without locks."""

from __future__ import annotations

from typing import Any, TypedDict, cast

from di_store import _core
from di_store.observe.explain import wait_text
from di_store.replay.stats import TableStats

ROLES = ((1, "writer"), (2, "learner"), (4, "tool"))
"""Bits of a client's role word."""


class WaiterStats(TypedDict):
    """One thread that waits."""

    slot: int  # of its process among the clients
    pid: int
    thread: int
    kind: str  # "lock", "room", "items", "limiter", "object", "weights", "memory" or "table"
    table: str | None
    reason: str  # what it waits for, in words, with a limiter's counts
    seconds: float  # how long it has waited
    culprit: int | None  # pid of the process that holds it up; None: none does, or it is not known
    culprit_name: str | None  # that process in words


class ClientStats(TypedDict):
    """One process that has the store open."""

    slot: int
    pid: int
    alive: bool
    self: bool  # the process that asks
    other_pid_namespace: bool  # its pid means another process here
    state: str  # as /proc tells it ("R", "S", "T", …), "gone" or "unknown"
    role: int  # bits of ROLES
    roles: list[str]
    pinned: int  # bytes of objects that it reads
    page_tables: int  # bytes
    stale_dropped: int  # of its items, those removed as older than max_staleness
    waiting: dict[str, Any] | None  # the longest wait of its threads, as the core tells it


class StoreStats(TypedDict):
    """Bytes, processes, waiting threads and tables of a store. ``live + pinned + pending + free == memory``."""

    name: str
    uuid: str
    memory: int  # the hard cap, bytes
    live: int  # in use and read by nobody now: chunks, tables' metadata and the store's own included
    pinned: int  # of objects that somebody reads
    pending: int  # of deleted objects that somebody still reads
    free: int  # not in use
    reserved: int  # set aside for tables
    objects: int  # count
    live_objects_bytes: int
    page_tables: int  # bytes, of all processes
    deaths: int  # processes that died without leaving
    rebuilds: int  # of what is derived, after a death inside a lock
    clients: list[ClientStats]
    waiters: list[WaiterStats]
    tables: dict[str, TableStats]

    budget: int  # the core's own accounts, bytes: the cap
    committed: int  # pages charged to the store
    present: int  # pages that the kernel holds for it
    object_pages: int
    chunk_pages: int
    free_pages: int  # charged, and in use by nobody
    meta: int  # of tables, ledgers, descriptors
    fixed: int  # of the store's own tables


def store_stats(arena: _core.Arena, tables: dict[str, TableStats]) -> StoreStats:
    """What the core tells of the store, with what its tables tell."""
    found: dict[str, Any] = dict(arena.stats())
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
    return cast(StoreStats, found)


def _waiter(waiting: dict[str, Any], tables: dict[str, TableStats]) -> WaiterStats:
    kind, table = waiting["kind"], waiting["table"]
    return {
        "slot": waiting["slot"],
        "pid": waiting["pid"],
        "thread": waiting["thread"],
        "kind": kind,
        "table": table,
        "reason": wait_text(kind, table, tables),
        "seconds": waiting["since_seconds"],
        "culprit": waiting["culprit_pid"],
        "culprit_name": waiting["culprit_name"],
    }
