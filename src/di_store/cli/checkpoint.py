"""`di-store checkpoint`: write a store to a folder."""

from __future__ import annotations

import time

import click

from di_store.base.sizes import format_size
from di_store.cli.common import attached, json_option, print_json, store_names
from di_store.cli.progress import progress_bar


@click.command(short_help="Write all of a store to a folder.")
@click.argument("store", shell_complete=store_names)
@click.argument("path", type=click.Path(file_okay=False))
@json_option
def checkpoint(store: str, path: str, as_json: bool) -> None:
    """Save STORE, as it is at one instant, to the folder PATH. Other processes keep working.

    A later checkpoint of the same store in the same folder adds what has changed. `di-store restore` reads it.
    """
    began, bytes_ = time.monotonic(), 0
    with attached(store) as handle, progress_bar("writing", as_json) as show:

        def progress(done: int, total: int) -> None:
            nonlocal bytes_
            bytes_ = total
            show(done, total)

        handle.checkpoint(path, progress=progress)
    seconds = time.monotonic() - began
    if as_json:
        print_json({"name": store, "path": path, "seconds": seconds, "rows_bytes": bytes_})
    else:
        click.echo(f"store {store!r} was saved to {path} in {seconds:.1f} s; {format_size(bytes_)} of rows were new")
