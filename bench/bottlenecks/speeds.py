"""Append, sample and update in one process against the capacity of the table, and for one that has grown.

    python -m bench.bottlenecks.speeds --seconds 0.3

CartPole's rows; every table is full. Prints one JSON line: a list of {capacity, grown, items, call, p50, p99}, the
last two in microseconds, medians over rounds in which the tables take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

import di_store
from bench.bottlenecks.loads import CARTPOLE
from bench.bottlenecks.planes.ours import schema, settings
from bench.bottlenecks.shapes import Shape, shape_of

LANES = 16
BATCH = 64
FIRST = 1_000  # what a growing table begins with
TABLES = ((1_000, False), (10_000, False), (100_000, False), (100_000, True), (1_000_000, False))
ROUNDS = 3
Calls = dict[str, Callable[[], object]]


def vector_steps(count: int) -> dict[str, np.ndarray[Any, Any]]:
    """Columns [count, LANES, …]."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.random((count, LANES, 4), np.float32),
        "action": rng.integers(0, 2, (count, LANES)),
        "reward": np.ones((count, LANES), np.float32),
        "terminated": rng.random((count, LANES)) < 0.01,
        "truncated": np.zeros((count, LANES), np.bool_),
    }


@contextmanager
def full_table(capacity: int, grown: bool, shape: Shape) -> Iterator[tuple[int, Calls]]:
    """A full table's items and calls; a grown one was doubled from `FIRST` on, each time when it was full."""
    with di_store.open(memory="1GiB", seed=0) as store:
        options = {**settings(CARTPOLE), "limiter": di_store.MinSize(1)}
        begin = FIRST if grown else capacity
        table = store.create_table("replay", capacity=begin, schema=schema(CARTPOLE, shape), lanes=LANES, **options)
        with table.writer(lanes=LANES) as writer:
            block = vector_steps(50)
            while table.stats()["inserts"] < capacity:
                writer.extend(block)
                if table.stats()["inserts"] >= begin < capacity:
                    begin = min(2 * begin, capacity)
                    table.resize(begin)
            one = {name: values[0] for name, values in block.items()}
            one["terminated"] = np.zeros(LANES, np.bool_)
            keys, priorities = table.sample(BATCH).keys, np.random.default_rng(0).random(BATCH) + 0.1

            def sample() -> None:
                nonlocal keys
                keys = table.sample(BATCH).keys

            yield (
                len(table),
                {
                    f"append({LANES})": lambda: writer.append(one),
                    f"sample({BATCH})": sample,
                    f"update({BATCH})": lambda: table.update_priorities(keys, priorities),
                },
            )


def durations(call: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each call, for so many seconds."""
    taken, begin = [], time.perf_counter()
    now = begin
    while now - begin < seconds:
        call()
        after = time.perf_counter()
        taken.append(after - now)
        now = after
    return taken


def measure(seconds: float) -> list[dict[str, Any]]:
    """All figures."""
    rounds: defaultdict[tuple[int, bool, str], list[tuple[float, float]]] = defaultdict(list)
    shape = shape_of(CARTPOLE)
    with ExitStack() as opened:
        tables = {key: opened.enter_context(full_table(*key, shape)) for key in TABLES}
        for turn in range(ROUNDS):
            order = TABLES[turn:] + TABLES[:turn]
            for key in order:
                for name, call in tables[key][1].items():
                    taken = 1e6 * np.array(durations(call, seconds))
                    rounds[key[0], key[1], name].append(
                        (float(np.percentile(taken, 50)), float(np.percentile(taken, 99)))
                    )
    return [
        {
            "capacity": capacity,
            "grown": grown,
            "items": tables[capacity, grown][0],
            "call": name,
            "p50": statistics.median(p50 for p50, _ in figures),
            "p99": statistics.median(p99 for _, p99 in figures),
        }
        for (capacity, grown, name), figures in rounds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="append, sample, update against capacity")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each call, table and round")
    print(json.dumps(measure(parser.parse_args().seconds)), flush=True)


if __name__ == "__main__":
    main()
