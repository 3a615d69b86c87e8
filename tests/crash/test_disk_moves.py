"""Processes that die, or stop, while they copy bodies forward: rows are what was written, and the next one goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disk.test_copied_forward import CAPACITY, disk, fill, make, numbers
from warm import WARM, stopped_at_its_fault

import di_store
from di_store.runtime import chores

POINTS = (
    "tier.move_claimed:2",
    "tier.move_written:9",
    "tier.before_move:5",
    "tier.moved:5",
    "tier.segment_taken:40",
)
STOPS = [(point, False) for point in POINTS] + [("tier.move_written:9", True), ("tier.segment_taken:40", True)]
"""Whether the process stops, where it has no lock in hand; else it dies."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[di_store.Store]:
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="64MiB", seed=3) as opened:
        yield opened


def write(name: str, fault: str, first: int, count: int) -> None:
    with di_store.attach(name) as store:
        fill(store.table("rows"), first, count, fault=fault)


def started(*args: Any) -> Any:
    """A process that writes, and has died or stopped at its fault point. It alone moves bodies meanwhile."""
    chores._stop()
    child = WARM.Process(target=write, args=args)
    child.start()
    assert stopped_at_its_fault(child) or child.exitcode == -signal.SIGKILL, "the point was not reached"
    return child


def check_rows(table: di_store.Table) -> None:
    keys = table.keys()
    for at in range(0, len(keys), 200):
        numbers(table.peek(keys[at : at + 200]).data["x"])


@pytest.mark.parametrize(
    ("fault", "stop"), STOPS, ids=[f"{point}-{'stopped' * stop or 'killed'}" for point, stop in STOPS]
)
def test_a_mover_killed_at_any_point_loses_nothing(store: di_store.Store, fault: str, stop: bool) -> None:
    table = make(store)
    fill(table, 0, CAPACITY)
    child = started(store.name, fault + (":stop" if stop else ""), CAPACITY, 8 * CAPACITY)
    fill(table, 10 * CAPACITY, CAPACITY)
    check_rows(table)
    child.kill()
    child.join(60)
    before = disk(store)["moved"]
    fill(table, 11 * CAPACITY, 3 * CAPACITY)
    assert disk(store)["moved"] > before
    assert len(table) == CAPACITY
    check_rows(table)
    store.check(repair=True)
    assert not store.check()


def test_a_body_drawn_during_a_move_stays_readable(store: di_store.Store) -> None:
    """A mover stops with copies written and not committed; their chunks are drawn, and their reads begin later."""
    table = make(store)
    fill(table, 0, CAPACITY)
    child = started(store.name, "tier.move_written:20:stop", CAPACITY, 8 * CAPACITY)
    with table.loader(100, prefetch=10) as loader:
        numbers(next(loader).data["x"])
        os.kill(child.pid, signal.SIGCONT)
        child.join(120)
        assert child.exitcode == 0
        assert disk(store)["moved"] > 0
        for _ in range(15):
            numbers(next(loader).data["x"])
    check_rows(table)
    assert not store.check()


def test_a_learner_that_has_files_open_reads_the_new_ones(store: di_store.Store, tmp_path: Path) -> None:
    """A process is killed when it has given a new name to the file that a checkpoint keeps, and before it makes it."""
    table = make(store)
    fill(table, 0, 2 * CAPACITY)
    store.checkpoint(tmp_path / "checkpoint")
    child = started(store.name, "tier.segment_renamed:1", 2 * CAPACITY, 8 * CAPACITY)
    child.join(60)
    check_rows(table)
    fill(table, 10 * CAPACITY, 3 * CAPACITY)
    check_rows(table)
    store.check(repair=True)
    assert not store.check()
    with di_store.restore(tmp_path / "checkpoint", memory="128MiB") as again:
        assert np.isin(numbers(again.table("rows").sample(200).data["x"]), np.arange(2 * CAPACITY)).all()
