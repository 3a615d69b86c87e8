"""Stores that are written to checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint.stores import MEMORY, Options


@pytest.fixture(params=["memory", "disk"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Options]:
    """Options of `open` and `restore` for a store in memory, or with a disk tier of its own."""
    numbers = itertools.count()

    def make() -> Options:
        if request.param == "memory":
            return {"memory": MEMORY}
        return {"memory": MEMORY, "disk": tmp_path / f"tier-{next(numbers)}", "disk_capacity": "128MiB"}

    return make
