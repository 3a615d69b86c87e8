"""Stores of ours with a disk tier, as several parts open them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import di_store
from bench.tier.disk import fresh


@contextmanager
def opened(parent: Path, memory: int, capacity: int, **more: Any) -> Iterator[di_store.Store]:
    """A store with so many bytes of memory, and of files in a new folder there."""
    with fresh(parent) as folder, open_in(folder, memory, capacity, **more) as store:
        yield store


def open_in(folder: Path, memory: int, capacity: int, **more: Any) -> di_store.Store:
    return di_store.open(memory=memory, disk=str(folder / "store"), disk_capacity=capacity, seed=1, **more)


def disk_stats(store: di_store.Store) -> dict[str, int]:
    """`stats()["disk"]` of a store that has a disk."""
    found = store.stats()["disk"]
    assert found is not None
    return dict(found)  # type: ignore[arg-type]
