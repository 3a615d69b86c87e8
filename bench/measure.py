"""How the script of each system measures and prints its figures, and the elements that all systems store.

A rate is the number of operations by the time they took, in bursts of about a millisecond. A figure is the median over
the repeats, printed as one JSON line ``{"system", "workload", "metric", "value", "unit"}``.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.kit import burst_of, calls_per_second

Step = dict[str, npt.NDArray[Any] | np.generic]
TURNS = "DI_STORE_BENCH_TURNS"
"""Environment variable: path of the socket through which ``bench.pairs`` lets two builds measure in turns."""
OBJECT_BYTES: Mapping[str, int] = {"1KB": 1 << 10, "110KB": 110 << 10, "1MB": 1 << 20, "10MB": 10 << 20}
STATES = {"2KB": 200, "105B": 11}  # numbers per observation


@dataclass(frozen=True)
class Element:
    """A replay element, named by its size, with the capacity of its table and its batch size."""

    name: str
    capacity: int
    batch: int

    def step(self) -> Step:
        """One row by column. Observation and next observation are separate, as peers store them: no sharing."""
        rng = np.random.default_rng(0)
        if self.name in STATES:  # SAC on states
            return {
                "observation": rng.random(STATES[self.name], np.float32),
                "following": rng.random(STATES[self.name], np.float32),
                "action": rng.random(3, np.float32),
                "reward": np.float32(1),
                "done": np.bool_(False) if self.name == "105B" else np.float32(0),
            }
        if self.name == "2.8MB":  # an unroll of 100 in one item
            return {"observation": rng.integers(0, 255, (100, 4, 84, 84), np.uint8)}
        stack: Step = {"observation": rng.integers(0, 255, (4, 84, 84), np.uint8)}
        if self.name == "28KB":
            return stack
        following = rng.integers(0, 255, (4, 84, 84), np.uint8)  # DQN on Atari: two stacks of four frames
        return {**stack, "following": following, "action": np.int64(1), "reward": np.float32(1), "done": np.float32(0)}


ELEMENTS = {
    element.name: element
    for element in (
        Element("56KB", 20_000, 32),
        Element("2KB", 100_000, 256),
        Element("105B", 100_000, 256),
        Element("28KB", 20_000, 256),
        Element("2.8MB", 300, 16),
    )
}


def random_bytes(size: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 255, size, np.uint8)


@dataclass(frozen=True)
class Script:
    """Measures and prints the figures of one system."""

    system: str
    seconds: float
    repeats: int
    only: str = ""

    def wants(self, workload: str, metric: str) -> bool:
        """Whether ``workload/metric`` contains the text given by ``--only``."""
        return self.only in f"{workload}/{metric}"

    def rate(self, operation: Callable[[], object]) -> float:
        """Operations per second, after a warm-up of a tenth of ``seconds``."""
        burst = burst_of(operation, self.seconds / 10)
        return statistics.median(rate(operation, self.seconds, burst) for _ in range(self.repeats))

    def emit(self, workload: str, metric: str, value: float, unit: str = "/s") -> None:
        """Print one figure as a JSON line."""
        figure = {"system": self.system, "workload": workload, "metric": metric, "value": float(f"{value:.5g}")}
        print(json.dumps({**figure, "unit": unit}), flush=True)

    def take(self, workload: str, metric: str, operation: Callable[[], object], items: int = 1) -> None:
        """Measure ``operation``, which handles ``items`` items, and print items per second, unless --only skips it."""
        if self.wants(workload, metric):
            self.emit(workload, metric, self.rate(operation) * items)


def rate(operation: Callable[[], object], seconds: float, burst: int) -> float:
    """Operations per second of one repeat; waits for this build's turn."""
    with my_turn():
        return calls_per_second(operation, seconds, burst)


@contextmanager
def my_turn() -> Iterator[None]:
    """Waits until the other build does not measure; without ``bench.pairs`` it does not wait."""
    if TURNS not in os.environ:
        yield
        return
    with socket.socket(socket.AF_UNIX) as turn:
        turn.connect(os.environ[TURNS])
        turn.recv(1)
        yield


def arguments(description: str, **more: tuple[Any, str]) -> argparse.Namespace:
    """Parse the options of every script, and further ones given as name=(default, help)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement")
    parser.add_argument("--repeats", type=int, default=3, help="measurements per figure; their median is printed")
    parser.add_argument("--only", default="", help="take only figures whose workload/metric contains this")
    for name, (default, text) in more.items():
        parser.add_argument("--" + name.replace("_", "-"), default=default, type=type(default), help=text)
    return parser.parse_args()
