"""The bars, the tables on the screen, and the blocks and the chart of ``docs/performance.md``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import ROOT
from bench.doc import Doc
from bench.kit import Page, Result, chart, number, table
from bench.scale.figures import At, Figure

Row = dict[str, Any]
HEADS = {
    "items": "items in a table, 105 B each",
    "capacity": "capacity of tables with the same items",
    "beside": "processes that draw while one inserts 28 KB items",
    "objects": "objects in the store, 1 KB each",
    "processes": "attached processes, all but one idle",
    "writers": "lanes of each writer x writers, one table",
    "tables": "tables on one stream",
    "shapes": "bytes of a row, by form of its columns",
}
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
}
"""The metrics that a block shows; other blocks show all."""
PARTS = {"memory": "items"}
"""The part that a block shows, if its name differs."""


@dataclass(frozen=True)
class Bar:
    """A limit for a figure.

    Attributes:
        text: what is limited.
        value: the measured median over the rounds; None: not measured.
        at_most: whether `limit` is the largest value allowed, else the least.
        unit: of value and limit.
    """

    text: str
    value: float | None
    limit: float
    at_most: bool
    unit: str

    @property
    def met(self) -> bool:
        """Whether it was measured and is within the limit."""
        return self.value is not None and (self.value <= self.limit if self.at_most else self.value >= self.limit)

    @property
    def word(self) -> str:
        return "not measured" if self.value is None else "ok" if self.met else "MISSED"


DRAWN, RAISED, LARGE, SMALL = "sample(256) p50", "100 k items, capacity raised 100 times", 10_000_000, 100_000
P, U, UPDATED = "prioritized", "uniform", "update(1024)"
# Text; part, series, sizes and metric of a figure (two sizes: the ratio of their figures); limit; at_most; unit.
BARS: tuple[tuple[str, str, str, tuple[int, ...], str, float, bool, str], ...] = (
    (f"{P} {DRAWN} at 10 M items, by 100 k", "items", P, (LARGE, SMALL), DRAWN, 2.0, True, "x"),
    (f"{U} {DRAWN} at 10 M items, by 100 k", "items", U, (LARGE, SMALL), DRAWN, 2.0, True, "x"),
    (f"{P} {DRAWN}, {RAISED}", "capacity", P, (LARGE, SMALL), DRAWN, 1.15, True, "x"),
    (f"{U} {DRAWN}, {RAISED}", "capacity", U, (LARGE, SMALL), DRAWN, 1.15, True, "x"),
    ("update in batches of 1,024 at 100 k items", "items", P, (SMALL,), UPDATED, 15e6, False, "items/s"),
    ("update in batches of 1,024 at 10 M items", "items", P, (LARGE,), UPDATED, 6e6, False, "items/s"),
    ("insert p99 at 28 KB, one sampling loop beside it", "beside", "28 KB", (1,), "insert p99", 100.0, True, "µs"),
    ("stats with 1 M objects, the longest", "objects", "1 KB", (1_000_000,), "stats, longest", 200.0, True, "ms"),
)


def bars(figures: Iterable[Figure]) -> list[Bar]:
    """All bars, from medians over the rounds. A ratio is that of the two figures of the same round."""
    rounds = {(f.part, f.series, f.at, f.metric): f.rounds for f in figures}
    found = []
    for text, part, series, sizes, metric, limit, at_most, unit in BARS:
        taken = [rounds.get((part, series, at, metric), []) for at in sizes]
        values = [each[0] / each[1] if len(each) == 2 else each[0] for each in zip(*taken, strict=False)]
        found.append(Bar(text, statistics.median(values) if values else None, limit, at_most, unit))
    return found


def size(at: At) -> str:
    return f"{at:,}" if isinstance(at, int) else at


def grid(rows: Iterable[Row], part: str, metrics: Sequence[str] | None = None) -> tuple[list[At], list[Row]]:
    """Sizes and rows of one part; `metrics`: only these metrics, in this order."""
    mine = [row for row in rows if row["part"] == part and (metrics is None or row["metric"] in metrics)]
    if metrics is not None:
        mine.sort(key=lambda row: metrics.index(row["metric"]))
    sizes = list(dict.fromkeys(at for row in mine for at, _ in row["values"]))
    if all(isinstance(at, int) for at in sizes):
        sizes.sort()
    return sizes, mine


def numbers(row: Row, sizes: Sequence[At]) -> list[str]:
    """The row's values as text, one for each size."""
    return [number(dict(row["values"]).get(at)) for at in sizes]


def show(rows: list[Row], verdicts: list[Bar]) -> None:
    for part, head in HEADS.items():
        sizes, mine = grid(rows, part)
        if not mine:
            continue
        print(f"\n{part}: {head}\n{'':58}" + "".join(f"{size(at):>13}" for at in sizes))
        for row in mine:
            name = f"{row['series']}: {row['metric']}"
            print(f"{name:48}{row['unit']:>10}" + "".join(f"{text:>13}" for text in numbers(row, sizes)))
    print(f"\n{'bar':76}{'value':>12}{'limit':>14}")
    for bar in verdicts:
        limit = f"{'<=' if bar.at_most else '>='} {number(bar.limit)}"
        print(f"{bar.text:68}{bar.unit:>8}{number(bar.value):>12}{limit:>14}  {bar.word}")


