"""What people look at of a store's statistics: plain values, ready for JSON."""

from __future__ import annotations

from typing import Any, TypedDict, cast

from di_store.observe.explain import process_state
from di_store.observe.stats import ClientStats, StoreStats, WaiterStats
from di_store.replay.stats import TableStats


class TableReport(TableStats, total=False):
    """A table's statistics, with rates where `Rates` has seen it."""

    inserts_per_second: float | None
    samples_per_second: float | None


class MemoryReport(TypedDict, total=False):
    """Bytes by use: see `StoreStats`."""

    live: int
    pinned: int
    pending: int
    free: int
    reserved: int
    page_tables: int


class ClientReport(TypedDict):
    """One process that has the store open."""

    slot: int
    pid: int
    process: str  # its pid, with a word where the number means nothing here
    state: str  # "runs", "stopped", "dead", …
    roles: list[str]
    pinned: int  # bytes of objects that it reads


class WaiterReport(TypedDict):
    """One thread that waits, what for, and who holds it up."""

    slot: int
    pid: int
    process: str
    thread: int
    kind: str
    table: str | None
    reason: str
    culprit: str | None
    age_seconds: float


class StoreReport(TypedDict, total=False):
    """One store. With `error` the figures are None and the lists empty."""

    name: str
    pids: list[int]
    error: str | None  # why it cannot be read
    uuid: str
    bytes: int  # committed
    budget: int  # the hard cap
    memory: MemoryReport
    objects: int
    deaths: int
    rebuilds: int
    tables: list[TableReport]
    clients: list[ClientReport]
    waiters: list[WaiterReport]


def report(stats: StoreStats) -> StoreReport:
    """The parts of `Store.stats()` that people look at, without the process that asks."""
    clients = {client["slot"]: client for client in stats["clients"]}
    me = next((slot for slot, client in clients.items() if client["self"]), None)
    return {
        "name": stats["name"],
        "error": None,
        "uuid": stats["uuid"],
        "bytes": stats["committed"],
        "budget": stats["budget"],
        "memory": {
            "live": stats["live"],
            "pinned": stats["pinned"],
            "pending": stats["pending"],
            "free": stats["free"],
            "reserved": stats["reserved"],
            "page_tables": stats["page_tables"],
        },
        "objects": stats["objects"],
        "deaths": stats["deaths"],
        "rebuilds": stats["rebuilds"],
        "tables": [cast(TableReport, dict(table)) for table in stats["tables"].values()],
        "clients": [_client(client) for client in clients.values() if not client["self"]],
        "waiters": [_waiter(waiter, clients) for waiter in stats["waiters"] if waiter["slot"] != me],
    }


def unreadable(name: str, error: str) -> StoreReport:
    """A store that cannot be read, and why."""
    nothing: dict[str, Any] = {
        "uuid": None,
        "bytes": None,
        "budget": None,
        "memory": {},
        "tables": [],
        "waiters": [],
        "clients": [],
    }
    return cast(StoreReport, {"name": name, "error": error, **nothing})


def _client(client: ClientStats) -> ClientReport:
    return {
        "slot": client["slot"],
        "pid": client["pid"],
        "process": _pid_text(client),
        "state": process_state(client["state"], client["alive"]),
        "roles": client["roles"],
        "pinned": client["pinned"],
    }


def _pid_text(client: ClientStats) -> str:
    return f"{client['pid']} (in another pid namespace)" if client["other_pid_namespace"] else str(client["pid"])


def _waiter(waiter: WaiterStats, clients: dict[int, ClientStats]) -> WaiterReport:
    text = waiter["reason"]
    if waiter["table"] is not None:
        text = f"table {waiter['table']!r}: {text}"
    known = clients.get(waiter["slot"])
    return {
        "slot": waiter["slot"],
        "pid": waiter["pid"],
        "process": _pid_text(known) if known else str(waiter["pid"]),
        "thread": waiter["thread"],
        "kind": waiter["kind"],
        "table": waiter["table"],
        "reason": text,
        "culprit": waiter["culprit_name"],
        "age_seconds": waiter["seconds"],
    }
