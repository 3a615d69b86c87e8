"""Measures our store with the same elements as the peers (``bench/measure.py``), through the public API only.

``python -m bench.ours --seconds 2`` prints JSON lines. Objects: put followed by delete, and get in the same process and
in another one. Replay: the writer in its own process, the learner in this one. Tables are full before anything is
measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

import di_store
from bench.kit import apart
from bench.measure import ELEMENTS, OBJECT_BYTES, Element, Script, arguments, random_bytes, rate

MEMORY = "4GiB"
COLD_BYTES = 256 << 20
"""Total size of the values put in turn: larger than all caches."""
LANES, EXTEND, UPDATE = 16, 100, 32
WARM_SECONDS = 3.0
Row = Mapping[str, Any]


def get_rates(store: di_store.Store, ref: di_store.Ref, script: Script) -> list[float]:
    """Gets per second in a process that has not put the object; one value per repeat."""
    rate(partial(store.get, ref), script.seconds / 10, 10)
    return [rate(partial(store.get, ref), script.seconds, 100) for _ in range(script.repeats)]


def put_and_delete(store: di_store.Store, value: Any) -> None:
    """Put and delete, so that there is room for the next put. Peers that free dropped values do the same."""
    store.delete([store.put(value)])


def objects(script: Script) -> None:
    """Measure put, get, and get in another process, by size."""
    with di_store.open(memory=MEMORY) as store:
        for name, size in OBJECT_BYTES.items():
            value = random_bytes(size)
            script.take(name, "put", partial(put_and_delete, store, value))
            ref = store.put(value)
            script.take(name, "get", partial(store.get, ref))
            if script.wants(name, "get, other process"):
                script.emit(name, "get, other process", statistics.median(apart(get_rates, store, ref, script)))
            store.delete([ref])
        size = OBJECT_BYTES["10MB"]
        values = cycle([random_bytes(size) for _ in range(COLD_BYTES // size)])
        if script.wants("10MB", "put, cold, bytes"):
            puts = script.rate(lambda: put_and_delete(store, next(values)))
            script.emit("10MB", "put, cold, bytes", puts * size / 1e9, "GB/s")


def used_bytes() -> int:
    """Bytes of the machine's memory that are in use."""
    with open("/proc/meminfo") as file:
        lines = dict(line.split(":") for line in file)
    return (int(lines["MemTotal"].split()[0]) - int(lines["MemAvailable"].split()[0])) * 1024


def get_and_sum(store: di_store.Store, ref: di_store.Ref) -> tuple[int, int]:
    """The sum of all bytes of an object, and the machine's used bytes while the value is held."""
    value = store.get(ref)
    return int(value.sum(dtype=np.int64)), used_bytes()


def large_object(script: Script) -> None:
    """Measure the memory in GiB that a put of 1 GiB, and a get of it in two processes, add on the machine."""
    if not script.wants("1GiB", "put and gets, memory"):
        return
    value = random_bytes(1 << 30)
    total = int(value.sum(dtype=np.int64))
    before = used_bytes()
    with di_store.open(memory="2GiB") as store:
        ref = store.put(value)
        added = [used_bytes() - before]
        for _ in range(2):
            found, used = apart(get_and_sum, store, ref)
            if found != total:
                raise RuntimeError("another value came back")
            added.append(used - before)
        script.emit("1GiB", "put and gets, memory", max(added) / (1 << 30), "GiB")


def row(element: Element) -> tuple[Row, Row | None]:
    """A step for our writers, and its `next=` if the view makes the next observation from the next row."""
    step = dict(element.step())
    if element.name != "105B":
        return step, None
    del step["following"]
    return {**step, "terminated": step.pop("done")}, {"observation": step["observation"]}


def table(store: di_store.Store, element: Element, name: str, capacity: int, sampler: Any) -> di_store.Table:
    """Create a table of such elements, which evicts the oldest first."""
    step, following = row(element)
    return store.create_table(
        name,
        capacity=capacity,
        view=di_store.Step() if following is None else di_store.Transition(obs=("observation",)),
        schema=step,
        sampler=sampler,
        limiter=di_store.MinSize(1),
    )


def append(writer: di_store.Writer, element: Element) -> Callable[[], object]:
    step, following = row(element)
    if following is None:
        return lambda: writer.append(step)
    return lambda: writer.append(step, next=following)


