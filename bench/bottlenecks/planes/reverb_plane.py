"""Reverb: the server in the learner's process, trajectory writers in the actors, batches through its dataset.

A writer for each environment appends every step once. Items are windows of steps, so that they share frames as in
Di-store. The learner computes stacks and n-step returns from the window, as in `ring.py`. Limiter, selectors and sizes
are those of the demo's job. Weights are sent through a table of one item, which actors read only when the board has a
newer version.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import numpy as np
from torch import Tensor

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import reverb  # type: ignore[import-not-found,unused-ignore]
import tensorflow as tf  # type: ignore[import-not-found,import-untyped,unused-ignore]

from bench.bottlenecks.actor import end_actors, start_actors
from bench.bottlenecks.board import Board, Run
from bench.bottlenecks.planes import ALPHA, BETA, PATIENCE_SECONDS, TOLERANCE, Array, Sample
from bench.bottlenecks.ring import importance, look
from bench.kit import Worker
from di_store.demo.config import Recipe
from di_store.demo.envs import Stepped

TABLE, WEIGHTS = "experience", "weights"
IN_FLIGHT = 2  # items of one writer that the server has not confirmed


def columns(run: Run) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of a step's columns."""
    found: dict[str, tuple[tuple[int, ...], str]] = {
        "obs": (run.shape.obs_shape, run.shape.obs_dtype),
        "action": ((), "int64"),
        "reward": ((), "float32"),
        **dict.fromkeys(("terminated", "ended", "first"), ((), "bool")),
    }
    return found | ({"discount": ((), "float32")} if run.config.pixels else {})


def window_rows(run: Run) -> int:
    """Rows of one item."""
    return run.stack + run.job.n_step


def table(job: Recipe) -> Any:
    buffer = max(job.samples_per_insert * job.min_size * TOLERANCE, job.samples_per_insert, 1.0)
    return reverb.Table(
        TABLE,
        sampler=reverb.selectors.Prioritized(ALPHA),
        remover=reverb.selectors.Fifo(),
        max_size=job.capacity,
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(job.samples_per_insert, job.min_size, buffer),
    )


class Plane:
    """Server, dataset and the learner's client."""

    def __init__(self, run: Run) -> None:
        self.run, self.job = run, run.job
        newest_only = {"max_size": 1, "rate_limiter": reverb.rate_limiters.MinSize(1)}
        newest = reverb.Table(WEIGHTS, sampler=reverb.selectors.Lifo(), remover=reverb.selectors.Fifo(), **newest_only)
        self.server = reverb.Server(tables=[table(self.job), newest])
        self.address = f"localhost:{self.server.port}"
        self.client = reverb.Client(self.address)
        self.batches: Any = None
        self.names: list[str] = []
        self.actors: list[Worker] = []

    def start(self) -> None:
        self.actors = start_actors("reverb", self.run, (self.address, self.names))
        job, rows, kinds = self.job, window_rows(self.run), columns(self.run)
        dataset = reverb.TrajectoryDataset(
            self.address,
            TABLE,
            dtypes={name: tf.as_dtype(np.dtype(dtype)) for name, (_, dtype) in kinds.items()},
            shapes={name: tf.TensorShape([rows, *shape]) for name, (shape, _) in kinds.items()},
            max_in_flight_samples_per_worker=2 * job.batch_size,
        )
        self.batches = dataset.batch(job.batch_size, drop_remainder=True).prefetch(2).as_numpy_iterator()

    def sample(self) -> Sample | None:
        with self.run.clock("sample"):
            drawn = next(self.batches)
            data = dict(drawn.data)
            frames, stack = data.pop("obs"), self.run.stack
            seen, following, reward, discount = look(data, self.job)
            each = np.arange(len(frames))[:, None]
            batch = {"obs": frames[each, seen], "next_obs": frames[each, following]}
            batch |= {"action": data["action"][:, stack - 1], "reward": reward, "discount": discount}
            size = int(drawn.info.table_size[0])
            return Sample(batch, drawn.info.key, importance(drawn.info.probability, size, BETA))

    def update(self, sample: Sample, priorities: Array) -> None:
        updates = dict(zip(sample.keys.tolist(), priorities.tolist(), strict=True))
        self.client.mutate_priorities(TABLE, updates=updates)

    def publish(self, weights: dict[str, Tensor], version: int) -> None:
        self.names[:] = weights
        self.client.insert([values.numpy() for values in weights.values()], {WEIGHTS: 1.0})

    def store_bytes(self) -> int | None:
        return None  # Reverb does not tell

    def close(self) -> None:
        end_actors(self.actors)


class Actor:
    """A trajectory writer for each environment."""

    def __init__(self, run: Run, link: Any) -> None:
        self.run = run
        address, self.names = link
        self.client = reverb.Client(address)
        self.kinds = columns(run)
        self.lanes = [Lane(self.client, run) for _ in range(run.lanes)]
        self.resetting = np.zeros(run.lanes, np.bool_)
        self.fresh = np.ones(run.lanes, np.bool_)

    def append(self, stepped: Stepped) -> bool:
        with self.run.clock("write"):
            ended = stepped.step["terminated"] | stepped.step["truncated"]
            found = {**stepped.step, "ended": ended, "first": self.fresh}
            step = {name: np.asarray(found[name], dtype) for name, (_, dtype) in self.kinds.items()}
            for index, lane in enumerate(self.lanes):
                lane.append({name: values[index] for name, values in step.items()}, not self.resetting[index])
            self.fresh, self.resetting = self.resetting, ended & ~self.resetting
        with self.run.clock("wait"):
            return all(lane.confirmed(self.run.board) for lane in self.lanes)

    def latest(self) -> dict[str, Any]:
        (arrays,) = (sample.data for sample in self.client.sample(WEIGHTS, 1, emit_timesteps=False))
        return {name: values[0] for name, values in zip(self.names, arrays, strict=True)}

    def close(self) -> None:
        os._exit(0)  # closing a writer would wait for confirmations, which the limiter blocks once the learner stopped


class Lane:
    """One environment's stream."""

    def __init__(self, client: Any, run: Run) -> None:
        self.ahead, self.repeats, self.rows = run.job.n_step, run.stack - 1, window_rows(run)
        self.writer = client.trajectory_writer(num_keep_alive_refs=self.rows)
        self.valid: deque[bool] = deque(maxlen=self.rows)
        self.count = 0

    def append(self, row: dict[str, Array], valid: bool) -> None:
        """Append one row, and create the item that it completes."""
        if not self.count:
            # The stack of the first step needs rows before the start: append copies of the first row.
            for _ in range(self.repeats):
                self._append(row, False)
        self._append(row, valid)
        if self.count >= self.rows and self.valid[-1 - self.ahead]:
            history = self.writer.history
            self.writer.create_item(TABLE, 1.0, {name: history[name][-self.rows :] for name in row})

    def _append(self, row: dict[str, Array], valid: bool) -> None:
        self.writer.append(row)
        self.valid.append(valid)
        self.count += 1

    def confirmed(self, board: Board) -> bool:
        """Wait until at most `IN_FLIGHT` items are unconfirmed (the limiter may delay this); False: told to stop."""
        while True:
            try:
                self.writer.flush(IN_FLIGHT, timeout_ms=int(1_000 * PATIENCE_SECONDS))
                return True
            except reverb.errors.DeadlineExceededError:
                if board.stopped:
                    return False
