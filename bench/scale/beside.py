"""Part "beside": the cost of a 28 KB insert while 0, 1 or 2 other processes draw from the table."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np

import di_store
from bench.kit import Worker, time_calls, turns
from bench.scale.elements import BATCH
from bench.scale.figures import Figure, Options, Takes, say

FRAMES = {"obs": di_store.Spec((4, 84, 84), "u1")}
ITEM = "28 KB"
CAPACITY, SOURCES, LOOPS = 10_000, 256, (0, 1, 2)


def beside(options: Options) -> list[Figure]:
    """Insert one item at a time into a full table, while other processes draw batches of 256 without a pause."""
    takes, capacity = Takes("beside"), max(1_000, int(CAPACITY * options.scale))
    with di_store.open(memory="1GiB") as store:
        table = store.create_table("t", capacity=capacity, schema=FRAMES, sampler=di_store.Prioritized(alpha=0.6))
        steps = [{"obs": np.full((4, 84, 84), number % 256, np.uint8)} for number in range(SOURCES)]
        feed = cycle(steps)
        say(f"beside: {capacity:,} items")
        for _ in range(capacity):
            table.insert(next(feed))
        time_calls(table.insert, feed, options.seconds / 10)
        for loops in turns(LOOPS, max(options.rounds, 5)):
            samplers = [start_sampler(table) for _ in range(loops)]
            taken = time_calls(table.insert, feed, options.seconds * 2)
            takes.latencies(ITEM, loops, "insert", taken, (50, 99, 99.9))
            if drawn := [stop_sampler(sampler) for sampler in samplers]:
                takes.add(ITEM, loops, "drawn beside", sum(drawn), "items/s")
    return takes.figures()


def start_sampler(table: di_store.Table) -> Worker:
    """Start a process that draws until it is told to stop; returns when it draws."""
    sampler = Worker(draw, table)
    sampler.pipe.recv()
    return sampler


def stop_sampler(sampler: Worker) -> float:
    """Stop the process; returns how many items it drew per second."""
    sampler.pipe.send("stop")
    rate = float(sampler.pipe.recv())
    sampler.end()
    return rate


def draw(pipe: Any, table: di_store.Table) -> None:
    """The sampler's process."""
    held, taken = [table.sample(BATCH)], 0

    def call(_: object) -> None:
        held[0] = table.sample(BATCH)

    for _ in range(20):
        call(None)
    pipe.send("draws")
    spent = 0.0
    while not pipe.poll():
        nanoseconds = time_calls(call, cycle([None]), 0.05)
        taken += len(nanoseconds)
        spent += float(nanoseconds.sum())
    pipe.recv()
    pipe.send(taken * BATCH * 1e9 / spent)
