"""A program that is interrupted again and again while it writes. Arguments: address, size of a row, interrupts.

It prints, as JSON, how many rows it has written, whose items it knows, and which calls were interrupted.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from typing import Any

import numpy as np

import di_store

BURST = 24
"""Calls that follow each other fast enough to travel together: an interrupt of one must not lose the others."""


class Interrupts:
    """SIGALRM as Ctrl-C, at some time inside the block, if it lasts for so long."""

    def __init__(self, seed: int) -> None:
        self.count = 0
        self._inside = False
        self._choice = random.Random(seed)
        signal.signal(signal.SIGALRM, self._raise)

    def _raise(self, *_: Any) -> None:
        if self._inside:
            self.count += 1
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        self._inside = True
        signal.setitimer(signal.ITIMER_REAL, self._choice.choice([1e-5, 1e-4, 1e-3, 1e-2]) * self._choice.random())

    def __exit__(self, *_: object) -> None:
        self._inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def write(writer: di_store.Writer, size: int, interrupts: int) -> dict[str, Any]:
    """Append until there were so many interrupts; then all must come through."""
    interrupted: list[int] = []
    waiting: list[tuple[int, Any]] = []
    choice, clock, n = random.Random(1), Interrupts(2), 0
    obs = np.empty(size, np.uint8)
    while clock.count < interrupts:
        try:
            with clock:
                for _ in range(BURST):
                    obs[:] = n % 251
                    waiting.append((n, writer.append({"n": n, "obs": obs})))
                    n += 1
        except KeyboardInterrupt:
            interrupted.append(n)
            n += 1
        try:
            with clock:
                if (what := choice.random()) < 0.02:
                    writer.flush()
                elif what < 0.04 and waiting:
                    waiting[-1][1].keys  # noqa: B018
        except KeyboardInterrupt:
            pass
    obs[:] = n % 251
    waiting.append((n, writer.append({"n": n, "obs": obs})))
    writer.flush(timeout=60)
    acknowledged = [number for number, made in waiting if made.keys is not None]
    return {"written": n + 1, "acknowledged": acknowledged, "interrupted": interrupted}


if __name__ == "__main__":
    with di_store.connect(sys.argv[1]) as store, store.table("t", timeout=60).writer() as writer:
        print(json.dumps(write(writer, int(sys.argv[2]), int(sys.argv[3]))))
