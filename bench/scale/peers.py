"""In-process buffers that take turns with our tables: one process each, which measures when it is told to."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from bench.scale.figures import Takes, say

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("cpprb", "tianshou")


class Peer:
    """One buffer kind in a process of its own, filled and idle until it is asked."""

    def __init__(self, python: str, name: str, sizes: list[int]) -> None:
        say(f"items: {name}")
        command = [python, "-m", "bench.peers.scale_bench", name, *map(str, sizes)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.name = name
        if self._line() != "ready":
            raise RuntimeError(f"{name} did not start")

    @classmethod
    def start_all(cls, python: str | None, sizes: list[int]) -> list[Peer]:
        """Every peer, filled; none without their environment."""
        return [cls(python, name, sizes) for name in NAMES] if python and sizes else []

    def measure(self, seconds: float, takes: Takes) -> None:
        """One round of all its figures."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        for size, metric, value, unit in json.loads(self._line()):
            takes.add(self.name, size, metric, value, unit)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self._process.wait(60)}")
        return line.strip()
