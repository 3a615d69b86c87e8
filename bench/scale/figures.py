"""What every part is told, and how it collects its figures: one value a round, of which the median counts."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.kit import Nanoseconds

At = int | str
"""A size, or a name where one number does not tell it."""


@dataclass(frozen=True)
class Options:
    """What every part is told.

    Attributes:
        seconds: how long one case is measured in one round.
        rounds: turns of every case.
        scale: share of the largest counts.
        peers: interpreter of the environment of bench/peers/inprocess.txt; None: only our store.
    """

    seconds: float
    rounds: int
    scale: float
    peers: str | None = None

    def ladder(self, *values: int) -> list[int]:
        """The sizes up to the largest one times the scale, two at least."""
        most = values[-1] * self.scale
        return [value for place, value in enumerate(values) if value <= most or place < 2]


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        part: what grows; at: how large it is.
        series: what is measured in turn with others.
        metric: name, percentile included.
        rounds: every round's value, in order.
    """

    part: str
    series: str
    at: At
    metric: str
    unit: str
    rounds: list[float]


class Takes:
    """Collects the rounds of every figure of one part."""

    def __init__(self, part: str) -> None:
        self.part = part
        self._found: dict[tuple[str, At, str, str], list[float]] = {}

    def add(self, series: str, at: At, metric: str, value: float, unit: str) -> None:
        self._found.setdefault((series, at, metric, unit), []).append(float(f"{value:.5g}"))

    def latencies(
        self, series: str, at: At, metric: str, taken: Nanoseconds, percents: Sequence[float] = (50, 99)
    ) -> None:
        """One round's percentiles, in microseconds."""
        for percent in percents:
            self.add(series, at, f"{metric} p{percent:g}", float(np.percentile(taken, percent)) / 1e3, "µs")

    def rate(self, series: str, at: At, metric: str, taken: Nanoseconds, items: int) -> None:
        """One round's items per second, of calls that handle `items` each."""
        self.add(series, at, metric, items * len(taken) * 1e9 / float(taken.sum()), "items/s")

    def last(self, series: str, at: At, metric: str) -> float:
        """The value that came last, for ratios within a round."""
        return next(found[-1] for key, found in self._found.items() if key[:3] == (series, at, metric))

    def figures(self) -> list[Figure]:
        """All of them, in the order in which they were first taken."""
        return [Figure(self.part, *key, found) for key, found in self._found.items()]


def rows(figures: Iterable[Figure]) -> list[dict[str, Any]]:
    """A row for each metric of a series, as results hold them: `values` are pairs of size and median."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for f in figures:
        head = {"part": f.part, "series": f.series, "metric": f.metric, "unit": f.unit}
        row = found.setdefault(tuple(head.values()), {**head, "values": []})
        row["values"].append([f.at, statistics.median(f.rounds)])
    return list(found.values())


def memory_kib(pid: int | str = "self") -> dict[str, int]:
    """What the kernel counts for a process: VmRSS, RssAnon, RssShmem, VmPTE …, in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = (line.partition(":")[::2] for line in lines)
    return {name: int(value.split()[0]) for name, value in pairs if value.endswith(" kB")}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
