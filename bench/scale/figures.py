"""The options of every part, and its collected figures: one value per round; results show their median."""

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
"""A size, or a name if one number is not enough to describe it."""


@dataclass(frozen=True)
class Options:
    """The options of every part.

    Attributes:
        seconds: how long one case is measured in one round.
        rounds: how often every case is measured.
        scale: factor on the largest counts, 0 to 1.
        peers: interpreter of the environment of bench/peers/inprocess.txt; None: measure only our store.
    """

    seconds: float
    rounds: int
    scale: float
    peers: str | None = None

    def ladder(self, *values: int) -> list[int]:
        """The sizes up to `scale` times the largest one, but at least the first two."""
        most = values[-1] * self.scale
        return [value for place, value in enumerate(values) if value <= most or place < 2]


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        part: what grows; at: its size.
        series: one of the things that are measured at every size.
        metric: its name, with the percentile.
        rounds: the value of every round, in order.
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
        """Add percentiles of one round, in microseconds."""
        for percent in percents:
            self.add(series, at, f"{metric} p{percent:g}", float(np.percentile(taken, percent)) / 1e3, "µs")

    def rate(self, series: str, at: At, metric: str, taken: Nanoseconds, items: int) -> None:
        """Add items per second of one round; each call handles `items`."""
        self.add(series, at, metric, items * len(taken) * 1e9 / float(taken.sum()), "items/s")

    def last(self, series: str, at: At, metric: str) -> float:
        """The value added last, for ratios within a round."""
        return next(found[-1] for key, found in self._found.items() if key[:3] == (series, at, metric))

    def figures(self) -> list[Figure]:
        """All figures, in the order in which they were first added."""
        return [Figure(self.part, *key, found) for key, found in self._found.items()]


def rows(figures: Iterable[Figure]) -> list[dict[str, Any]]:
    """A row for each metric of a series, as result files have it; `values`: pairs of size and median."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for f in figures:
        head = {"part": f.part, "series": f.series, "metric": f.metric, "unit": f.unit}
        row = found.setdefault(tuple(head.values()), {**head, "values": []})
        row["values"].append([f.at, statistics.median(f.rounds)])
    return list(found.values())


def memory_kib(pid: int | str = "self") -> dict[str, int]:
    """The kernel's figures of a process, such as VmRSS, RssAnon, RssShmem and VmPTE, in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = (line.partition(":")[::2] for line in lines)
    return {name: int(value.split()[0]) for name, value in pairs if value.endswith(" kB")}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
