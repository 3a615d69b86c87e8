"""Rate limiters decide when inserts and draws of a table may pass.

Each limiter comes down to four numbers. With I inserts and S draws so far, and N items in the table:

* a draw passes when N >= min_size and I·ratio − (S+1) >= min_diff;
* an insert passes when N + 1 <= min_size, or (I+1)·ratio − S <= max_diff.

For single operations Reverb's rate limiter decides the same. In the rule of a `Pace`, versions of weights stand for
inserts. Limiters block; they never drop. The core decides; `Bounds` repeats the rule in Python, to explain why a call
waits.
"""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec

from di_store.base import config
from di_store.base.errors import shown
from di_store.base.frozen import dataclass

UNBOUNDED = sys.float_info.max
"""Stands for infinity in the bounds: a finite number, which arithmetic and JSON keep."""


class Bounds(msgspec.Struct, frozen=True):
    """The numbers that describe a limiter to the core.

    Attributes:
        min_size: number of items below which every insert passes and no draw does.
        ratio: draws that each insert allows.
        min_diff: lower bound of the error ``inserts · ratio − draws`` after a draw.
        max_diff: upper bound of the error after an insert, once `min_size` is reached.
    """

    min_size: int
    ratio: float
    min_diff: float
    max_diff: float

    def can_insert(self, inserts: int, draws: int, size: int) -> bool:
        """Whether one more item may be inserted, given the counts so far."""
        return size + 1 <= self.min_size or (inserts + 1) * self.ratio - draws <= self.max_diff

    def can_sample(self, inserts: int, draws: int, size: int) -> bool:
        """Whether one more item may be drawn, given the counts so far."""
        return size >= self.min_size and inserts * self.ratio - (draws + 1) >= self.min_diff


@dataclass(frozen=True)
class MinSize:
    """Draws wait until the table holds `n` items; inserts never wait."""

    n: int

    def __post_init__(self) -> None:
        why = "there is nothing to draw from an empty table; MinSize(1) waits for the first item"
        object.__setattr__(self, "n", config.count("MinSize(n=)", self.n, minimum=1, why=why))

    @property
    def bounds(self) -> Bounds:
        """The four numbers."""
        return Bounds(self.n, 1.0, -UNBOUNDED, UNBOUNDED)


@dataclass(frozen=True)
class SamplesPerInsert:
    """`ratio` draws for every insert, on average.

    Below `min_size`, every insert passes and no draw does. After that the error, inserts · ratio − draws, stays within
    ratio·min_size ± max(ratio·min_size·tolerance, ratio, 1). An insert that would leave this band waits for draws, and
    a draw waits for inserts. The half width is at least max(ratio, 1): in a narrower band, inserts and draws could wait
    for each other.

    Attributes:
        ratio: draws per insert, > 0.
        min_size: items before the first draw, >= 1.
        tolerance: half width of the band as a share of ratio·min_size, >= 0.
    """

    ratio: float
    min_size: int
    tolerance: float

    def __post_init__(self) -> None:
        ratio = config.real("SamplesPerInsert(ratio=)", self.ratio, maximum=1e9)
        if ratio == 0:
            raise ValueError("SamplesPerInsert(ratio=0) would never let anything be drawn: give draws per insert, > 0")
        why = "there is nothing to draw from an empty table"
        min_size = config.count("SamplesPerInsert(min_size=)", self.min_size, minimum=1, why=why)
        why = "it widens the band around the ratio, as a share of ratio * min_size"
        tolerance = config.real("SamplesPerInsert(tolerance=)", self.tolerance, maximum=1e9, why=why)
        object.__setattr__(self, "ratio", ratio)
        object.__setattr__(self, "min_size", min_size)
        object.__setattr__(self, "tolerance", tolerance)

    @property
    def bounds(self) -> Bounds:
        """The four numbers."""
        centre = self.ratio * self.min_size
        width = max(centre * self.tolerance, self.ratio, 1.0)
        return Bounds(self.min_size, self.ratio, centre - width, centre + width)


