"""`store.check`: it finds what contradicts what it is derived from, changes nothing, and repairs when told to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from test_shm_format import Memory

import di_store


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[Any]:
    with di_store.open(store_name(), memory="64MiB") as opened:
        table = opened.create_table("t", capacity=100, sampler=di_store.Prioritized(alpha=1.0))
        table.extend({"x": np.arange(50)}, priority=np.arange(1.0, 51.0))
        opened.put(np.zeros(5000), id="ab" * 20)
        yield opened


def add(store: Any, field: str, delta: int) -> None:
    """Falsify a figure of the heap or of table 0 behind everybody's back."""
    fd = store._arena.fd_number
    memory = Memory(fd)
    part = "heap" if field.startswith("HeapHeader") else "tables"
    offset, size = memory.fields[field]
    at = memory.number(f"ArenaHeader.{part}", 0) + offset
    value = int.from_bytes(os.pread(fd, size, at), "little") + delta
    os.pwrite(fd, value.to_bytes(size, "little"), at)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("HeapHeader.live_bytes", "live bytes"),
        ("HeapHeader.pinned_bytes", "pinned bytes"),
        ("HeapHeader.live_objects", "live objects"),
        ("HeapHeader.table_charge", "table charge"),
        ("TableHeader.size", "table 't': items"),
        ("TableHeader.writers", "open writers"),
        ("TableHeader.free_slots", "free slots"),
    ],
)
def test_check_finds_leaves_and_repairs(store: Any, field: str, words: str) -> None:
    assert store.check() == []
    add(store, field, 3)
    first = store.check()
    assert any(words in finding for finding in first), first
    assert store.check() == first, "a check that was not told to repair repaired"
    assert any(words in finding for finding in store.check(repair=True))
    assert store.check() == []
    assert len(store.table("t").sample(20)) == 20
    assert store.get("ab" * 20).shape == (5000,)


def di_store_check(store: Any, *options: str) -> tuple[int, Any]:
    """Exit status and JSON of the command."""
    command = [sys.executable, "-m", "di_store", "check", store.name, "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, json.loads(done.stdout)


def test_the_command_repairs_only_when_told(store: Any) -> None:
    code, found = di_store_check(store, "--repair")
    assert (code, found["findings"], found["repaired"]) == (0, [], False)
    add(store, "HeapHeader.live_bytes", 4096)
    for _ in range(2):
        code, found = di_store_check(store)
        assert code == 1
        assert len(found["findings"]) == 1
        assert not found["repaired"]
    code, found = di_store_check(store, "--repair")
    assert (code, len(found["findings"]), found["repaired"], found["left"]) == (0, 1, True, [])


def test_a_check_beside_readers_and_dropped_views(store: Any) -> None:
    """Pins, doomed objects and dropped views are no contradiction, and a check does not end them."""
    view = store.get("ab" * 20)
    store.delete("ab" * 20)
    dropped = store.get(store.put(np.ones(100)))
    del dropped
    assert store.check() == store.check(repair=True) == []
    assert store.stats()["pending"] > 0
    assert view.sum() == 0
