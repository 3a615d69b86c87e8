"""The table on the screen and in ``docs/bottlenecks.md``, and its chart."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench import ROOT
from bench.doc import Doc
from bench.kit import Page, Result, chart, table

Figures = dict[str, Any]
Cell = Callable[[Figures], str]
MEBIBYTE = 2**20
TITLES = {"di-store": "Di-store", "in-process": "in-process + queue", "reverb": "Reverb", "ray": "Ray"}
# Parts of a process's time, as `board.py` names them: title and colour.
LEARNER = {
    "train": ("training step", "#4c72b0"),
    "assemble": ("to tensors", "#8fb0d9"),
    "sample": ("sampling a batch", "#c44e52"),
    "ingest": ("taking in messages", "#dd8452"),
    "update": ("new priorities", "#937860"),
    "publish": ("publishing weights", "#da8bc3"),
    "wait": ("waiting for data", "#d9d9d9"),
}
ACTOR = {
    "environment": ("environment", "#4c72b0"),
    "inference": ("inference", "#8fb0d9"),
    "write": ("writing steps", "#c44e52"),
    "wait": ("waiting (limiter, full queue, confirmation)", "#d9d9d9"),
    "weights": ("reading weights", "#da8bc3"),
}
PLANE_PARTS = ("ingest", "sample", "update", "publish")


def runs(result: Result) -> dict[str, Figures]:
    """The figures of each system, medians over its runs."""
    found = {system: [run for run in result.parts["runs"] if run["system"] == system] for system in TITLES}
    return {system: _middle(those) for system, those in found.items() if those}


def _middle(found: list[Any]) -> Any:
    """Nested dicts with the median of each number; other values are those of the first dict."""
    if isinstance(found[0], dict):
        return {key: _middle([each[key] for each in found if key in each]) for key in found[0]}
    return statistics.median(found) if isinstance(found[0], (int, float)) else found[0]


def other(run: Figures, side: str) -> float:
    """The share of time outside all timers."""
    return max(0.0, 1.0 - float(sum(run[side][part] for part in (LEARNER if side == "learner" else ACTOR))))


def share(value: float) -> str:
    return f"{100 * value:.1f} %" if value >= 5e-4 else "-"


def plane_microseconds(run: Figures) -> str:
    """Time of the learner's thread in the plane for each update, without waiting for data."""
    shares = sum(float(run["learner"][part]) for part in PLANE_PARTS)
    return f"**{1e6 * shares / max(float(run['updates_per_second']), 1e-9):,.0f}**"


def percentiles(part: str) -> Cell:
    """A cell with p50 / p99 of one pass through a part, in µs."""

    def cell(run: Figures) -> str:
        found = run["microseconds"].get(part)
        return f"{found['p50']:,.0f} / {found['p99']:,.0f}" if found else "-"

    return cell


def mebibytes(count: float | None) -> str:
    return "-" if count is None else f"{count / MEBIBYTE:,.0f}"


def rows() -> dict[str, Cell]:
    """The function that makes the cells of each row, by the row's name."""

    def parts(side: str, titles: dict[str, tuple[str, str]]) -> dict[str, Cell]:
        return {f"{side}: {title}": lambda run, p=part: share(run[side][p]) for part, (title, _) in titles.items()}

    def cores(role: str, threads: str) -> Cell:
        return lambda run: f"{run['cpu'].get(role, {}).get(threads, 0.0):.2f}"

    return {
        "environment steps/s": lambda run: f"{run['steps_per_second']:,.0f}",
        "updates/s": lambda run: f"{run['updates_per_second']:,.1f}",
        "samples/s": lambda run: f"{run['samples_per_second']:,.0f}",
        **parts("learner", LEARNER),
        "learner: other": lambda run: share(other(run, "learner")),
        "**plane, µs of the learner per update**": plane_microseconds,
        "sampling, µs, p50 / p99": percentiles("sample"),
        "new priorities, µs, p50 / p99": percentiles("update"),
        "publishing, µs, p50 / p99": percentiles("publish"),
        **parts("actor", ACTOR),
        "actor: other": lambda run: share(other(run, "actor")),
        "cores used by all": lambda run: f"{run['cores']:.2f}",
        "… by the learner's process": cores("learner", "all"),
        "… of these by its other threads": cores("learner", "other_threads"),
        "… by the actors": cores("actors", "all"),
        "… by other processes": cores("others", "all"),
        "memory of all processes (PSS), MiB": lambda run: mebibytes(run["pss_bytes_all"]),
        "… of other processes": lambda run: mebibytes(run["pss_bytes"].get("others", 0)),
        "experience stored, MiB": lambda run: mebibytes(run["store_bytes"]),
    }


def whole_table(result: Result) -> str:
    found = runs(result)
    lines = [(name, *(cell(run) for run in found.values())) for name, cell in rows().items()]
    return table(("", *(TITLES[system] for system in found)), lines, align="---:")


def blocks(result: Result, path: Path) -> Callable[[str], str]:
    return lambda what: result.source(path) if what == "source" else whole_table(result)


def draw(result: Result) -> None:
    """Write the chart: for each system, a bar with the parts of the learner's and of the actors' time."""
    found = runs(result)
    with chart(ROOT / "docs" / "images" / "bottlenecks.png", 11, 4.5) as canvas:
        for axis, side, titles in zip(canvas.subplots(1, 2), ("learner", "actor"), (LEARNER, ACTOR), strict=True):
            bottom = np.zeros(len(found))
            for part, (title, colour) in {**titles, "other": ("other", "#f0f0f0")}.items():
                shares = [other(run, side) if part == "other" else run[side][part] for run in found.values()]
                values = 100 * np.array(shares)
                names = [TITLES[system].partition(" ")[0] for system in found]
                axis.bar(names, values, bottom=bottom, color=colour, label=title.partition(" (")[0], width=0.7)
                bottom += values
            axis.set_ylim(0, 100)
            axis.set_ylabel("% of wall time")
            axis.set_title("learner" if side == "learner" else "actors")
            axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


DOC = Doc([Page(ROOT / "docs" / "bottlenecks.md", "bottlenecks")], blocks, draw)
