"""`di-store plan`: estimates the needs of a job's tables before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click
import yaml  # noqa: F401  # `read_job` needs it: without it this command says what to install

from di_store.base.sizes import format_size, parse_size, seconds_text
from di_store.cli.common import InputFile, json_option, print_json
from di_store.cli.printing import Listing, console
from di_store.cli.progress import progress_bar
from di_store.sizing.forecast import Forecast, TableForecast, forecast, read_job


@click.command(short_help="Forecast the memory and disk that a job's tables need.")
@click.argument("file", type=InputFile(exists=True))
@json_option
@click.pass_context
def plan(context: click.Context, file: str, as_json: bool) -> None:
    """Estimate the needs of the tables that FILE describes: memory, disk, rates, and wear of the drive.

    FILE is YAML or JSON; docs/operations.md, "Before a job runs", shows one. Exit status 1: the memory or the disk
    named in FILE is too small.
    """
    try:
        with progress_bar("computing", as_json):
            job = read_job(file)
            found = forecast(job)
        disk = None if job.get("disk") is None else parse_size(job["disk"], option="disk")
    except TypeError as error:
        raise ValueError(str(error)) from None
    short = _short(found, disk)
    if as_json:
        print_json({**asdict(found), "fits": not short, "short": short})
    else:
        _show(found)
        click.echo(f"\nIt does not fit: {short}" if short else f"\n{_call(found)}")
    context.exit(1 if short else 0)


def _short(found: Forecast, disk: int | None) -> str:
    """The resource that is too small; "" if everything fits."""
    if found.memory < found.least_memory:
        return (
            f"memory={format_size(found.memory)} is too small: item slots, chunk heads and open chunks "
            f"always stay in memory and need {format_size(found.least_memory)}. Lower capacity= or lanes=, "
            "or give more memory"
        )
    if disk is not None and disk < found.disk_capacity:
        return (
            f"the tables need {format_size(found.disk_capacity)} of disk besides the memory, and there are "
            f"{format_size(disk)}. Lower capacity=, give more memory or disk, or compress=Compress(expect=) "
            "if rows compress well"
        )
    return ""


def _show(found: Forecast) -> None:
    out = console()
    heads = (
        "table",
        "items>",
        "an item>",
        "rows>",
        "on disk>",
        "always in memory>",
        "full after>",
        "rows in>",
        "batches>",
    )
    out.print(Listing(heads, map(_row, found.tables)))
    for note in _notes(found):
        out.print(note)
    out.print(f"\nall in memory: memory={format_size(found.in_memory)}", end="")
    out.print(f"; with a disk at least {format_size(found.least_memory)}")
    if found.disk_capacity:
        out.print(
            f"with {format_size(found.memory)}: {found.hot:.0%} of the rows in memory; the drive writes at "
            f"most {format_size(int(found.written_a_day))} a day, "
            f"{found.written_a_day / found.disk_capacity:.3g} times the store's disk capacity, and reads up "
            f"to {format_size(int(found.read))}/s"
        )


def _row(table: TableForecast) -> tuple[str, ...]:
    return (
        table.name,
        "–" if table.items is None else f"{table.items:,}",
        format_size(table.item_bytes),
        format_size(table.rows_bytes),
        format_size(table.on_disk_bytes),
        format_size(table.fixed_bytes),
        "–" if table.fill_seconds is None else seconds_text(table.fill_seconds),
        f"{format_size(int(table.inserted))}/s",
        f"{format_size(int(table.sampled))}/s",
    )


def _notes(found: Forecast) -> Iterator[str]:
    for table in found.tables:
        if found.disk_capacity and 2 * table.fixed_bytes > table.rows_bytes:
            what = "late columns, item slots, heads of small rows"
            yield f"table {table.name!r}: most of its bytes stay in memory ({what}), so a disk saves little"


def _call(found: Forecast) -> str:
    sizes: list[tuple[str, Any]] = [("memory", found.memory)]
    if found.disk_capacity:
        sizes += [("disk_capacity", found.disk_capacity), ("staging", max(1, found.staging))]
    given = [f"{name}={size}" for name, size in sizes]
    return f"di_store.open({', '.join(given[:1] + (['disk=PATH'] if found.disk_capacity else []) + given[1:])})"
