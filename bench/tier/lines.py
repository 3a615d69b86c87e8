"""What every part of `bench.tier` is given and returns; the table on the screen and in docs/disk_figures.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bench import RESULTS, ROOT
from bench.kit import Page, Result, number, table

PAGE = Page(ROOT / "docs" / "disk_figures.md", "tier")


@dataclass(frozen=True)
class Options:
    """The options of every part.

    Attributes:
        folder: on the drive that is measured.
        rounds: how often everything takes its turn; medians count.
        scale: factor on bytes and counts, above 0, at most 1.
        python: interpreter of the environment of bench/peers/tier.txt; None: without the peers.
        base: git revision that `hot` compares with.
        frames: file of 84 x 84 uint8 frames; None: recorded with ALE.
    """

    folder: Path
    rounds: int = 5
    scale: float = 1.0
    python: str | None = None
    base: str = "b65dffa"
    frames: Path | None = None


@dataclass(frozen=True)
class Line:
    """One figure of ours, beside one of somebody else or alone.

    Attributes:
        case: what is measured; unit: of both figures.
        ours, theirs: medians over the rounds; None: not measured, or there is nobody beside us.
        by: who they are.
        ratio: median over the rounds of ours by theirs.
        bar: for the ratio, or without one for `ours`; None: shown only.
        at_most: whether the bar is the largest value allowed, else the least.
    """

    case: str
    unit: str
    ours: float | None
    theirs: float | None = None
    by: str = ""
    ratio: float | None = None
    bar: float | None = None
    at_most: bool = False

    @property
    def plain(self) -> dict[str, Any]:
        """As a result keeps it: what is not as it is without being given."""
        defaults = {each.name: each.default for each in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    @property
    def met(self) -> bool:
        """Whether there is no bar, or the figure was measured and keeps to it."""
        value = self.ratio if self.by else self.ours
        if self.bar is None or value is None:
            return self.bar is None
        return value <= self.bar if self.at_most else value >= self.bar

    @property
    def verdict(self) -> str:
        """Of a line with a bar "ok", "MISSED" or "not measured"; else nothing."""
        if self.bar is None:
            return ""
        return "not measured" if (self.ratio if self.by else self.ours) is None else "ok" if self.met else "MISSED"

    def cells(self) -> list[str]:
        """The line as text, a cell for each column of HEADS."""
        bar = "" if self.bar is None else f"{'≤' if self.at_most else '≥'} {self.bar:g}"
        theirs = number(self.theirs) + ("" if self.by == self.case else f" ({self.by})") if self.by else ""
        return [
            self.case,
            number(self.ours),
            theirs,
            self.unit,
            number(self.ratio) if self.by else "",
            bar,
            self.verdict,
        ]


HEADS = ("", "ours", "theirs", "unit", "ratio", "bar", "")


def beside(
    case: str, unit: str, ours: Sequence[float], theirs: Sequence[float], by: str, bar: float | None, most: bool = False
) -> Line:
    """A line from the rounds of two; theirs empty: they were not measured."""
    if not theirs:
        return Line(case, unit, statistics.median(ours), None, by, None, bar, most)
    ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
    return Line(case, unit, statistics.median(ours), statistics.median(theirs), by, ratio, bar, most)


def alone(case: str, unit: str, ours: Sequence[float], bar: float | None, most: bool = False) -> Line:
    """A line from our rounds only; the bar is for the figure itself."""
    return Line(case, unit, statistics.median(ours), bar=bar, at_most=most)


def show(lines: Sequence[Line]) -> None:
    """Print the lines in columns."""
    rows = [HEADS, *(line.cells() for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    for row in rows:
        first, *rest = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *rest]))


def newest(part: str, of: str = "tier") -> Path | None:
    """The latest result of a part; `of`: which folder of benchmarks has it."""
    return max(RESULTS.glob(f"{of}_{part}-*.json"), default=None)


def block(part: str, of: str = "tier") -> str:
    """The block of the page that shows a part: its lines, and where they are from."""
    path = newest(part, of)
    if path is None:
        return "Not measured yet."
    result = Result.load(path)
    return table(HEADS, [Line(**line).cells() for line in result.parts["lines"]]) + "\n\n" + result.source(path)


def write_page() -> None:
    """Write the newest result of every part into docs/disk_figures.md, and remove older ones."""
    for part in PAGE.blocks():
        for path in set(RESULTS.glob(f"tier_{part}-*.json")) - {newest(part)}:
            path.unlink()
    PAGE.write(block)


Part = Callable[[Options], list[Line]]
