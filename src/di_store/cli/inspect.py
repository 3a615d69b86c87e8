"""`di-store inspect`: one store, or one table with its items, read-only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
import numpy as np
from rich.console import RenderableType
from rich.text import Text

import di_store
from di_store import observe
from di_store.base.errors import StoreError, TableNotFound
from di_store.base.sizes import format_size, seconds_text
from di_store.base.tree import did_you_mean, flatten
from di_store.cli.common import (
    LOCK_SECONDS,
    MOST_ITEMS,
    attached,
    json_option,
    print_json,
    store_names,
    table_names,
    time_limit,
    timeout_option,
)
from di_store.cli.printing import Listing, console, grid
from di_store.cli.progress import progress_bar
from di_store.cli.stores import client_rows, memory_rows, table_report
from di_store.observe import ProcessReport, StoreReport, TableReport, limiter_text, range_text, shape_text
from di_store.store.opening import pins

TABLE_HEADS = ("table", "items>", "capacity>", "bytes>", "inserts>", "samples>", "writers>", "limiter")
CLIENT_HEADS = ("pid>", "state", "roles", "waits for", "since", "held up by")
COMMAND_HEADS = ("pid>", "command")
PIN_HEADS = ("pid>", "reads", "bytes>", "times>")
REMOTE_HEADS = ("agent>", "client's address")
FEW = 16
GROUP_HEADS = ("group>", "answers>", "waits for")
ITEM_HEADS = ("key>", "priority>", "sampled>", "version>", "episode>", "start>")


@click.command(short_help="Show one store, or one table with its items.")
@click.argument("store", shell_complete=store_names)
@click.argument("table", required=False, shell_complete=table_names)
@click.option("--items", type=click.IntRange(0, MOST_ITEMS), default=20, show_default=True, help="Items to show.")
@click.option("--start", type=click.IntRange(0, MOST_ITEMS), default=0, show_default=True, help="Items to skip.")
@click.option("--values", is_flag=True, help="Show the columns of the items too, as the table's view shows them.")
@timeout_option(LOCK_SECONDS)
@json_option
def inspect(
    store: str, table: str | None, items: int, start: int, values: bool, timeout_seconds: float, as_json: bool
) -> None:
    """Show STORE: memory, tables, processes with their commands, what they read, and clients on other machines.

    With TABLE: its settings, its limiter, and its items, oldest first.

    Items are looked at, not sampled: nothing is counted, nothing changes. --start and --items page through them.
    """
    with attached(store, readonly=True) as handle:
        if table is None:
            found = observe.report(handle.stats())
            seen = observe.processes(found, pins(handle))
            if as_json:
                print_json({**found, "clients": seen})
            else:
                print_store(found, seen)
            return
        opened = open_table(handle, table)
        about = {"store": store, **table_report(opened)}
        if not as_json:
            print_table(about)
        waits = f"reading items of table {table!r}"
        with progress_bar("reading", as_json), time_limit(handle, timeout_seconds, waits):
            page = item_page(opened, start, items, values)
            groups = incomplete_page(opened, items)
    if as_json:
        print_json({**about, "incomplete": groups, "start": start, "items": page})
    else:
        print_incomplete(groups, about["waiting"])
        print_items(page, start, about["size"])


def open_table(store: di_store.Store, name: str) -> di_store.Table:
    """The table `name` of `store`.

    Raises:
        TableNotFound: the message lists the existing names.
    """
    try:
        return store.table(name)
    except TableNotFound:
        known = list(store.stats()["tables"])
        hint = did_you_mean(name, known) if known else "; it has none"
        raise TableNotFound(f"store {store.name!r} has no table {name!r}{hint}", remedy="") from None


# -- a store -------------------------------------------------------------------------------------------------------


def print_store(found: StoreReport, seen: Sequence[ProcessReport]) -> None:
    """Print memory, tables and processes of a store."""
    out = console()
    out.print(grid([("store", found["name"]), ("uuid", found["uuid"]), *memory_rows(found)]))
    parts: list[RenderableType] = []
    if found["tables"]:
        parts += [Text(), Listing(TABLE_HEADS, map(table_row, found["tables"]))]
    if found["clients"]:
        parts += [Text(), Listing(CLIENT_HEADS, client_rows(found))]
        parts += [Text(), Listing(COMMAND_HEADS, [(each["process"], each["command"] or "-") for each in seen])]
    if reads := [row for each in seen for row in pin_rows(each)]:
        parts += [Text(), Listing(PIN_HEADS, reads)]
    if remote := [(each["process"], place) for each in seen for place in each["connected"]]:
        parts += [Text(), Listing(REMOTE_HEADS, remote)]
    for part in parts:
        out.print(part)


def pin_rows(process: ProcessReport) -> Iterator[tuple[str, ...]]:
    """One row for each of the `FEW` largest objects that a process reads, and one row for all others."""
    first, rest = process["pins"][:FEW], process["pins"][FEW:]
    for pin in first:
        what = f"{'weights' if pin['weights'] else 'object'} {pin['object']}"
        yield process["process"], what, format_size(pin["bytes"]), f"{pin['pins']:,}"
    if rest:
        size, times = sum(pin["bytes"] for pin in rest), sum(pin["pins"] for pin in rest)
        yield process["process"], f"{len(rest):,} others", format_size(size), f"{times:,}"


def table_row(table: TableReport) -> tuple[str, ...]:
    """The row of one table; columns as `TABLE_HEADS`."""
    return (
        table["name"],
        f"{table['size']:,}",
        "-" if table["capacity"] is None else f"{table['capacity']:,}",
        format_size(table["used_bytes"]),
        f"{table['inserts']:,}",
        f"{table['samples']:,}",
        str(table["writers"]),
        limiter_text(table),
    )


# -- a table -------------------------------------------------------------------------------------------------------


def print_table(about: dict[str, Any]) -> None:
    """Print a table's settings, limiter, counts and columns."""
    limiter = about["limiter"]
    capacity = "-" if about["capacity"] is None else f"{about['capacity']:,}"
    finished = "; finished" if about["finished"] else ""
    rows: list[tuple[str, object]] = [
        ("table", f"{about['name']} of store {about['store']}"),
        ("items", f"{about['size']:,} of {capacity}{_not_yet(about)}{_leased(about)}{finished}"),
        *((name, about[name]) for name in ("view", "sampler", "remover")),
        ("limiter", f"{limiter['kind']}, {limiter['state']}"),
        ("inserts", f"{about['inserts']:,}{_blocked(limiter['insert_reason'])}"),
        ("samples", f"{about['samples']:,}{_blocked(limiter['sample_reason'])}"),
        ("last insert", f"{seconds_text(about['seconds_since_insert'])} ago; open writers: {about['writers']}"),
        ("bytes", f"{format_size(about['used_bytes'])} used, {format_size(about['reserve_bytes'])} reserved"),
    ]
    out = console()
    out.print(grid(rows))
    out.print()
    columns = about["columns"]
    if columns is None:
        out.print("no columns yet: the first step declares them")
        return
    shown = [(each["name"], each["dtype"], shape_text(tuple(each["shape"]))) for each in columns]
    out.print(Listing(("column", "dtype", "shape"), shown))


