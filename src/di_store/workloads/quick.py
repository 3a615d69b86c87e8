"""The quick workloads of `di-store bench`: store calls in one process, each on a store of its own.

They give a first look at a machine, with the speed of its memory beside every figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, repeat
from typing import Any

import numpy as np

import di_store
from di_store.policy.views import View
from di_store.workloads.content import Array, data_bytes, objects
from di_store.workloads.meter import Figure, Meter, bytes_text

OBJECT_BYTES = (1_000, 110_000, 1_000_000, 10_000_000)
POOL_BYTES, POOL_OBJECTS = 64 << 20, 1_000
HELD = 8
"""Objects put before they are deleted, which is not timed."""
UPDATE_BATCH = 256


@dataclass(frozen=True)
class Steps:
    """The steps that fill a table, and how it shows them.

    Attributes:
        step: what one append takes.
        large: column of which there are so many values that no cache holds them all; "" where a step is small.
        capacity: items; the table is full before anything is measured, so that every append evicts.
        batch: examples of one sample.
    """

    name: str
    step: dict[str, Any]
    large: str
    view: View
    capacity: int
    batch: int

    def stream(self) -> Iterator[dict[str, Any]]:
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


def kinds_of_steps() -> list[Steps]:
    """Frames of an Atari game, states of a robot, unrolls of 100 frames."""
    rng = np.random.default_rng(0)
    flags = {"reward": np.float32(1), "terminated": np.bool_(False), "truncated": np.bool_(False)}
    frame = {"obs": rng.integers(0, 255, (84, 84), np.uint8), "action": np.int64(1), **flags}
    state = {"obs": rng.random(200, np.float32), "action": rng.random(3, np.float32), **flags}
    unroll = {"obs": rng.integers(0, 255, (100, 4, 84, 84), np.uint8)}
    return [
        Steps("frames", frame, "", di_store.Transition(n_step=3, frame_stack={"obs": 4}), capacity=20_000, batch=32),
        Steps("states", state, "", di_store.Transition(), capacity=100_000, batch=256),
        Steps("unrolls", unroll, "obs", di_store.Step(), capacity=100, batch=16),
    ]


@contextmanager
def full_table(store: di_store.Store, steps: Steps) -> Iterator[tuple[di_store.Table, di_store.Writer]]:
    """A prioritized table filled to its capacity, and its writer; dropped afterwards."""
    table = store.create_table(
        steps.name,
        capacity=steps.capacity,
        view=steps.view,
        schema=steps.step,
        sampler=di_store.Prioritized(alpha=0.6, beta=0.4),
        limiter=di_store.MinSize(1),
        lanes=1,
    )
    try:
        with table.writer() as writer:
            while len(table) < steps.capacity:
                writer.append(steps.step)
            yield table, writer
    finally:
        store.drop_table(steps.name)


def _arrays(size: int) -> list[Array]:
    return objects(size, POOL_OBJECTS, POOL_BYTES)


def put(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """One array copied into the store, by size."""
    for size in OBJECT_BYTES:
        values, refs = cycle(_arrays(size)), list[di_store.Ref]()

        def call(values: Iterator[Array] = values, refs: list[di_store.Ref] = refs) -> None:
            refs.append(store.put(next(values)))

        def after(refs: list[di_store.Ref] = refs) -> None:
            store.delete(refs)
            refs.clear()

        yield meter.take("put", bytes_text(size), call, bytes_per_item=size, after=after, after_every=HELD)
        after()


def get(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """An array out of the store, by size: as a view of its memory, which moves no bytes, and as a copy."""
    for size in OBJECT_BYTES:
        refs = store.put_many(_arrays(size))
        turn = cycle(refs)

        def view(turn: Iterator[di_store.Ref] = turn) -> object:
            return store.get(next(turn))

        def copied(turn: Iterator[di_store.Ref] = turn) -> object:
            return store.get(next(turn), copy=True)

        yield meter.take("get", bytes_text(size), view)
        yield meter.take("get", f"{bytes_text(size)}, copied", copied, bytes_per_item=size)
        store.delete(refs)


def append(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """One step into a full prioritized table, by kind; every step makes an item and evicts one."""
    for kind in kinds_of_steps():
        with full_table(store, kind) as (_, writer):
            case = f"{kind.name}, {bytes_text(kind.step_bytes)}"
            stream = kind.stream()

            def call(append: Callable[..., object] = writer.append, stream: Iterator[object] = stream) -> None:
                append(next(stream))

            yield meter.take("append", case, call, bytes_per_item=kind.step_bytes)


def sample(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """A batch drawn by priority, put together and copied out of a full table, by kind."""
    for kind in kinds_of_steps():
        with full_table(store, kind) as (table, _):
            held = [table.sample(kind.batch)]
            example_bytes = data_bytes(held[0].data) // kind.batch

            def call(table: Any = table, size: int = kind.batch, held: list[Any] = held) -> None:
                held[0] = table.sample(size)  # frees the batch before, so that its buffer is used again

            case = f"{kind.name}, {kind.batch} x {bytes_text(example_bytes)}"
            yield meter.take("sample", case, call, items=kind.batch, bytes_per_item=example_bytes)
            held.clear()


def update(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """New priorities for a batch of keys, the same ones spread over a full table."""
    kind = next(kind for kind in kinds_of_steps() if kind.name == "states")
    with full_table(store, kind) as (table, _):
        rng = np.random.default_rng(0)
        keys = rng.choice(table.keys(), UPDATE_BATCH, replace=False)
        priorities = rng.random(UPDATE_BATCH) + 0.5
        case = f"{UPDATE_BATCH} of {kind.capacity:,}"
        yield meter.take("update", case, lambda: table.update_priorities(keys, priorities), items=UPDATE_BATCH)


WORKLOADS: Mapping[str, Callable[[di_store.Store, Meter], Iterator[Figure]]] = {
    "put": put,
    "get": get,
    "append": append,
    "sample": sample,
    "update": update,
}
"""By name: what runs a workload and yields one figure per case."""
