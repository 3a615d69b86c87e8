"""What `await` costs: each call beside the plain one, a wake-up beside a thread's, and 10,000 tasks that wait.

`PYTHONPATH=. python tools/aio_cost.py [FOLDER]`, in half a minute: microseconds, medians of alternating calls. With a
folder, also writes the result there.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import di_store
from bench.kit import Result

CALLS, WAKES, TASKS, IDLE_SECONDS = 5_000, 300, 10_000, 2.0
STEP = {"obs": di_store.Spec((17,), "f4"), "reward": di_store.Spec((), "f4"), "terminated": di_store.Spec((), "?")}
ROW = {"obs": np.zeros(17, "f4"), "reward": 0.0, "terminated": False}
QUEUE: dict[str, Any] = {"capacity": TASKS, "limiter": di_store.Queue(TASKS)}
Pair = tuple[Callable[[], Any], Callable[[], Awaitable[Any]]]


def rows(count: int) -> dict[str, Any]:
    """So many steps."""
    return {name: np.zeros((count, *spec.shape), spec.dtype) for name, spec in STEP.items()}


async def beside(plain: Callable[[], Any], in_task: Callable[[], Awaitable[Any]]) -> dict[str, float]:
    """A call, made plainly and in a task."""
    times: tuple[list[float], list[float]] = [], []
    for _ in range(CALLS):
        begin = time.perf_counter()
        plain()
        middle = time.perf_counter()
        await in_task()
        times[0].append(middle - begin)
        times[1].append(time.perf_counter() - middle)
    return {"plain": median(times[0]) * 1e6, "await": median(times[1]) * 1e6}


def age(batch: di_store.Batch) -> float:
    """Microseconds since its insert."""
    return float(time.perf_counter() - batch.data["x"][0]) * 1e6


async def woken(store: di_store.Store) -> dict[str, float]:
    """From the insert of another thread to the batch, in a thread and in a task that waited."""
    table, sent = store.create_table("wakes", schema={"x": di_store.Spec((), "f8")}, **QUEUE), threading.Semaphore(0)

    def insert() -> None:
        for _ in range(2 * WAKES):
            sent.acquire()
            time.sleep(0.002)  # meanwhile the reader goes to sleep
            table.insert({"x": time.perf_counter()})

    def draw() -> float:
        sent.release()
        return age(table.sample(1))

    inserter = threading.Thread(target=insert)
    inserter.start()
    plain = await asyncio.to_thread(lambda: [draw() for _ in range(WAKES)])
    in_task = []
    for _ in range(WAKES):
        sent.release()
        in_task.append(age(await table.aio.sample(1)))
    inserter.join()
    return {"plain": median(plain), "await": median(in_task)}


def usage() -> tuple[float, int]:
    """Memory of this process in MiB, and its threads."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir("/proc/self/task"))


async def many(store: di_store.Store) -> dict[str, float]:
    """Tasks that wait for one table: memory and threads of all, the processor's share, and microseconds of each."""
    table, (memory, threads), begin = store.create_table("many", schema=STEP, **QUEUE), usage(), time.perf_counter()
    tasks = [asyncio.ensure_future(table.aio.sample(1)) for _ in range(TASKS)]
    await asyncio.sleep(0)
    asleep, used = time.perf_counter() - begin, time.process_time()
    await asyncio.sleep(IDLE_SECONDS)
    share, (more, others) = (time.process_time() - used) / IDLE_SECONDS, usage()
    begin = time.perf_counter()
    table.extend(rows(TASKS))
    await asyncio.gather(*tasks)
    ended = time.perf_counter() - begin
    found = {"tasks": TASKS, "mib": more - memory, "threads_more": others - threads, "idle_share": share}
    return {**found, "to_sleep": asleep / TASKS * 1e6, "to_end": ended / TASKS * 1e6}


async def measure() -> list[dict[str, Any]]:
    """The lines of the result."""
    with di_store.open(memory="256MiB") as store:
        table, ref = store.create_table("t", capacity=10_000, schema=STEP), store.put(np.zeros(1_000, "u1"))
        writer, _ = table.writer(), table.extend(rows(1_000))
        store.publish("w", ROW)
        calls: dict[str, Pair] = {
            "sample of 32": (lambda: table.sample(32), lambda: table.aio.sample(32)),
            "append": (lambda: writer.append(ROW), lambda: writer.aio.append(ROW)),
            "insert": (lambda: table.insert(ROW), lambda: table.aio.insert(ROW)),
            "get of 1 KB": (lambda: store.get(ref), lambda: store.aio.get(ref)),
            "latest": (lambda: store.latest("w"), lambda: store.aio.latest("w")),
        }
        lines = [{"case": name, **await beside(*pair)} for name, pair in calls.items()]
        return [*lines, {"case": "tasks that wait", **await many(store)}, {"case": "wake-up", **await woken(store)}]


def main() -> None:
    """Measure, print, and write the result if a folder is given."""
    result = Result("PYTHONPATH=. python tools/aio_cost.py bench/results")
    result.parts["lines"] = asyncio.run(measure())
    print(result.text(), end="")
    for folder in sys.argv[1:]:
        result.save(Path(folder), "aio")


if __name__ == "__main__":
    main()
