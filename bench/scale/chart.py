"""One picture: cost against each thing that grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from bench.scale.figures import Figure
from bench.scale.report import Grid, Result, size


@dataclass(frozen=True)
class Plot:
    """One small chart.

    Attributes:
        part: whose figures.
        title: with the unit.
        x: what grows.
        metrics: drawn against it, one line for each series that has them.
    """

    part: str
    title: str
    x: str
    metrics: tuple[str, ...]


PLOTS = (
    Plot("items", "draws, µs", "items in the table", ("sample(256) p50",)),
    Plot("items", "updates, items/s", "items in the table", ("update(32)", "update(256)", "update(1024)")),
    Plot("items", "one step in, µs", "items in the table", ("append p50", "append p99", "insert p50", "insert p99")),
    Plot("items", "memory, bytes an item", "items in the table", ("slots and trees", "rows", "store in all")),
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
    grid = Grid.of(figures, plot.part, plot.metrics)
    several = len({series for series, *_ in grid.lines}) > 1
    plain = all(isinstance(at, int) and at > 0 for at in grid.sizes)
    for series, metric, _, values in grid.lines:
        known = [(at, value) for at, value in zip(grid.sizes, values, strict=True) if value is not None]
        label = series if len(plot.metrics) == 1 else f"{series}, {metric}" if several else metric
        x = [at if plain else size(at) for at, _ in known]
        axis.plot(x, [value for _, value in known], ".-", label=label)
    axis.set_title(plot.title, fontsize=10)
    axis.set_xlabel(plot.x, fontsize=9)
    if plain:
        axis.set_xscale("log")
    if "by flat" in plot.title:
        axis.axhline(1, color="grey", linewidth=0.8)
    elif len(grid.lines) > 1 and "µs" in plot.title:
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.tick_params(labelsize=8)
    if len(grid.lines) > 1:
        axis.legend(fontsize=7)
