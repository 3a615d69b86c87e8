"""A buffer in the learner's process, fed by the actors through a `multiprocessing.Queue`; weights in shared memory.

The queue is bounded, so that actors wait when the learner does not keep up. "replay" is in the numpy ring of `ring.py`
(no library keeps each frame once for many environments at a time *and* has priorities and n-step), "states" in cpprb's
`ReplayBuffer`, "unrolls" need no buffer but the queue.
"""

from __future__ import annotations

import multiprocessing
import queue
from collections import deque
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.bottlenecks.acting import end_actors, start_actors
from bench.bottlenecks.board import Board, Clock
from bench.bottlenecks.fragments import Fragments, Message
from bench.bottlenecks.loads import Load
from bench.bottlenecks.planes import PATIENCE_SECONDS
from bench.bottlenecks.ring import Ratio, ReplayRing
from bench.bottlenecks.sample import Array, Sample
from bench.bottlenecks.shapes import Shape
from di_store.demo.envs import Stepped

MESSAGES = 4  # that wait at most, for every actor


class CpprbStates:
    """cpprb's uniform buffer."""

    def __init__(self, load: Load, shape: Shape) -> None:
        import cpprb  # type: ignore[import-not-found,unused-ignore]

        obs = {"shape": shape.obs_shape, "dtype": np.float32}
        columns = {"obs": obs, "next_obs": obs, "action": {"shape": shape.action_shape, "dtype": np.float32}}
        self.buffer = cpprb.ReplayBuffer(load.capacity, {**columns, "reward": {}, "discount": {}})
        self.row_bytes = 4 * (2 * int(np.prod(shape.obs_shape)) + int(np.prod(shape.action_shape)) + 2)
        self.capacity = load.capacity

    def add(self, actor: int, message: Message) -> int:
        """Finished transitions; how many."""
        self.buffer.add(**message)
        return len(message["reward"])

    def sample(self, n: int) -> Sample:
        """A uniform batch."""
        data = self.buffer.sample(n)
        return Sample({**data, "reward": data["reward"][:, 0], "discount": data["discount"][:, 0]})

    def update(self, keys: Any, priorities: Array) -> None:
        """Nothing: there are no priorities."""

    @property
    def nbytes(self) -> int:
        """Of all its columns."""
        return self.row_bytes * self.capacity


class SharedWeights:
    """One flat float32 array in shared memory behind a lock: what an actor reads is one version."""

    def __init__(self, context: Any, count: int) -> None:
        self.lock = context.Lock()
        self.numbers = context.RawArray("f", count)

    def write(self, weights: dict[str, Tensor]) -> None:
        """Replace what is there."""
        flat = torch.cat([values.reshape(-1) for values in weights.values()]).numpy()
        with self.lock:
            np.frombuffer(self.numbers, np.float32)[:] = flat

    def read(self, like: dict[str, Tensor]) -> dict[str, Tensor]:
        """What is there, by the names and shapes of `like`."""
        with self.lock:
            flat = torch.from_numpy(np.frombuffer(self.numbers, np.float32).copy())
        parts = flat.split([values.numel() for values in like.values()])
        return {name: part.view(like[name].shape) for name, part in zip(like, parts, strict=True)}


class Plane:
    """The learner's side: takes messages in, draws from its buffer."""

    def __init__(self, load: Load, shape: Shape, board: Board, clock: Clock) -> None:
        self.load, self.shape, self.board, self.clock = load, shape, board, clock
        self.context = multiprocessing.get_context("spawn")
        self.queue: Any = self.context.Queue(MESSAGES * load.actors)
        self.buffer: Any = None
        if load.kind != "unrolls":
            self.buffer = CpprbStates(load, shape) if load.kind == "states" else ReplayRing(load, shape)
        self.ratio = Ratio(load)
        self.unrolls: deque[Message] = deque()
        self.weights: SharedWeights | None = None
        self.like: dict[str, Any] = {}
        self.actors: list[BaseProcess] = []

    def start(self) -> None:
        link = (self.queue, self.weights, self.like)
        self.actors = start_actors("in-process", self.load, self.shape, self.board, link)

    def sample(self) -> Sample | None:
        if self.load.kind == "unrolls":
            return self._unrolls()
        ratio = self.ratio
        with self.clock("ingest"):
            # One message an update at most, or a learner that has fallen behind would only take in.
            if ratio.may_insert and not self.queue.empty():
                self._take(PATIENCE_SECONDS)
        while not ratio.may_sample(self.load.batch_size):
            with self.clock("wait"):
                if not self._take(PATIENCE_SECONDS):
                    return None
        with self.clock("sample"):
            ratio.samples += self.load.batch_size
            found: Sample = self.buffer.sample(self.load.batch_size)
            return found

    def _take(self, seconds: float) -> bool:
        try:
            actor, message = self.queue.get(timeout=seconds)
        except queue.Empty:
            return False
        self.ratio.inserts += self.buffer.add(actor, message)
        return True

    def _unrolls(self) -> Sample | None:
        needed = self.load.batch_size // self.load.lanes
        with self.clock("ingest"):
            while len(self.unrolls) < needed and not self.queue.empty():
                self.unrolls.append(self.queue.get()[1])
        with self.clock("wait"):
            while len(self.unrolls) < needed:
                try:
                    self.unrolls.append(self.queue.get(timeout=PATIENCE_SECONDS)[1])
                except queue.Empty:
                    return None
        with self.clock("sample"):
            parts = [self.unrolls.popleft() for _ in range(needed)]
            return Sample({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    def update(self, sample: Sample, priorities: Array) -> None:
        self.buffer.update(sample.keys, priorities)

    def publish(self, weights: dict[str, Tensor], version: int) -> None:
        if self.weights is None:
            self.like = {name: torch.empty(values.shape) for name, values in weights.items()}
            self.weights = SharedWeights(self.context, sum(values.numel() for values in weights.values()))
        self.weights.write(weights)

    def store_bytes(self) -> int | None:
        return int(self.buffer.nbytes) if self.buffer else None

    def close(self) -> None:
        end_actors(self.actors)


class Actor:
    """Puts messages into the queue; its feeder thread pickles and sends them."""

    def __init__(self, load: Load, shape: Shape, board: Board, clock: Clock, link: Any) -> None:
        self.board, self.clock = board, clock
        self.queue, self.weights, self.like = link
        self.fragments = Fragments(load)
        self.index = clock.index

    def append(self, stepped: Stepped, seen: Array, extra: Message) -> bool:
        with self.clock("write"):
            message = self.fragments.add(stepped, seen, extra)
            if message is None:
                return True
            try:
                self.queue.put_nowait((self.index, message))
                return True
            except queue.Full:
                pass
        with self.clock("wait"):
            while not self.board.stopped:
                try:
                    self.queue.put((self.index, message), timeout=PATIENCE_SECONDS)
                    return True
                except queue.Full:
                    pass
        return False

    def latest(self) -> dict[str, Any]:
        found: dict[str, Any] = self.weights.read(self.like)
        return found

    def close(self) -> None:
        self.queue.cancel_join_thread()
