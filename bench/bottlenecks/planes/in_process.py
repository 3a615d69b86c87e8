"""A buffer in the learner's process, fed by the actors through a `multiprocessing.Queue`; weights in shared memory.

The queue is bounded, so that actors wait if the learner does not keep up. The buffer is the numpy ring of `ring.py`,
since no library stores each frame once for several environments and has priorities and n-step returns.
"""

from __future__ import annotations

import multiprocessing
import queue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.bottlenecks.actor import end_actors, start_actors
from bench.bottlenecks.board import Run
from bench.bottlenecks.planes import PATIENCE_SECONDS, Array, Sample
from bench.bottlenecks.ring import Messages, Ratio, ReplayRing
from bench.kit import Worker
from di_store.demo.envs import Stepped

MESSAGES = 4  # capacity of the queue, per actor


class SharedWeights:
    """One flat float32 array in shared memory with a lock, so that an actor never reads parts of two versions."""

    def __init__(self, context: Any, weights: dict[str, Tensor]) -> None:
        self.shapes = {name: values.shape for name, values in weights.items()}
        self.lock = context.Lock()
        self.numbers = context.RawArray("f", sum(values.numel() for values in weights.values()))

    def write(self, weights: dict[str, Tensor]) -> None:
        flat = torch.cat([values.reshape(-1) for values in weights.values()]).numpy()
        with self.lock:
            np.frombuffer(self.numbers, np.float32)[:] = flat

    def read(self) -> dict[str, Tensor]:
        with self.lock:
            flat = torch.from_numpy(np.frombuffer(self.numbers, np.float32).copy())
        parts = flat.split([shape.numel() for shape in self.shapes.values()])
        return {name: part.view(self.shapes[name]) for name, part in zip(self.shapes, parts, strict=True)}


class Plane:
    """The learner's side: receives messages, and draws from its buffer."""

    def __init__(self, run: Run) -> None:
        self.run, self.job = run, run.job
        self.context = multiprocessing.get_context("spawn")
        self.queue: Any = self.context.Queue(MESSAGES * run.config.actors)
        self.buffer = ReplayRing(run.job, run.config.actors, run.lanes)
        self.ratio = Ratio(run.job)
        self.weights: SharedWeights | None = None
        self.actors: list[Worker] = []

    def start(self) -> None:
        self.actors = start_actors("in-process", self.run, (self.queue, self.weights))

    def sample(self) -> Sample | None:
        ratio, clock = self.ratio, self.run.clock
        with clock("ingest"):
            # At most one message per update, or a learner that has fallen behind would do nothing else.
            if ratio.may_insert and not self.queue.empty():
                self._take(PATIENCE_SECONDS)
        while not ratio.may_sample(self.job.batch_size):
            with clock("wait"):
                if not self._take(PATIENCE_SECONDS):
                    return None
        with clock("sample"):
            ratio.samples += self.job.batch_size
            return self.buffer.sample(self.job.batch_size)

    def _take(self, seconds: float) -> bool:
        try:
            actor, message = self.queue.get(timeout=seconds)
        except queue.Empty:
            return False
        self.ratio.inserts += self.buffer.add(actor, message)
        return True

    def update(self, sample: Sample, priorities: Array) -> None:
        self.buffer.update(sample.keys, priorities)

    def publish(self, weights: dict[str, Tensor], version: int) -> None:
        if self.weights is None:
            self.weights = SharedWeights(self.context, weights)
        self.weights.write(weights)

    def store_bytes(self) -> int | None:
        return self.buffer.nbytes

    def close(self) -> None:
        end_actors(self.actors)


class Actor:
    """Puts messages into the queue, whose thread pickles and sends them."""

    def __init__(self, run: Run, link: Any) -> None:
        self.run = run
        self.queue, self.weights = link
        self.messages = Messages(run.lanes)

    def append(self, stepped: Stepped) -> bool:
        with self.run.clock("write"):
            message = self.messages.add(stepped)
        if message is None:
            return True
        part, timeout = "write", 0.0
        while not self.run.board.stopped:
            try:
                with self.run.clock(part):
                    self.queue.put((self.run.index, message), timeout=timeout)
                return True
            except queue.Full:
                part, timeout = "wait", PATIENCE_SECONDS
        return False

    def latest(self) -> dict[str, Any]:
        found: dict[str, Any] = self.weights.read()
        return found

    def close(self) -> None:
        self.queue.cancel_join_thread()
