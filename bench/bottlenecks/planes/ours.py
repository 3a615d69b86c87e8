"""Di-store: actors append to a table in shared memory, the learner samples from it, the store publishes weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

import di_store
from bench.bottlenecks.actor import end_actors, start_actors
from bench.bottlenecks.board import Run
from bench.bottlenecks.planes import ALPHA, BETA, PATIENCE_SECONDS, TOLERANCE, Array, Sample
from bench.kit import Worker
from di_store.demo.config import Recipe
from di_store.demo.envs import MODES, EnvShape, Stepped

POLICY, TABLE, MEMORY = "policy", "experience", "1GiB"
WEIGHTS_BYTES = 8 << 20  # at least the size of one version of the weights


def settings(job: Recipe) -> dict[str, Any]:
    """View, sampler and limiter of the table."""
    stack = {"obs": job.frame_stack} if job.frame_stack else None
    return {
        "view": di_store.Transition(n_step=job.n_step, gamma=job.gamma, frame_stack=stack),
        "limiter": di_store.SamplesPerInsert(job.samples_per_insert, min_size=job.min_size, tolerance=TOLERANCE),
        "sampler": di_store.Prioritized(alpha=ALPHA, beta=BETA),
    }


def schema(job: Recipe, shape: EnvShape) -> dict[str, di_store.Spec]:
    """A step's columns."""
    columns = {
        "obs": di_store.Spec(shape.obs_shape, shape.obs_dtype),
        "action": di_store.Spec((), "int64"),
        "reward": di_store.Spec((), "float32"),
        "terminated": di_store.Spec((), "bool"),
        "truncated": di_store.Spec((), "bool"),
    }
    return columns | ({"discount": di_store.Spec((), "float32")} if job.frame_stack else {})


class Plane:
    """The learner's side; the store is its own."""

    def __init__(self, run: Run) -> None:
        self.run, job, actors = run, run.job, run.config.actors
        self.store = di_store.open(memory=MEMORY, seed=0)
        # An object keeps room for weights while the table is created: the current, the next, one per reading actor.
        held = self.store.put(np.empty((2 + actors) * WEIGHTS_BYTES, np.uint8), timeout=0)
        columns, lanes = schema(job, run.shape), actors * run.lanes
        self.table = self.store.create_table(
            TABLE, capacity=job.capacity, schema=columns, lanes=lanes, seed=0, **settings(job)
        )
        self.store.delete([held])
        self.actors: list[Worker] = []

    def start(self) -> None:
        self.actors = start_actors("di-store", self.run, self.store.name)

    def sample(self) -> Sample | None:
        for part, timeout in (("sample", 0.0), ("wait", PATIENCE_SECONDS)):
            try:
                with self.run.clock(part):
                    batch = self.table.sample(self.run.job.batch_size, timeout=timeout)
                    return Sample(batch.data, batch.keys, batch.weights)
            except di_store.Timeout:
                pass
        return None

    def update(self, sample: Sample, priorities: Array) -> None:
        self.table.update_priorities(sample.keys, priorities)

    def publish(self, weights: dict[str, Tensor], version: int) -> None:
        self.store.publish(POLICY, weights)

    def store_bytes(self) -> int | None:
        return int(self.table.stats()["bytes_stored"])

    def close(self) -> None:
        end_actors(self.actors)
        self.store.close()


class Actor:
    """A writer with a lane for each environment."""

    def __init__(self, run: Run, link: str) -> None:
        self.board, self.clock = run.board, run.clock
        self.store = di_store.attach(link)
        self.writer = self.store.table(TABLE).writer(lanes=run.lanes, autoreset=MODES[run.config.autoreset])

    def append(self, stepped: Stepped) -> bool:
        part, timeout = "write", 0.0
        while not self.board.stopped:
            try:
                with self.clock(part):
                    self.writer.append(stepped.step, next=stepped.next, final=stepped.final, timeout=timeout)
                return True
            except di_store.Timeout:  # nothing was written, so the same call may be repeated
                part, timeout = "wait", PATIENCE_SECONDS
        return False

    def latest(self) -> dict[str, Any]:
        found = self.store.latest(POLICY, timeout=PATIENCE_SECONDS)  # the learner may just be publishing the next one
        if found is None:
            raise RuntimeError("no weights although the board says so")
        return dict(found.value)

    def close(self) -> None:
        self.writer.end_episode(discard=True)
        self.writer.close()
        self.store.close()
