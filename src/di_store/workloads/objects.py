"""Objects to put and get."""

from __future__ import annotations

from typing import Any

import numpy as np

OBJECT_BYTES = (1_000, 110_000, 1_000_000, 10_000_000)


POOL_BYTES = 64 << 20
MAX_POOL = 1_000


def arrays(size_bytes: int) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """So many that no cache holds them all, where they are not tiny."""
    first = array(size_bytes)
    return [first, *(first.copy() for _ in range(min(MAX_POOL, POOL_BYTES // size_bytes)))]


def array(size_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8[size_bytes], random, the same every time."""
    return np.random.default_rng(0).integers(0, 255, size_bytes, np.uint8)
