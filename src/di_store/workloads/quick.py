"""The quick workloads of `di-store bench`: store calls in one process, each on a store of its own.

They give a first look at a machine, with the speed of its memory beside every figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import cycle, repeat

import numpy as np

import di_store
from di_store.policy.views import View
from di_store.workloads.content import Row, Rows, data_bytes, objects
from di_store.workloads.meter import Figure, Meter, bytes_text
from di_store.workloads.tables import Column, TablePlan

OBJECT_BYTES = (1_000, 110_000, 1_000_000, 10_000_000)
POOL_BYTES, POOL_OBJECTS = 64 << 20, 1_000
HELD = 8
"""Objects put before they are deleted, which is not timed."""
UPDATE_BATCH = 256


def _plan(name: str, columns: tuple[Column, ...], view: View, capacity: int) -> TablePlan:
    per = di_store.Prioritized(alpha=0.6, beta=0.4)
    return TablePlan(name=name, columns=columns, capacity=capacity, view=view, sampler=per)


_FLAGS = (Column("reward", "f4"), Column("terminated", "?"), Column("truncated", "?"))
_FRAME = (Column("obs", "u1", (84, 84)), Column("action", "i8"), *_FLAGS)
_STATE = (Column("obs", "f4", (200,)), Column("action", "f4", (3,)), *_FLAGS)
FRAMES = _plan("frames", _FRAME, di_store.Transition(n_step=3, frame_stack={"obs": 4}), 20_000)
STATES = _plan("states", _STATE, di_store.Transition(), 100_000)
UNROLLS = _plan("unrolls", (Column("obs", "u1", (100, 4, 84, 84)),), di_store.Step(), 100)
KINDS = ((FRAMES, 32), (STATES, 256), (UNROLLS, 16))
"""Frames of an Atari game, states of a robot, unrolls of 100 frames; and the batches that are drawn of them."""


@contextmanager
def full_table(
    store: di_store.Store, plan: TablePlan
) -> Iterator[tuple[di_store.Table, di_store.Writer, Iterator[Row]]]:
    """A table filled to its capacity, so that every append evicts, its writer, and more steps; dropped afterwards.

    Large steps are so many different ones that no cache holds them all.
    """
    table = plan.create(store, lanes=1)
    steps = Rows(plan.columns, 1 + POOL_BYTES // plan.row_bytes if plan is UNROLLS else 1).single()
    try:
        with table.writer() as writer:
            while len(table) < plan.capacity:
                writer.append(next(steps))
            yield table, writer, steps
    finally:
        store.drop_table(plan.name)


def put(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """One array copied into the store, by size."""
    for size in OBJECT_BYTES:
        refs: list[di_store.Ref] = []

        def values(size: int = size, refs: list[di_store.Ref] = refs) -> Iterator[object]:
            for value in cycle(objects(size, POOL_OBJECTS, POOL_BYTES)):
                if len(refs) == HELD:
                    store.delete(refs)
                    refs.clear()
                yield value

        def call(value: object, refs: list[di_store.Ref] = refs) -> None:
            refs.append(store.put(value))

        yield meter.take(bytes_text(size), call, values(), bytes_per_item=size)
        store.delete(refs)


def get(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """An array out of the store, by size: as a view of its memory, which moves no bytes, and as a copy."""
    for size in OBJECT_BYTES:
        refs = store.put_many(objects(size, POOL_OBJECTS, POOL_BYTES))
        copied = partial(store.get, copy=True)
        yield meter.take(bytes_text(size), store.get, cycle(refs))
        yield meter.take(f"{bytes_text(size)}, copied", copied, cycle(refs), bytes_per_item=size)
        store.delete(refs)


def append(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """One step into a full prioritized table, by kind; every step makes an item and evicts one."""
    for plan, _ in KINDS:
        with full_table(store, plan) as (_, writer, steps):
            case = f"{plan.name}, {bytes_text(plan.row_bytes)}"
            yield meter.take(case, writer.append, steps, bytes_per_item=plan.row_bytes)


def sample(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """A batch drawn by priority, put together and copied out of a full table, by kind."""
    for plan, size in KINDS:
        with full_table(store, plan) as (table, _, _):
            held = [table.sample(size)]
            example_bytes = data_bytes(held[0].data) // size

            def call(size: int, table: di_store.Table = table, held: list[di_store.Batch] = held) -> None:
                held[0] = table.sample(size)  # frees the batch before, so that its buffer is used again

            case = f"{plan.name}, {size} x {bytes_text(example_bytes)}"
            yield meter.take(case, call, repeat(size), items=size, bytes_per_item=example_bytes)
            held.clear()


def update(store: di_store.Store, meter: Meter) -> Iterator[Figure]:
    """New priorities for a batch of keys, the same ones spread over a full table."""
    with full_table(store, STATES) as (table, _, _):
        rng = np.random.default_rng(0)
        call = partial(table.update_priorities, rng.choice(table.keys(), UPDATE_BATCH, replace=False))
        case = f"{UPDATE_BATCH} of {STATES.capacity:,}"
        yield meter.take(case, call, repeat(rng.random(UPDATE_BATCH) + 0.5), items=UPDATE_BATCH)


WORKLOADS: Mapping[str, Callable[[di_store.Store, Meter], Iterator[Figure]]] = {
    run.__name__: run for run in (put, get, append, sample, update)
}
"""By name: what runs a workload and yields one figure per case."""
