"""Di-store: actors append to a table in shared memory, the learner samples it, weights come through the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from torch import Tensor

import di_store
from bench.bottlenecks.acting import end_actors, start_actors
from bench.bottlenecks.board import Board, Clock
from bench.bottlenecks.loads import Load
from bench.bottlenecks.planes import PATIENCE_SECONDS
from bench.bottlenecks.sample import Array, Sample
from bench.bottlenecks.shapes import Shape
from di_store.demo.envs import MODES, Stepped

POLICY, TABLE = "policy", "experience"
WEIGHTS_BYTES, SMALL_BYTES = 8 << 20, 256 << 10  # what one version takes at most: networks for frames, others


def settings(load: Load) -> dict[str, Any]:
    """View, sampler and limiter of a load's table."""
    stack = {"obs": load.frame_stack} if load.frame_stack else None
    if load.kind == "unrolls":
        unroll = di_store.Sequence(
            length=load.unroll, tail="drop", bootstrap=("obs",), frame_stack=stack, cross_episodes=True
        )
        return {"view": unroll, "limiter": di_store.Queue(load.capacity)}
    limiter = di_store.SamplesPerInsert(load.samples_per_insert, min_size=load.min_size, tolerance=load.tolerance)
    sampler = di_store.Uniform() if load.kind == "states" else di_store.Prioritized(alpha=load.alpha, beta=load.beta)
    gamma = 1.0 if load.kind == "states" else load.gamma
    view = di_store.Transition(n_step=load.n_step, gamma=gamma, frame_stack=stack)
    return {"view": view, "limiter": limiter, "sampler": sampler}


def schema(load: Load, shape: Shape) -> dict[str, di_store.Spec]:
    """A step's columns."""
    columns = {
        "obs": di_store.Spec(shape.obs_shape, shape.obs_dtype),
        "action": di_store.Spec(shape.action_shape, shape.action_dtype),
        "reward": di_store.Spec((), "float32"),
        "terminated": di_store.Spec((), "bool"),
        "truncated": di_store.Spec((), "bool"),
    }
    if load.demo.pixels:
        columns["discount"] = di_store.Spec((), "float32")
    if load.kind == "unrolls":
        columns["logp"] = di_store.Spec((), "float32")
    return columns


@contextmanager
def room_for_weights(store: di_store.Store, size_bytes: int) -> Iterator[None]:
    """Keep what is made inside the block from taking memory that publishing needs."""
    place = store.put(np.empty(size_bytes, np.uint8), timeout=0)
    try:
        yield
    finally:
        store.delete([place])


class Plane:
    """The learner's side; the store is its own."""

    def __init__(self, load: Load, shape: Shape, board: Board, clock: Clock) -> None:
        self.load, self.shape, self.board, self.clock = load, shape, board, clock
        self.store = di_store.open(memory=load.memory_bytes, seed=load.seed)
        # Kept, the next one, and one that each actor may still be reading.
        with room_for_weights(self.store, (2 + load.actors) * (WEIGHTS_BYTES if load.frame_stack else SMALL_BYTES)):
            self.table = self.store.create_table(
                TABLE,
                capacity=load.capacity,
                schema=schema(load, shape),
                lanes=load.actors * load.lanes,
                seed=load.seed,
                **settings(load),
            )
        self.actors: list[BaseProcess] = []

    def start(self) -> None:
        self.actors = start_actors("di-store", self.load, self.shape, self.board, self.store.name)

    def sample(self) -> Sample | None:
        try:
            with self.clock("sample"):
                return self._sample(0)
        except di_store.Timeout:
            pass
        try:
            with self.clock("wait"):
                return self._sample(PATIENCE_SECONDS)
        except di_store.Timeout:
            return None

    def _sample(self, timeout: float) -> Sample:
        batch = self.table.sample(self.load.batch_size, timeout=timeout)
        if self.load.kind != "unrolls":
            return Sample(batch.data, batch.keys, batch.weights)
        data = dict(batch.data)
        data["frames"] = data.pop("obs")
        data["discount"] = np.where(data["terminated"] | data["truncated"], np.float32(0), data["discount"])
        return Sample(data)

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
    """A writer with a lane per environment."""

    def __init__(self, load: Load, shape: Shape, board: Board, clock: Clock, link: str) -> None:
        self.board, self.clock = board, clock
        self.store = di_store.attach(link)
        self.writer = self.store.table(TABLE).writer(lanes=load.lanes, autoreset=MODES[load.autoreset])

    def append(self, stepped: Stepped, seen: Array, extra: dict[str, Array]) -> bool:
        step = {**stepped.step, **extra}
        try:
            with self.clock("write"):
                self.writer.append(step, next=stepped.next, final=stepped.final, timeout=0)
            return True
        except di_store.Timeout:
            pass  # nothing was written: the same call may be repeated
        with self.clock("wait"):
            while not self.board.stopped:
                try:
                    self.writer.append(step, next=stepped.next, final=stepped.final, timeout=PATIENCE_SECONDS)
                    return True
                except di_store.Timeout:
                    pass
        return False

    def latest(self) -> dict[str, Any]:
        # The board may be read between two publishings; the newest one is there at once.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := self.store.latest(POLICY, timeout=0)):
            assert time.monotonic() < deadline, "no weights although the board says so"
        return dict(found.value)

    def close(self) -> None:
        self.writer.end_episode(discard=True)
        self.writer.close()
        self.store.close()
