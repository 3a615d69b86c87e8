"""Processes that die while they move chunks to disk: nothing that others see is lost, and the next one goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disk.test_disk import BLOCK, fill, numbers, rows
from warm import WARM, stopped_at_its_fault

import di_store
from di_store import _core
from di_store.runtime import chores

POINTS = (
    "tier.claimed:2",
    "tier.segment_taken:2",
    "tier.written:5",
    "tier.segment_sealed:1",
    "tier.before_commit:4",
    "tier.committed:4",
    "tier.dropped:3",
    "tier.file_forgotten:1",
    "segment.before_write:4",
    "segment.written:4",
    "segment.footer_written:1",
)
PACKED_POINTS = ("tier.claimed:2", "tier.packed:5", "segment.written:4", "tier.before_commit:4", "tier.dropped:3")
HOLD_THE_HEAP = ("tier.claimed", "tier.before_commit", "tier.committed", "tier.dropped")
"""Nobody gets past one that is stopped there: it has the heap's lock in hand."""


def cases() -> Iterator[Any]:
    for compress, points in ((None, POINTS), ("auto", PACKED_POINTS)):
        for point in points:
            yield pytest.param(point, compress, False, id=f"{point}-{compress}-killed")
            if not point.startswith(HOLD_THE_HEAP):
                yield pytest.param(point, compress, True, id=f"{point}-{compress}-stopped")


def write_until_killed(name: str, fault: str, first: int) -> None:
    with di_store.attach(name) as store, store.table("replay").writer() as writer:
        if fault.endswith(":stop"):
            chores._stop()  # first: a thread that stops at the point would stop this one with whatever lock it has
        _core.arm_fault(fault)
        for number in range(first, first + 400_000, BLOCK):
            writer.extend(rows(number, BLOCK))


@pytest.mark.parametrize(("fault", "compress", "stop"), cases())
def test_a_writer_killed_or_stopped_at_any_point_blocks_nobody(
    fault: str, compress: str | None, stop: bool, tmp_path: Path
) -> None:
    """A stopped one keeps only what it has claimed: the others write, read and drop meanwhile."""
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="96MiB") as store:
        table = store.create_table("replay", capacity=30_000, lanes=3, compress=compress)
        fill(table, 0, 20_000)
        if stop:  # the child moves chunks only where this process does not do it first
            chores._stop()
        child = WARM.Process(target=write_until_killed, args=(store.name, fault + (":stop" if stop else ""), 20_000))
        child.start()
        died = stopped_at_its_fault(child) if stop else child.join(120) or child.exitcode == -signal.SIGKILL
        if not died:
            assert fault in ("tier.file_forgotten:1", "tier.segment_sealed:1"), "the point was not reached"
        fill(table, 500_000, 15_000)
        for _ in range(5):
            batch = table.sample(200)
            assert (numbers(batch.data["obs"]) % 7 == batch.data["action"]).all()
        child.kill()
        child.join(60)
        fill(table, 600_000, 15_000)
        assert not store.check(repair=True) or died
        assert not store.check()
        assert (numbers(table.sample(200).data["obs"]) >= 0).all()


def learn(name: str, pipe: Any, fault: str = "") -> None:
    _core.arm_fault(fault)
    with di_store.attach(name) as store:
        table = store.table("replay")
        while True:
            batch = table.sample(64)
            assert (numbers(batch.data["obs"]) % 7 == batch.data["action"]).all()
            pipe.send(1)


def test_learners_killed_during_disk_reads_leave_no_pins(tmp_path: Path) -> None:
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="128MiB") as store:
        table = store.create_table("replay", capacity=50_000, lanes=2)
        fill(table, 0, 50_000)
        for turn in range(6):
            near, far = WARM.Pipe()
            child = WARM.Process(target=learn, args=(store.name, far))
            child.start()
            for _ in range(3 + turn):
                assert near.poll(120)
                near.recv()
            fill(table, 50_000 * (turn + 1), 5_000)
            child.kill()
            child.join(60)
        fill(table, 10_000_000, 50_000)
        assert not store.check(repair=True)
        assert store.stats()["pinned"] == 0


def test_a_learner_killed_between_portions_leaves_no_pins(tmp_path: Path) -> None:
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="128MiB") as store:
        table = store.create_table("replay", capacity=50_000, lanes=2, compress=None)
        fill(table, 0, 50_000)
        _, far = WARM.Pipe()
        child = WARM.Process(target=learn, args=(store.name, far, "sample.portion_read:3"))
        child.start()
        child.join(120)
        assert child.exitcode == -signal.SIGKILL
        fill(table, 100_000, 50_000)
        assert not store.check(repair=True)
        assert store.stats()["pinned"] == 0
