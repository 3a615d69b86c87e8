"""CPU time of `add`, the framework's buffer and ours by turns: while they fill for the first time, and full.

CPU time is user and system: page faults count. The last figure is that of our threads in the background, which make
huge pages of what was filled, also in the 3 s after it.
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
            taken, before = dict.fromkeys([*names, "others"], 0.0), time.process_time() - time.thread_time()
            for _ in range(0, steps, block):
                for name, add in buffers.items():
                    begin = time.thread_time()
                    add(block)
                    taken[name] += time.thread_time() - begin
            time.sleep(3 if phase == "fills" else 0)
            taken["others"] = time.process_time() - time.thread_time() - before
            for name in taken if steps else ():
                found[phase].setdefault(name, []).append(taken[name] / steps * 1e6)
        del buffers, add
        gc.collect()
    lines = []
    for phase, times in found.items():
        if times:
            figures = {name: round(statistics.median(each), 2) for name, each in sorted(times.items())}
            lines.append({"add": f"{label}, {phase}", **figures})
            others, ours, theirs = figures.values()
            print(f"{label + ', ' + phase:45} {theirs:8.2f} {ours:8.2f} {ours / theirs:6.2f} {others:8.2f}", flush=True)
    return lines


def seconds(call: Callable[[], Any], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def write(path: Path, command: str, versions: dict[str, str], lines: list[dict[str, Any]]) -> None:
    """Save what `adds` returned."""
    machine = f"{platform.machine()}, 2 shared cores with other work beside"
    about = {"command": command, "versions": versions, "machine": machine, "rounds": ROUNDS, "unit": "us per add"}
    path.write_text(json.dumps(about | {"adds": lines}) + "\n")
