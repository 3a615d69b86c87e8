"""Statistics of a store: bytes, processes, waiting threads. Read without locks, except for those of its tables."""

from __future__ import annotations

from typing import Any, TypedDict, cast

from di_store import _core
from di_store.observe.explain import RoomNeed, wait_text
from di_store.replay.stats import TableStats

AGENT = "agent"
AGENT_ROLE = 8
ROLES = ((1, "writer"), (2, "learner"), (4, "tool"), (AGENT_ROLE, AGENT))
"""Bits of a client's role word."""


class WaiterStats(TypedDict):
    """One thread that waits."""

    slot: int  # client slot of its process
    pid: int
    thread: int
    kind: str  # "lock", "room", "items", "limiter", "object", "weights", "memory" or "table"
    table: str | None
    reason: str  # what it waits for, in words, with a limiter's counts
    seconds: float  # how long it has waited
    culprit: int | None  # pid of the process that makes it wait; None: none, or not known
    culprit_name: str | None  # that process in words


class ClientStats(TypedDict):
    """One process that has the store open."""

    slot: int
    pid: int
    alive: bool
    self: bool  # whether it is the calling process
    other_pid_namespace: bool  # its pid is of another pid namespace, so it must not be used here
    state: str  # the letter in /proc/PID/stat ("R", "S", "T", …), "gone" or "unknown"
    role: int  # bits of ROLES
    roles: list[str]
    pinned: int  # bytes of objects that it is reading
    page_tables: int  # bytes
    stale_dropped: int  # how many of its items were removed as older than max_staleness
    waiting: dict[str, Any] | None  # the longest wait of its threads, in the core's form


class DiskStats(TypedDict):
    """The disk tier of a store: data that memory did not hold. Counts cover all processes since the store was made."""

    folder: str
    capacity: int  # bytes that its files may take; so are the next four
    files: int  # that they take
    live: int  # of them, for items that are there
    raw: int  # of the rows in `live`, as they would lie in memory: raw / live is what packing gains
    clean: int  # of rows in memory that also lie on disk, so that their memory is free at once
    written: int  # bytes, of all kinds; checkpoints are not counted
    moved: int  # of these, rows that were copied forward, out of files of which little was needed any more
    write_amplification: float  # how often a byte was written that had to be written once: written / (written - moved)
    written_a_day: float  # bytes, at the rate of the store's whole life
    write_budget: int | None  # bytes a day; None: no limit
    written_chunks: int  # chunks whose rows were written
    dropped_chunks: int  # chunks whose rows left memory
    read: int  # bytes that batches needed from disk
    reads: int  # parts that they lay in
    hit_rate: float | None  # share of drawn items that were in memory; None: none was drawn
    loaded: int  # batches that loaders handed out
    loaded_ahead: int  # sum over these of the batches that were left ahead: divided by `loaded`, their mean
    stalled_seconds: float  # that learners waited in next() until their batches were copied
    damaged_chunks: int  # chunks whose rows could not be read from disk
    damaged_items: int  # that were removed for that
    objects: int  # that are on disk alone
    object_bytes: int  # of these
    loaded_objects: int  # read from disk for get(), ever


class StoreStats(TypedDict):
    """Bytes, processes, waiting threads and tables of a store. ``live + pinned + pending + free == memory``."""

    name: str
    uuid: str
    memory: int  # the memory limit, bytes; so are the next five
    live: int  # in use, without pinned and pending: objects, chunks, metadata of tables and of the store
    pinned: int  # objects that a process is reading
    pending: int  # deleted objects that a process is still reading
    free: int  # not in use
    reserved: int  # reserved for tables
    objects: int  # count
    live_objects_bytes: int
    page_tables: int  # bytes, of all processes
    deaths: int  # processes that died while attached
    rebuilds: int  # of derived data, after a process died while holding a lock
    clients: list[ClientStats]
    waiters: list[WaiterStats]
    tables: dict[str, TableStats]
    disk: DiskStats | None  # None: without disk=

    # The core's own accounts, all in bytes.
    budget: int  # the memory limit
    committed: int  # pages charged to the store
    present: int  # pages that the kernel has allocated for it
    object_pages: int
    chunk_pages: int
    free_pages: int  # charged, but not in use
    meta: int  # metadata of tables, ledgers, descriptors
    fixed: int  # the store's own fixed-size tables


def store_stats(arena: _core.Arena, tables: dict[str, TableStats]) -> StoreStats:
    """The core's statistics of the store, combined with those of its tables by name."""
    found: dict[str, Any] = dict(arena.stats())
    used = found["object_pages"] + found["chunk_pages"] + found["meta"] + found["fixed"]
    found["memory"] = found["budget"]
    found["live_objects_bytes"] = found["live"]
    found["free"] = max(0, found["budget"] - used)
    # The core counts a deleted object that is being read as pinned and as pending.
    found["pinned"] -= min(found["pinned"], found["pending"])
    found["live"] = found["budget"] - found["free"] - found["pinned"] - found["pending"]
    for client in found["clients"]:
        mine = [waiting for waiting in found["waiters"] if waiting["slot"] == client["slot"]]
        client["waiting"] = max(mine, key=lambda waiting: waiting["since_seconds"], default=None)
        client["roles"] = [name for bit, name in ROLES if client["role"] & bit]
    if found["disk"] is not None:
        found["disk"] = _disk(found["disk"], sum(table["samples"] for table in tables.values()))
    claimed = found["object_pages"] + found["meta"] + found["fixed"] + found["reserved"]
    room = RoomNeed(free=max(0, found["budget"] - claimed), reserved=found["reserved"])
    found["waiters"] = [_waiter(waiting, tables, room) for waiting in found["waiters"]]
    found["tables"] = tables
    return cast(StoreStats, found)


def _disk(disk: dict[str, Any], drawn: int) -> dict[str, Any]:
    seconds, cold, first = disk.pop("seconds"), disk.pop("drawn_cold"), disk["written"] - disk["moved"]
    disk["write_amplification"] = disk["written"] / first if first > 0 else 1.0
    disk["written_a_day"] = disk["written"] / max(seconds, 1.0) * 86_400
    disk["write_budget"] = disk["write_budget"] or None
    disk["hit_rate"] = max(0.0, 1 - cold / drawn) if drawn else None
    return disk


def _waiter(waiting: dict[str, Any], tables: dict[str, TableStats], room: RoomNeed) -> WaiterStats:
    kind, table = waiting["kind"], waiting["table"]
    room = room._replace(wanted=waiting["wanted_bytes"])
    return {
        "slot": waiting["slot"],
        "pid": waiting["pid"],
        "thread": waiting["thread"],
        "kind": kind,
        "table": table,
        "reason": wait_text(kind, table, tables, room),
        "seconds": waiting["since_seconds"],
        "culprit": waiting["culprit_pid"],
        "culprit_name": waiting["culprit_name"],
    }
