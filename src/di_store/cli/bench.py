"""`di-store bench`: measures a store's speed on this machine next to memcpy, and whether it sustains named loads."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

import di_store
from di_store.base.errors import CapacityError
from di_store.base.tree import did_you_mean
from di_store.cli import loads
from di_store.cli.common import Seconds, json_option, print_json
from di_store.cli.printing import Listing, console
from di_store.cli.progress import progress_bar
from di_store.workloads.catalogue import GROUPS, LOADS, QUICK, find
from di_store.workloads.crew import CrewError
from di_store.workloads.load import Load
from di_store.workloads.meter import Figure, Meter
from di_store.workloads.trial import LoadResult, carry

HEADS = ("workload", "case", "per second>", "p50 µs>", "p90>", "p99>", "p99.9>", "GB/s>", "memcpy GB/s>", "share>")
ROUND_SECONDS = 0.5


def workload_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Names of workloads and loads that begin so, for `shell_complete=`."""
    return [name for name in (*QUICK, "loads", *GROUPS, *LOADS) if name.startswith(begun)]


@click.command(short_help="Measure a store on this machine; run named loads.")
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...", shell_complete=workload_names)
@click.option(
    "--seconds",
    type=Seconds(0.01),
    default=None,
    help=f"Length of a round [default: {ROUND_SECONDS}], or of a load's measurement [default: its own, mostly 60].",
)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds; medians are shown.")
@click.option(
    "--memory",
    default="1GiB",
    show_default=True,
    help="Memory limit of the store that it makes; a load has its own limit.",
)
@click.option(
    "--scale",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of a load's items that its tables hold.",
)
@click.option("--check", is_flag=True, help="Exit 1 when a load fails.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Write the loads' results, as JSON.")
@json_option
def bench(
    workloads: tuple[str, ...],
    seconds: float | None,
    rounds: int,
    memory: str,
    scale: float,
    check: bool,
    save: Path | None,
    as_json: bool,
) -> None:
    """Measure put, get, append, sample, update (default: all) in this process, on a new store.

    "per second" counts items: a sample or an update handles a batch of them. Percentiles are of one call. memcpy is a
    copy of memory that no cache holds, in the same run and on one thread. "share" is the bytes moved relative to it; it
    may exceed 100%, since the core bypasses the caches where that is faster.

    Or run named loads, with writers and readers in their own processes, at the loads' rates: `di-store bench
    S1-dqn-qbert`, or a group: `rows`, `variants`, `papers`, `operations`, `loads` (all). A load's name may be cut at a
    hyphen: S1.
    """
    quick, named = chosen(workloads)
    if quick:
        measure(quick, Meter(seconds=seconds or ROUND_SECONDS, rounds=rounds), memory, as_json)
    if named:
        before = os.getloadavg()[0]
        results: list[LoadResult] = []
        for result in carry_all(named, seconds, scale, as_json):
            results.append(result)
            if save is not None:  # after each load, since the next one may fail
                loads.save(save, results, before)
        if not as_json:
            loads.show(console(), results)
        if check and not all(result.ok for result in results):
            sys.exit(1)


def chosen(names: tuple[str, ...]) -> tuple[list[str], list[Load]]:
    """Names of quick workloads, and named loads, without repetitions; no names: all quick workloads.

    Raises:
        click.UsageError: an unknown name.
    """
    quick: dict[str, None] = {}
    named: dict[str, Load] = {}
    for name in names or tuple(QUICK):
        if name in QUICK:
            quick[name] = None
            continue
        found = find(name)
        if not found:
            known = [*QUICK, "loads", *GROUPS, *LOADS]
            close = did_you_mean(name, known).partition("; there are")[0]
            raise click.UsageError(f"{name!r} is not a workload{close}; there are {', '.join(known)}")
        named |= {load.name: load for load in found}
    return list(quick), list(named.values())


def measure(names: list[str], meter: Meter, memory: str, as_json: bool) -> None:
    """Measure quick workloads and print their figures."""
    figures: list[Figure] = []
    cases = [(name, case) for name in names for case in QUICK[name]]
    with warnings.catch_warnings(), progress_bar(names[0], as_json, moves=False) as show:
        warnings.filterwarnings("ignore", ".* have no item", RuntimeWarning)  # the last steps that fill a table
        for name, case in cases:
            show(len(figures), len(cases), name)
            with di_store.open(memory=memory) as store:
                figures.append(figure := meter.take(name, case, store))
            if as_json:
                print_json(dataclasses.asdict(figure))
    if not as_json:
        console().print(Listing(HEADS, map(row, figures)))


def carry_all(named: list[Load], seconds: float | None, scale: float, as_json: bool) -> Iterator[LoadResult]:
    """Run named loads one after the other; yields each one's result."""
    for load in named:
        try:
            with progress_bar(load.name, as_json, moves=False) as show:
                result = carry(load, seconds=seconds, scale=scale, say=partial(show, 0, None))
        except CapacityError as error:
            raise click.ClickException(
                f"{load.name} needs more memory than this machine has; lower --scale: {error}"
            ) from None
        except CrewError as error:
            raise click.ClickException(f"{load.name}: {error}") from None
        if as_json:
            print_json(result.plain)
        yield result


def row(figure: Figure) -> tuple[str, ...]:
    """The table row of one figure; columns as `HEADS`."""
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
