"""Figures of ``docs/performance.md``: written between its marks from a result, never by hand."""

from __future__ import annotations

import re
from pathlib import Path

from bench.scale.report import RESULTS, ROOT, Grid, Result, number, size

PAGE = ROOT / "docs" / "performance.md"
CHART = ROOT / "docs" / "images" / "scale.png"
MARK = re.compile(r"(<!-- scale: (?P<what>\w+) -->\n).*?(\n<!-- /scale -->)", re.S)
SOURCE = re.compile(r"`bench/results/(scale-[\d-]+\.json)`")

METRICS = {
    "items": (
        *("sample(256) p50", "sample(256) p99", "sample(256)"),
        *(f"update({n}){kind}" for n in (32, 256, 1024) for kind in (" p50", "")),
        *(f"{call} p{percent}" for call in ("append", "insert") for percent in ("50", "99", "99.9")),
    ),
    "memory": (
        *("slots and trees", "rows", "store in all", "mapped by a reader"),
        *("private memory of a reader", "page tables of a reader"),
    ),
    "capacity": ("sample(256) p50", "sample(256) p99", "update(1024)"),
    "beside": ("insert p50", "insert p99", "insert p99.9", "drawn beside"),
    "objects": (
        *("put p50", "put p99", "get p50", "get p99", "delete p50", "delete p99", "keys(n=1000) p50"),
        *("stats p50", "stats, longest", "store, payload included"),
    ),
    "processes": None,
    "writers": None,
    "tables": None,
    "shapes": None,
}
"""What the page shows of each part, None: everything."""
PARTS = {"memory": "items"}


def write(path: Path, check: bool) -> bool:
    """Put a result's figures into the page, and draw its chart; `check`: only whether the page has them already."""
    result = Result.load(path)
    text = PAGE.read_text()
    fresh = filled(text, result, path.name)
    if not check:
        from bench.scale import chart  # matplotlib belongs to the environments of demo and tests

        PAGE.write_text(fresh)
        chart.draw(result, CHART)
    return fresh == text


def shown() -> Path:
    """The result that the page shows."""
    found = SOURCE.search(PAGE.read_text())
    if found is None:
        raise SystemExit(f"{PAGE.relative_to(ROOT)} names no file of bench/results")
    return RESULTS / found[1]


def filled(text: str, result: Result, name: str) -> str:
    """The page with all its marks filled."""

    def fill(found: re.Match[str]) -> str:
        return found[1] + block(found["what"], result, name) + found[3]

    return MARK.sub(fill, text)


def block(what: str, result: Result, name: str) -> str:
    """What belongs between the marks."""
    if what == "source":
        return source(result, name)
    if what == "bars":
        return bars(result)
    return table(what, result)


def source(result: Result, name: str) -> str:
    """Where the figures are from."""
    here = result.machine
    before, after = (load[0] for load in result.load_average)
    return (
        f"`{result.command}` on {here['cpus']} shared x86 cores, {here['memory_gib']} GiB, Linux {here['kernel']}, "
        f"Python {here['python']}\n(load average {before:.1f} before, {after:.1f} after); every round's figures: "
        f"`bench/results/{name}`."
    )


def bars(result: Result) -> str:
    """The bars as a table."""
    lines = ["| bar | limit | measured | |", "|---|---|---|---|"]
    for bar in result.bars:
        limit = f"{'≤' if bar.at_most else '≥'} {number(bar.limit)} {bar.unit}"
        value = "–" if bar.value is None else f"{number(bar.value)} {bar.unit}"
        lines.append(f"| {bar.text} | {limit} | {value} | {bar.word} |")
    return "\n".join(lines)


def table(what: str, result: Result) -> str:
    """One part as a table."""
    grid = Grid.of(result.figures, PARTS.get(what, what), METRICS[what])
    several = len({series for series, *_ in grid.lines}) > 1
    lines = [f"| | {' | '.join(size(at) for at in grid.sizes)} |", "|---" * (len(grid.sizes) + 1) + "|"]
    for series, metric, unit, values in grid.lines:
        shown = [number(value) for value in values]
        lines.append(f"| {f'{series}: ' if several else ''}{metric}, {unit} | {' | '.join(shown)} |")
    return "\n".join(lines)
