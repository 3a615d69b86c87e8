"""What the figures are held against."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from bench.scale.figures import At, Figure


@dataclass(frozen=True)
class Verdict:
    """One bar.

    Attributes:
        text: what is asked.
        value: what came out, median over the rounds; None: not measured.
        limit: the bar.
        at_most: whether smaller is better.
        unit: of both.
    """

    text: str
    value: float | None
    limit: float
    at_most: bool
    unit: str

    @property
    def met(self) -> bool:
        """Whether it was measured and holds."""
        if self.value is None:
            return False
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    @property
    def word(self) -> str:
        """For the table."""
        return "not measured" if self.value is None else "ok" if self.met else "MISSED"


class Known:
    """Figures by name."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self._rounds = {(f.part, f.series, f.at, f.metric): f.rounds for f in figures}

    def median(self, part: str, series: str, at: At, metric: str) -> float | None:
        """Over the rounds; None: not measured."""
        found = self._rounds.get((part, series, at, metric))
        return statistics.median(found) if found else None

    def ratio(self, part: str, series: str, metric: str, large: int, small: int) -> float | None:
        """Median of the ratios within each round, where both took their turns beside each other."""
        above, below = (self._rounds.get((part, series, at, metric), []) for at in (large, small))
        pairs = list(zip(above, below, strict=False))
        return statistics.median(a / b for a, b in pairs) if pairs else None


def verdicts(figures: Iterable[Figure]) -> list[Verdict]:
    """Every bar."""
    known, drawn, found = Known(figures), "sample(256) p50", []
    for sampler in ("prioritized", "uniform"):
        value = known.ratio("items", sampler, drawn, 10_000_000, 100_000)
        found.append(Verdict(f"{sampler} {drawn} at 10 M items, by 100 k", value, 2.0, True, "x"))
    for sampler in ("prioritized", "uniform"):
        value = known.ratio("capacity", sampler, drawn, 10_000_000, 100_000)
        found.append(Verdict(f"{sampler} {drawn}, 100 k items, capacity raised 100 times", value, 1.15, True, "x"))
    for size, limit, name in ((100_000, 15e6, "100 k"), (10_000_000, 6e6, "10 M")):
        value = known.median("items", "prioritized", size, "update(1024)")
        found.append(Verdict(f"update in batches of 1,024 at {name} items", value, limit, False, "items/s"))
    value = known.median("beside", "28 KB", 1, "insert p99")
    found.append(Verdict("insert p99 at 28 KB, one sampling loop beside it", value, 100.0, True, "µs"))
    value = known.median("objects", "1 KB", 1_000_000, "stats, longest")
    found.append(Verdict("stats with 1 M objects, the longest", value, 200.0, True, "ms"))
    return found
