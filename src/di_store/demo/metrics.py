"""The figures of a run over time, as a list of `Point`, for the screen, the summary and the chart."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from di_store.observe import TableStats

RATE_SECONDS = 3.0
EPISODES_OF_A_MEAN = 20


@dataclass(frozen=True)
class Point:
    """The figures of a run at one time. Totals count from its start.

    Rates are over the last `RATE_SECONDS`; in the last point of a run they are over the whole run. limiter: its state,
    empty in the last point. loss, mean_return: means of the newest 200 updates and 20 episodes; NaN if there are none.
    """

    seconds: float
    steps: int
    samples: int
    updates: int
    steps_per_second: float
    samples_per_second: float
    items: int
    stored_bytes: int
    logical_bytes: int
    limiter: str
    loss: float
    mean_return: float
    episodes: int


@dataclass(frozen=True)
class Ended:
    """One ended episode: time in seconds of the run, steps of all actors together by then, and its return."""

    seconds: float
    steps: int
    value: float


@dataclass
class Metrics:
    """Collects points, losses and ended episodes."""

    started: float = field(default_factory=time.monotonic)
    points: list[Point] = field(default_factory=list)
    episodes: list[Ended] = field(default_factory=list)
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=200))

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def first_mean_return(self) -> float:
        """Mean return of the first 20 episodes, to compare later ones with; NaN before the first has ended."""
        return mean([episode.value for episode in self.episodes[:EPISODES_OF_A_MEAN]])

    def add_returns(self, returns: list[float], *, steps: int) -> None:
        """Record the returns of episodes that ended now, after `steps` steps of all actors together."""
        now = self.seconds
        self.episodes += [Ended(now, steps, value) for value in returns]

    def running_means(self) -> list[float]:
        """For each episode, the mean return of it and up to 19 episodes before it."""
        values = [episode.value for episode in self.episodes]
        return [mean(values[max(0, end - EPISODES_OF_A_MEAN) : end]) for end in range(1, len(values) + 1)]

    def measure(self, stats: TableStats, *, steps: int, samples: int, updates: int, last: bool = False) -> Point:
        """Add one point from `table.stats()` and the run's own totals. `last`: the run has ended."""
        now = self.points[-1].seconds if last and self.points else self.seconds
        earlier = None if last else self._earlier(now)
        since = (earlier.seconds, earlier.steps, earlier.samples) if earlier else (0.0, 0, 0)
        span = max(now - since[0], 1e-3)
        point = Point(
            seconds=now,
            steps=steps,
            samples=samples,
            updates=updates,
            steps_per_second=(steps - since[1]) / span,
            samples_per_second=(samples - since[2]) / span,
            items=int(stats["size"]),
            stored_bytes=int(stats["bytes_stored"]),
            logical_bytes=int(stats["bytes_logical"]),
            limiter="" if last else str(stats["limiter"]["state"]),
            loss=mean(list(self.losses)),
            mean_return=mean([episode.value for episode in self.episodes[-EPISODES_OF_A_MEAN:]]),
            episodes=len(self.episodes),
        )
        self.points.append(point)
        return point

    def _earlier(self, now: float) -> Point | None:
        """The starting point of rates: the newest point that is at least `RATE_SECONDS` old, else the first."""
        earlier = next((point for point in reversed(self.points) if now - point.seconds >= RATE_SECONDS), None)
        return earlier or (self.points[0] if self.points else None)


def mean(values: list[float]) -> float:
    """Mean of `values`; NaN if there are none."""
    return sum(values) / len(values) if values else float("nan")


def saved_times(point: Point) -> float:
    """How many times as much memory the items would need without shared rows; 0 while nothing is stored."""
    return point.logical_bytes / point.stored_bytes if point.stored_bytes else 0.0


def human_bytes(count: float) -> str:
    """`count` bytes as text, in the largest binary unit up to GiB that keeps the number at 1 or more."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
