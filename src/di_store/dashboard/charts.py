"""Charts as inline SVG. Colours and fonts are classes of `static/style.css`; `<title>` shows values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from markupsafe import Markup

from di_store.base.dtypes import Array
from di_store.base.sizes import format_size

WIDTH, HEIGHT = 640, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 8, 10, 24  # margins of the plot, for labels
MOST_POINTS = 320
"""Points of a line: more would not be seen."""


def bytes_text(value: float) -> str:
    """Bytes, with a unit."""
    return format_size(round(value))


def number_text(value: float) -> str:
    """A number in few characters."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"


def stacked(parts: Sequence[tuple[str, float]], text: Callable[[float], str], label: str) -> Markup:
    """One bar, split in proportion to `parts`: pairs of label and value; below it a legend."""
    total = sum(value for _, value in parts)
    at, cells, legend = 0.0, [], []
    for number, (name, value) in enumerate(parts):
        width = WIDTH * value / total if total else 0.0
        title = f"{name}: {text(value)}"
        cells.append(
            Markup('<rect class="c{}" x="{:.2f}" y="0" width="{:.2f}" height="18"><title>{}</title></rect>').format(
                number, at, width, title
            )
        )
        legend.append(Markup('<li class="k{}">{}</li>').format(number, title))
        at += width
    return Markup(
        '<figure><svg class="bar" viewBox="0 0 {} 18" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
        '<ul class="legend">{}</ul></figure>'
    ).format(WIDTH, label, Markup("").join(cells), Markup("").join(legend))


def line(
    times: Array,
    series: Sequence[tuple[str, Array]],
    label: str,
    text: Callable[[float], str] = number_text,
    ends: tuple[str, str] | None = None,
) -> Markup:
    """Values over time, as one line for each of `series`: pairs of label and values. NaN makes a gap.

    Args:
        times: of the values, seconds or steps.
        series: label and values of each line.
        label: of the chart.
        text: a value as text.
        ends: labels below the axis; None: for seconds that end now.
    """
    if not len(times) or all(np.isnan(values).all() for _, values in series):
        return empty(label, "no values yet")
    times, series = _thinned(times, series)
    high = max(float(np.nanmax(values)) for _, values in series if not np.isnan(values).all())
    low = min(0.0, *(float(np.nanmin(values)) for _, values in series if not np.isnan(values).all()))
    since, until = float(times[0]), float(times[-1])
    plot = _Plot((since, max(until, since + 1)), (low, high if high > low else low + 1))
    lines = [
        plot.path(times, values, number, f"{name}: {_last(values, text)}")
        for number, (name, values) in enumerate(series)
    ]
    ends = ends or (f"{_ago(until - since)} ago" if until > since else "", "now")
    return _figure(label, plot, lines, ends, text, [f"{name}: {_last(values, text)}" for name, values in series])


def histogram(edges: Sequence[str], counts: Sequence[float], label: str) -> Markup:
    """Counts as bars; `edges`: the label of each bar."""
    if not sum(counts):
        return empty(label, "no items")
    plot = _Plot((0, len(counts)), (0, max(counts)))
    bars = [
        plot.bar(at, count, f"{edges[at]}: {number_text(count)} items of the sample") for at, count in enumerate(counts)
    ]
    return _figure(label, plot, bars, (edges[0], edges[-1]), number_text, [])


def curve(xs: Array, ys: Array, label: str, ends: tuple[str, str]) -> Markup:
    """A share (0 to 1) over another share; `ends`: labels below the axis."""
    plot = _Plot((0, 1), (0, 1))
    return _figure(label, plot, [plot.path(xs, ys, 0, label)], ends, lambda share: f"{share:.0%}", [])


class _Plot:
    """Coordinates of the plot, and marks in it."""

    def __init__(self, across: tuple[float, float], up: tuple[float, float]) -> None:
        self.across, self.up = across, up

    def x(self, value: float | Array) -> float | Array:
        return _LEFT + (value - self.across[0]) / (self.across[1] - self.across[0]) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float | Array) -> float | Array:
        return HEIGHT - _BOTTOM - (value - self.up[0]) / (self.up[1] - self.up[0]) * (HEIGHT - _TOP - _BOTTOM)

    def path(self, xs: Array, ys: Array, number: int, title: str) -> Markup:
        """A line through the points; it has a gap where a value is NaN."""
        words, pen = [], "M"
        for x, y in zip(np.asarray(self.x(xs)).tolist(), np.asarray(self.y(ys)).tolist(), strict=True):
            if not math.isfinite(y):
                pen = "M"
                continue
            words.append(f"{pen}{x:.1f},{y:.1f}")
            pen = "L"
        return Markup('<path class="l{}" d="{}"><title>{}</title></path>').format(number, " ".join(words), title)

    def bar(self, at: int, value: float, title: str) -> Markup:
        """A bar from the axis up."""
        left, right, top, foot = float(self.x(at)), float(self.x(at + 1)), float(self.y(value)), float(self.y(0))
        return Markup(
            '<rect class="c0" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
        ).format(left + 0.5, top, max(right - left - 1, 0.5), foot - top, title)


def _figure(
    label: str,
    plot: _Plot,
    marks: Sequence[Markup],
    ends: tuple[str, str],
    text: Callable[[float], str],
    legend: Sequence[str],
) -> Markup:
    grid = [
        Markup('<path class="grid" d="M{},{:.1f} H{}"/><text class="y" x="{}" y="{:.1f}">{}</text>').format(
            _LEFT, plot.y(value), WIDTH - _RIGHT, _LEFT - 6, float(plot.y(value)) + 4, text(value)
        )
        for value in np.linspace(*plot.up, 3).tolist()
    ]
    axis = Markup('<text x="{}" y="{}">{}</text><text class="y" x="{}" y="{}">{}</text>').format(
        _LEFT, HEIGHT - 6, ends[0], WIDTH - _RIGHT, HEIGHT - 6, ends[1]
    )
    keys = [Markup('<li class="k{}">{}</li>').format(number, each) for number, each in enumerate(legend)]
    return Markup(
        '<figure><figcaption>{}</figcaption><svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}{}</svg>'
        '<ul class="legend">{}</ul></figure>'
    ).format(label, WIDTH, HEIGHT, label, Markup("").join(grid), axis, Markup("").join(marks), Markup("").join(keys))


def empty(label: str, why: str) -> Markup:
    """A line in place of a chart."""
    return Markup('<figure><figcaption>{}</figcaption><p class="none">{}</p></figure>').format(label, why)


def _thinned(times: Array, series: Sequence[tuple[str, Array]]) -> tuple[Array, list[tuple[str, Array]]]:
    """At most `MOST_POINTS` points, each the mean of its neighbours."""
    step = math.ceil(len(times) / MOST_POINTS)
    if step <= 1:
        return times, list(series)
    starts = np.arange(0, len(times), step)

    def means(values: Array) -> Array:
        known = np.isfinite(values)
        sums, counts = np.add.reduceat(np.where(known, values, 0), starts), np.add.reduceat(known.astype(float), starts)
        found: Array = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
        return found

    return means(times), [(name, means(values)) for name, values in series]


def _last(values: Array, text: Callable[[float], str]) -> str:
    return "-" if math.isnan(values[-1]) else text(float(values[-1]))


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
