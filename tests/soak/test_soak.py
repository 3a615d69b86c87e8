"""One store in hard use for half an hour, and everything as flat at the end as near the beginning.

Writers of streams, learners, loaders, a queue, objects from 256 bytes to 16 MiB at 80 % occupancy, weights, storms of
forks and of visitors, an administrator who resizes, reconfigures, makes and drops; chance kills and stops them. All
the time: no row, object or batch is torn, nobody is stuck, sums and limiters agree. At each roll call (ten of them)
everybody stands still, and every byte must have its owner. At the end everything is deleted, and nothing is left.

`DI_STORE_SOAK_SECONDS` sets another length, `DI_STORE_SOAK_SEED` another chance, `DI_STORE_SOAK_SERIES` names a file
for the readings as JSON. A line a minute goes to the terminal (`pytest -s`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crash.zygote import Crew

from soak.context import Terms
from soak.figures import Floors, Reading, rises
from soak.roll_call import end, roll_call
from soak.scene import Plan, Scene

pytestmark = pytest.mark.extended
MIB = 1 << 20
STEADY = ("churner", "streamer", "learner", "loader", "publisher", "puller", "forker")
MORTAL = ("churner", "streamer", "learner", "loader", "feeder", "taker", "puller", "admin", "visitor")
QUICK_SECONDS = 60.0
"""A shorter soak is a look at whether all works: its first roll call sees processes that still grow."""


def tell(scene: Scene, stats: dict[str, Any], reading: Reading | None) -> None:
    """A line about the state of things."""
    clock = f"{int(scene.seconds) // 60:3}:{int(scene.seconds) % 60:02}"
    work = ", ".join(f"{role} {number:,}" for role, number in sorted(scene.done().items()))
    strokes = ", ".join(f"{number:,} {what}" for what, number in sorted(scene.strokes.items()))
    used = 1 - stats["free"] / stats["memory"]
    print(
        f"{clock}  {used:.0%} of {stats['memory'] >> 20} MiB, {stats['deaths']:,} deaths ({strokes}); {work}",
        flush=True,
    )
    if reading is not None:
        private = ", ".join(f"{name} {each.private / MIB:.1f}" for name, each in reading.processes.items())
        print(f"        roll call: {reading.listed:,} objects whole; RssAnon in MiB: {private}", flush=True)


def play(scene: Scene, seconds: float, calls: int) -> tuple[list[Reading], list[dict[str, Any]]]:
    """The whole soak but for its end; readings of the roll calls, and figures of every second or so."""
    readings, series = list[Reading](), list[dict[str, Any]]()
    scene.began = time.monotonic()
    pause = seconds / calls
    look_at, tell_at = 0.0, 60.0
    while len(readings) < calls:
        scene.crew.pump(0.02)
        scene.chance()
        now = scene.seconds
        if now >= look_at:
            stats = scene.watch()
            look_at = now + min(1.0, seconds / 40)
            series.append(
                {name: stats[name] for name in ("memory", "free", "present", "objects", "deaths")} | {"at": now}
            )
            if now >= tell_at:
                tell(scene, stats, None)
                tell_at += 60.0
        if now >= pause * (len(readings) + 1):
            readings.append(roll_call(scene))
            tell(scene, scene.store.stats(), readings[-1])
    return readings, series


def soak(scene: Scene, seconds: float, calls: int) -> None:
    """Play, compare, end."""
    readings, series = play(scene, seconds, calls)
    if path := os.environ.get("DI_STORE_SOAK_SERIES"):
        plain = {"seconds": seconds, "strokes": scene.strokes, "done": scene.done(), "series": series}
        Path(path).write_text(json.dumps(plain | {"readings": [each.as_json() for each in readings]}, indent=1))
    floors = Floors() if seconds >= QUICK_SECONDS else Floors(private=16 * MIB, tables=4 * MIB, meta=2 * MIB)
    found = rises(readings[0], readings[-1], floors)
    assert found == [], "\n".join(found)
    end(scene)


@pytest.mark.memory_only
@pytest.mark.timeout(3_000)
def test_resource_use_stays_flat(
    crew: Crew, count: Callable[[int, int], int], tmp_path: Path, store_name: Callable[[], str]
) -> None:
    seconds = float(os.environ.get("DI_STORE_SOAK_SECONDS", count(8, 1_800)))
    quick = seconds < QUICK_SECONDS
    terms = Terms(
        memory=(192 if quick else 512) * MIB,
        largest=(4 if quick else 16) * MIB,
        capacity=2_000 if quick else 20_000,
        wait=0.3 if quick else 1.0,
    )
    seed = int(os.environ.get("DI_STORE_SOAK_SEED", "1"))
    print(f"\nsoak of {seconds:.0f} s, seed {seed}", flush=True)
    scene = Scene(crew, store_name(), str(tmp_path / "board"), terms, Plan(STEADY, MORTAL, every=0.5), seed)
    soak(scene, seconds, 4 if quick else 10)
    assert scene.strokes["kills"], "nobody was killed"
    for role in (*STEADY, *MORTAL):
        assert scene.done()[role] > 0, f"{role} has done nothing"


PLANTS = {
    "wrong-byte": ("churner", "torn object"),
    "wrong-row": ("streamer", "torn vec"),
    "object-leak": ("churner", "kept objects"),
    "descriptor-leak": ("churner", "descriptors of churner"),
    "memory-leak": ("churner", "RssAnon of churner"),
    "no-more-turns": ("churner", "churner 0 does not get on|everybody to stand still"),
    "pin-leak": ("churner", "nothing to be pinned"),
}
"""What a process does wrong, which one, and what the soak says of it."""


@pytest.mark.memory_only
@pytest.mark.parametrize("plant", PLANTS)
def test_the_soak_finds_each_planted_fault(
    crew: Crew, tmp_path: Path, store_name: Callable[[], str], plant: str
) -> None:
    """A soak that can't fail would tell nothing: each check finds the fault it is there for."""
    role, words = PLANTS[plant]
    terms = Terms(memory=48 * MIB, largest=1 * MIB, capacity=500, wait=0.1)
    others = tuple(each for each in ("churner", "streamer", "learner") if each != role)
    bound = 2.0 if plant in ("no-more-turns", "pin-leak") else 120.0
    scene = Scene(crew, store_name(), str(tmp_path / "board"), terms, Plan((role, *others), (), 1e9, plant, bound), 1)
    with pytest.raises(AssertionError, match=words):
        soak(scene, 1.5, 3)
