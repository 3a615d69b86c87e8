"""`di-store top`: the stores of this machine, shown repeatedly with rates."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

import di_store
from di_store.base.sizes import format_size
from di_store.cli.common import Stop, interval_option, json_option, no_such_store, print_json, store_names
from di_store.cli.keys import Keys
from di_store.cli.printing import Listing, console
from di_store.cli.status import WAITER_HEADS, waiter_rows
from di_store.cli.stores import disk_text, reports, share_text
from di_store.observe import Rates, StoreReport, TableReport, limiter_text

TABLE_HEADS = ("table", "items>", "capacity>", "inserts/s>", "samples/s>", "sample age>", "writers>", "limiter")


HELP = "q quit   ? this line   Ctrl-C quit"


@click.command(short_help="Show the stores repeatedly, with rates.")
@click.argument("store", required=False, shell_complete=store_names)
@interval_option(1.0)
@click.option("--once", is_flag=True, help="Show the stores once, without rates.")
@click.option("--stat", is_flag=True, help="Print one line per store and refresh, as vmstat does.")
@json_option
def top(store: str | None, interval_seconds: float, once: bool, stat: bool, as_json: bool) -> None:
    """Show all stores, or STORE alone, with rates, limiters and waiting processes, until q or Ctrl-C.

    On a terminal the screen is refreshed, q quits, ? shows the keys. Otherwise each refresh is printed below the last
    one, with --json as one line of JSON, with --stat as one line per store. It never waits longer than 20 ms for a
    table's lock.
    """
    rates, out = Rates(), console()
    screen = out.is_terminal and not (out.is_dumb_terminal or once or stat or as_json)
    live = Live(console=out, auto_refresh=False, screen=False) if screen else None
    helps = False
    with Stop().installed() as stop, Keys() as keys:
        if live:
            live.start()
        try:
            first = True
            while True:
                found = reports(store)
                if first and store is not None and not found:
                    raise no_such_store(store, sorted({each.name for each in di_store.list_stores()}))
                rates.add(found)
                if as_json:
                    print_json({"time": time.time(), "stores": found})
                elif stat:
                    print_stat(found, head=first)
                elif live:
                    live.update(frame(found, helps), refresh=True)
                else:
                    out.print(frame(found))
                first = False
                key = "" if once else keys.wait(interval_seconds, stop)
                helps = helps != (key == "?")
                if once or key in ("q", "Q") or stop.wait(0):
                    return
        finally:
            if live:
                live.stop()


def print_stat(found: list[StoreReport], head: bool) -> None:
    """Print one line for each store, in the columns of `STAT`; `head`: names above them."""
    if head:
        click.echo(STAT.format("time", "store", "memory", "items", "inserts/s", "samples/s", "waiting", "stopped"))
    for each in found:
        tables = each["tables"]
        sums = [
            sum_of([table["inserts_per_second"] for table in tables]),
            sum_of([table["samples_per_second"] for table in tables]),
        ]
        stopped = sum(client["state"].startswith("stopped") for client in each["clients"])
        memory = "?" if each["error"] else format_size(each["bytes"])
        items = sum(table["size"] for table in tables)
        cells = (time.strftime("%H:%M:%S"), each["name"], memory, f"{items:,}", *map(rate_text, sums))
        click.echo(STAT.format(*cells, len(each["waiters"]), stopped))


def sum_of(rates: list[float | None]) -> float | None:
    """The sum of the rates; None if one is not known."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if len(known) == len(rates) else None


STAT = "{:8}  {:24}  {:>10}  {:>12}  {:>10}  {:>10}  {:>7}  {:>7}"


def frame(found: list[StoreReport], helps: bool = False) -> Group:
    """The content of one refresh; `helps`: also the line that explains the keys."""
    clock = time.strftime("%H:%M:%S")
    parts: list[RenderableType] = [
        Text(f"di-store top  {clock}  {len(found)} store{'' if len(found) == 1 else 's'}", style="bold")
    ]
    if helps:
        parts.append(Text(HELP, style="reverse"))
    for each in found:
        parts.extend(store_parts(each))
    if not found:
        parts.append(Text("no stores; di_store.open() or `di-store hold NAME` makes one"))
    return Group(*parts, Text())


def store_parts(each: StoreReport) -> Iterator[RenderableType]:
    """The parts of one store: memory, tables, waiting threads, and stopped or dead processes."""
    pids = ", ".join(map(str, each["pids"])) or "-"
    yield Text()
    if each["error"]:
        yield Text(f"{each['name']}  pids {pids}  cannot be read: {each['error']}")
        return
    memory, budget = share_text(each)
    yield Text(f"{each['name']}  {memory} of {budget}  pids {pids}", style="green")
    if each["disk"] is not None:
        yield Text(f"disk  {disk_text(each['disk'])}")
    if each["tables"]:
        yield Listing(TABLE_HEADS, map(table_row, each["tables"]))
    if waiting := waiter_rows(each):
        yield Listing(WAITER_HEADS[1:], [row[1:] for row in waiting], style="yellow")
    for client in each["clients"]:
        if client["state"] != "runs":
            yield Text(f"pid {client['process']}: {client['state']}", style="bold red")


def table_row(table: TableReport) -> tuple[str, ...]:
    """The row of one table; columns as `TABLE_HEADS`."""
    capacity = table["capacity"]
    return (
        table["name"],
        f"{table['size']:,}",
        "-" if capacity is None else f"{capacity:,}",
        rate_text(table["inserts_per_second"]),
        rate_text(table["samples_per_second"]),
        "-" if table["sample_age"] is None else f"{table['sample_age']:,.0f}",
        str(table["writers"]),
        limiter_text(table),
    )


def rate_text(rate: float | None) -> str:
    """A rate per second as text; a dash if it is not known."""
    return "-" if rate is None else f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
