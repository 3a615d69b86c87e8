"""SIGKILL at every fault point and anywhere else, of every kind of process, while others go on.

After each kill the others must get on. At the end nothing is torn, stuck, leaked, lost or given twice. A process to be
killed is an additional one, armed with a fault point of its role; the crew goes on beside it.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from crash import faults
from crash.field import CREW, Field
from crash.zygote import Crew

LOOPS = 600
"""How many loops an armed process may do before it counts as having missed its point."""
KILLS_PER_FIELD = 12


def some_count(rng: random.Random, most: int) -> int:
    """From 1 to `most`, small ones as likely as large ones."""
    return int(math.exp(rng.uniform(0, math.log(most + 0.99))))


def kill_on(field: Field, points: list[str], hits: Counter[str]) -> None:
    """Kill one process at each of these points; "" kills a member of the crew wherever it is, and replaces it."""
    for point in points:
        if not point:
            row = field.rng.choice([row for row in field.living() if field.progress(row)] or field.living())
            field.kill(row)
            field.start(field.roles[row])
            hits["anywhere"] += 1
        else:
            roles, most = faults.REACHED_BY[point]
            row = field.start(field.rng.choice(roles), f"{point}:{some_count(field.rng, most)}")
            hits[point] += field.await_kill(row, LOOPS, point)
        field.await_progress()


def plan(total: int, rng: random.Random) -> list[list[str]]:
    """Points by field: all in turn, in random order, every seventh kill anywhere."""
    points: list[str] = []
    while len(points) < total:
        some = sorted(faults.REACHED_BY) + [""] * (len(faults.REACHED_BY) // 6)
        rng.shuffle(some)
        points += some
    return [points[first : first + KILLS_PER_FIELD] for first in range(0, total, KILLS_PER_FIELD)]


def tell(hits: Counter[str], seconds: float) -> None:
    """Print how often each point was hit (pytest shows it with -s or -rP)."""
    print(f"\n{sum(hits.values())} kills in {seconds:.0f} s")
    for point, number in sorted(hits.items()):
        print(f"{number:6} {point}")


def test_every_fault_point_is_reached() -> None:
    """So that a new fault point can't go untested."""
    known = set(faults.REACHED_BY) | set(faults.REACHED_SETTLING) | faults.REACHED_ELSEWHERE
    assert faults.all_points() == known


@pytest.mark.timeout(3_600)
def test_processes_survive_kills_of_others(
    crew: Crew, count: Callable[[int, int], int], tmp_path: Path, store_name: Callable[[], str], full: bool
) -> None:
    """Kills at every point; over the full run each is hit."""
    seed = 20
    total = count(48, 1_200)
    rng, hits, began = random.Random(seed), Counter[str](), time.monotonic()
    for number, points in enumerate(plan(total, rng)):
        field = Field(crew, store_name(), str(tmp_path / f"board-{number}"), rng.randrange(1 << 30))
        for role in CREW:
            field.start(role)
        field.await_progress(5)
        kill_on(field, points, hits)
        field.stop()
        field.verify()
        field.close()
    tell(hits, time.monotonic() - began)
    assert sum(hits.values()) >= total * 3 // 4, hits
    if full:
        missed = set(faults.REACHED_BY) - set(+hits)
        assert not missed, missed


def test_a_kill_during_recovery_is_recovered_too(
    crew: Crew, count: Callable[[int, int], int], tmp_path: Path, store_name: Callable[[], str], full: bool
) -> None:
    """A process dies, the one that settles its death dies in the middle, and the next one too; then all is well."""
    rng, hits, began = random.Random(30), Counter[str](), time.monotonic()
    points = sorted(faults.REACHED_SETTLING)
    for turn in range(count(2, 30)):
        field = Field(crew, store_name(), str(tmp_path / f"board-{turn}"), rng.randrange(1 << 30))
        feeder = field.start("producer")
        crew.until(lambda field=field, feeder=feeder: field.progress(feeder) >= 20, "some items in the queue")
        field.await_kill(feeder, 0, "")
        rng.shuffle(points)
        for point in points:
            deaths, most = faults.REACHED_SETTLING[point]
            death = rng.choice(deaths)
            assert field.await_kill(field.start("prey", f"{death}:{some_count(rng, 20)}"), LOOPS, death)
            hits[point] += field.await_kill(field.start("settler", f"{point}:{some_count(rng, most)}"), 1, point)
            second = rng.choice(points)
            hits[second] += field.await_kill(field.start("settler", f"{second}:1"), 1, second)
        for role in CREW:
            field.start(role)
        field.await_progress(5)
        field.stop()
        field.verify()
        field.close()
    tell(hits, time.monotonic() - began)
    missed = set(points) - set(+hits)
    assert not missed, missed
    if full:
        assert sum(hits.values()) >= 300, hits
