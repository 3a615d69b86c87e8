"""Ray: the actors and the replay buffer are Ray actors; weights are put once, and actors fetch their ref.

Actors send messages of several steps, with two requests pending; the learner has two batches pending. Priorities are
sent without waiting, as in RLlib's distributed replay. The buffer is the numpy ring of `ring.py`, in its own process,
with a thread for each pending call: an insert that the limiter makes wait does not block other calls.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import ray  # type: ignore[import-not-found,unused-ignore]
import torch
from torch import Tensor

from bench.bottlenecks.actor import act
from bench.bottlenecks.board import Board, Run
from bench.bottlenecks.planes import PATIENCE_SECONDS, Array, Sample
from bench.bottlenecks.ring import Message, Messages, Ratio, ReplayRing
from di_store.demo.config import DemoConfig, Recipe
from di_store.demo.envs import EnvShape, Stepped

UNDER_WAY = 2
STORE_BYTES = 1 << 30
GOODBYE_SECONDS = 3.0


class Newest:
    """Keeps the ref of the newest weights. Refs are passed in a list, since Ray resolves those passed directly."""

    def __init__(self) -> None:
        self.boxed: list[Any] = []

    def set(self, boxed: list[Any]) -> None:
        """Replace the ref; Ray frees the old weights when no reader is left."""
        self.boxed = boxed

    def get(self) -> list[Any]:
        return self.boxed


class Buffer:
    """The replay buffer with its limiter."""

    def __init__(self, job: Recipe, actors: int, lanes: int) -> None:
        self.ring = ReplayRing(job, actors, lanes)
        self.ratio = Ratio(job)
        self.changed = threading.Condition()

    def add(self, actor: int, message: Message) -> None:
        """Insert a message; waits while the limiter blocks inserts."""
        with self.changed:
            self.changed.wait_for(lambda: self.ratio.may_insert)
            self.ratio.inserts += self.ring.add(actor, message)
            self.changed.notify_all()

    def sample(self, n: int) -> tuple[Message, Any, Array]:
        """Data, keys and weights of a batch; waits while the limiter blocks samples."""
        with self.changed:
            self.changed.wait_for(lambda: self.ratio.may_sample(n))
            self.ratio.samples += n
            found = self.ring.sample(n)
            self.changed.notify_all()
        return found.data, found.keys, found.weights

    def update(self, keys: Any, priorities: Array) -> None:
        with self.changed:
            self.ring.update(keys, priorities)

    def nbytes(self) -> int:
        return self.ring.nbytes


class RayActor:
    """One actor of the run."""

    def run(self, config: DemoConfig, shape: EnvShape, board: Board, index: int, link: Any) -> None:
        torch.set_num_threads(1)
        run = Run(config, shape, board, index)
        act(run, Actor(run, link))


class Plane:
    """The driver is the learner."""

    def __init__(self, run: Run) -> None:
        self.run, actors = run, run.config.actors
        ray.init(num_cpus=8, object_store_memory=STORE_BYTES, log_to_driver=False, include_dashboard=False)
        # One thread for each pending message of an actor, and for each pending batch and priority update.
        options = {"num_cpus": 0.1, "max_concurrency": UNDER_WAY * (actors + 2)}
        remote: Any = ray.remote
        self.buffer = remote(Buffer).options(**options).remote(run.job, actors, run.lanes)
        self.newest = remote(Newest).options(num_cpus=0.1).remote()
        self.pending: deque[Any] = deque()
        self.runs: list[Any] = []
        self.actors: list[Any] = []

    def start(self) -> None:
        remote: Any = ray.remote
        self.actors = [remote(RayActor).options(num_cpus=1).remote() for _ in range(self.run.config.actors)]
        shared, link = (self.run.config, self.run.shape, self.run.board), (self.buffer, self.newest)
        self.runs = [actor.run.remote(*shared, index, link) for index, actor in enumerate(self.actors)]

    def sample(self) -> Sample | None:
        with self.run.clock("sample"):
            while len(self.pending) < UNDER_WAY:
                self.pending.append(self.buffer.sample.remote(self.run.job.batch_size))
            ready, _ = ray.wait([self.pending[0]], timeout=PATIENCE_SECONDS)
            if not ready:
                self._check()
                return None
            return Sample(*ray.get(self.pending.popleft()))

    def _check(self) -> None:
        """Raise the error of an actor that has failed."""
        ended, _ = ray.wait(self.runs, timeout=0)
        ray.get(ended)

    def update(self, sample: Sample, priorities: Array) -> None:
        self.buffer.update.remote(sample.keys, priorities)

    def publish(self, weights: dict[str, Tensor], version: int) -> None:
        ref = ray.put({name: values.numpy() for name, values in weights.items()})
        done = self.newest.set.remote([ref])
        if version == 1:
            ray.get(done)  # only for the first: later, an actor that asks too early gets the previous version

    def store_bytes(self) -> int | None:
        return int(ray.get(self.buffer.nbytes.remote()))

    def close(self) -> None:
        if self.runs:
            ray.wait(self.runs, num_returns=len(self.runs), timeout=GOODBYE_SECONDS)
        ray.shutdown()


class Actor:
    """Sends messages, with up to `UNDER_WAY` pending."""

    def __init__(self, run: Run, link: Any) -> None:
        self.run = run
        self.buffer, self.newest = link
        self.messages = Messages(run.lanes)
        self.pending: list[Any] = []

    def append(self, stepped: Stepped) -> bool:
        with self.run.clock("write"):
            message = self.messages.add(stepped)
            if message is None:
                return True
            self.pending.append(self.buffer.add.remote(self.run.index, message))
        with self.run.clock("wait"):
            while len(self.pending) >= UNDER_WAY:
                done, self.pending = ray.wait(self.pending, timeout=PATIENCE_SECONDS)
                ray.get(done)
                if self.run.board.stopped:
                    return False
        return True

    def latest(self) -> dict[str, Any]:
        (ref,) = ray.get(self.newest.get.remote())
        found: dict[str, Any] = ray.get(ref)
        return found

    def close(self) -> None:
        self.pending.clear()
