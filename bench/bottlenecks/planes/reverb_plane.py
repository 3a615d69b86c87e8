"""Reverb: the server in the learner's process, trajectory writers in the actors, batches through its dataset.

A writer per environment appends every step once; items refer to windows of steps, so that frames are shared between
items as in Di-store. Stacks and n-step returns are computed by the learner from the window, as in `ring.py`. Limiter,
selectors and sizes are the load's. Weights travel through a table of one item, read only when the board says that
there are newer ones.
"""

from __future__ import annotations

import os
from collections import deque
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from torch import Tensor

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import reverb  # type: ignore[import-not-found,unused-ignore]
import tensorflow as tf  # type: ignore[import-not-found,import-untyped,unused-ignore]

from bench.bottlenecks.acting import end_actors, start_actors
from bench.bottlenecks.board import Board, Clock
from bench.bottlenecks.loads import Load
from bench.bottlenecks.planes import PATIENCE_SECONDS
from bench.bottlenecks.ring import importance, look
from bench.bottlenecks.sample import Array, Sample
from bench.bottlenecks.shapes import Shape
from di_store.demo.envs import Stepped

TABLE, WEIGHTS = "experience", "weights"
IN_FLIGHT = 2  # items of one writer that the server has not confirmed


def columns(load: Load, shape: Shape) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of a step's columns."""
    found: dict[str, tuple[tuple[int, ...], str]] = {
        "obs": (shape.obs_shape, shape.obs_dtype),
        "action": (shape.action_shape, shape.action_dtype),
        "reward": ((), "float32"),
    }
    if load.kind == "states":
        return found | {"next_obs": (shape.obs_shape, shape.obs_dtype), "discount": ((), "float32")}
    found |= {"discount": ((), "float32")} if load.demo.pixels else {}
    if load.kind == "unrolls":
        return found | {"is_first": ((), "bool"), "logp": ((), "float32")}
    return found | {"terminated": ((), "bool"), "ended": ((), "bool"), "first": ((), "bool")}


def window_rows(load: Load) -> int:
    """Rows of one item."""
    stack = (load.frame_stack or 1) - 1
    return 1 if load.kind == "states" else stack + 1 + (load.unroll if load.kind == "unrolls" else load.n_step)


def table(load: Load) -> Any:
    """The load's table."""
    if load.kind == "unrolls":
        return reverb.Table.queue(TABLE, load.capacity)
    choose = reverb.selectors.Uniform() if load.kind == "states" else reverb.selectors.Prioritized(load.alpha)
    buffer = max(load.samples_per_insert * load.min_size * load.tolerance, load.samples_per_insert, 1.0)
    limiter = reverb.rate_limiters.SampleToInsertRatio(load.samples_per_insert, load.min_size, buffer)
    fifo = reverb.selectors.Fifo()
    return reverb.Table(TABLE, sampler=choose, remover=fifo, max_size=load.capacity, rate_limiter=limiter)