@dataclass(frozen=True)
class Band:
    """The error, inserts · ratio − draws, stays between `low` and `high`: the numbers of Reverb's `RateLimiter`.

    Below `min_size`, every insert passes and no draw does. After that, a draw waits if it would bring the error below
    `low`, and an insert waits if it would bring it above `high`. All inserts and draws count, from the first one on.

    Attributes:
        min_size: items before the first draw, >= 1.
        ratio: draws per insert, > 0.
        low: smallest error after a draw; -inf: draws never wait for inserts.
        high: largest error after an insert; inf: inserts never wait.

    Raises:
        ValueError: the band is so narrow that inserts and draws could wait for each other.
    """

    min_size: int
    ratio: float
    low: float
    high: float

    def __post_init__(self) -> None:
        why = "there is nothing to draw from an empty table"
        object.__setattr__(self, "min_size", config.count("Band(min_size=)", self.min_size, minimum=1, why=why))
        object.__setattr__(self, "ratio", config.real("Band(ratio=)", self.ratio, maximum=1e9))
        if self.ratio == 0:
            raise ValueError("Band(ratio=0) would never let anything be drawn: give draws per insert, > 0")
        for name in ("low", "high"):
            value = config.as_float(f"Band({name}=)", getattr(self, name), "a number, or infinity")
            if math.isnan(value):
                raise ValueError(f"Band({name}=nan) is not a bound: give a number, or infinity")
            unbounded = math.copysign(math.inf, value) if abs(value) >= UNBOUNDED else value
            object.__setattr__(self, name, unbounded)
        if (error := self._standstill()) is not None:
            raise ValueError(
                f"{self!r} is too narrow: at inserts * ratio - draws = {error:g} a draw would fall below "
                f"low={self.low:g} and an insert rise above high={self.high:g}, so both would wait for each other; "
                f"high - low > ratio + 1 always works"
            )

    def _standstill(self) -> float | None:
        """A value of the error at which neither an insert nor a draw passes; None: no such value."""
        if math.isinf(self.low) or math.isinf(self.high):
            return None if self.low < math.inf and self.high > -math.inf else 0.0
        ratio, step = _fraction(self.ratio)  # errors are multiples of 1 / step
        (low, low_by), (high, high_by) = _fraction(self.low), _fraction(self.high)
        # An insert does not pass above high - ratio, a draw not below low + 1.
        rounded = bool(step & (step - 1))  # products with the ratio are rounded: include both ends
        first = (-(-high * step // high_by) if rounded else high * step // high_by + 1) - ratio
        gap = low * step - (first - step) * low_by
        return first / step if gap > 0 or (rounded and gap == 0) else None

    @property
    def bounds(self) -> Bounds:
        """The four numbers."""
        return Bounds(self.min_size, self.ratio, max(self.low, -UNBOUNDED), min(self.high, UNBOUNDED))


@dataclass(frozen=True)
class Queue:
    """First in, first out. Every item is drawn exactly once. Inserts wait while `size` items are there.

    Sets sampler=Fifo(), remover=Fifo() and max_times_sampled=1. An `append` or `extend` passes as a whole as soon as
    there is room for one item, so the queue can exceed `size` by that call's items. Nothing is evicted.
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", config.count("Queue(size=)", self.size, minimum=1, why=_NO_ROOM))

    @property
    def bounds(self) -> Bounds:
        """The four numbers."""
        return Bounds(1, 1.0, 0.0, float(self.size))


@dataclass(frozen=True)
class Stack:
    """Last in, first out. Every item is drawn exactly once. Inserts wait while `size` items are there.

    Sets sampler=Lifo(), remover=Lifo() and max_times_sampled=1; otherwise like `Queue`.
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", config.count("Stack(size=)", self.size, minimum=1, why=_NO_ROOM))

    @property
    def bounds(self) -> Bounds:
        """The four numbers."""
        return Bounds(1, 1.0, 0.0, float(self.size))


@dataclass(frozen=True)
class Pace:
    """Draws keep pace with a training that publishes weights: at most `ahead` versions before it.

    Let D be the draws that are leased or acknowledged; a draw without a lease counts as acknowledged. A draw passes
    while D < (version − first + 1 + ahead) · batch. `version` is the newest of these weights in the table's store, and
    `first` the newest when the table was made or reset; 0: none was published. Inserts never wait. So if one version is
    published for each `batch` items trained, every item is trained with weights at most `ahead` versions newer.

    Attributes:
        weights: the name that `Store.publish` uses.
        batch: draws for each version, >= 1.
        ahead: versions, >= 0. 0: draws wait for the training each time; 1: the next batch is made meanwhile.
    """

    weights: str
    batch: int
    ahead: int = 1

    def __post_init__(self) -> None:
        if not config.is_name(self.weights, 100):
            raise ValueError(
                f"Pace(weights={shown(self.weights)}): give the name that store.publish() uses, 1 to 100 bytes of text"
            )
        why = "a version allows a draw"
        object.__setattr__(self, "batch", config.count("Pace(batch=)", self.batch, minimum=1, why=why))
        why = "0 already makes draws wait until everything drawn is trained"
        ahead = config.count("Pace(ahead=)", self.ahead, minimum=0, maximum=2**20, why=why)
        object.__setattr__(self, "ahead", ahead)

    @property
    def bounds(self) -> Bounds:
        """The four numbers; draws take the versions since the first in place of inserts."""
        return Bounds(1, float(self.batch), -float((1 + self.ahead) * self.batch), UNBOUNDED)


def lasting_kind(limiter: Limiter) -> tuple[type[Limiter], str]:
    """What `Table.configure` cannot change: the class of a `Queue`, `Stack` or `Pace`, and the weights of a `Pace`."""
    if isinstance(limiter, Pace):
        return Pace, limiter.weights
    return type(limiter) if isinstance(limiter, (Queue, Stack)) else MinSize, ""


def _fraction(number: float) -> tuple[int, int]:
    """Numerator and denominator of the decimal number that `repr` shows."""
    return Decimal(repr(number)).as_integer_ratio()


_NO_ROOM = "without room for one item every insert would wait forever"

Limiter: TypeAlias = MinSize | SamplesPerInsert | Band | Queue | Stack | Pace

LIMITERS: tuple[type[Limiter], ...] = (MinSize, SamplesPerInsert, Band, Queue, Stack, Pace)


def with_bounds(limiter: Limiter, bounds: Bounds) -> Limiter:
    """The limiter of a table whose bounds are now `bounds`.

    Args:
        limiter: the original limiter of the table; `Table.configure` may have changed it since.
        bounds: its four numbers.
    """
    if limiter.bounds == bounds:
        return limiter
    if isinstance(limiter, (Queue, Stack)):
        return type(limiter)(int(bounds.max_diff))
    if isinstance(limiter, Pace):
        batch = int(bounds.ratio)
        return Pace(limiter.weights, batch, int(-bounds.min_diff) // batch - 1)
    if bounds.max_diff == UNBOUNDED and bounds.min_diff == -UNBOUNDED:
        return MinSize(bounds.min_size)
    centre = bounds.ratio * bounds.min_size
    found = SamplesPerInsert(bounds.ratio, bounds.min_size, max(0.0, bounds.max_diff - centre) / centre)
    close = math.isclose(found.bounds.min_diff, bounds.min_diff, rel_tol=1e-9, abs_tol=1e-9)
    if close and math.isclose(found.bounds.max_diff, bounds.max_diff, rel_tol=1e-9):
        return found
    return Band(bounds.min_size, bounds.ratio, bounds.min_diff, bounds.max_diff)


def check_limiter(value: object) -> Limiter:
    """`value` if it is a limiter; otherwise TypeError, which lists the limiters."""
    return config.instance("limiter", value, LIMITERS)


def limiter_to_plain(limiter: Limiter) -> dict[str, Any]:
    """`limiter` as plain data; `UNBOUNDED` stands for infinity, which JSON lacks."""
    plain = config.to_plain(limiter)
    if isinstance(limiter, Band):
        plain |= {"low": limiter.bounds.min_diff, "high": limiter.bounds.max_diff}
    return plain


def limiter_from_plain(plain: Any) -> Limiter:
    """The limiter that `limiter_to_plain` described; `CorruptData` if the data describe none."""
    return config.from_plain(plain, LIMITERS, "limiter")