def _not_yet(about: dict[str, Any]) -> str:
    """The number of items that cannot be drawn yet, and the missing parts."""
    waiting, gathered = about["waiting"], about["gathered"]
    if not waiting:
        return ""
    if not about["view"].startswith("Group("):
        return f"; waiting for late columns: {waiting:,}"
    return f"; incomplete groups: {waiting:,}, of which {gathered:,} only lack late columns"


def _leased(about: dict[str, Any]) -> str:
    leased = about["leased"]
    if not leased["items"]:
        return ""
    by = ", ".join(f"{items:,} by {who}" for who, items in leased["holders"].items())
    age = "" if leased["oldest_seconds"] is None else f", the oldest for {seconds_text(leased['oldest_seconds'])}"
    return f"; leased: {by or format(leased['items'], ',')}{age}"


def _blocked(reason: str) -> str:
    return f"; the next one waits: {reason}" if reason else ""


# -- groups --------------------------------------------------------------------------------------------------------


def incomplete_page(table: di_store.Table, count: int) -> list[dict[str, Any]]:
    """The `count` oldest groups that cannot be drawn yet; empty for tables with another view."""
    if not isinstance(table.view, di_store.Group):
        return []
    return [{**each._asdict(), "answers": each.answers} for each in table.incomplete()[:count]]


