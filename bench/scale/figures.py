"""How a figure is taken here: calls timed one by one, in rounds in which sizes take turns; medians over them count."""

from __future__ import annotations

import math
import multiprocessing as mp
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

LEAST_CALLS = 20
T = TypeVar("T")
Nanoseconds = npt.NDArray[np.int64]
At = int | str
"""A size, or a name where one number does not tell it."""


@dataclass(frozen=True)
class Options:
    """What every part is told.

    Attributes:
        seconds: how long one case is measured in one round.
        rounds: turns of every case.
        scale: share of the largest counts; 1: as the contract asks.
        peers: interpreter of the environment of bench/peers/inprocess.txt; None: only our store.
    """

    seconds: float
    rounds: int
    scale: float
    peers: str | None = None

    def ladder(self, *values: int) -> list[int]:
        """Those of the sizes that the scale leaves, two at least."""
        most = values[-1] * self.scale
        return [value for place, value in enumerate(values) if value <= most or place < 2]


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        part: what grows.
        series: what is measured in turn with others.
        at: how large it is there.
        metric: name, percentile included.
        unit: of the value.
        value: median over the rounds.
        rounds: every round's, in order.
    """

    part: str
    series: str
    at: At
    metric: str
    unit: str
    value: float
    rounds: list[float]


class Takes:
    """Collects the rounds of every figure of one part."""

    def __init__(self, part: str) -> None:
        self.part = part
        self._found: dict[tuple[str, At, str, str], list[float]] = {}

    def add(self, series: str, at: At, metric: str, value: float, unit: str) -> None:
        """One round's value."""
        self._found.setdefault((series, at, metric, unit), []).append(float(f"{value:.5g}"))

    def latencies(
        self, series: str, at: At, metric: str, taken: Nanoseconds, percents: Sequence[float] = (50, 99)
    ) -> None:
        """One round's percentiles, in microseconds."""
        for percent in percents:
            self.add(series, at, f"{metric} p{percent:g}", float(np.percentile(taken, percent)) / 1e3, "µs")

    def last(self, series: str, at: At, metric: str) -> float:
        """The value that came last, for ratios within a round."""
        return next(found[-1] for key, found in self._found.items() if key[:3] == (series, at, metric))

    def figures(self) -> list[Figure]:
        """All of them, in the order in which they were first taken."""
        return [
            Figure(self.part, series, at, metric, unit, statistics.median(found), found)
            for (series, at, metric, unit), found in self._found.items()
        ]


def time_calls(call: Callable[[Any], object], feed: Iterable[Any], seconds: float = math.inf) -> Nanoseconds:
    """Nanoseconds of each `call(value)`, until the time or the feed is over.

    Taking the value is not timed, reading the clock is (0.1 µs).
    """
    clock = time.perf_counter_ns
    end, taken = clock() + seconds * 1e9, list[int]()
    for value in feed:
        begin = clock()
        call(value)
        now = clock()
        taken.append(now - begin)
        if now > end and len(taken) >= LEAST_CALLS:
            break
    return np.array(taken, np.int64)


def time_alone(call: Callable[[], object], seconds: float) -> Nanoseconds:
    """Nanoseconds of each `call()`."""
    return time_calls(lambda _: call(), repeat(None), seconds)


def turns(cases: Sequence[T], rounds: int) -> Iterator[T]:
    """Every case once a round, in an order that rotates."""
    for turn in range(rounds):
        for place in range(len(cases)):
            yield cases[(turn + place) % len(cases)]


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """What `function(*arguments)` returns, or raises, in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def memory_kib(pid: int | str = "self") -> dict[str, int]:
    """What the kernel counts for a process: VmRSS, RssAnon, RssShmem, VmPTE …, in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = (line.partition(":")[::2] for line in lines)
    return {name: int(value.split()[0]) for name, value in pairs if value.endswith(" kB")}


def say(text: str) -> None:
    """Progress, to stderr."""
    print(text, file=sys.stderr, flush=True)
