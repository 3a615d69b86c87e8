"""The table on the screen, and the file under ``bench/results/``."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.scale.bars import Verdict
from bench.scale.figures import At, Figure

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"

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


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        command: that repeats it.
        machine, load_average: where, and beside what; the load before and after.
        bars: what it was held against.
        figures: all of them.
    """

    command: str
    machine: dict[str, Any]
    load_average: list[list[float]]
    bars: list[Verdict]
    figures: list[Figure]

    @classmethod
    def load(cls, path: Path) -> Result:
        """As `save` wrote it."""
        found = json.loads(path.read_text())
        found["bars"] = [Verdict(**bar) for bar in found["bars"]]
        found["figures"] = [Figure(**figure) for figure in found["figures"]]
        return cls(**found)

    def save(self, folder: Path) -> Path:
        """The file's path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"scale-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        return path


def machine() -> dict[str, Any]:
    """What the figures depend on most."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpus": os.cpu_count(),
        "memory_gib": round(pages / 2**30),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
    }


def number(value: float | None) -> str:
    """Three digits, or all before the point; millions as such."""
    if value is None:
        return "–"
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def size(at: At) -> str:
    """A size as a heading."""
    return f"{at:,}" if isinstance(at, int) else at


@dataclass(frozen=True)
class Grid:
    """Figures of one part: a line for each series and metric, a column for each size."""

    sizes: list[At]
    lines: list[tuple[str, str, str, list[float | None]]]

    @classmethod
    def of(cls, figures: Sequence[Figure], part: str, metrics: Sequence[str] | None = None) -> Grid:
        """Those of one part; `metrics`: only these, in this order."""
        mine = [figure for figure in figures if figure.part == part]
        sizes = list(dict.fromkeys(figure.at for figure in mine))
        if all(isinstance(at, int) for at in sizes):
            sizes.sort(key=lambda at: (isinstance(at, str), at))
        values = {(f.series, f.metric, f.unit, f.at): f.value for f in mine}
        names = list(dict.fromkeys((f.series, f.metric, f.unit) for f in mine))
        if metrics is not None:
            names = sorted((n for n in names if n[1] in metrics), key=lambda n: metrics.index(n[1]))
        return cls(sizes, [(*name, [values.get((*name, at)) for at in sizes]) for name in names])


def show(result: Result) -> None:
    """Print everything."""
    for part, head in HEADS.items():
        grid = Grid.of(result.figures, part)
        if not grid.lines:
            continue
        print(f"\n{part}: {head}\n{'':58}" + "".join(f"{size(at):>13}" for at in grid.sizes))
        for series, metric, unit, values in grid.lines:
            name = f"{series}: {metric}"
            print(f"{name:48}{unit:>10}" + "".join(f"{number(value):>13}" for value in values))
    print(f"\n{'bar':76}{'value':>12}{'limit':>14}")
    for bar in result.bars:
        limit = f"{'<=' if bar.at_most else '>='} {number(bar.limit)}"
        print(f"{bar.text:68}{bar.unit:>8}{number(bar.value):>12}{limit:>14}  {bar.word}")
