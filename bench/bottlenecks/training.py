"""One run on one data plane; started by `python -m bench.bottlenecks` in the system's environment.

    python -m bench.bottlenecks.training --system di-store --seconds 20

This process is the learner. It starts the actors and waits until learning has begun. It reads the timers of all
processes, CPU times and counts at the beginning and at the end of `--seconds`. It prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from bench.bottlenecks.board import STEPS, Board, Run, parts_of
from bench.bottlenecks.planes import SYSTEMS, module_of
from bench.bottlenecks.usage import Usage, memory, usage
from di_store.demo.config import DemoConfig
from di_store.demo.envs import env_shape
from di_store.demo.learner import Learner
from di_store.demo.networks import as_input, build_network

WARM_UPDATES = 10
START_SECONDS = 240.0


@dataclass(frozen=True)
class Moment:
    """All counts of a run at one time."""

    seconds: float
    rows: Any
    updates: int
    usage: Usage


class Training:
    """The demo's learner on a plane."""

    def __init__(self, run: Run, plane: Any) -> None:
        self.run, self.plane = run, plane
        torch.manual_seed(0)
        self.learner = Learner(build_network(run.config, run.shape), run.job)

    def start(self) -> None:
        """Start the actors, and learn until all have started and `WARM_UPDATES` are made, or raise `TimeoutError`."""
        self.publish()
        self.plane.start()
        deadline, board = time.monotonic() + START_SECONDS, self.run.board
        while self.learner.updates < WARM_UPDATES or len(board.pids) < board.actors:
            self.learn_once()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.learner.updates} updates, {len(board.pids)} actors in {START_SECONDS:g} s")

    def publish(self) -> None:
        version = self.run.board.version + 1
        self.plane.publish(dict(self.learner.network.state_dict()), version)
        self.run.board.version = version

    def learn_once(self) -> None:
        """Make one update, or none if the plane has no batch for a while."""
        clock = self.run.clock
        sample = self.plane.sample()
        if sample is None:
            return
        with clock("assemble"):  # convert here, so that "train" does not include the conversion
            floats = {name: as_input(sample.data[name]).numpy() for name in ("obs", "next_obs")}
            batch: Any = SimpleNamespace(data={**sample.data, **floats}, weights=sample.weights)
        with clock("train"):
            priorities = self.learner.update(batch).priorities
        with clock("update"):
            self.plane.update(sample, priorities)
        if self.learner.should_publish:
            with clock("publish"):
                self.publish()

    def learn_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.learn_once()

    def now(self) -> Moment:
        board = self.run.board
        return Moment(time.perf_counter(), board.look(), self.learner.updates, usage(board.pids))


def figures(made: Training, begin: Moment, end: Moment) -> dict[str, Any]:
    """The figures of a run between two moments; shares are of wall time."""
    wall = end.seconds - begin.seconds
    rows = end.rows - begin.rows
    actors = [parts_of(row) for row in rows[1:]]
    updates = (end.updates - begin.updates) / wall
    cpu = end.usage.since(begin.usage)
    pss = memory(made.run.board.pids)
    return {
        "seconds": wall,
        "actor": {part: sum(each[part] for each in actors) / len(actors) / wall for part in actors[0]},
        "learner": {part: value / wall for part, value in parts_of(rows[0]).items()},
        "steps_per_second": float(rows[1:, STEPS].sum()) / wall,
        "updates_per_second": updates,
        "samples_per_second": updates * made.run.job.batch_size,
        "cpu": {role: {name: value / wall for name, value in times.items()} for role, times in cpu.items()},
        "cores": sum(times["all"] for times in cpu.values()) / wall,
        "pss_bytes": pss,
        "pss_bytes_all": sum(pss.values()),
        "store_bytes": made.plane.store_bytes(),
        "microseconds": made.run.clock.percentiles(),
    }


def measure(system: str, env: str, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(1)  # several threads would wait for each other, and lose time slices to the actors
    config = DemoConfig(env=env)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, env_shape(config), Board(Path(folder) / "board", config.actors))
        plane = module_of(system).Plane(run)
        try:
            made = Training(run, plane)
            made.start()
            made.learn_for(seconds / 5)
            begin = made.now()
            run.clock.clear()
            made.learn_for(seconds)
            return {"system": system, **figures(made, begin, made.now())}
        finally:
            run.board.stop()
            plane.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="one run on one data plane")
    parser.add_argument("--system", choices=SYSTEMS, required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    print(json.dumps(measure(args.system, args.env, args.seconds)), flush=True)
    os._exit(0)  # threads of the peers' servers and iterators would keep the process alive


if __name__ == "__main__":
    main()
