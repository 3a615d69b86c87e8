"""What a run of the whole found, as its file under `bench/results/` holds it."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.bottlenecks import ROOT

RESULTS = ROOT / "bench" / "results"
Figures = dict[str, Any]


@dataclass
class Result:
    """A finished run.

    command, machine, load_average (before, after): how, where and beside what.
    loads: a dict per run of a load in a system (`run.figures`); sizes: one per CartPole run (`sizes.measure`); speeds:
    `speeds.measure`; failed: what did not run, and why.
    """

    command: str
    machine: Figures
    load_average: list[list[float]]
    loads: list[Figures] = field(default_factory=list)
    sizes: list[Figures] = field(default_factory=list)
    speeds: list[Figures] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Result:
        """As `save` wrote it."""
        return cls(**json.loads(path.read_text()))

    def save(self) -> Path:
        """The file's path."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"bottlenecks-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
        path.write_text(json.dumps(_rounded(asdict(self)), indent=1) + "\n")
        return path

    def of(self, load: str, system: str) -> Figures | None:
        """The figures of a load in a system, each the median over the rounds; `None` if it was not run."""
        found = [run for run in self.loads if run["load"] == load and run["system"] == system]
        return _middle(found) if found else None


def machine() -> Figures:
    """What a reader needs to judge the figures."""
    return {
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
    }


def _middle(found: list[Any]) -> Any:
    """Numbers in nested dicts: the median of each."""
    first = found[0]
    if isinstance(first, dict):
        return {key: _middle([each[key] for each in found if key in each]) for key in first}
    return statistics.median(found) if isinstance(first, (int, float)) else first


def _rounded(value: Any) -> Any:
    """Floats to five digits."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
