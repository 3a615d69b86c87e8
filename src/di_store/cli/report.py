"""What the commands know about a store, as plain values for JSON; read without locks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import di_store
from di_store.base.errors import StoreError, StoreNotFound
from di_store.base.sizes import format_size
from di_store.cli.common import ATTACH_SECONDS, seconds_text
from di_store.opening import other_pids

Report = dict[str, Any]

UNKNOWN: Report = {
    "uuid": None,
    "bytes": None,
    "budget": None,
    "memory": {},
    "tables": [],
    "waiters": [],
    "clients": [],
}
MEMORY = ("live", "pinned", "pending", "free", "reserved", "page_tables")
STATES = {
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "ended",
    "D": "in the kernel",
    "gone": "gone",
    "unknown": "unknown",
}


def reports(only: str | None = None) -> list[Report]:
    """One report for each store of this machine, or for the one named `only`, by name.

    A store that cannot be read has its reason under "error"; the others are none the worse for it.
    """
    pids: dict[str, list[int]] = {}
    for info in di_store.list_stores():
        pids.setdefault(info.name, []).extend(info.pids)
    found = (report(name, other_pids(pids[name])) for name in sorted(pids) if only is None or name == only)
    return [each for each in found if each is not None]


def report(name: str, pids: list[int]) -> Report | None:
    """One store; None if it went away meanwhile, or was removed."""
    try:
        store = di_store.attach(name, timeout=ATTACH_SECONDS)
        try:
            found = described(store.stats())
        finally:
            store.close()
    except StoreNotFound:
        return None
    except StoreError as error:
        return {**UNKNOWN, "name": name, "pids": pids, "error": str(error)}
    return {"name": name, "pids": pids, "error": None, **found}


def described(stats: dict[str, Any]) -> Report:
    """The parts of `Store.stats()` that people look at, without this process."""
    me = next((client["slot"] for client in stats["clients"] if client["self"]), None)
    clients = {client["slot"]: client for client in stats["clients"]}
    return {
        "uuid": stats["uuid"],
        "bytes": stats["committed"],
        "budget": stats["budget"],
        "memory": {key: stats.get(key) for key in MEMORY},
        "objects": stats["objects"],
        "deaths": stats["deaths"],
        "rebuilds": stats["rebuilds"],
        "tables": [{"name": name, **table} for name, table in stats["tables"].items()],
        "clients": [client_report(client) for client in clients.values() if not client["self"]],
        "waiters": [waiter_report(waiter, clients) for waiter in stats["waiters"] if waiter["slot"] != me],
    }


def client_report(client: dict[str, Any]) -> Report:
    """One process that has the store open."""
    state = STATES.get(client["state"], "runs") if client["alive"] else "dead"
    return {
        "slot": client["slot"],
        "pid": client["pid"],
        "process": pid_text(client),
        "state": state,
        "roles": client["roles"],
        "pinned": client.get("pinned"),
    }


def pid_text(client: dict[str, Any]) -> str:
    """A process's pid, with a word where it means nothing here."""
    return f"{client['pid']} (in another pid namespace)" if client["other_pid_namespace"] else str(client["pid"])


def waiter_report(waiter: dict[str, Any], clients: dict[int, dict[str, Any]]) -> Report:
    """One process that waits, what for, and who holds it up."""
    text = waiter["reason"]
    if waiter["table"] is not None:
        text = f"table {waiter['table']!r}: {text}"
    known = clients.get(waiter["slot"])
    return {
        "slot": waiter["slot"],
        "pid": waiter["pid"],
        "process": pid_text(known) if known else str(waiter["pid"]),
        "thread": waiter["thread"],
        "kind": waiter["kind"],
        "table": waiter["table"],
        "reason": text,
        "culprit": waiter["culprit_name"],
        "age_seconds": waiter["seconds"],
    }


# -- for people ----------------------------------------------------------------------------------------------------


def share_text(each: Report) -> tuple[str, str]:
    """Memory taken, with its share of the budget, and the budget."""
    return f"{format_size(each['bytes'])} ({each['bytes'] / each['budget']:.0%})", format_size(each["budget"])


def memory_rows(each: Report) -> Iterator[tuple[str, str]]:
    """The store's memory by use."""
    memory = {name: "-" if size is None else format_size(size) for name, size in each["memory"].items()}
    taken, budget = share_text(each)
    yield "memory", f"{taken} of {budget}"
    yield "in use", f"{memory['live']}, reserved for tables {memory['reserved']}"
    yield "pinned by readers", memory["pinned"]
    yield "deleted but pinned", memory["pending"]
    yield "free", memory["free"]
    yield "page tables", memory["page_tables"]
    yield "objects", f"{each['objects']:,}"
    yield "processes that died", f"{each['deaths']:,}"
    yield "rebuilds", f"{each['rebuilds']:,}"


def client_rows(each: Report) -> Iterator[tuple[str, ...]]:
    """A row for each process that has the store open, and one more for each further thread of it that waits."""
    waits: dict[int, list[Report]] = {}
    for waiter in each["waiters"]:
        waits.setdefault(waiter["slot"], []).append(waiter)
    for client in each["clients"]:
        about = (client["process"], client["state"], ", ".join(client["roles"]) or "-")
        for waiter in waits.get(client["slot"], []):
            yield (*about, waiter["reason"], seconds_text(waiter["age_seconds"]), waiter["culprit"] or "-")
            about = ("", "", "")
        if client["slot"] not in waits:
            yield (*about, "-", "-", "-")


def limiter_text(table: Report) -> str:
    """Which side the limiter holds back, and why."""
    limiter = table["limiter"]
    if limiter["reason"]:
        return f"{limiter['state']}: {limiter['reason']}"
    return f"open, last insert {seconds_text(table['seconds_since_insert'])} ago"


def table_report(table: di_store.Table) -> Report:
    """A table's settings, columns and counts."""
    schema = table._open().schema
    columns = None
    if schema is not None:
        columns = [
            {"name": column.name, "dtype": column.type_name, "shape": [None, *column.shape]}
            if column.ragged
            else {"name": column.name, "dtype": column.type_name, "shape": list(column.shape)}
            for column in schema
        ]
    return {"name": table.name, "columns": columns, **table.stats()}
