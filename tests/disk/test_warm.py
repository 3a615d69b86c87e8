"""Of one table, bodies that are drawn from often stay in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import di_store
from di_store import Prioritized, Spec

BYTES, ROWS, EPISODE = 8_192, 8_192, 100


@pytest.mark.memory_only
def test_frequently_drawn_items_stay_in_memory(tmp_path: Path) -> None:
    """One episode in ten has nine of ten draws, and more than it fits into memory."""
    random = np.random.default_rng(5)
    tier = {"memory": "20MiB", "disk": tmp_path / "disk", "disk_capacity": "256MiB"}
    with di_store.open(**tier, seed=1) as store:
        schema = {"x": Spec((BYTES,), "uint8")}
        table = store.create_table(
            "t", capacity=ROWS, lanes=1, sampler=Prioritized(alpha=1.0), compress=None, schema=schema
        )
        drawn = 0

        def add(first: int, count: int) -> None:
            numbers = np.arange(first, first + count)
            warm = np.where(numbers // EPISODE % 10 == 0, 81.0, 1.0)
            writer.extend({"x": random.integers(0, 255, (count, BYTES), np.uint8)}, priority=warm)

        with table.writer() as writer:
            for first in range(0, ROWS, 256):
                add(first, 256)
            for turn in range(600):
                table.sample(64)
                drawn += 64
                add(ROWS + 8 * turn, 8)
                if turn == 299:
                    before = store.stats()["disk"]["hit_rate"] * drawn
        found = store.stats()["disk"]
        late = (found["hit_rate"] * drawn - before) / (drawn / 2)
        assert found["written"] > ROWS * BYTES / 2
        assert late > 0.35  # a fifth, if it did not matter what is drawn
        assert store.check() == []
