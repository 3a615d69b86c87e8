"""Our store on the loads that the peers are measured on (``bench/measure.py``), through the public API only.

``python -m bench.ours --seconds 2`` prints JSON lines. Objects: put with the delete that makes room again, get in the
putting process and in another one. Replay: a writer in its own process, the learner in this one; tables are full before
anything is measured.
"""

from __future__ import annotations

import multiprocessing as mp
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

import di_store
from bench.measure import LOADS, OBJECT_BYTES, Load, Meter, arguments, one_rate

MEMORY = "4GiB"
COLD_BYTES = 256 << 20
"""So many different values that no cache holds them."""
LANES, EXTEND, UPDATE = 16, 100, 32
WARM_SECONDS = 3.0
Row = Mapping[str, Any]


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
            value = random_bytes(size)
            meter.take(name, "put", partial(put_and_delete, store, value))
            ref = store.put(value)
            meter.take(name, "get", partial(store.get, ref))
            if meter.wants(name, "get, other process"):
                meter.emit(name, "get, other process", statistics.median(elsewhere(get_rates, store, ref, meter)))
            store.delete([ref])
        size = OBJECT_BYTES["10MB"]
        values = cycle([random_bytes(size) for _ in range(COLD_BYTES // size)])
        if meter.wants("10MB", "put, cold, bytes"):
            rate = meter.rate(lambda: put_and_delete(store, next(values)))
            meter.emit("10MB", "put, cold, bytes", rate * size / 1e9, "GB/s")


def random_bytes(size: int) -> npt.NDArray[np.uint8]:
    """uint8[size]."""
    return np.random.default_rng(0).integers(0, 255, size, np.uint8)


def used_bytes() -> int:
    """Memory of the machine that is in use."""
    with open("/proc/meminfo") as file:
        lines = dict(line.split(":") for line in file)
    return (int(lines["MemTotal"].split()[0]) - int(lines["MemAvailable"].split()[0])) * 1024


def get_and_report(pipe: Connection, store: di_store.Store, ref: di_store.Ref) -> None:
    """Read every byte of an object; the machine's memory in use while the value is held."""
    value: npt.NDArray[np.uint8] = store.get(ref)
    pipe.send((int(value.sum(dtype=np.int64)), used_bytes()))


def large_object(meter: Meter) -> None:
    """What a put of 1 GiB and a get of it in two processes add to the machine, in GiB."""
    if not meter.wants("1GiB", "put and gets, memory"):
        return
    value = random_bytes(1 << 30)
    total = int(value.sum(dtype=np.int64))
    before = used_bytes()
    with di_store.open(memory="2GiB") as store:
        ref = store.put(value)
        added = [used_bytes() - before]
        for _ in range(2):
            found, used = elsewhere(get_and_report, store, ref)
            assert found == total
            added.append(used - before)
        meter.emit("1GiB", "put and gets, memory", max(added) / (1 << 30), "GiB")


def row(load: Load) -> tuple[Row, Row | None]:
    """A step as our writers take it, and what follows it where the view makes the next observation."""
    step = dict(load.step())
    if load.name != "105B":
        return step, None
    step = {name: leaf for name, leaf in step.items() if name != "following"}
    return {**step, "terminated": step.pop("done")}, {"observation": step["observation"]}


def table(store: di_store.Store, load: Load, name: str, capacity: int, sampler: Any) -> di_store.Table:
    """A table for a load, oldest out first."""
    step, following = row(load)
    return store.create_table(
        name,
        capacity=capacity,
        view=di_store.Step() if following is None else di_store.Transition(obs=("observation",)),
        schema=step,
        sampler=sampler,
        limiter=di_store.MinSize(1),
    )


def append(writer: di_store.Writer, load: Load) -> Callable[[], object]:
    """One append of one step."""
    step, following = row(load)
    if following is None:
        return lambda: writer.append(step)
    return lambda: writer.append(step, next=following)


def repeated(rows: Row | None, count: int) -> Any:
    """The same row `count` times over, with a leading axis."""
    return None if rows is None else {name: np.repeat(np.asarray(leaf)[None], count, 0) for name, leaf in rows.items()}


def write(pipe: Connection, items: di_store.Table, rows: di_store.Table, load: Load, meter: Meter) -> None:
    """The writer's process: fill the table, then measure appends to it and inserts into the other one."""
    with items.writer() as writer:
        call = append(writer, load)
        for _ in range(load.capacity):
            call()
        meter.take(load.name, "append", call)
    step, following = row(load)
    if following is None:
        meter.take(load.name, "insert", lambda: rows.insert(step))
    if load.name == "105B":
        with items.writer(lanes=LANES) as writer:
            steps, follow = repeated(step, LANES), repeated(following, LANES)
            meter.take(load.name, f"append, {LANES} lanes", lambda: writer.append(steps, next=follow), LANES)
    pipe.send("done")


def extend(pipe: Connection, items: di_store.Table, load: Load, meter: Meter) -> None:
    """Fill a table in passes of EXTEND steps, then measure them."""
    step, following = row(load)
    steps, follow = repeated(step, EXTEND), repeated(following, EXTEND)
    with items.writer() as writer:

        def call() -> None:
            writer.extend(steps, next=follow)

        for _ in range(0, load.capacity, EXTEND):
            call()
        meter.take(load.name, "extend", call, EXTEND)
    pipe.send("done")


class Learner:
    """Batches and priorities back, one by one."""

    def __init__(self, table: di_store.Table, load: Load) -> None:
        self.table = table
        self.load = load
        self.batch = table.sample(load.batch)

    def sample(self) -> None:
        """The next batch; the one before is let go, so its buffer comes back."""
        self.batch = self.table.sample(self.load.batch)

    def warm_up(self) -> None:
        """Draw until this process has mapped the table, in huge pages where it can be: a learner does it once."""
        end = time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < end:
            self.sample()

    def updates(self, count: int) -> Callable[[], object]:
        """New priorities for some of the last batch."""
        keys, priorities = self.batch.keys[:count], np.full(count, 1.5)
        return lambda: self.table.update_priorities(keys, priorities)

    def batch_bytes(self) -> int:
        """Payload of a batch."""
        return sum(int(np.asarray(leaf).nbytes) for leaf in self.batch.data.values())


def replay(load: Load, meter: Meter) -> None:
    """All figures of one load, in a store of its own."""
    with di_store.open(memory=MEMORY) as store:
        by_priority = di_store.Prioritized(alpha=0.6)
        items = table(store, load, "items", load.capacity, by_priority)
        rows = table(store, load, "rows", max(1, load.capacity // 10), by_priority)
        elsewhere(write, items, rows, load, meter)
        learner = Learner(items, load)
        learner.warm_up()
        size = learner.batch_bytes()
        meter.take(load.name, "sample", learner.sample, load.batch)
        if meter.wants(load.name, "sample, bytes"):
            meter.emit(load.name, "sample, bytes", meter.rate(learner.sample) * size / 1e9, "GB/s")
        meter.take(load.name, "update", learner.updates(load.batch), load.batch)
        if load.batch > UPDATE:
            meter.take(load.name, f"update of {UPDATE}", learner.updates(UPDATE), UPDATE)
        if meter.wants(load.name, "loader"):
            with items.loader(load.batch) as loader:
                meter.take(load.name, "loader", lambda: next(loader), load.batch)


def uniform(load: Load, meter: Meter) -> None:
    """Extends and uniform draws across processes; then one process that appends and draws in turn."""
    if not any(meter.wants(load.name, metric) for metric in ("extend", "sample, uniform", "loop")):
        return
    with di_store.open(memory=MEMORY) as store:
        items = table(store, load, "items", load.capacity, di_store.Uniform())
        elsewhere(extend, items, load, meter)
        learner = Learner(items, load)
        learner.warm_up()
        meter.take(load.name, "sample, uniform", learner.sample, load.batch)
        with items.writer() as writer:
            call = append(writer, load)

            def loop() -> None:
                call()
                learner.sample()

            meter.take(load.name, "loop", loop)


def main() -> None:
    args = arguments("our store", parts=("objects,replay", "which"), loads=(",".join(LOADS), "which loads"))
    meter = Meter("di-store", args.seconds, args.repeats, args.only)
    if "objects" in args.parts:
        objects(meter)
        large_object(meter)
    if "replay" in args.parts:
        for name in args.loads.split(","):
            replay(LOADS[name], meter)
            if name in ("56KB", "2KB", "105B"):
                uniform(LOADS[name], meter)


if __name__ == "__main__":
    main()