def shown(rows: Iterable[Row]) -> list[Row]:
    """The rows that the page shows."""
    metrics = {part: {m for what in METRICS if PARTS.get(what, what) == part for m in METRICS[what]} for part in HEADS}
    return [row for row in rows if not metrics[row["part"]] or row["metric"] in metrics[row["part"]]]


def blocks(result: Result, path: Path) -> Callable[[str], str]:
    """The function that returns the text of a block of the page."""

    def block(what: str) -> str:
        if what == "source":
            return result.source(path)
        if what == "bars":
            return bar_table([Bar(**bar) for bar in result.parts["bars"]])
        sizes, mine = grid(result.parts["figures"], PARTS.get(what, what), METRICS.get(what))
        several = len({row["series"] for row in mine}) > 1
        lines = [
            [f"{row['series'] + ': ' if several else ''}{row['metric']}, {row['unit']}", *numbers(row, sizes)]
            for row in mine
        ]
        return table(["", *map(size, sizes)], lines)

    return block


def bar_table(verdicts: list[Bar]) -> str:
    lines = []
    for bar in verdicts:
        limit = f"{'≤' if bar.at_most else '≥'} {number(bar.limit)} {bar.unit}"
        lines.append((bar.text, limit, "–" if bar.value is None else f"{number(bar.value)} {bar.unit}", bar.word))
    return table(("bar", "limit", "measured", ""), lines)


LOG_FROM = 12  # a plot is logarithmic if its largest value exceeds so many times the smallest
ITEMS, PROCESSES = "items in the table", "attached processes"
# Part; title with the unit; label of the x axis; metrics drawn; the one series drawn, or "" for a line for each.
PLOTS: tuple[tuple[str, str, str, tuple[str, ...], str], ...] = (
    ("items", "draws, µs", ITEMS, (DRAWN,), ""),
    ("items", "updates, items/s", ITEMS, ("update(32)", "update(256)", UPDATED), P),
    ("items", "one step in, µs", ITEMS, ("append p50", "append p99", "insert p50", "insert p99"), ""),
    ("items", "memory, bytes an item", ITEMS, ("slots and trees", "rows", "store in all"), P),
    ("capacity", "draws of the same items, µs", "capacity", (DRAWN,), ""),
    ("objects", "objects, µs", "objects in the store", ("put p50", "get p50", "delete p50", "stats p50"), ""),
    ("processes", "one busy client, µs", PROCESSES, ("put and delete of 1 KB p50", DRAWN, "stats p50"), ""),
    ("processes", "to begin, ms", PROCESSES, ("attach p50", "first batch p50"), ""),
    ("writers", "rows/s in all", "lanes of each x writers", ("rows in all",), ""),
    ("tables", "one step in, µs", "tables on the stream", ("append p50", "append p50, each table"), ""),
    ("shapes", "append of a row, by flat", "bytes of a row", ("append of a row, by flat",), ""),
    ("shapes", "sample(256), by flat", "bytes of a row", ("sample(256), by flat",), ""),
)


def draw(result: Result) -> None:
    """Write the chart: a plot of costs for each part."""
    with chart(ROOT / "docs" / "images" / "scale.png", 13, 9) as canvas:
        for (part, title, x, metrics, series), axis in zip(PLOTS, canvas.subplots(3, 4).flat, strict=True):
            rows = [row for row in result.parts["figures"] if series in ("", row["series"])]
            sizes, mine = grid(rows, part, metrics)
            axis.set_title(title, fontsize=10)
            axis.set_xlabel(x, fontsize=9)
            plot(axis, sizes, mine, len(metrics) > 1)
            if "by flat" in title:
                axis.axhline(1, color="grey", linewidth=0.8)


def plot(axis: Any, sizes: list[At], rows: list[Row], by_metric: bool) -> None:
    places = {at: place for place, at in enumerate(sizes)}
    marks = "o" if any(isinstance(at, str) for at in sizes) else ".-"  # names have no order
    for row in rows:
        known = [(places[at], value) for at, value in row["values"]]
        axis.plot(*zip(*known, strict=True), marks, label=row["metric" if by_metric else "series"])
    axis.set_xticks(list(places.values()), [short(at) for at in sizes])
    values = [value for row in rows for _, value in row["values"]]
    if values and max(values) > LOG_FROM * min(values):
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(lambda value, _: short(value))
    axis.yaxis.set_minor_formatter(lambda value, _: "")
    axis.grid(alpha=0.3)
    axis.tick_params(labelsize=8)
    if len(rows) > 1:
        axis.legend(fontsize=7)


def short(at: At | float) -> str:
    if isinstance(at, str):
        return at
    return next((f"{at / unit:.3g}{name}" for unit, name in ((1e6, " M"), (1e3, " k")) if at >= unit), f"{at:.3g}")


DOC = Doc([Page(ROOT / "docs" / "performance.md", "scale")], blocks, draw)
