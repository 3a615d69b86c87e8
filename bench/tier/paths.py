"""Hot paths of one build, in bursts: `python -m bench.tier.paths [FOLDER]` prints their names, as a line of JSON.

Then for each name on stdin the processor time of its call, in microseconds. With FOLDER stores have a disk tier there;
all stays in memory. `bench.tier.hot` compares builds, so no newer function of the package is used.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import di_store

STEP = {"obs": np.zeros(4, np.float32), "action": 1, "reward": 1.0, "terminated": False, "truncated": False}
Burst = tuple[Callable[[], object], int]
"""What is called, and how often."""


def steps(store: di_store.Store, name: str, sampler: Any) -> dict[str, Burst]:
    """Transitions of small rows."""
    view = di_store.Transition(n_step=3, gamma=0.99)
    table = store.create_table(name, capacity=100_000, lanes=4, view=view, sampler=sampler)
    writer = table.writer()
    for number in range(60_000):
        writer.append(STEP, next={"obs": STEP["obs"]} if number % 100 == 99 else None)
    keys, priorities = table.sample(256).keys, np.linspace(0.1, 1, 256)
    found: dict[str, Burst] = {
        "append": (lambda: writer.append(STEP), 2_000),
        "sample(32)": (lambda: table.sample(32), 300),
        "sample(256)": (lambda: table.sample(256), 300),
        "peek(256)": (lambda: table.peek(keys), 300),
    }
    if name == "prioritized":
        found["update(256)"] = (lambda: table.update_priorities(keys, priorities), 500)
    return {f"{name}, {call}": burst for call, burst in found.items()}


def frames(store: di_store.Store) -> dict[str, Burst]:
    """Stacks of four frames."""
    view = di_store.Transition(n_step=3, gamma=0.99, frame_stack={"obs": 4})
    table = store.create_table("frames", capacity=20_000, lanes=2, view=view)
    row = {**STEP, "obs": np.random.default_rng(0).integers(0, 255, (84, 84), np.uint8)}
    writer = table.writer()
    for number in range(15_000):
        writer.append({**row, "terminated": number % 500 == 499})
    return {
        "frames, append": (lambda: writer.append(row), 300),
        "frames, sample(32)": (lambda: table.sample(32), 16),
        "frames, sample(256)": (lambda: table.sample(256), 16),
    }


def inserts(store: di_store.Store) -> dict[str, Burst]:
    table = store.create_table("inserted", capacity=50_000, lanes=2)
    row = {"x": np.zeros(16, np.float32), "y": 1}
    insert, sample = (lambda: table.insert(row), 2_000), (lambda: table.sample(256), 300)
    return {"inserted, insert": insert, "inserted, sample(256)": sample}


def main() -> None:
    disk: dict[str, Any] = {}
    if len(sys.argv) > 1:
        disk = {"disk": tempfile.mkdtemp(dir=sys.argv[1]), "disk_capacity": "2GiB"}
    with di_store.open(memory="1GiB", seed=1, **disk) as store:
        bursts = steps(store, "uniform", di_store.Uniform())
        bursts |= steps(store, "prioritized", di_store.Prioritized(alpha=0.6, beta=0.4))
        bursts |= {**frames(store), **inserts(store)}
        print(json.dumps(list(bursts)), flush=True)
        for line in sys.stdin:
            call, times = bursts[line.strip()]
            begin = time.process_time()
            for _ in range(times):
                call()
            print((time.process_time() - begin) / times * 1e6, flush=True)


if __name__ == "__main__":
    main()
