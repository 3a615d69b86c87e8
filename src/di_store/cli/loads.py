"""Prints and saves the results of named loads, for `di-store bench`."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

import di_store
from di_store.cli.printing import Listing
from di_store.workloads.load import Condition
from di_store.workloads.trial import LoadResult

CALL_HEADS = ("load", "call", "asked/s>", "reached/s>", "MB/s>", "p50 ms>", "p99>", "p99.9>", "let go/s>", "times>")
LOAD_HEADS = ("load", "cores>", "stored>", "in all>", "B/element>", "samples/insert>", "off by>", "headroom>", "")
LINE_HEADS = ("load", "what must hold", "figure>", "bar>", "")


def show(console: Console, results: Sequence[LoadResult]) -> None:
    """Print three tables: calls, loads, and the bars of each load with the figures reached."""
    console.print(Listing(CALL_HEADS, [row for result in results for row in _calls(result)]))
    paced = [result for result in results if result.lines]
    if paced:
        console.print()
        console.print(Listing(LOAD_HEADS, map(_load, paced)))
        console.print()
        console.print(Listing(LINE_HEADS, [_line(result, line) for result in paced for line in result.lines]))


def save(path: Path, results: Iterable[LoadResult], load_before: float) -> None:
    """Write results as JSON, one per line, with the command, the machine and its load average.

    `load_before`: the load average before the first load.
    """
    machine = {
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "di_store": di_store.__version__,
    }
    command = shlex.join(["di-store", *sys.argv[1:]])
    head = {"command": command, "machine": machine, "load_average": [load_before, os.getloadavg()[0]]}
    lines = ",\n".join(json.dumps(result.plain) for result in results)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{json.dumps(head)[:-1]},\n"loads": [\n{lines}\n]}}\n')


def _calls(result: LoadResult) -> Iterator[tuple[str, ...]]:
    labels = [*result.rates, *(label for label in result.milliseconds if label not in result.rates)]
    for label in labels:
        rate, spent = result.rates.get(label, {}), result.milliseconds.get(label)
        asked, most = rate.get("asked"), result.most.get(label)
        moved = rate.get("bytes_per_second")
        yield (
            result.load,
            label,
            _number(asked),
            _number(rate.get("reached")),
            "-" if not moved else f"{moved / 1e6:,.1f}",
            *("-" if spent is None else _milliseconds(spent[key]) for key in ("p50", "p99", "p99.9")),
            _number(most) if asked is not None else "-",
            "-" if most is None or asked is None else f"{most / asked:,.1f} x",
        )


def _load(result: LoadResult) -> tuple[str, ...]:
    figures = result.figures

    def text(name: str, form: str) -> str:
        return format(figures[name], form) if name in figures else "-"

    return (
        result.load,
        text("store_cores", ".3f"),
        text("stored_share", ".3f"),
        text("in_all_share", ".3f"),
        text("in_all_bytes_per_element", ",.0f"),
        text("samples_per_insert", ",.3g"),
        text("samples_per_insert_error", "+.1%"),
        text("headroom", ",.1f"),
        "passed" if result.ok else "FAILED",
    )


def _line(result: LoadResult, line: Condition) -> tuple[str, ...]:
    return (
        result.load,
        line.text,
        "not measured" if line.figure is None else f"{line.figure:,.4g}",
        f"{line.relation} {line.value:,.4g}",
        "ok" if line.ok else "MISSED",
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def _milliseconds(value: float) -> str:
    return f"{value:,.4f}" if value < 0.1 else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
