"""Ray: actors are Ray actors, the replay buffer is one more, weights are put once and their ref is handed out.

Actors send messages of several steps and keep two of them under way; the learner keeps two batches under way; new
priorities are sent without waiting, as RLlib's distributed replay does. The buffer is the numpy ring of `ring.py`, in
a process of its own, with a thread per caller so that an insert that the limiter holds back holds nobody else up. Of
"unrolls" the buffer actor queues refs only; their arrays stay in the object store, where the learner reads them
without a copy.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np
import ray  # type: ignore[import-not-found,unused-ignore]
import torch
from torch import Tensor

from bench.bottlenecks.acting import act
from bench.bottlenecks.board import Board, Clock
from bench.bottlenecks.fragments import Fragments, Message
from bench.bottlenecks.loads import Load
from bench.bottlenecks.planes import PATIENCE_SECONDS
from bench.bottlenecks.ring import Ratio, ReplayRing, StatesRing
from bench.bottlenecks.sample import Array, Sample
from bench.bottlenecks.shapes import Shape
from di_store.demo.envs import Stepped

UNDER_WAY = 2
STORE_BYTES = 1 << 30
GOODBYE_SECONDS = 3.0


class Newest:
    """The ref of the newest weights. Refs travel in a list: Ray would resolve them otherwise."""

    def __init__(self) -> None:
        self.boxed: list[Any] = []

    def set(self, boxed: list[Any]) -> None:
        """Replace it; the old weights are freed by their last reader."""
        self.boxed = boxed

    def get(self) -> list[Any]:
        """The newest."""
        return self.boxed


class Buffer:
    """The replay buffer with its limiter."""

    def __init__(self, load: Load, shape: Shape) -> None:
        self.ring: Any = StatesRing(load, shape) if load.kind == "states" else ReplayRing(load, shape)
        self.ratio = Ratio(load)
        self.changed = threading.Condition()

    def add(self, actor: int, message: Message) -> None:
        """Waits while the limiter holds inserts back."""
        with self.changed:
            self.changed.wait_for(lambda: self.ratio.may_insert)
            self.ratio.inserts += self.ring.add(actor, message)
            self.changed.notify_all()

    def sample(self, n: int) -> tuple[Message, Any, Array]:
        """Waits while the limiter holds samples back; data, keys, weights."""
        with self.changed:
            self.changed.wait_for(lambda: self.ratio.may_sample(n))
            self.ratio.samples += n
            found = self.ring.sample(n)
            self.changed.notify_all()
        return found.data, found.keys, found.weights

    def update(self, keys: Any, priorities: Array) -> None:
        """New priorities."""
        with self.changed:
            self.ring.update(keys, priorities)

    def nbytes(self) -> int:
        """Of all arrays."""
        return int(self.ring.nbytes)


class Queue:
    """Refs of messages, first in, first out."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.refs: deque[Any] = deque()
        self.changed = threading.Condition()

    def add(self, actor: int, boxed: list[Any]) -> None:
        """Waits while the queue is full."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.refs) < self.capacity)
            self.refs.append(boxed[0])
            self.changed.notify_all()

    def take(self, n: int) -> list[Any]:
        """`n` refs, when they are there."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.refs) >= n)
            taken = [self.refs.popleft() for _ in range(n)]
            self.changed.notify_all()
        return taken


class RayActor:
    """One actor of the run."""

    def run(self, load: Load, shape: Shape, index: int, board: Board, link: Any) -> None:
        """Act until the board says stop."""
        torch.set_num_threads(1)
        clock = Clock(board, index)
        act(load, shape, index, board, clock, Actor(load, shape, board, clock, link))


