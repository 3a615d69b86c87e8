"""How every figure under ``bench/`` is taken, and the loads they share.

A rate is operations completed over the time they took, in bursts calibrated to about a millisecond, so that reading
the clock costs fast and slow systems alike next to nothing. A figure is the median over repeats. One figure is one JSON
line ``{"system", "workload", "metric", "value", "unit"}`` on stdout; everything else goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Step = dict[str, npt.NDArray[Any] | np.generic]
BURST_SECONDS = 0.001
TURNS = "DI_STORE_BENCH_TURNS"
"""Environment: path of the socket of a ``bench.pairs`` that lets two builds measure in turns."""
OBJECT_BYTES: Mapping[str, int] = {"1KB": 1 << 10, "110KB": 110 << 10, "1MB": 1 << 20, "10MB": 10 << 20}


@dataclass(frozen=True)
class Load:
    """One replay load: what a step holds, how many a table keeps, how many a batch has."""

    name: str
    capacity: int
    batch: int

    def step(self) -> Step:
        """One step's columns; observation and next observation are separate, nothing is shared: the peers' case."""
        rng = np.random.default_rng(0)
        if self.name == "56KB":  # DQN on Atari: two stacks of four frames
            return {
                "observation": rng.integers(0, 255, (4, 84, 84), np.uint8),
                "following": rng.integers(0, 255, (4, 84, 84), np.uint8),
                "action": np.int64(1),
                "reward": np.float32(1),
                "done": np.float32(0),
            }
        if self.name in STATES:  # SAC on states
            return {
                "observation": rng.random(STATES[self.name], np.float32),
                "following": rng.random(STATES[self.name], np.float32),
                "action": rng.random(3, np.float32),
                "reward": np.float32(1),
                "done": np.bool_(False) if self.name == "105B" else np.float32(0),
            }
        if self.name == "28KB":  # one stack of four frames
            return {"observation": rng.integers(0, 255, (4, 84, 84), np.uint8)}
        return {"observation": rng.integers(0, 255, (100, 4, 84, 84), np.uint8)}  # an unroll of 100 in one item

    @property
    def step_bytes(self) -> int:
        """Payload bytes of one step."""
        return sum(int(np.asarray(leaf).nbytes) for leaf in self.step().values())


STATES = {"2KB": 200, "105B": 11}
"""Numbers of one observation."""

LOADS = {
    load.name: load
    for load in (
        Load("56KB", 20_000, 32),
        Load("2KB", 100_000, 256),
        Load("105B", 100_000, 256),
        Load("28KB", 20_000, 256),
        Load("2.8MB", 300, 16),
    )
}


@dataclass(frozen=True)
class Meter:
    """Takes and prints the figures of one system."""

    system: str
    seconds: float
    repeats: int
    only: str = ""

    def wants(self, workload: str, metric: str) -> bool:
        """Whether ``--only`` (a part of ``workload/metric``) asks for this figure."""
        return self.only in f"{workload}/{metric}"

    def rate(self, operation: Callable[[], object]) -> float:
        """Operations per second: the median over the repeats, after a warm-up of a tenth of ``seconds``."""
        burst = 1
        begin = time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < self.seconds / 10:
            start = time.perf_counter()
            for _ in range(burst):
                operation()
            if time.perf_counter() - start < BURST_SECONDS / 2 and elapsed < self.seconds / 20:
                burst *= 2
        return statistics.median(one_rate(operation, self.seconds, burst) for _ in range(self.repeats))

    def emit(self, workload: str, metric: str, value: float, unit: str = "/s") -> None:
        """Print one figure as a JSON line."""
        figure = {"system": self.system, "workload": workload, "metric": metric, "value": float(f"{value:.5g}")}
        print(json.dumps({**figure, "unit": unit}), flush=True)

    def take(self, workload: str, metric: str, operation: Callable[[], object], items: int = 1) -> None:
        """Measure ``operation``, which handles ``items`` items, and print items per second, if it is asked for."""
        if self.wants(workload, metric):
            self.emit(workload, metric, self.rate(operation) * items)


def one_rate(operation: Callable[[], object], seconds: float, burst: int) -> float:
    """Operations per second over one stretch of at least ``seconds``."""
    count = 0
    with my_turn():
        begin = time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds:
            for _ in range(burst):
                operation()
            count += burst
    return count / elapsed


@contextmanager
def my_turn() -> Iterator[None]:
    """Waits until no other build measures; at once where none is."""
    if TURNS not in os.environ:
        yield
        return
    with socket.socket(socket.AF_UNIX) as turn:
        turn.connect(os.environ[TURNS])
        turn.recv(1)
        yield


def arguments(description: str, **extra: tuple[Any, str]) -> argparse.Namespace:
    """The options every script takes, plus ``extra`` ones given as name=(default, help)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement")
    parser.add_argument("--repeats", type=int, default=3, help="measurements per figure; their median is printed")
    parser.add_argument("--only", default="", help="take only figures whose workload/metric contains this")
    for name, (default, text) in extra.items():
        parser.add_argument("--" + name.replace("_", "-"), default=default, type=type(default), help=text)
    return parser.parse_args()
