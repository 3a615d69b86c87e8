"""How a figure is taken: every call timed by itself, in rounds, with memcpy measured before each round."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

COPY_BUFFER_BYTES = 128 << 20
MIN_COPY_BYTES, MAX_COPY_BYTES = 64 << 10, 16 << 20
COPY_SECONDS = 0.1
WARM_UP_SHARE = 0.1
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
Nanoseconds: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured case.

    Attributes:
        case: what was measured.
        calls: how many were timed, over all rounds.
        items_per_second: median over the rounds; a call handles one item, or a batch.
        microseconds: of one call, by percentile ("p50", …), over all rounds; reading the clock costs about 0.1 of them.
        bytes_per_item: payload moved for one item; 0 where a call moves none.
        gigabytes_per_second: payload moved, median over the rounds; None where a call moves none.
        memcpy_gigabytes_per_second: numpy copying cold memory in blocks of about the same size, on one thread, in the
            same run; median over the rounds.
    """

    case: str
    calls: int
    items_per_second: float
    microseconds: dict[str, float]
    bytes_per_item: int
    gigabytes_per_second: float | None
    memcpy_gigabytes_per_second: float

    @property
    def memcpy_share(self) -> float | None:
        """Speed relative to memcpy; None where a call moves no payload."""
        if self.gigabytes_per_second is None:
            return None
        return self.gigabytes_per_second / self.memcpy_gigabytes_per_second


class Meter:
    """Takes figures.

    Args:
        seconds: how long the timed calls of one round take together, at least.
        rounds: of every case.
    """

    def __init__(self, *, seconds: float = 0.5, rounds: int = 3) -> None:
        self.seconds = seconds
        self.rounds = rounds
        self._source = np.ones(COPY_BUFFER_BYTES, np.uint8)
        self._target = np.zeros(COPY_BUFFER_BYTES, np.uint8)
        self._target.fill(1)

    def take(
        self, case: str, call: Callable[[Any], object], feed: Iterator[Any], *, items: int = 1, bytes_per_item: int = 0
    ) -> Figure:
        """Time `call(value)`, which handles `items` items, for values of `feed`; taking a value is not timed."""
        block = min(max(bytes_per_item * items, MIN_COPY_BYTES), MAX_COPY_BYTES)
        nanoseconds_of_calls(call, feed, self.seconds * WARM_UP_SHARE)
        copies, rates, taken = [], [], []
        for _ in range(self.rounds):
            copies.append(self.copy_bytes_per_second(block))
            nanoseconds = nanoseconds_of_calls(call, feed, self.seconds)
            rates.append(len(nanoseconds) * items * 1e9 / float(nanoseconds.sum()))
            taken.append(nanoseconds)
        every = np.concatenate(taken) / 1e3
        rate = float(np.median(rates))
        return Figure(
            case=case,
            calls=len(every),
            items_per_second=rate,
            microseconds={f"p{q:g}": float(np.percentile(every, q)) for q in PERCENTILES},
            bytes_per_item=bytes_per_item,
            gigabytes_per_second=rate * bytes_per_item / 1e9 if bytes_per_item else None,
            memcpy_gigabytes_per_second=float(np.median(copies)) / 1e9,
        )

    def copy_bytes_per_second(self, block_bytes: int) -> float:
        """Numpy's copy of memory that no cache holds, in blocks."""
        copied = 0
        begin = time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < COPY_SECONDS or not copied:
            for at in range(0, COPY_BUFFER_BYTES - block_bytes + 1, block_bytes):
                np.copyto(self._target[at : at + block_bytes], self._source[at : at + block_bytes])
                copied += block_bytes
        return copied / elapsed


def nanoseconds_of_calls(call: Callable[[Any], object], feed: Iterator[Any], seconds: float) -> Nanoseconds:
    """Of each `call(value)` until they add up to `seconds`, or real time to ten times that."""
    clock = time.perf_counter_ns
    left, give_up = seconds * 1e9, clock() + 10 * seconds * 1e9
    taken: list[int] = []
    for value in feed:
        begin = clock()
        call(value)
        end = clock()
        taken.append(end - begin)
        left -= end - begin
        if left <= 0 or end > give_up:
            break
    return np.array(taken, np.int64)


def bytes_text(size_bytes: int) -> str:
    """A size of a workload's case: powers of 1000, as loads are named."""
    power = min(3, int(math.log10(max(size_bytes, 1)) / 3))
    return f"{size_bytes / 1000**power:.3g} {('B', 'KB', 'MB', 'GB')[power]}"
