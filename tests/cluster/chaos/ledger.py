"""What the processes of a job note, in files that outlive them, and what the job tells them.

A line is written before the next call is made, and the kernel has it then: a kill of the process loses none.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from di_store.base.errors import StoreError

T = TypeVar("T")
TICK_SECONDS = 0.05
NOTED_SECONDS = 0.25
"""A call that ends later than that after its deadline is noted."""
SUMMED_SECONDS = 1.0
"""How often the counts of calls are noted."""


class Board:
    """A folder: which tables there are now, whether the job ends, and a file for each process."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._told: dict[str, Any] = {}
        self._at = 0

    def tell(self, **words: Any) -> None:
        """Change what all processes read."""
        self._told = {**self.read(), **words}
        draft = self.folder / "told.new"
        draft.write_text(json.dumps(self._told))
        draft.rename(self.folder / "told")

    def read(self) -> dict[str, Any]:
        """What the job has told last."""
        try:
            at = (self.folder / "told").stat().st_mtime_ns
        except FileNotFoundError:
            return {}
        if at != self._at:
            self._told, self._at = json.loads((self.folder / "told").read_text()), at
        return self._told

    def lines(self) -> Iterator[dict[str, Any]]:
        """All that was noted."""
        for path in sorted(self.folder.glob("*.jsonl")):
            for line in path.read_bytes().split(b"\n"):
                if line:
                    yield json.loads(line)


class Ticker:
    """How long this process has got no processor, or was stopped: what its clock cannot blame on a call."""

    def __init__(self) -> None:
        self._seen = 0.0, time.monotonic()  # the delay until then, when the tick began that goes on
        self._pause = threading.Event()
        threading.Thread(target=self._tick, daemon=True).start()

    def delayed(self) -> float:
        """Seconds until now: also those of the tick that goes on. Its thread may be the last one to get a processor."""
        delayed, began = self._seen
        return delayed + max(time.monotonic() - began - 1.5 * TICK_SECONDS, 0.0)

    def _tick(self) -> None:
        while True:
            self._pause.wait(TICK_SECONDS)
            self._seen = self.delayed(), time.monotonic()


class Ledger:
    """The file of one process. Thread-safe: a line is one write."""

    def __init__(self, board: Board, role: str, place: int) -> None:
        name = f"{role}-{place}-{os.getpid()}-{time.monotonic_ns()}.jsonl"
        self._file = os.open(board.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._who = f"{role}-{place}"
        self._ticker = Ticker()
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._summed = time.monotonic()
        self.note(began=os.getpid(), role=role, place=place)

    def note(self, **words: Any) -> None:
        """Write a line."""
        os.write(self._file, json.dumps({"who": self._who, "at": round(time.monotonic(), 2), **words}).encode() + b"\n")

    def call(self, what: str, timeout: float, function: Callable[[], T]) -> T:
        """Make a call that must end within `timeout` and a second, and note how it went."""
        began, delayed, outcome = time.monotonic(), self._ticker.delayed(), "done"
        try:
            return function()
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            late = time.monotonic() - began - timeout
            if late > NOTED_SECONDS:
                excuse = self._ticker.delayed() - delayed
                self.note(late=late, excuse=excuse, call=what, timeout=timeout, outcome=outcome, began=began)
            self._count(f"{what}: {outcome}")

    def _count(self, what: str) -> None:
        with self._lock:
            self._calls[what] += 1
            if time.monotonic() - self._summed < SUMMED_SECONDS:
                return
            calls, self._calls, self._summed = dict(self._calls), Counter(), time.monotonic()
        self.note(calls=calls)

    def end(self) -> None:
        """The process has done all that it had to."""
        with self._lock:
            self.note(calls=dict(self._calls), ended=os.getpid())


def short(error: StoreError) -> str:
    """For people: the kind of an error and the beginning of its text."""
    return f"{type(error).__name__}: {str(error)[:200]}"
