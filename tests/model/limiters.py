"""Rate limiters as arithmetic: whether one more item may pass, and one more draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass
class Counts:
    """What a limiter looks at: items in the table, and inserts and samples since it was set."""

    size: int = 0
    inserts: int = 0
    samples: int = 0
    versions: int = 0  # published since then


class Limiter(Protocol):
    """What the model asks of a limiter."""

    def may_insert(self, counts: Counts) -> bool: ...

    def may_sample(self, counts: Counts) -> bool: ...

    def anew(self, size: int) -> Counts: ...


@dataclass(frozen=True)
class MinSize:
    """Inserts always pass, draws from `n` items on."""

    n: int = 1

    def may_insert(self, counts: Counts) -> bool:
        return True

    def may_sample(self, counts: Counts) -> bool:
        return counts.size >= max(self.n, 1)

    def anew(self, size: int) -> Counts:
        return Counts(size)


@dataclass(frozen=True)
class SamplesPerInsert:
    """error = inserts·ratio − samples stays in ratio·min_size ± max(ratio·min_size·tolerance, ratio, 1)."""

    ratio: float
    min_size: int = 1
    tolerance: float = 0.1

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest error."""
        centre = self.ratio * self.min_size
        slack = max(centre * self.tolerance, self.ratio, 1.0)
        return centre - slack, centre + slack

    def may_insert(self, counts: Counts) -> bool:
        if counts.size + 1 <= self.min_size:
            return True
        return (counts.inserts + 1) * self.ratio - counts.samples <= self.bounds[1]

    def may_sample(self, counts: Counts) -> bool:
        if counts.size < max(self.min_size, 1):
            return False
        return counts.inserts * self.ratio - counts.samples - 1 >= self.bounds[0]

    def anew(self, size: int) -> Counts:
        return Counts(size, inserts=min(size, self.min_size))


@dataclass(frozen=True)
class Band(SamplesPerInsert):
    """The same with bounds of its own."""

    low: float = 0.0
    high: float = 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest error."""
        return self.low, self.high


@dataclass(frozen=True)
class Queue:
    """At most `size` items wait (an append may lift it by its own); also the rule of `Stack`."""

    size: int

    def may_insert(self, counts: Counts) -> bool:
        return counts.size < self.size

    def may_sample(self, counts: Counts) -> bool:
        return counts.size >= 1

    def anew(self, size: int) -> Counts:
        return Counts(size)


@dataclass(frozen=True)
class Pace:
    """A version allows `batch` draws, and `ahead` versions are drawn ahead."""

    weights: str
    batch: int
    ahead: int = 1

    def may_insert(self, counts: Counts) -> bool:
        return True

    def may_sample(self, counts: Counts) -> bool:
        return counts.size >= 1 and counts.samples < (counts.versions + 1 + self.ahead) * self.batch

    def anew(self, size: int) -> Counts:
        return Counts(size)
