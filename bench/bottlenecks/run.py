"""One run of one load in one system; started by `python -m bench.bottlenecks` in the system's environment.

    python -m bench.bottlenecks.run --system di-store --load qbert --seconds 20

This process is the learner. It starts the actors, waits until learning is under way, then takes the timers of all
processes, CPU time and counts at the beginning and at the end of `--seconds`. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.bottlenecks.agents import Learner, make_learner
from bench.bottlenecks.board import STEPS, Board, Clock, parts_of
from bench.bottlenecks.loads import LOADS, Load
from bench.bottlenecks.planes import SYSTEMS, LearnerSide, learner_side
from bench.bottlenecks.shapes import shape_of
from bench.bottlenecks.usage import Usage, memory, usage

WARM_UPDATES = 10
START_SECONDS = 240.0


@dataclass(frozen=True)
class Moment:
    """All counts of a run at one moment."""

    seconds: float
    rows: Any
    updates: int
    usage: Usage


class Job:
    """A learner with its plane."""

    def __init__(self, load: Load, board: Board, plane: LearnerSide, learner: Learner, clock: Clock) -> None:
        self.load, self.board, self.plane, self.learner, self.clock = load, board, plane, learner, clock

    def publish(self) -> None:
        """Hand the newest weights to the actors."""
        version = self.board.version + 1
        self.plane.publish(self.learner.weights(), version)
        self.board.version = version

    def learn_once(self) -> bool:
        """One update; False if the plane had no batch for a while."""
        clock = self.clock
        sample = self.plane.sample()
        if sample is None:
            return False
        with clock("assemble"):
            tensors = self.learner.assemble(sample)
        with clock("train"):
            priorities = self.learner.train(tensors)
        if priorities is not None:
            with clock("update"):
                self.plane.update(sample, priorities)
        if self.learner.updates % self.load.publish_every == 0:
            with clock("publish"):
                self.publish()
        return True

    def learn_until(self, updates: int, seconds: float) -> None:
        """Learn until so many updates are made; `TimeoutError` after so many seconds."""
        deadline = time.monotonic() + seconds
        while self.learner.updates < updates:
            self.learn_once()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.learner.updates} updates after {seconds:g} s")

    def wait_for_actors(self, seconds: float) -> None:
        """Learn until all actors are up; `TimeoutError` after so many seconds."""
        deadline = time.monotonic() + seconds
        while len(self.board.pids) < self.board.actors:
            self.learn_once()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self.board.pids)} actors after {seconds:g} s")

    def learn_for(self, seconds: float) -> None:
        """Learn for so many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.learn_once()

    def now(self) -> Moment:
        """All counts now."""
        return Moment(time.perf_counter(), self.board.look(), self.learner.updates, usage(self.board.pids))


def figures(job: Job, begin: Moment, end: Moment) -> dict[str, Any]:
    """What happened between two moments, as the JSON holds it; shares are of wall time."""
    wall = end.seconds - begin.seconds
    rows = end.rows - begin.rows
    actors = [parts_of(row) for row in rows[1:]]
    updates = end.updates - begin.updates
    cpu = end.usage.since(begin.usage)
    pss = memory(job.board.pids)
    return {
        "seconds": wall,
        "actor": {part: sum(each[part] for each in actors) / len(actors) / wall for part in actors[0]},
        "learner": {part: value / wall for part, value in parts_of(rows[0]).items()},
        "steps_per_second": float(rows[1:, STEPS].sum()) / wall,
        "updates_per_second": updates / wall,
        "samples_per_second": updates
        * job.load.batch_size
        * (job.load.unroll if job.load.kind == "unrolls" else 1)
        / wall,
        "cpu": {role: {name: value / wall for name, value in times.items()} for role, times in cpu.items()},
        "cores": sum(times["all"] for times in cpu.values()) / wall,
        "pss_bytes": pss,
        "pss_bytes_all": sum(pss.values()),
        "store_bytes": job.plane.store_bytes(),
        "microseconds": job.clock.percentiles(),
    }


def measure(system: str, load: Load, seconds: float) -> dict[str, Any]:
    """The figures of one run."""
    torch.set_num_threads(1)  # threads that wait for each other on cores the actors use stall for whole time slices
    with tempfile.TemporaryDirectory() as folder:
        board = Board(Path(folder) / "board", load.actors)
        clock = Clock(board, -1)
        shape = shape_of(load)
        job = Job(load, board, learner_side(system, load, shape, board, clock), make_learner(load, shape), clock)
        try:
            job.publish()
            job.plane.start()
            job.learn_until(WARM_UPDATES, START_SECONDS)
            job.wait_for_actors(START_SECONDS)
            job.learn_for(seconds / 5)
            begin = job.now()
            clock.forget()
            job.learn_for(seconds)
            found = figures(job, begin, job.now())
        finally:
            board.stop()
            job.plane.close()
    return {"system": system, "load": load.name, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description="one run of one load in one system")
    parser.add_argument("--system", choices=SYSTEMS, required=True)
    parser.add_argument("--load", choices=tuple(LOADS), required=True)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    print(json.dumps(measure(args.system, LOADS[args.load], args.seconds)), flush=True)
    # Servers and iterators of the peers own threads that would hold the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
