"""Our store on the loads that the peers are measured on (``bench/measure.py``), through the public API only.

``python -m bench.ours --seconds 2`` prints JSON lines. Objects: put with the delete that makes room again, get in the
putting process and in another one. Replay: a writer in its own process, the learner in this one; tables are full before
anything is measured.
"""

from __future__ import annotations

import multiprocessing as mp
import statistics
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

import di_store
from bench.measure import LOADS, OBJECT_BYTES, Load, Meter, arguments, one_rate

MEMORY = "4GiB"


def elsewhere(target: Callable[..., None], *args: Any) -> Any:
    """Run ``target(pipe, *args)`` in a fresh process; what it sent."""
    here, there = mp.Pipe()
    process = mp.get_context("spawn").Process(target=target, args=(there, *args))
    process.start()
    there.close()
    answer = here.recv()
    process.join()
    return answer


def get_rates(pipe: Connection, store: di_store.Store, ref: di_store.Ref, meter: Meter) -> None:
    """Gets per second in a process that did not put, once per repeat."""
    one_rate(partial(store.get, ref), meter.seconds / 10, 10)
    pipe.send([one_rate(partial(store.get, ref), meter.seconds, 100) for _ in range(meter.repeats)])


def put_and_delete(store: di_store.Store, value: npt.NDArray[np.uint8]) -> None:
    """One put, and the delete that makes room for the next one; a peer that frees what is dropped does the same."""
    store.delete([store.put(value)])


def objects(meter: Meter) -> None:
    """put, get, and get in another process, by size."""
    with di_store.open(memory=MEMORY) as store:
        for name, size in OBJECT_BYTES.items():
            value = np.random.default_rng(0).integers(0, 255, size, np.uint8)
            meter.take(name, "put", partial(put_and_delete, store, value))
            ref = store.put(value)
            meter.take(name, "get", partial(store.get, ref))
            if meter.wants(name, "get, other process"):
                meter.emit(name, "get, other process", statistics.median(elsewhere(get_rates, store, ref, meter)))
            store.delete([ref])


def write(pipe: Connection, items: di_store.Table, rows: di_store.Table, load: Load, meter: Meter) -> None:
    """The writer's process: fill the table, then measure appends to it and inserts into the other one."""
    step = load.step()
    with items.writer() as writer:
        for _ in range(load.capacity):
            writer.append(step)
        meter.take(load.name, "append", lambda: writer.append(step))
    meter.take(load.name, "insert", lambda: rows.insert(step))
    pipe.send("done")


class Learner:
    """Batches and priorities back, one by one."""

    def __init__(self, table: di_store.Table, load: Load) -> None:
        self.table = table
        self.load = load
        self.priorities = np.full(load.batch, 1.5)
        self.batch = table.sample(load.batch)

    def sample(self) -> None:
        """The next batch; the one before is let go, so its buffer comes back."""
        self.batch = self.table.sample(self.load.batch)

    def update(self) -> None:
        """New priorities for the last batch."""
        self.table.update_priorities(self.batch.keys, self.priorities)


def replay(load: Load, meter: Meter) -> None:
    """All figures of one load, in a store of its own."""
    with di_store.open(memory=MEMORY) as store:
        items, rows = (
            store.create_table(
                name,
                capacity=capacity,
                view=di_store.Step(),
                schema=load.step(),
                sampler=di_store.Prioritized(alpha=0.6),
                limiter=di_store.MinSize(1),
            )
            for name, capacity in (("items", load.capacity), ("rows", max(1, load.capacity // 10)))
        )
        elsewhere(write, items, rows, load, meter)
        learner = Learner(items, load)
        meter.take(load.name, "sample", learner.sample, load.batch)
        meter.take(load.name, "update", learner.update, load.batch)
        if meter.wants(load.name, "loader"):
            with items.loader(load.batch) as loader:
                meter.take(load.name, "loader", lambda: next(loader), load.batch)


def main() -> None:
    args = arguments("our store", parts=("objects,replay", "which"), loads=("56KB,2KB,2.8MB", "which loads"))
    meter = Meter("di-store", args.seconds, args.repeats, args.only)
    if "objects" in args.parts:
        objects(meter)
    if "replay" in args.parts:
        for name in args.loads.split(","):
            replay(LOADS[name], meter)


if __name__ == "__main__":
    main()
