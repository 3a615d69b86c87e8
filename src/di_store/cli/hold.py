"""`di-store hold`: keep a store alive."""

from __future__ import annotations

import os

import click

import di_store
from di_store.base.errors import StoreClosed
from di_store.cli.common import Stop, json_option, print_json, store_names
from di_store.store.opening import check_held, is_made_here

LOOK_SECONDS = 0.5


@click.command(short_help="Keep a store alive until Ctrl-C.")
@click.argument("name", shell_complete=store_names)
@click.option("--memory", default="25%", show_default=True, help="Memory limit of the store, if it does not exist yet.")
@json_option
def hold(name: str, memory: str, as_json: bool) -> None:
    """Open the store NAME, or attach to it, and hold it until Ctrl-C or SIGTERM.

    A store lives as long as some process holds it; this one does nothing else.
    """
    store = di_store.open(name, memory=memory)
    with Stop().installed() as stop:
        made = is_made_here(store)
        did = "made" if made else "attached to"
        if as_json:
            print_json({"name": store.name, "pid": os.getpid(), "made": made})
        else:
            click.echo(f"{did} store {name!r}; pid {os.getpid()} holds it until Ctrl-C or SIGTERM")
        hold_until(stop, store)


def hold_until(stop: Stop, store: di_store.Store) -> None:
    """Hold the store until a signal comes, or it is removed; then close it."""
    try:
        while not stop.wait(LOOK_SECONDS):
            check_held(store)
    except StoreClosed:
        click.echo(f"store {store.name!r} was removed, nothing is left to hold", err=True)
    finally:
        store.close()
