"""`di-store bench`: how fast this machine's store is, with memcpy beside it."""

from __future__ import annotations

import dataclasses

import click

import di_store
from di_store.cli.common import console, json_option, listing, print_json, usage_errors
from di_store.workloads import WORKLOADS, Figure, Meter

HEADS = ("workload", "case", "per second>", "p50 µs>", "p90>", "p99>", "p99.9>", "GB/s>", "memcpy GB/s>", "share>")


@click.command(short_help="Measure this machine's store beside memcpy.")
@click.argument("workloads", nargs=-1, type=click.Choice(sorted(WORKLOADS)), metavar="[WORKLOAD]...")
@click.option("--seconds", type=click.FloatRange(min=0.01), default=0.5, show_default=True, help="Length of a round.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Their median is shown.")
@click.option("--memory", default="1GiB", show_default=True, help="Cap of the store it makes.")
@json_option
def bench(workloads: tuple[str, ...], seconds: float, rounds: int, memory: str, as_json: bool) -> None:
    """Measure put, get, append, sample, update (default: all) in this process, on a store of their own.

    "per second" counts items, a sample or update being a batch of them; percentiles are of one call; memcpy is the
    same run's copy of memory that no cache holds, on one thread, and "share" the bytes moved relative to it. It may
    exceed 100%: the core writes past the caches where that is faster.
    """
    meter = Meter(seconds=seconds, rounds=rounds)
    figures: list[Figure] = []
    for name in workloads or tuple(WORKLOADS):
        with usage_errors():
            store = di_store.open(memory=memory)
        with store:
            for figure in WORKLOADS[name](store, meter):
                figures.append(figure)
                if as_json:
                    print_json({**dataclasses.asdict(figure), "memcpy_share": figure.memcpy_share})
                else:
                    click.echo(f"{figure.workload} {figure.case}", err=True)
    if not as_json:
        console().print(listing(HEADS, map(row, figures)))


def row(figure: Figure) -> tuple[str, ...]:
    """One figure for people."""
    share = figure.memcpy_share
    return (
        figure.workload,
        figure.case,
        f"{figure.items_per_second:,.0f}",
        *(f"{value:,.2f}" if value < 100 else f"{value:,.0f}" for value in figure.microseconds.values()),
        "-" if figure.gigabytes_per_second is None else f"{figure.gigabytes_per_second:.2f}",
        f"{figure.memcpy_gigabytes_per_second:.2f}",
        "-" if share is None else f"{share:.0%}",
    )