class Plane:
    """The driver is the learner."""

    def __init__(self, load: Load, shape: Shape, board: Board, clock: Clock) -> None:
        self.load, self.shape, self.board, self.clock = load, shape, board, clock
        ray.init(num_cpus=8, object_store_memory=STORE_BYTES, log_to_driver=False, include_dashboard=False)
        # One thread each for the actors' messages under way, and for the learner's batches and priorities.
        options = {"num_cpus": 0.1, "max_concurrency": UNDER_WAY * (load.actors + 2)}
        remote: Any = ray.remote
        self.buffer: Any = None
        if load.kind == "unrolls":
            self.buffer = remote(Queue).options(**options).remote(load.capacity // load.lanes)
        else:
            self.buffer = remote(Buffer).options(**options).remote(load, shape)
        self.newest = remote(Newest).options(num_cpus=0.1).remote()
        self.pending: deque[Any] = deque()
        self.runs: list[Any] = []
        self.actors: list[Any] = []

    def start(self) -> None:
        remote: Any = ray.remote
        self.actors = [remote(RayActor).options(num_cpus=1).remote() for _ in range(self.load.actors)]
        link = (self.buffer, self.newest)
        for index, actor in enumerate(self.actors):
            self.runs.append(actor.run.remote(self.load, self.shape, index, self.board, link))

    def sample(self) -> Sample | None:
        with self.clock("sample"):
            while len(self.pending) < UNDER_WAY:
                self.pending.append(self._ask())
            ready, _ = ray.wait([self.pending[0]], timeout=PATIENCE_SECONDS)
            if not ready:
                self._check()
                return None
            found = ray.get(self.pending.popleft())
            if self.load.kind != "unrolls":
                return Sample(*found)
            parts = ray.get(found)
            return Sample({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    def _ask(self) -> Any:
        load = self.load
        if load.kind == "unrolls":
            return self.buffer.take.remote(load.batch_size // load.lanes)
        return self.buffer.sample.remote(load.batch_size)

    def _check(self) -> None:
        """Raise what an actor that has ended failed with."""
        ended, _ = ray.wait(self.runs, timeout=0)
        ray.get(ended)

    def update(self, sample: Sample, priorities: Array) -> None:
        self.buffer.update.remote(sample.keys, priorities)

    def publish(self, weights: dict[str, Tensor], version: int) -> None:
        ref = ray.put({name: values.numpy() for name, values in weights.items()})
        done = self.newest.set.remote([ref])
        if version == 1:
            ray.get(done)  # later ones need not be waited for: an actor that is early gets the version before

    def store_bytes(self) -> int | None:
        return None if self.load.kind == "unrolls" else int(ray.get(self.buffer.nbytes.remote()))

    def close(self) -> None:
        if self.runs:
            ray.wait(self.runs, num_returns=len(self.runs), timeout=GOODBYE_SECONDS)
        ray.shutdown()


class Actor:
    """Sends messages, a few of them under way."""

    def __init__(self, load: Load, shape: Shape, board: Board, clock: Clock, link: Any) -> None:
        self.load, self.board, self.clock = load, board, clock
        self.buffer, self.newest = link
        self.fragments = Fragments(load)
        self.pending: list[Any] = []

    def append(self, stepped: Stepped, seen: Array, extra: Message) -> bool:
        with self.clock("write"):
            message = self.fragments.add(stepped, seen, extra)
            if message is None:
                return True
            # A queue of refs gets the ref itself; a message to the ring goes into the object store just as well.
            sent = [ray.put(message)] if self.load.kind == "unrolls" else message
            self.pending.append(self.buffer.add.remote(self.clock.index, sent))
        with self.clock("wait"):
            while len(self.pending) >= UNDER_WAY:
                done, self.pending = ray.wait(self.pending, timeout=PATIENCE_SECONDS)
                ray.get(done)
                if self.board.stopped:
                    return False
        return True

    def latest(self) -> dict[str, Any]:
        (ref,) = ray.get(self.newest.get.remote())
        found: dict[str, Any] = ray.get(ref)
        return found

    def close(self) -> None:
        self.pending.clear()
