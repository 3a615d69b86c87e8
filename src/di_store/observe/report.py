"""A selection of a store's statistics for people and programs: plain values, ready for JSON."""

from __future__ import annotations

from typing import Any, Protocol, TypedDict, cast

from di_store.observe.explain import process_state
from di_store.observe.listening import listening_places
from di_store.observe.stats import AGENT, ClientStats, DiskStats, StoreStats, WaiterStats
from di_store.replay.stats import TableStats


class HasStats(Protocol):
    """A store, wherever it is."""

    @property
    def name(self) -> str:
        """Its name."""

    def stats(self) -> StoreStats:
        """Its figures."""


class TableReport(TableStats, total=False):
    """A table's statistics, with the rates that `Rates.add` sets."""

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
    process: str  # its pid, with a note if that pid is of another pid namespace
    state: str  # "runs", "stopped", "dead", …
    roles: list[str]
    pinned: int  # bytes of objects that it is reading
    listens: list[str]  # of an agent: HOST:PORT where it listens, as far as that is known


class WaiterReport(TypedDict):
    """One thread that waits: the reason, and the process that makes it wait. Fields as in `WaiterStats`."""

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
    """One store. If `error` is not None, the figures are None and the lists empty."""

    name: str
    pids: list[int]
    error: str | None  # why it cannot be read
    uuid: str
    bytes: int  # of pages charged to the store
    budget: int  # the memory limit, bytes
    memory: MemoryReport
    disk: DiskStats | None  # None: without a disk tier
    objects: int
    deaths: int
    rebuilds: int
    tables: list[TableReport]
    clients: list[ClientReport]
    waiters: list[WaiterReport]


def report(stats: StoreStats, own: bool = False) -> StoreReport:
    """A report from `Store.stats()`. `own`: with the calling process among `clients` and `waiters`."""
    clients = {client["slot"]: client for client in stats["clients"]}
    me = None if own else next((slot for slot, client in clients.items() if client["self"]), None)
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
        "disk": stats["disk"],
        "objects": stats["objects"],
        "deaths": stats["deaths"],
        "rebuilds": stats["rebuilds"],
        "tables": [cast(TableReport, dict(table)) for table in stats["tables"].values()],
        "clients": [_client(client) for client in clients.values() if client["slot"] != me],
        "waiters": [_waiter(waiter, clients) for waiter in stats["waiters"] if waiter["slot"] != me],
    }


def unreadable(name: str, error: str) -> StoreReport:
    """The report of a store that cannot be read, with the reason."""
    nothing: dict[str, Any] = {
        "uuid": None,
        "bytes": None,
        "budget": None,
        "memory": {},
        "disk": None,
        "tables": [],
        "waiters": [],
        "clients": [],
    }
    return cast(StoreReport, {"name": name, "error": error, **nothing})


def _client(client: ClientStats) -> ClientReport:
    serves = AGENT in client["roles"] and not client["other_pid_namespace"]
    return {
        "slot": client["slot"],
        "pid": client["pid"],
        "process": _pid_text(client),
        "state": process_state(client["state"], client["alive"]),
        "roles": client["roles"],
        "pinned": client["pinned"],
        "listens": listening_places(client["pid"]) if serves else [],
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
