"""The pictures of the report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.bottlenecks.loads import LOADS
from bench.bottlenecks.planes import SYSTEMS
from bench.bottlenecks.result import Figures, Result
from bench.bottlenecks.tables import ACTOR_TITLES, LEARNER_TITLES, TITLES, by_size, other

COLOURS = {
    "train": "#4c72b0",
    "assemble": "#8fb0d9",
    "environment": "#4c72b0",
    "inference": "#8fb0d9",
    "sample": "#c44e52",
    "ingest": "#dd8452",
    "update": "#937860",
    "publish": "#da8bc3",
    "write": "#c44e52",
    "weights": "#da8bc3",
    "wait": "#d9d9d9",
    "other": "#f0f0f0",
}


def shares(result: Result, path: Path) -> None:
    """A bar per system: what the learner's and the actors' time goes to, in every load."""
    canvas = _canvas(14, 7)
    axes = np.atleast_2d(canvas.subplots(2, len(LOADS)))
    for column, load in enumerate(LOADS.values()):
        runs = {TITLES[system].partition(" ")[0]: run for system in SYSTEMS if (run := result.of(load.name, system))}
        for axis, side, titles in (
            (axes[0, column], "learner", LEARNER_TITLES),
            (axes[1, column], "actor", ACTOR_TITLES),
        ):
            _bars(axis, runs, side, titles)
            axis.set_title(f"{load.title}: {side if side == 'learner' else 'actors'}")
    for axis in axes[:, -1]:
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    _save(canvas, path)


def _bars(axis: Axes, runs: dict[str, Figures], side: str, titles: dict[str, str]) -> None:
    names = list(runs)
    bottom = np.zeros(len(names))
    parts = {**titles, "other": "other"}
    for part, title in parts.items():
        values = [100 * (other(run[side]) if part == "other" else run[side][part]) for run in runs.values()]
        axis.bar(names, values, bottom=bottom, color=COLOURS[part], label=title.partition(" (")[0], width=0.7)
        bottom += values
    axis.set_ylim(0, 100)
    axis.set_ylabel("% of wall time")


def learning(result: Result, path: Path) -> None:
    """Mean return over environment steps for every size: the median of the seeds."""
    canvas = _canvas(9, 5)
    axis = canvas.subplots()
    for name, runs in by_size(result):
        curves = [np.array(run["curve"]) for run in runs if len(run["curve"]) > 1]
        if not curves:
            continue
        steps = np.linspace(max(c[0, 1] for c in curves), min(c[-1, 1] for c in curves), 100)
        middle = np.median([np.interp(steps, c[:, 1], c[:, 2]) for c in curves], axis=0)
        axis.plot(steps, middle, "--" if "growing" in name else "-", label=name)
    axis.set_xlabel("environment steps")
    axis.set_ylabel("mean return of 30 episodes, median of the seeds")
    axis.legend(title="transitions")
    axis.grid(alpha=0.3)
    _save(canvas, path)


def _canvas(width: float, height: float) -> Figure:
    # The object interface needs no display.
    canvas = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(canvas)
    return canvas


def _save(canvas: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=80, format="png", metadata={"Software": None})
