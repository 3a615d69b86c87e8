"""What the commands show of a store, as texts and rows for printing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import di_store
from di_store import observe
from di_store.base.sizes import format_size, seconds_text
from di_store.observe import DiskStats, StoreReport, WaiterReport
from di_store.observe import reports as reports


def share_text(each: StoreReport) -> tuple[str, str]:
    """Memory in use, with its share of the limit, and the limit."""
    return f"{format_size(each['bytes'])} ({each['bytes'] / each['budget']:.0%})", format_size(each["budget"])


def disk_text(disk: DiskStats) -> str:
    """The amount of data in the disk tier, and the amount that has moved."""
    loaded = disk["loaded"]
    loaders = (
        f"; loaders: {disk['loaded_ahead'] / loaded:.1f} batches ahead, waited for {disk['stalled_seconds']:.1f} s"
        if loaded
        else ""
    )
    budget = disk["write_budget"]
    hits = "" if disk["hit_rate"] is None else f" ({disk['hit_rate']:.0%} of items were in memory)"
    objects = (
        f"; {disk['objects']:,} objects of {format_size(disk['object_bytes'])} on disk only" if disk["objects"] else ""
    )
    packed = f" for {format_size(disk['raw'])} of rows" if disk["raw"] > disk["live"] else ""
    damage = f"; {disk['damaged_items']} items lost with damaged rows" if disk["damaged_items"] else ""
    return (
        f"{format_size(disk['files'])} of {format_size(disk['capacity'])} in {disk['folder']}, "
        f"{format_size(disk['live'])} of them needed{packed}; written {format_size(disk['written'])}, "
        f"{disk['write_amplification']:.2f} times each byte, {format_size(round(disk['written_a_day']))} a day"
        f"{'' if budget is None else f' of {format_size(budget)}'}; "
        f"read {format_size(disk['read'])}{hits}{loaders}{objects}{damage}"
    )


def memory_rows(each: StoreReport) -> Iterator[tuple[str, str]]:
    """Name and value of the store's memory figures and counts."""
    memory = each["memory"]
    taken, budget = share_text(each)
    yield "memory", f"{taken} of {budget}"
    yield "in use", f"{format_size(memory['live'])}, reserved for tables {format_size(memory['reserved'])}"
    yield "pinned by readers", format_size(memory["pinned"])
    yield "deleted but pinned", format_size(memory["pending"])
    yield "free", format_size(memory["free"])
    yield "page tables", format_size(memory["page_tables"])
    if each["disk"] is not None:
        yield "disk", disk_text(each["disk"])
    yield "objects", f"{each['objects']:,}"
    yield "processes that died", f"{each['deaths']:,}"
    yield "rebuilds", f"{each['rebuilds']:,}"


def client_rows(each: StoreReport) -> Iterator[tuple[str, ...]]:
    """One row for each process that has the store open, and one more for each waiting thread after its first."""
    waits: dict[int, list[WaiterReport]] = {}
    for waiter in each["waiters"]:
        waits.setdefault(waiter["slot"], []).append(waiter)
    for client in each["clients"]:
        about = (client["process"], client["state"], ", ".join(client["roles"]) or "-")
        for waiter in waits.get(client["slot"], []):
            yield (*about, waiter["reason"], seconds_text(waiter["age_seconds"]), waiter["culprit"] or "-")
            about = ("", "", "")
        if client["slot"] not in waits:
            yield (*about, "-", "-", "-")


def table_report(table: di_store.Table) -> dict[str, Any]:
    """A table's name, columns and statistics; a ragged column has a None as first axis of its shape."""
    schema = observe.columns_of(table)
    columns = None
    if schema is not None:
        columns = [
            {"name": column.name, "dtype": column.type_name, "shape": [None, *column.shape]}
            if column.ragged
            else {"name": column.name, "dtype": column.type_name, "shape": list(column.shape)}
            for column in schema
        ]
    return {"name": table.name, "columns": columns, **table.stats()}
