"""Messages between the processes of one run, outside the data plane: a small file that all of them map.

It says when to stop and which version of the weights is the newest. It also has the timers of all processes, so that
they can be read at the same time without messages. Its cost is the same for every system.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from di_store.demo.config import DemoConfig, Recipe
from di_store.demo.envs import EnvShape

ACTOR_PARTS = ("environment", "inference", "write", "wait", "weights")
LEARNER_PARTS = ("wait", "ingest", "sample", "assemble", "train", "update", "publish")
PARTS = tuple(dict.fromkeys(ACTOR_PARTS + LEARNER_PARTS))
STOP, VERSION = 0, 1  # columns of the head
PID, STEPS, OPEN, SINCE = range(4)  # columns of a row. OPEN: column of the running timer, or 0; SINCE: its start
FIRST_PART = 4  # the timers of a row, in seconds
ROW = FIRST_PART + len(PARTS)
Rows = npt.NDArray[np.float64]


class Board:
    """A file of float64: the head [2], then a row for each process [1 + actors, ROW]. Pickles as its path.

    Row 0 is the learner's, row 1 + i is actor i's. Each process writes only its own row; the learner also the head.
    """

    def __init__(self, path: Path, actors: int) -> None:
        self.path, self.actors = path, actors
        count = 2 + (1 + actors) * ROW
        if not path.exists():
            path.write_bytes(bytes(8 * count))
        numbers = np.memmap(path, np.float64, "r+", shape=(count,))
        self.head = numbers[:2]
        self.rows: Rows = numbers[2:].reshape(1 + actors, ROW)

    def __reduce__(self) -> tuple[type[Board], tuple[Path, int]]:
        return Board, (self.path, self.actors)

    @property
    def stopped(self) -> bool:
        return bool(self.head[STOP])

    def stop(self) -> None:
        self.head[STOP] = 1.0

    @property
    def version(self) -> int:
        """Number of the newest published weights; 0 before the first."""
        return int(self.head[VERSION])

    @version.setter
    def version(self, version: int) -> None:
        self.head[VERSION] = version

    @property
    def pids(self) -> list[int]:  # of the actors that have started
        return [int(pid) for pid in self.rows[1:, PID] if pid]

    def look(self) -> Rows:
        """A copy of all rows [1 + actors, ROW]; running timers are counted up to now."""
        rows: Rows = np.array(self.rows)
        now = time.perf_counter()
        for row in rows:
            if timer := int(row[OPEN]):
                row[timer] += now - row[SINCE]
        return rows


class Span:
    """A timer for one part of a process's work. Its exit adds to the process's row, and stores the duration."""

    __slots__ = ("begin", "durations", "row", "timer")

    def __init__(self, row: Rows, timer: int) -> None:
        self.row, self.timer, self.begin = row, timer, 0.0
        self.durations = array("d")

    def __enter__(self) -> None:
        self.begin = self.row[SINCE] = time.perf_counter()
        self.row[OPEN] = self.timer

    def __exit__(self, *error: object) -> None:
        seconds = time.perf_counter() - self.begin
        self.row[OPEN] = 0
        self.row[self.timer] += seconds
        self.durations.append(seconds)


class Clock:
    """Named timers of one process: `with clock("train"): …`. They must not be nested; time outside is "other"."""

    def __init__(self, board: Board, index: int) -> None:
        row = board.rows[1 + index]
        self.spans = {part: Span(row, FIRST_PART + place) for place, part in enumerate(PARTS)}

    def __call__(self, part: str) -> Span:
        return self.spans[part]

    def clear(self) -> None:
        """Delete the single durations; the sums stay."""
        for span in self.spans.values():
            del span.durations[:]

    def percentiles(self) -> dict[str, dict[str, float]]:
        """p50 and p99, in microseconds, of one pass through each part entered since `clear`."""
        return {
            part: {f"p{at}": 1e6 * float(np.percentile(span.durations, at)) for at in (50, 99)}
            for part, span in self.spans.items()
            if span.durations
        }


def parts_of(row: Rows) -> dict[str, float]:
    """Seconds of each part in a row."""
    return {part: float(row[FIRST_PART + place]) for place, part in enumerate(PARTS)}


@dataclass
class Run:
    """The objects that a process of a run works with; `index`: number of the actor, -1 for the learner."""

    config: DemoConfig
    shape: EnvShape
    board: Board
    index: int = -1
    clock: Clock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = Clock(self.board, self.index)

    @property
    def job(self) -> Recipe:
        """Sizes and ratios of the demo's job, the same on every plane."""
        return self.config.recipe

    @property
    def lanes(self) -> int:
        """Environments of one actor."""
        return self.config.envs_per_actor

    @property
    def stack(self) -> int:
        """Frames of one observation."""
        return self.job.frame_stack or 1
