"""`di-store restore`: a store from a checkpoint."""

from __future__ import annotations

import os

import click

import di_store
from di_store.cli.common import Stop, json_option, print_json
from di_store.cli.hold import hold_until
from di_store.cli.progress import progress_bar


@click.command(short_help="Make a store from a checkpoint, and hold it.")
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.argument("name")
@click.option("--memory", default="25%", show_default=True, help="Memory limit of the store.")
@click.option("--disk", default=None, help="Folder for rows and objects that do not fit in memory.")
@click.option("--disk-capacity", default=None, help="Limit on the files in that folder, such as 100GiB.")
@json_option
def restore(path: str, name: str, memory: str, disk: str | None, disk_capacity: str | None, as_json: bool) -> None:
    """Make the store NAME from the checkpoint in PATH, and hold it until Ctrl-C or SIGTERM.

    Programs attach to it as to any other; it lives as long as some process holds it.
    """
    with progress_bar("reading", as_json) as show:
        store = di_store.restore(path, name, memory=memory, disk=disk, disk_capacity=disk_capacity, progress=show)
    with Stop().installed() as stop:
        tables = store.stats()["tables"]
        if as_json:
            print_json(
                {"name": name, "pid": os.getpid(), "tables": {key: each["size"] for key, each in tables.items()}}
            )
        else:
            each = ", ".join(f"{key!r} with {table['size']:,} items" for key, table in tables.items()) or "no tables"
            click.echo(f"store {name!r}: {each}; pid {os.getpid()} holds it until Ctrl-C or SIGTERM")
        hold_until(stop, store)
