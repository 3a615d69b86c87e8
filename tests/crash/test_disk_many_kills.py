"""Processes that do everything in a store with a disk are killed at every fault point of the tier, again and again."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count as numbers_from
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from crash import faults
from crash.zygote import KILLED, Crew, Hand
from di_store import Compress, Spec, Uniform, _core

RARE = {"segment.body_written", "tier.lost_marked", "tier.segment_renamed", "tier.file_forgotten", "log.forgotten"}
"""Of checkpoints, where rows are damaged, and where files go: these have tests of their own."""
OTHERS = {"sample.portion_read", "heap.body_unlinked", "heap.bytes_dropped", "heap.block_given", "heap.block_taken"}
POINTS = OTHERS | {
    point
    for point in faults.all_points() - RARE
    if point.startswith(("tier.", "segment.", "log.", "durable.", "objects.", "get."))
}
MOST = 4
"""The largest count that a point is armed with."""
A_STORE = 40
"""Kills in one store; then it is opened again from its folder."""
WAIT_SECONDS = 10.0
HELD, KEPT = 400, 64
"""Objects that a process has at a time; of so many it leaves one, durable."""
OPTIONS: dict[str, Any] = {"memory": "24MiB", "disk_capacity": "192MiB"}
SCHEMA = {"number": Spec((), "int64"), "noise": Spec((1024,), "uint8"), "same": Spec((1024,), "uint8")}
NOISE = np.random.default_rng(0).integers(0, 256, (251, 1024), np.uint8)


def rows(first: int, count: int) -> dict[str, Any]:
    """Rows that follow from their numbers: half of each can be compressed."""
    number = np.arange(first, first + count)
    return {
        "number": number,
        "noise": NOISE[number % 251],
        "same": np.repeat((number % 251).astype(np.uint8)[:, None], 1024, axis=1),
    }


def right(batch: di_store.Batch) -> None:
    data = batch.data
    assert (data["noise"] == NOISE[data["number"] % 251]).all()
    assert (data["same"] == (data["number"] % 251)[:, None]).all()


def id_of(victim: int, number: int) -> str:
    return f"{victim:020x}{number:020x}"


def value_of(id: str) -> np.ndarray:
    number = int(id, 16)
    return np.resize(NOISE[number % 251], (7, 900, 5_000, 60_000)[number % 4])


def live(name: str, victim: int, fault: str, told: str) -> None:
    """Write, draw, put, get, delete until the fault; a line is a call that has returned, or a deletion that begins."""
    with di_store.attach(name, timeout=60) as store, open(told, "a", buffering=1) as file:
        rng = random.Random(victim)
        tables = [store.table("plain"), store.table("packed")]
        writers = [table.writer() for table in tables]
        _core.arm_fault(fault)
        for turn in numbers_from(0):
            for table, writer in zip(tables, writers, strict=True):
                writer.extend(rows(rng.randrange(1 << 30), 400))
                right(table.sample(32))
            for number in range(4 * turn, 4 * turn + 4):
                how = {"durability": "disk"} if number % 2 else {}
                store.put(value_of(id_of(victim, number)), id=id_of(victim, number), timeout=60, **how)
                file.write(f"put {number}\n")
            with suppress(di_store.ObjectNotFound):
                old = id_of(victim, rng.randrange(4 * turn + 4))
                assert np.array_equal(store.get(old, timeout=0), value_of(old))
            for number in range(max(0, 4 * turn - HELD), 4 * turn - HELD + 4):
                if number % KEPT != 1:
                    file.write(f"deleting {number}\n")
                    store.delete(id_of(victim, number))


class Scene:
    """One store, its victims one after the other, and what they have said."""

    def __init__(self, crew: Crew, folder: Path, name: str) -> None:
        self._crew, self._folder = crew, folder
        self.store = di_store.open(name, disk=folder / "disk", **OPTIONS)
        make = partial(self.store.create_table, schema=SCHEMA, lanes=4, sampler=Uniform())
        make("plain", capacity=6_000, compress=None, remover=Uniform())
        make("packed", capacity=20_000, compress=Compress(expect=2))
        self._durable: set[str] = set()

    def kill(self, victim: int, fault: str, others: list[Hand]) -> bool:
        """One process dies at the fault; False: it did not come there, and was killed somewhere. All is well then."""
        told = self._folder / f"told-{victim}"
        hand = self._crew.start("crash.test_disk_many_kills:live", self.store.name, victim, fault, str(told))
        end = time.monotonic() + WAIT_SECONDS
        self._crew.until(lambda: hand.status is not None or time.monotonic() > end, "a death", 2 * WAIT_SECONDS)
        reached = hand.status is not None
        hand.signal(signal.SIGKILL)
        assert hand.join() == KILLED, hand.printed()
        for other in others:
            assert other.status is None, other.printed()
        self._look(victim, told)
        return reached

    def _look(self, victim: int, told: Path) -> None:
        for name in ("plain", "packed"):
            right(self.store.table(name).sample(100, timeout=60))
        lines = [line.split() for line in told.read_text().splitlines()] if told.exists() else []
        begun = {int(number) for what, number in lines if what == "deleting"}
        for number in (int(number) for what, number in lines if what == "put"):
            id = id_of(victim, number)
            if number not in begun:
                assert np.array_equal(self.store.get(id, timeout=60), value_of(id)), id
            if number % KEPT == 1 and number not in begun:
                self._durable.add(id)
            else:
                self.store.delete(id)

    def close(self) -> None:
        """Nothing is counted wrongly; and what is durable is there again."""
        self.store.check(repair=True)
        assert self.store.check() == []
        self.store.close()
        with di_store.open(disk=self._folder / "disk", **OPTIONS) as again:
            there = {ref.id for ref in again.keys(n=1_000_000)}
            assert self._durable <= there
            for id in there:
                assert np.array_equal(again.get(id), value_of(id))


@pytest.mark.timeout(3_600)
def test_the_disk_tier_survives_kills_at_every_point(
    crew: Crew, count: Callable[[int, int], int], tmp_path: Path, store_name: Callable[[], str], full: bool
) -> None:
    rng, hits, began = random.Random(9), Counter[str](), time.monotonic()
    total = count(8, 1_000)
    order = [point for _ in range(-(-total // len(POINTS))) for point in rng.sample(sorted(POINTS), len(POINTS))][
        :total
    ]
    for first in range(0, total, A_STORE):
        folder = tmp_path / str(first)
        folder.mkdir()
        scene = Scene(crew, folder, store_name())
        other = crew.start(
            "crash.test_disk_many_kills:live", scene.store.name, 1_000_000 + first, "", str(folder / "told")
        )
        for victim, point in enumerate(order[first : first + A_STORE], first):
            fault = f"{point}:{rng.randint(1, MOST)}"
            hits[point if scene.kill(victim, fault, [other]) else "anywhere"] += 1
        other.kill()
        scene.close()
    print(f"\n{total} kills in {time.monotonic() - began:.0f} s")
    for point, number in sorted(hits.items()):
        print(f"{number:6} {point}")
    assert hits["anywhere"] < total / 2
    if full:
        assert not POINTS - set(hits)
