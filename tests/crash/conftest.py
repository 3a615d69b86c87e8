"""Fixtures of the crash tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from crash.zygote import Crew


@pytest.fixture(scope="session")
def zygote() -> Iterator[Crew]:
    """One zygote for the whole run."""
    crew = Crew(["numpy", "pytest", "di_store", "crash.roles"])
    yield crew
    crew.close()


@pytest.fixture
def crew(zygote: Crew) -> Iterator[Crew]:
    """The zygote's children of this test, all gone afterwards."""
    yield zygote
    zygote.kill_all()
