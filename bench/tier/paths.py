"""Processor time of the hot paths of one build: microseconds a call, as JSON. `python -m bench.tier.paths [FOLDER]`.

The least of `ROUNDS` bursts counts: other work on the machine only ever adds. With FOLDER stores have a disk tier
there; everything stays in memory. `bench.tier.hot` compares builds, so no newer function of the package is used.
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

ROUNDS = 12
STEP: dict[str, Any] = {
    "obs": np.zeros(4, np.float32),
    "action": 1,
    "reward": 1.0,
    "terminated": False,
    "truncated": False,
}


def least(call: Callable[[], object], calls: int) -> float:
    """Microseconds of processor time of a call."""
    found = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        for _ in range(calls):
            call()
        found.append((time.process_time() - begin) / calls * 1e6)
    return min(found)


def steps(store: di_store.Store, name: str, sampler: Any) -> dict[str, float]:
    """Transitions of small rows."""
    view = di_store.Transition(n_step=3, gamma=0.99)
    table = store.create_table(name, capacity=100_000, lanes=4, view=view, sampler=sampler)
    with table.writer() as writer:
        for number in range(60_000):
            writer.append(STEP, next={"obs": STEP["obs"]} if number % 100 == 99 else None)
        found = {"append": least(lambda: writer.append(STEP), 2_000)}
        found |= {f"sample({n})": least(lambda n=n: table.sample(n), 300) for n in (32, 256)}  # type: ignore[misc]
        keys, priorities = table.sample(256).keys, np.linspace(0.1, 1, 256)
        found["peek(256)"] = least(lambda: table.peek(keys), 300)
        if name == "prioritized":
            found["update(256)"] = least(lambda: table.update_priorities(keys, priorities), 500)
    return {f"{name}, {call}": taken for call, taken in found.items()}


def frames(store: di_store.Store) -> dict[str, float]:
    """Stacks of four frames."""
    view = di_store.Transition(n_step=3, gamma=0.99, frame_stack={"obs": 4})
    table = store.create_table("frames", capacity=20_000, lanes=2, view=view)
    row = {**STEP, "obs": np.random.default_rng(0).integers(0, 255, (84, 84), np.uint8)}
    with table.writer() as writer:
        for number in range(15_000):
            writer.append({**row, "terminated": number % 500 == 499})
        found = {"append": least(lambda: writer.append(row), 300)}
        found |= {f"sample({n})": least(lambda n=n: table.sample(n), 16) for n in (32, 256)}  # type: ignore[misc]
    return {f"frames, {call}": taken for call, taken in found.items()}


def inserts(store: di_store.Store) -> dict[str, float]:
    table = store.create_table("inserted", capacity=50_000, lanes=2)
    row = {"x": np.zeros(16, np.float32), "y": 1}
    found = {"insert": least(lambda: table.insert(row), 2_000), "sample(256)": least(lambda: table.sample(256), 300)}
    return {f"inserted, {call}": taken for call, taken in found.items()}


def main() -> None:
    disk: dict[str, Any] = {}
    if len(sys.argv) > 1:
        disk = {"disk": tempfile.mkdtemp(dir=sys.argv[1]), "disk_capacity": "2GiB"}
    with di_store.open(memory="1GiB", seed=1, **disk) as store:
        found = steps(store, "uniform", di_store.Uniform())
        found |= steps(store, "prioritized", di_store.Prioritized(alpha=0.6, beta=0.4))
        print(json.dumps({**found, **frames(store), **inserts(store)}), flush=True)


if __name__ == "__main__":
    main()
