"""One CartPole run with a replay table of one size, or of one that grows while in use.

    python -m bench.bottlenecks.sizes --capacity 50000 --grow-from 2000 --seed 1

The demo's job (`cartpole` of `loads.py`) for a fixed number of environment steps, on Di-store. Prints one JSON line.
A growing table doubles whenever it is full, `table.resize` while actors append and the learner samples.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bench.bottlenecks.agents import make_learner
from bench.bottlenecks.board import Board, Clock
from bench.bottlenecks.loads import CARTPOLE, Load
from bench.bottlenecks.planes.ours import Plane
from bench.bottlenecks.run import Job
from bench.bottlenecks.shapes import shape_of

SOLVED = 195.0  # mean return at which CartPole is called solved
EPISODES = 30  # of the mean: 100 good ones would already be as many steps as the whole run
LOOK_SECONDS = 0.1
MIN_SIZE = 500  # the same for every capacity
LIMIT_SECONDS = 90.0


@dataclass
class Watch:
    """Returns over time, and when they were good for the first time."""

    board: Board
    seen: list[int]
    returns: list[float] = field(default_factory=list)
    curve: list[tuple[float, int, float]] = field(default_factory=list)
    solved: tuple[float, int] | None = None

    def look(self, seconds: float) -> None:
        """Take in what the actors' episodes returned."""
        self.returns += self.board.all_returns(self.seen)
        if len(self.returns) < EPISODES:
            return
        steps, mean = self.board.steps, sum(self.returns[-EPISODES:]) / EPISODES
        self.curve.append((round(seconds, 2), steps, round(mean, 2)))
        if self.solved is None and mean > SOLVED:
            self.solved = (seconds, steps)


def load_of(capacity: int, seed: int) -> Load:
    """The demo's job with another capacity."""
    return replace(CARTPOLE, capacity=capacity, min_size=MIN_SIZE, seed=seed)


def train(job: Job, plane: Plane, watch: Watch, steps: int, most: int) -> dict[str, Any]:
    """Train until the actors have made so many steps; the table doubles up to `most` items whenever it is full."""
    begin = looked = time.monotonic()
    resizes: list[float] = []
    while job.board.steps < steps and (now := time.monotonic()) - begin < LIMIT_SECONDS:
        job.learn_once()
        if now - looked < LOOK_SECONDS:
            continue
        looked = now
        watch.look(now - begin)
        stats = plane.table.stats()
        capacity = int(stats["capacity"])
        if capacity < most and stats["inserts"] >= capacity:
            before = time.perf_counter()
            plane.table.resize(min(2 * capacity, most))
            resizes.append(1e3 * (time.perf_counter() - before))
    return {"seconds": time.monotonic() - begin, "resizes_milliseconds": resizes}


def measure(capacity: int, grow_from: int | None, seed: int, steps: int) -> dict[str, Any]:
    """The figures of one run."""
    torch.set_num_threads(1)
    load = load_of(grow_from or capacity, seed)
    with tempfile.TemporaryDirectory() as folder:
        board = Board(Path(folder) / "board", load.actors)
        clock = Clock(board, -1)
        shape = shape_of(load)
        plane = Plane(load, shape, board, clock)
        job = Job(load, board, plane, make_learner(load, shape), clock)
        watch = Watch(board, [0] * load.actors)
        try:
            job.publish()
            plane.start()
            job.learn_until(1, 120.0)
            done = train(job, plane, watch, steps, capacity)
            stats = plane.table.stats()
            store_bytes = int(plane.store.stats()["present"])
        finally:
            board.stop()
            plane.close()
    means = [mean for _, _, mean in watch.curve]
    updates = job.learner.updates
    return {
        "capacity": capacity,
        "grow_from": grow_from,
        "seed": seed,
        "steps": board.steps,
        **done,
        "solved_seconds": watch.solved[0] if watch.solved else None,
        "solved_steps": watch.solved[1] if watch.solved else None,
        "best_mean_return": max(means, default=None),
        "final_mean_return": means[-1] if means else None,
        "updates": updates,
        "microseconds": clock.percentiles(),
        "items": int(stats["size"]),
        "evicted_for_room": int(stats["evicted_for_room"]),
        "stored_bytes": int(stats["bytes_stored"]),
        "store_bytes": store_bytes,
        "curve": watch.curve[:: max(1, len(watch.curve) // 100)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="one CartPole run with one size of replay")
    parser.add_argument("--capacity", type=int, required=True, help="items the table holds, or grows to")
    parser.add_argument("--grow-from", type=int, help="items it begins with")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps of all actors")
    args = parser.parse_args()
    print(json.dumps(measure(args.capacity, args.grow_from, args.seed, args.steps)), flush=True)


if __name__ == "__main__":
    main()
