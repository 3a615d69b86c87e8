"""`di-store status`: the stores of this machine, and which processes wait in them."""

from __future__ import annotations

from collections.abc import Iterator

import click
from rich.console import Console, RenderableType
from rich.text import Text

from di_store.base.sizes import seconds_text
from di_store.cli.common import json_option, print_json
from di_store.cli.printing import Listing, console
from di_store.cli.stores import reports, share_text
from di_store.observe import StoreReport
from di_store.observe.stats import AGENT
from di_store.store.opening import hidden_holders, holders_text

HEADS = ("store", "pids", "memory", "of", "tables", "items>", "waiting>")
AGENT_HEADS = ("store", "agent>", "state", "listens at")
WAITER_HEADS = ("store", "pid>", "waits for", "since", "held up by")


@click.command(short_help="List stores, their memory, tables and waiting processes.")
@json_option
def status(as_json: bool) -> None:
    """List the stores of this user on this machine: who holds and serves them, memory, tables, and who waits for what.

    It never waits longer than 20 ms for a table's lock, so it answers even where a process was stopped in the middle of
    its work.
    """
    found = reports()
    if as_json:
        print_json({"stores": found})
        return
    out: Console = console()
    if not found:
        out.print("no stores; di_store.open() or `di-store hold NAME` makes one")
    for part in parts(found):
        out.print(part)
    if hidden := hidden_holders():
        out.print(f"\nnot shown: stores of {holders_text(hidden)}; only the user who made a store can look at it")


def parts(found: list[StoreReport]) -> Iterator[RenderableType]:
    """The printed parts: stores, their agents, waiting processes, and errors of stores that cannot be read."""
    if found:
        yield Listing(HEADS, map(row, found))
    if agents := [line for each in found for line in agent_rows(each)]:
        yield Text()
        yield Listing(AGENT_HEADS, agents)
    waiting = [line for each in found for line in waiter_rows(each)]
    if waiting:
        yield Text()
        yield Listing(WAITER_HEADS, waiting)
    for each in found:
        if each["error"]:
            yield Text(f"\n{each['name']} cannot be read: {each['error']}")


def row(each: StoreReport) -> tuple[str, ...]:
    """The row of one store; columns as `HEADS`."""
    pids = ", ".join(map(str, each["pids"])) or "-"
    if each["error"]:
        return (each["name"], pids, "?", "?", "?", "?", "?")
    memory, budget = share_text(each)
    tables = ", ".join(table["name"] for table in each["tables"]) or "-"
    items = f"{sum(table['size'] for table in each['tables']):,}"
    return (each["name"], pids, memory, budget, tables, items, str(len(each["waiters"])))


def agent_rows(each: StoreReport) -> list[tuple[str, ...]]:
    """One row for each agent that serves the store; columns as `AGENT_HEADS`."""
    return [
        (each["name"], client["process"], client["state"], ", ".join(client["listens"]) or "-")
        for client in each["clients"]
        if AGENT in client["roles"]
    ]


def waiter_rows(each: StoreReport) -> list[tuple[str, ...]]:
    """One row for each thread that waits; columns as `WAITER_HEADS`."""
    return [
        (
            each["name"],
            waiter["process"],
            waiter["reason"],
            seconds_text(waiter["age_seconds"]),
            waiter["culprit"] or "-",
        )
        for waiter in each["waiters"]
    ]
