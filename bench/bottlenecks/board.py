"""What the processes of one run tell each other beside the data plane: a small file they all map.

It says when to measure and when to stop, whether newer weights were published, and holds every process's timers, so
that a look at all of them at one moment needs no message. It costs each system the same.
"""

from __future__ import annotations

import time
from array import array
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

ACTOR_PARTS = ("environment", "inference", "write", "wait", "weights")
LEARNER_PARTS = ("wait", "ingest", "sample", "assemble", "train", "update", "publish")
PARTS = tuple(dict.fromkeys(ACTOR_PARTS + LEARNER_PARTS))
STOP, VERSION = 0, 1  # of the head
PID, STEPS, EPISODES, PULLS, OPEN, SINCE = range(6)  # of a row; timers follow. OPEN: slot of the one that runs, or 0
FIRST_PART = 8
ROW = FIRST_PART + len(PARTS)
RETURNS = 1 << 14  # episodes of one actor whose returns are kept


class Board:
    """A file of float64: head [8], a row per process [1 + actors, ROW], returns [actors, RETURNS].

    Row 0 is the learner's, row 1 + i that of actor i. Each process writes only its own row, the learner the head.
    Pickles as its path.
    """

    def __init__(self, path: Path, actors: int) -> None:
        self.path, self.actors = path, actors
        count = 8 + (1 + actors) * ROW + actors * RETURNS
        if not path.exists():
            path.write_bytes(bytes(8 * count))
        numbers = np.memmap(path, np.float64, "r+", shape=(count,))
        self.head = numbers[:8]
        self.rows: npt.NDArray[np.float64] = numbers[8 : 8 + (1 + actors) * ROW].reshape(1 + actors, ROW)
        self.returns: npt.NDArray[np.float64] = numbers[8 + (1 + actors) * ROW :].reshape(actors, RETURNS)

    def __reduce__(self) -> tuple[type[Board], tuple[Path, int]]:
        return Board, (self.path, self.actors)

    @property
    def stopped(self) -> bool:
        """Whether the run is over."""
        return bool(self.head[STOP])

    def stop(self) -> None:
        """End the run."""
        self.head[STOP] = 1.0

    @property
    def version(self) -> int:
        """Number of the newest published weights; 0 before the first."""
        return int(self.head[VERSION])

    @version.setter
    def version(self, version: int) -> None:
        self.head[VERSION] = version

    @property
    def pids(self) -> list[int]:
        """Of the actors that are up."""
        return [int(pid) for pid in self.rows[1:, PID] if pid]

    @property
    def steps(self) -> int:
        """Environment steps of all actors."""
        return int(self.rows[1:, STEPS].sum())

    def look(self) -> npt.NDArray[np.float64]:
        """All rows now [1 + actors, ROW]; a timer that runs counts up to this moment."""
        rows: npt.NDArray[np.float64] = np.array(self.rows)
        now = time.perf_counter()
        for row in rows:
            if slot := int(row[OPEN]):
                row[slot] += now - row[SINCE]
        return rows

    def all_returns(self, seen: list[int]) -> list[float]:
        """Returns of the episodes that ended since the last call with the same `seen` (a count per actor)."""
        fresh: list[float] = []
        for index in range(self.actors):
            count = min(int(self.rows[1 + index, EPISODES]), RETURNS)
            fresh += self.returns[index, seen[index] : count].tolist()
            seen[index] = count
        return fresh


class Span:
    """A part of a process's time; leaving adds it to the process's row and notes how long this pass took."""

    __slots__ = ("begin", "durations", "row", "slot")

    def __init__(self, row: npt.NDArray[np.float64], slot: int) -> None:
        self.row, self.slot, self.begin = row, slot, 0.0
        self.durations = array("d")

    def __enter__(self) -> None:
        self.begin = self.row[SINCE] = time.perf_counter()
        self.row[OPEN] = self.slot

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self.begin
        self.row[OPEN] = 0
        self.row[self.slot] += seconds
        self.durations.append(seconds)


class Clock:
    """Named timers of one process: `with clock("train"): …`. Parts may not be nested; what is in none is "other".

    index: of the actor, -1 of the learner.
    """

    def __init__(self, board: Board, index: int) -> None:
        self.index = index
        row = board.rows[1 + index]
        self.spans = {part: Span(row, FIRST_PART + place) for place, part in enumerate(PARTS)}

    def __call__(self, part: str) -> Span:
        return self.spans[part]

    def forget(self) -> None:
        """Drop the single durations; the sums stay."""
        for span in self.spans.values():
            del span.durations[:]

    def percentiles(self) -> dict[str, dict[str, float]]:
        """Microseconds of one pass through each part that was entered since `forget`: p50 and p99."""
        return {
            part: {f"p{at}": 1e6 * float(np.percentile(span.durations, at)) for at in (50, 99)}
            for part, span in self.spans.items()
            if span.durations
        }


def parts_of(row: npt.NDArray[np.float64]) -> dict[str, float]:
    """Seconds of each part in a row."""
    return {part: float(row[FIRST_PART + place]) for place, part in enumerate(PARTS)}
