"""One picture: cost against each thing that grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from bench.scale.figures import At, Figure
from bench.scale.report import Grid, Result


@dataclass(frozen=True)
class Plot:
    """One small chart.

    Attributes:
        part: whose figures.
        title: with the unit.
        x: what grows.
        metrics: drawn against it, one line for each series that has them.
        series: only these; (): all.
    """

    part: str
    title: str
    x: str
    metrics: tuple[str, ...]
    series: tuple[str, ...] = ()


OURS = ("prioritized",)
LOG_FROM = 12  # largest by smallest, from where on a plot is logarithmic
PLOTS = (
    Plot("items", "draws, µs", "items in the table", ("sample(256) p50",)),
    Plot("items", "updates, items/s", "items in the table", ("update(32)", "update(256)", "update(1024)"), OURS),
    Plot("items", "one step in, µs", "items in the table", ("append p50", "append p99", "insert p50", "insert p99")),
    Plot("items", "memory, bytes an item", "items in the table", ("slots and trees", "rows", "store in all"), OURS),
    Plot("capacity", "draws of the same items, µs", "capacity", ("sample(256) p50",)),
    Plot("objects", "objects, µs", "objects in the store", ("put p50", "get p50", "delete p50", "stats p50")),
    Plot(
        "processes",
        "one busy client, µs",
        "attached processes",
        ("put and delete of 1 KB p50", "sample(256) p50", "stats p50"),
    ),
    Plot("processes", "to begin, ms", "attached processes", ("attach p50", "first batch p50")),
    Plot("writers", "rows/s in all", "lanes of each x writers", ("rows in all",)),
    Plot("tables", "one step in, µs", "tables on the stream", ("append p50", "append p50, each table")),
    Plot("shapes", "append of a row, by flat", "bytes of a row", ("append of a row, by flat",)),
    Plot("shapes", "sample(256), by flat", "bytes of a row", ("sample(256), by flat",)),
)


def draw(result: Result, path: Path) -> None:
    """Write the PNG."""
    canvas = Canvas(figsize=(13, 9), layout="constrained")
    FigureCanvasAgg(canvas)
    for plot, axis in zip(PLOTS, canvas.subplots(3, 4).flat, strict=True):
        _one(axis, plot, result.figures)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=80, format="png", metadata={"Software": None})


def _one(axis: Axes, plot: Plot, figures: Sequence[Figure]) -> None:
    grid = Grid.of([f for f in figures if f.series in plot.series or not plot.series], plot.part, plot.metrics)
    places, lows, highs = {at: place for place, at in enumerate(grid.sizes)}, [], []
    for series, metric, _, values in grid.lines:
        known = [(places[at], value) for at, value in zip(grid.sizes, values, strict=True) if value is not None]
        marks = "o" if any(isinstance(at, str) for at in grid.sizes) else ".-"  # names have no order
        label = series if len(plot.metrics) == 1 else metric
        axis.plot([place for place, _ in known], [value for _, value in known], marks, label=label)
        lows.append(min(value for _, value in known))
        highs.append(max(value for _, value in known))
    axis.set_title(plot.title, fontsize=10)
    axis.set_xlabel(plot.x, fontsize=9)
    axis.set_xticks(list(places.values()), [short(at) for at in grid.sizes])
    if "by flat" in plot.title:
        axis.axhline(1, color="grey", linewidth=0.8)
    if lows and max(highs) > LOG_FROM * min(lows):
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(lambda value, _: short(value))
    axis.yaxis.set_minor_formatter(lambda value, _: "")
    axis.grid(alpha=0.3)
    axis.tick_params(labelsize=8)
    if len(grid.lines) > 1:
        axis.legend(fontsize=7)


def short(at: At | float) -> str:
    """A number for an axis."""
    if isinstance(at, str):
        return at
    for unit, name in ((1e6, " M"), (1e3, " k")):
        if at >= unit:
            return f"{at / unit:.3g}{name}"
    return f"{at:.3g}"