class Plane:
    """Server, dataset and the learner's client."""

    def __init__(self, load: Load, shape: Shape, board: Board, clock: Clock) -> None:
        self.load, self.shape, self.board, self.clock = load, shape, board, clock
        newest = reverb.Table(
            WEIGHTS,
            sampler=reverb.selectors.Lifo(),
            remover=reverb.selectors.Fifo(),
            max_size=1,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
        self.server = reverb.Server(tables=[table(load), newest])
        self.address = f"localhost:{self.server.port}"
        self.client = reverb.Client(self.address)
        self.batches: Any = None
        self.names: list[str] = []
        self.actors: list[BaseProcess] = []

    def start(self) -> None:
        link = (self.address, self.names)
        self.actors = start_actors("reverb", self.load, self.shape, self.board, link)
        load, rows = self.load, window_rows(self.load)
        kinds = columns(load, self.shape)
        dataset = reverb.TrajectoryDataset(
            self.address,
            TABLE,
            dtypes={name: tf.as_dtype(np.dtype(dtype)) for name, (_, dtype) in kinds.items()},
            shapes={name: tf.TensorShape([rows, *shape]) for name, (shape, _) in kinds.items()},
            max_in_flight_samples_per_worker=2 * load.batch_size,
        )
        self.batches = dataset.batch(load.batch_size, drop_remainder=True).prefetch(2).as_numpy_iterator()

    def sample(self) -> Sample | None:
        with self.clock("sample"):
            drawn = next(self.batches)
            data = dict(drawn.data)
            if self.load.kind == "states":
                return Sample({name: values[:, 0] for name, values in data.items()})
            frames, stack = data.pop("obs"), self.load.frame_stack or 1
            if self.load.kind == "unrolls":
                steps = slice(stack - 1, stack - 1 + self.load.unroll)
                return Sample({"frames": frames, **{name: values[:, steps] for name, values in data.items()}})
            seen, following, reward, discount = look(data, self.load)
            each = np.arange(len(frames))[:, None]
            batch = {"obs": frames[each, seen], "next_obs": frames[each, following]}
            batch |= {"action": data["action"][:, stack - 1], "reward": reward, "discount": discount}
            size = int(drawn.info.table_size[0])
            return Sample(batch, drawn.info.key, importance(drawn.info.probability, size, self.load.beta))

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
    """A trajectory writer per environment."""

    def __init__(self, load: Load, shape: Shape, board: Board, clock: Clock, link: Any) -> None:
        self.load, self.board, self.clock = load, board, clock
        address, self.names = link
        self.client = reverb.Client(address)
        self.kinds = columns(load, shape)
        self.rows = window_rows(load)
        self.lanes = [Lane(self.client, self.rows, load) for _ in range(load.lanes)]
        self.resetting = np.zeros(load.lanes, np.bool_)
        self.fresh = np.ones(load.lanes, np.bool_)

    def append(self, stepped: Stepped, seen: Array, extra: dict[str, Array]) -> bool:
        with self.clock("write"):
            step = self._columns(stepped, extra)
            for index, lane in enumerate(self.lanes):
                if self.load.kind == "states" and self.resetting[index]:
                    continue
                lane.append({name: values[index] for name, values in step.items()}, not self.resetting[index])
            ended = stepped.step["terminated"] | stepped.step["truncated"]
            self.fresh, self.resetting = self.resetting, ended & ~self.resetting
            if self.load.kind == "unrolls":
                self.fresh, self.resetting = ended, np.zeros_like(ended)
        with self.clock("wait"):
            return all(lane.confirmed(self.board) for lane in self.lanes)

    def _columns(self, stepped: Stepped, extra: dict[str, Array]) -> dict[str, Array]:
        step = stepped.step
        ended = step["terminated"] | step["truncated"]
        found = {**step, **extra, "ended": ended, "first": self.fresh, "is_first": self.fresh}
        if self.load.kind == "states":
            found |= {"next_obs": stepped.next["obs"], "discount": 1 - step["terminated"].astype(np.float32)}
        elif self.load.kind == "unrolls":
            found["discount"] = np.where(ended, np.float32(0), step["discount"])
        return {name: np.asarray(found[name], dtype) for name, (_, dtype) in self.kinds.items()}

    def latest(self) -> dict[str, Any]:
        (arrays,) = (sample.data for sample in self.client.sample(WEIGHTS, 1, emit_timesteps=False))
        return {name: values[0] for name, values in zip(self.names, arrays, strict=True)}

    def close(self) -> None:
        os._exit(0)  # a writer's end would wait for confirmations that a stopped learner no longer lets through


class Lane:
    """One environment's stream."""

    def __init__(self, client: Any, rows: int, load: Load) -> None:
        self.load, self.rows = load, rows
        self.writer = client.trajectory_writer(num_keep_alive_refs=rows)
        self.valid: deque[bool] = deque(maxlen=rows)
        self.count = 0

    def append(self, row: dict[str, Array], valid: bool) -> None:
        """One row, and the item that it completes."""
        if not self.count:
            # The stack of the first step reaches back over the start: it finds copies of the first row.
            for _ in range((self.load.frame_stack or 1) - 1):
                self._append(row, False)
        self._append(row, valid)
        ahead = self.rows - (self.load.frame_stack or 1)
        # Sequences follow each other; the last row of one is the first of the next.
        due = self.load.kind != "unrolls" or (self.count - self.rows) % self.load.unroll == 0
        if self.count >= self.rows and due and self.valid[-1 - ahead]:
            history = self.writer.history
            self.writer.create_item(TABLE, 1.0, {name: history[name][-self.rows :] for name in row})

    def _append(self, row: dict[str, Array], valid: bool) -> None:
        self.writer.append(row)
        self.valid.append(valid)
        self.count += 1

    def confirmed(self, board: Board) -> bool:
        """Wait until all but a few items are confirmed, which the limiter may delay; False once told to stop."""
        while True:
            try:
                self.writer.flush(IN_FLIGHT, timeout_ms=int(1_000 * PATIENCE_SECONDS))
                return True
            except reverb.errors.DeadlineExceededError:
                if board.stopped:
                    return False
