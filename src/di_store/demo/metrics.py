"""What a run measures about itself: one `Point` per moment, kept for the screen, the summary and the chart."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

RATE_SECONDS = 3.0
RECENT_EPISODES = 100


@dataclass(frozen=True)
class Point:
    """One moment of a run. Totals count from its start; rates are over the last few seconds."""

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


@dataclass
class Metrics:
    """Collects points, losses and returns as (seconds, return)."""

    started: float = field(default_factory=time.monotonic)
    points: list[Point] = field(default_factory=list)
    returns: list[tuple[float, float]] = field(default_factory=list)
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=200))

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    @property
    def mean_return(self) -> float:
        """Over the last 100 episodes of all actors; NaN before the first."""
        recent = [value for _, value in self.returns[-RECENT_EPISODES:]]
        return sum(recent) / len(recent) if recent else float("nan")

    def add_returns(self, returns: list[float]) -> None:
        """Note the returns of episodes that ended now."""
        now = self.seconds
        self.returns += [(now, value) for value in returns]

    def measure(self, stats: dict[str, Any], *, steps: int, samples: int, updates: int) -> Point:
        """Add one point from `table.stats()` and the run's own totals."""
        now = self.seconds
        earlier = next((point for point in reversed(self.points) if now - point.seconds >= RATE_SECONDS), None)
        earlier = earlier or (self.points[0] if self.points else None)
        since = (earlier.seconds, earlier.steps, earlier.samples) if earlier else (0.0, 0, 0)
        span = max(now - since[0], 1e-3)
        limiter = stats["limiter"]
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
            limiter=": ".join(str(limiter[key]) for key in ("state", "reason") if limiter.get(key)),
            loss=sum(self.losses) / len(self.losses) if self.losses else float("nan"),
            mean_return=self.mean_return,
            episodes=len(self.returns),
        )
        self.points.append(point)
        return point


def saved_times(point: Point) -> float:
    """How many times more memory the items would take if each held its own copy; 0 while nothing is stored."""
    return point.logical_bytes / point.stored_bytes if point.stored_bytes else 0.0


def human_bytes(count: float) -> str:
    """`count` bytes in the largest fitting binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