def print_incomplete(page: list[dict[str, Any]], waiting: int) -> None:
    """Print the groups, oldest first."""
    if not page:
        return
    out = console()
    out.print()
    out.print(Listing(GROUP_HEADS, map(group_row, page)))
    if len(page) < waiting:
        out.print(f"{len(page):,} of {waiting:,} incomplete groups; --items shows more")


def group_row(group: dict[str, Any]) -> tuple[str, ...]:
    """The row of one group; columns as `GROUP_HEADS`."""
    lacks = [f"{group['missing']} answers" if group["missing"] else "late columns"]
    lacks += ["began after another group of this value was complete or removed"] if group["late"] else []
    return str(group["value"]), str(group["answers"]), "; ".join(lacks)


# -- items ---------------------------------------------------------------------------------------------------------


def item_page(table: di_store.Table, start: int, count: int, values: bool) -> list[dict[str, Any]]:
    """Items `start` … `start + count - 1`, oldest first, fewer if there are fewer; `values`: with their columns."""
    opaque = isinstance(table.view, di_store.Opaque)
    batch = observe.oldest(table, start, count, None if values and not opaque else ())
    return [
        {
            "key": int(batch.keys[at]),
            "priority": float(batch.priorities[at]),
            "times_sampled": int(batch.times_sampled[at]),
            "version": int(batch.versions[at]),
            "episode": batch.episodes[at].tolist(),  # of a `Group` a list: each answer has its own
            "start": batch.starts[at].tolist(),
            **({"values": opaque_text(table, batch.keys[at]) if opaque else example(batch.data, at)} if values else {}),
        }
        for at in range(len(batch.keys))
    ]


def opaque_text(table: di_store.Table, key: Any) -> str:
    """The repr of an item of an `Opaque` table, or why there is none."""
    try:
        batch = table.peek([key])
        return repr(batch.data[0]) if np.asarray(batch.live)[0] else "was removed meanwhile"
    except StoreError as error:
        if error.keys is None:  # the value is not the cause
            raise
        return str(error)
    except Exception as error:  # `__repr__` of a foreign type may raise anything
        return f"{type(error).__name__}: {error}"


def example(data: Any, at: int) -> Any:
    """Example `at` of a batch's data: nested dict of arrays, ragged columns as lists of arrays."""
    if isinstance(data, dict):
        return {name: example(value, at) for name, value in data.items()}
    if isinstance(data, di_store.Ragged) and len(data.lead) > 1:
        rows = data.lead[1]
        return [data[at * rows + row] for row in range(rows)]
    return data[at]


def brief(value: Any) -> str:
    """A value as text: up to `FEW` elements, or the dtype, shape and range of a larger array."""
    if isinstance(value, list):
        return f"[{', '.join(map(brief, value))}]"
    if not isinstance(value, np.ndarray) or value.size <= FEW:
        return str(value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value)
    text = f"{value.dtype} {shape_text(value.shape)}"
    return f"{text}, {range_text(value)}" if value.dtype.kind in "biuf" else text


def print_items(page: list[dict[str, Any]], start: int, size: int) -> None:
    """Print a page of items, and the option that shows the next one."""
    out = console()
    out.print()
    if not page:
        out.print("no items" if not size else f"no items from {start} on; the table has {size:,}")
        return
    out.print(Listing(ITEM_HEADS, [item_row(item) for item in page]))
    for item in page:
        if "values" in item:
            out.print(Text(f"\nitem {item['key']}"))
            values = item["values"]
            columns = flatten(values) if isinstance(values, dict) else {"value": values}
            out.print(grid((f"  {name}", brief(value)) for name, value in columns.items()))
    behind = start + len(page)
    if behind < size:
        out.print(f"\n{behind:,} of {size:,} items; --start {behind} shows more")


def item_row(item: dict[str, Any]) -> tuple[str, ...]:
    """The row of one item; columns as `ITEM_HEADS`. An unknown version (-1) is shown as a dash."""
    version = "-" if item["version"] < 0 else str(item["version"])
    return (
        str(item["key"]),
        f"{item['priority']:.6g}",
        str(item["times_sampled"]),
        version,
        _each(item["episode"]),
        _each(item["start"]),
    )


def _each(place: int | list[int]) -> str:
    return ", ".join(map(str, place)) if isinstance(place, list) else str(place)