def repeated(rows: Row | None, count: int) -> Any:
    """The same row `count` times, along a leading axis."""
    return None if rows is None else {name: np.repeat(np.asarray(leaf)[None], count, 0) for name, leaf in rows.items()}


def write(items: di_store.Table, rows: di_store.Table, element: Element, script: Script) -> None:
    """In the writer's process: fill `items`, then measure appends to it, and inserts into `rows`."""
    with items.writer() as writer:
        call = append(writer, element)
        for _ in range(element.capacity):
            call()
        script.take(element.name, "append", call)
    step, following = row(element)
    if following is None:
        script.take(element.name, "insert", lambda: rows.insert(step))
    if element.name == "105B":
        with items.writer(lanes=LANES) as writer:
            steps, follow = repeated(step, LANES), repeated(following, LANES)
            script.take(element.name, f"append, {LANES} lanes", lambda: writer.append(steps, next=follow), LANES)


def extend(items: di_store.Table, element: Element, script: Script) -> None:
    """Fill a table by calls of `extend` with EXTEND steps each, then measure such calls."""
    steps, follow = (repeated(rows, EXTEND) for rows in row(element))
    with items.writer() as writer:
        call = partial(writer.extend, steps, next=follow)
        for _ in range(0, element.capacity, EXTEND):
            call()
        script.take(element.name, "extend", call, EXTEND)


class Learner:
    """Draws batches and updates priorities, one after the other."""

    def __init__(self, table: di_store.Table, batch: int) -> None:
        self.table, self.count = table, batch
        self.batch = table.sample(batch)
        # Draw until this process has mapped the table, in huge pages if possible: a learner needs that only once.
        end = time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < end:
            self.sample()

    def sample(self) -> None:
        """Draw the next batch; the previous one is dropped, so its buffer is reused."""
        self.batch = self.table.sample(self.count)

    def updates(self, count: int) -> Callable[[], object]:
        """A call that sets new priorities for the first `count` examples of the last batch."""
        keys, priorities = self.batch.keys[:count], np.full(count, 1.5)
        return lambda: self.table.update_priorities(keys, priorities)


def replay(element: Element, script: Script) -> None:
    """Measure one element in prioritized tables, in a new store."""
    name, count = element.name, element.batch
    with di_store.open(memory=MEMORY) as store:
        by_priority = di_store.Prioritized(alpha=0.6)
        items = table(store, element, "items", element.capacity, by_priority)
        rows = table(store, element, "rows", max(1, element.capacity // 10), by_priority)
        apart(write, items, rows, element, script)
        learner = Learner(items, count)
        size = sum(int(np.asarray(leaf).nbytes) for leaf in learner.batch.data.values())
        script.take(name, "sample", learner.sample, count)
        if script.wants(name, "sample, bytes"):
            script.emit(name, "sample, bytes", script.rate(learner.sample) * size / 1e9, "GB/s")
        script.take(name, "update", learner.updates(count), count)
        if count > UPDATE:
            script.take(name, f"update of {UPDATE}", learner.updates(UPDATE), UPDATE)
        if script.wants(name, "loader"):
            with items.loader(count) as loader:
                script.take(name, "loader", lambda: next(loader), count)


def uniform(element: Element, script: Script) -> None:
    """Measure extends and uniform draws in two processes; then one process that appends and draws in turn."""
    name = element.name
    if not any(script.wants(name, metric) for metric in ("extend", "sample, uniform", "loop")):
        return
    with di_store.open(memory=MEMORY) as store:
        items = table(store, element, "items", element.capacity, di_store.Uniform())
        apart(extend, items, element, script)
        learner = Learner(items, element.batch)
        script.take(name, "sample, uniform", learner.sample, element.batch)
        with items.writer() as writer:
            call = append(writer, element)
            script.take(name, "loop", lambda: (call(), learner.sample()))


def main() -> None:
    args = arguments("our store", parts=("objects,replay", "which"), loads=(",".join(ELEMENTS), "which elements"))
    script = Script("di-store", args.seconds, args.repeats, args.only)
    if "objects" in args.parts:
        objects(script)
        large_object(script)
    for name in args.loads.split(",") if "replay" in args.parts else ():
        replay(ELEMENTS[name], script)
        if name in ("56KB", "2KB", "105B"):
            uniform(ELEMENTS[name], script)


if __name__ == "__main__":
    main()
