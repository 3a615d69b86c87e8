"""`di-store rm`: remove a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

import di_store
from di_store.base.errors import AccessDenied, CorruptData, LayoutMismatch, StoreError
from di_store.cli.common import attached, json_option, pids_text, print_json, store_names
from di_store.store.opening import other_pids, remove


@click.command(short_help="Remove a store.")
@click.argument("store", shell_complete=store_names)
@click.option("--force", is_flag=True, help="Remove it even though others hold it: all their calls raise StoreClosed.")
@json_option
def rm(store: str, force: bool, as_json: bool) -> None:
    """Remove STORE, with everything in it.

    Refuses while other processes hold it. A removed store's memory is freed when the last of them closes it or ends.
    """
    holders = other_pids(pid for info in di_store.list_stores() if info.name == store for pid in info.pids)
    with readable(store, holders) as handle:
        if holders and not force:
            raise StoreError(
                f"store {store!r} is held by {pids_text(holders)}, so it was not removed",
                remedy=(
                    "end these processes first: the store ends with the last one; --force removes it now, and "
                    "all their calls raise StoreClosed"
                ),
            )
        remove(handle)
    if as_json:
        print_json({"name": store, "removed": True, "pids": holders})
    elif holders:
        click.echo(f"store {store!r} was removed; its memory is freed when {pids_text(holders)} close it")
    else:
        click.echo(f"store {store!r} removed")


@contextmanager
def readable(store: str, holders: list[int]) -> Iterator[di_store.Store]:
    """Attach to the store. If this process cannot read it, the error names the processes to end instead."""
    try:
        with attached(store) as handle:
            yield handle
    except (LayoutMismatch, CorruptData, AccessDenied) as error:
        remedy = f"end {pids_text(holders)}: the store ends with the last process that holds it"
        raise type(error)(f"store {store!r} cannot be removed from here: {error.message}", remedy=remedy) from None
