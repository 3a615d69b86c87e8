"""CPU time of `add`, the framework's buffer and ours by turns: while they fill for the first time, and full.

CPU time is that of the whole process, user and system: page faults count, and so do our threads.
"""

from __future__ import annotations

import gc
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 7
Make = Callable[[], Callable[[int], None]]
"""Makes an empty buffer: a function that adds so many steps to it."""


def adds(label: str, makes: dict[str, Make], fill: int, full: int, block: int) -> list[dict[str, Any]]:
    """Print and return the medians of `ROUNDS` rounds, each with new buffers, in microseconds per `add`.

    Args:
        label: what is added.
        makes: of the framework's buffer and of ours.
        fill: the steps that are measured as the first ones.
        full: the steps that are measured after these; 0: none, where the buffers are larger.
        block: steps that one buffer adds before it is the other's turn.
    """
    found: dict[str, dict[str, list[float]]] = {"fills": {}, "full": {}}
    for number in range(ROUNDS):
        names = list(makes) if number % 2 else list(makes)[::-1]
        buffers = {name: makes[name]() for name in names}
        for phase, steps in (("fills", fill), ("full", full)):
            taken = dict.fromkeys(names, 0.0)
            for _ in range(0, steps, block):
                for name, add in buffers.items():
                    begin = time.process_time()
                    add(block)
                    taken[name] += time.process_time() - begin
            for name in names if steps else ():
                found[phase].setdefault(name, []).append(taken[name] / steps * 1e6)
        del buffers, add
        gc.collect()
    lines = []
    for phase, times in found.items():
        if times:
            theirs, ours = (statistics.median(times[name]) for name in makes)
            lines.append({"add": f"{label}, {phase}", "theirs_us": round(theirs, 2), "ours_us": round(ours, 2)})
            print(f"{label + ', ' + phase:58} {theirs:8.2f} {ours:8.2f} {ours / theirs:6.2f}", flush=True)
    return lines


def write(path: Path, command: str, versions: dict[str, str], lines: list[dict[str, Any]]) -> None:
    """Save what `adds` returned."""
    machine = f"{platform.machine()}, 2 shared cores with other work beside"
    result = {"command": command, "versions": versions, "machine": machine, "rounds": ROUNDS, "adds": lines}
    path.write_text(json.dumps(result) + "\n")
