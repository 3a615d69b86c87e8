"""Fixtures of the soak."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from crash.zygote import Crew


@pytest.fixture
def crew() -> Iterator[Crew]:
    """A zygote of its own, and its children; all gone afterwards."""
    made = Crew(["numpy", "di_store", "soak.roles"])
    yield made
    made.close()
