"""Figures of `docs/bottlenecks.md`: written between its marks from a result, never by hand."""

from __future__ import annotations

import re
from pathlib import Path

from bench.bottlenecks import ROOT
from bench.bottlenecks.loads import LOADS
from bench.bottlenecks.result import RESULTS, Result
from bench.bottlenecks.tables import load_table, sizes_table, speeds_table

PAGE = ROOT / "docs" / "bottlenecks.md"
IMAGES = ROOT / "docs" / "images"
MARK = re.compile(r"(<!-- bottlenecks: (?P<what>\w+) -->\n).*?(\n<!-- /bottlenecks -->)", re.S)


def newest() -> Path:
    """The newest result there is."""
    found = sorted(RESULTS.glob("bottlenecks-*.json"))
    if not found:
        raise SystemExit("no bench/results/bottlenecks-*.json")
    return found[-1]


def write(path: Path) -> None:
    """Put a result's figures into the page and draw its charts."""
    from bench.bottlenecks import chart  # matplotlib belongs to the environments of demo and tests

    result = Result.load(path)
    PAGE.write_text(filled(PAGE.read_text(), result, path.name))
    if result.loads:
        chart.shares(result, IMAGES / "bottlenecks.png")
    if result.sizes:
        chart.learning(result, IMAGES / "buffer-size.png")


def filled(text: str, result: Result, name: str) -> str:
    """The page with all its marks filled."""
    return MARK.sub(lambda found: found[1] + block(found["what"], result, name) + found[3], text)


def block(what: str, result: Result, name: str) -> str:
    """What belongs between the marks; of what was not run a line that says so."""
    if what == "source":
        return source(result, name)
    if what == "sizes":
        return sizes_table(result) if result.sizes else "Not run."
    if what == "speeds":
        return speeds_table(result) if result.speeds else "Not run."
    if what in LOADS:
        return load_table(result, what) if any(run["load"] == what for run in result.loads) else "Not run."
    raise KeyError(what)


def source(result: Result, name: str) -> str:
    """Where the figures are from."""
    here = result.machine
    before, after = (load[0] for load in result.load_average)
    return (
        f"`{result.command}`\non {here['cpus']} x86 cores, {here['memory_gib']} GiB, Linux {here['kernel']}, Python "
        f"{here['python']} (load average {before:.1f} before, {after:.1f} after): `bench/results/{name}`."
    )
