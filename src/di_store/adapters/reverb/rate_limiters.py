"""Limiters make inserts and draws wait for each other: `reverb.rate_limiters`."""

from __future__ import annotations

import logging
import sys
from typing import Any

import di_store

_log = logging.getLogger(__name__)


class RateLimiter:
    """Four numbers: below `min_size_to_sample` items every insert passes and no draw does.

    After that, ``inserts * samples_per_insert - samples`` stays between `min_diff` and `max_diff`.
    """

    def __init__(self, samples_per_insert: float, min_size_to_sample: int, min_diff: float, max_diff: float) -> None:
        if min_size_to_sample < 1:
            raise ValueError(f"min_size_to_sample ({min_size_to_sample}) must be a positive integer")
        if samples_per_insert <= 0:
            raise ValueError(f"samples_per_insert ({samples_per_insert}) must be > 0")
        self.samples_per_insert = float(samples_per_insert)
        self.min_size_to_sample = int(min_size_to_sample)
        self.min_diff = float(min_diff)
        self.max_diff = float(max_diff)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(samples_per_insert={self.samples_per_insert}, min_diff={self.min_diff}, "
            f"max_diff={self.max_diff}, min_size_to_sample={self.min_size_to_sample})"
        )

    def can_sample(self, inserts: int, samples: int, size: int, count: int) -> bool:
        """Whether `count` draws would pass."""
        enough = size >= self.min_size_to_sample
        return enough and inserts * self.samples_per_insert - samples - count >= self.min_diff

    def can_insert(self, inserts: int, samples: int, size: int, count: int) -> bool:
        """Whether `count` inserts would pass."""
        if size + count <= self.min_size_to_sample:
            return True
        return (inserts + count) * self.samples_per_insert - samples <= self.max_diff

    def limiter(self, queue: type | None = None, size: int = 0) -> Any:
        """Di-store's limiter.

        Args:
            queue: Di-store's `Queue` or `Stack` if the table is one.
            size: size of the queue or stack.
        """
        if queue is not None:
            return queue(size)
        if self.min_diff <= -_UNBOUNDED and self.max_diff >= _UNBOUNDED:
            return di_store.MinSize(self.min_size_to_sample)
        return di_store.Band(self.min_size_to_sample, self.samples_per_insert, self.min_diff, self.max_diff)


_UNBOUNDED = sys.float_info.max


class MinSize(RateLimiter):
    """Draws wait until the table has `min_size_to_sample` items; inserts never wait."""

    def __init__(self, min_size_to_sample: int) -> None:
        super().__init__(1.0, min_size_to_sample, -_UNBOUNDED, _UNBOUNDED)


class SampleToInsertRatio(RateLimiter):
    """`samples_per_insert` draws for each insert, on average.

    Args:
        samples_per_insert: > 0.
        min_size_to_sample: items before the first draw.
        error_buffer: how far ``inserts * samples_per_insert - samples`` may differ from
            ``min_size_to_sample * samples_per_insert``; or its bounds, a tuple.

    Raises:
        ValueError: a band in which inserts and draws could wait for each other.
    """

    def __init__(
        self, samples_per_insert: float, min_size_to_sample: int, error_buffer: float | tuple[float, float]
    ) -> None:
        start = samples_per_insert * min_size_to_sample
        if isinstance(error_buffer, (int, float)):
            low, high = start - error_buffer, start + error_buffer
        else:
            low, high = error_buffer
        if samples_per_insert <= 0:
            raise ValueError(f"samples_per_insert ({samples_per_insert}) must be > 0")
        if high - low < 2 * max(1.0, samples_per_insert):
            raise ValueError(
                "error_buffer must be at least max(1.0, samples_per_insert): with less, inserts and samples could "
                "wait for each other"
            )
        if low > start:
            raise ValueError(
                "error_buffer lies above samples_per_insert * min_size_to_sample: inserts and samples would wait for "
                "each other as soon as min_size_to_sample items are there"
            )
        if high < start:
            _log.warning(
                "error_buffer lies below samples_per_insert * min_size_to_sample: inserts wait before the table has "
                "min_size_to_sample items, unless something samples at the same time"
            )
        super().__init__(samples_per_insert, min_size_to_sample, low, high)


class Queue(RateLimiter):
    """Makes a table a queue: use `Table.queue`."""

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, 0.0, size)


class Stack(RateLimiter):
    """Makes a table a stack: use `Table.stack`."""

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, 0.0, size)
