"""Replay loads: what a step holds, how a table shows it, how many it keeps, how many a batch has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, repeat
from typing import Any

import numpy as np

import di_store
from di_store.policy.views import View
from di_store.workloads.objects import POOL_BYTES


@dataclass(frozen=True)
class Load:
    """One load.

    Attributes:
        name: as figures show it.
        step: what one append takes.
        large: column of which there are so many values that no cache holds them all; "" where a step is small.
        view: how the table shows the steps.
        capacity: items; the table is full before anything is measured, so that every append evicts.
        batch: examples of one sample.
    """

    name: str
    step: dict[str, Any]
    large: str
    view: View
    capacity: int
    batch: int

    def steps(self) -> Iterator[dict[str, Any]]:
        """Steps without end."""
        if not self.large:
            return repeat(self.step)
        value = self.step[self.large]
        count = 1 + POOL_BYTES // self.step_bytes
        return cycle([{**self.step, self.large: value.copy()} for _ in range(count)])

    @property
    def step_bytes(self) -> int:
        """Payload of one step."""
        return sum(int(np.asarray(value).nbytes) for value in self.step.values())


def loads() -> list[Load]:
    """Frames of an Atari game, states of a robot, unrolls of 100 frames."""
    rng = np.random.default_rng(0)
    flags = {"reward": np.float32(1), "terminated": np.bool_(False), "truncated": np.bool_(False)}
    frame = {"obs": rng.integers(0, 255, (84, 84), np.uint8), "action": np.int64(1), **flags}
    state = {"obs": rng.random(200, np.float32), "action": rng.random(3, np.float32), **flags}
    unroll = {"obs": rng.integers(0, 255, (100, 4, 84, 84), np.uint8)}
    return [
        Load("frames", frame, "", di_store.Transition(n_step=3, frame_stack={"obs": 4}), capacity=20_000, batch=32),
        Load("states", state, "", di_store.Transition(), capacity=100_000, batch=256),
        Load("unrolls", unroll, "obs", di_store.Step(), capacity=100, batch=16),
    ]


@contextmanager
def full_table(store: di_store.Store, load: Load) -> Iterator[tuple[di_store.Table, di_store.Writer]]:
    """A prioritized table filled to its capacity, and its writer; gone afterwards."""
    table = store.create_table(
        load.name,
        capacity=load.capacity,
        view=load.view,
        schema=load.step,
        sampler=di_store.Prioritized(alpha=0.6, beta=0.4),
        limiter=di_store.MinSize(1),
        lanes=1,
    )
    try:
        with table.writer() as writer:
            while len(table) < load.capacity:
                writer.append(load.step)
            yield table, writer
    finally:
        store.drop_table(load.name)
