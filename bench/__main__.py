"""Our store beside Ray and Reverb in one run: put, get, append, insert, sample, update.

From the repository root::

    python -m bench.first --ray-python VENV/bin/python --reverb-python VENV/bin/python

(``bench/README.md`` says how the two environments are made; without them only our store is measured.) The systems take
turns for ``--rounds`` rounds, each in a fresh process, in an order that rotates, so that a slow minute of the machine
hits them all. Printed: a table of medians over the rounds, ratios to the best figure the peer has for the purpose, and
the bars; raw figures go to ``bench/results/``. Exit 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.measure import LOADS, OBJECT_BYTES

Key = tuple[str, str, str]  # system, workload, metric
ROOT = Path(__file__).resolve().parent.parent
RUN_LIMIT_SECONDS = 1800


@dataclass(frozen=True)
class Comparison:
    """One line of the table: a figure of ours, the peer's figures of which the best counts, and the least ratio."""

    workload: str
    metric: str
    peer: str
    peer_metrics: tuple[str, ...]
    bar: float | None


def comparisons() -> Iterable[Comparison]:
    """Every line, in order."""
    for size in OBJECT_BYTES:
        for metric in ("put", "get", "get, other process"):
            bar = 30.0 if size == "110KB" else None
            yield Comparison(size, metric, "ray", (metric,), bar)
    inserts = ("append", "insert")
    samples = tuple(f"sample{way}{where}" for way in ("", ", client") for where in ("", ", other process"))
    for load in LOADS:
        yield Comparison(load, "append", "reverb", inserts, 3.0)
        yield Comparison(load, "insert", "reverb", inserts, 3.0)
        yield Comparison(load, "sample", "reverb", samples, 1.5 if load == "2.8MB" else 3.0)
        yield Comparison(load, "loader", "reverb", samples, None)
        yield Comparison(load, "update", "reverb", ("update", "update, other process"), 3.0)


@dataclass(frozen=True)
class Line:
    """A comparison with its figures (items or calls per second); ``None`` where nothing was measured."""

    workload: str
    metric: str
    ours: float | None
    peer: str
    peers: float | None
    ratio: float | None
    bar: float | None

    @property
    def verdict(self) -> str:
        """How the ratio stands to the bar."""
        if self.bar is None or self.ratio is None:
            return ""
        return "ok" if self.ratio >= self.bar else "MISSED"


def measure(python: str, module: str, options: list[str]) -> dict[Key, float]:
    """Run one system's script in its environment; its figures.

    :raises RuntimeError: the script failed; the end of its stderr is in the message
    """
    done = subprocess.run(
        [python, "-m", module, *options], cwd=ROOT, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"{module} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    figures = (json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"system"'))
    return {(f["system"], f["workload"], f["metric"]): float(f["value"]) for f in figures}


def compare(figures: dict[Key, float]) -> list[Line]:
    """The lines of the table from the medians."""
    lines = []
    for c in comparisons():
        ours = figures.get(("di-store", c.workload, c.metric))
        known = [figures[key] for m in c.peer_metrics if (key := (c.peer, c.workload, m)) in figures]
        peers = max(known, default=None)
        ratio = ours / peers if ours is not None and peers else None
        lines.append(Line(c.workload, c.metric, ours, c.peer, peers, ratio, c.bar))
    return lines


def show(lines: list[Line]) -> None:
    """Print the table."""

    def number(value: float | None, form: str = ",.0f") -> str:
        return "-" if value is None else format(value, form)

    print(f"\n{'workload':9}{'metric':20}{'ours /s':>13}{'peer /s':>13}  {'peer':8}{'ratio':>8}{'bar':>7}")
    for line in lines:
        bar = "" if line.bar is None else f">={line.bar:g}"
        print(
            f"{line.workload:9}{line.metric:20}{number(line.ours):>13}{number(line.peers):>13}  {line.peer:8}"
            f"{number(line.ratio, '.1f'):>8}{bar:>7}  {line.verdict}"
        )


def save(lines: list[Line], rounds: list[dict[Key, float]], args: argparse.Namespace) -> Path:
    """Write the raw figures of every round and the table, with what is needed to judge them; the file's path."""
    results = ROOT / "bench" / "results"
    results.mkdir(exist_ok=True)
    path = results / f"first-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    content = {
        "command": f"python -m bench.first --seconds {args.seconds:g} --rounds {args.rounds} --only '{args.only}'",
        "machine": {
            "cpus": os.cpu_count(),
            "kernel": platform.release().split("-")[0],
            "python": platform.python_version(),
        },
        "load_average_after": os.getloadavg(),
        "lines": [asdict(line) for line in lines],
        "rounds": [[[*key, value] for key, value in figures.items()] for figures in rounds],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="our store beside Ray and Reverb in one run")
    parser.add_argument("--ray-python", help="interpreter of the environment of bench/peers/ray.txt")
    parser.add_argument("--reverb-python", help="interpreter of the environment of bench/peers/reverb.txt")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every system; the median counts")
    parser.add_argument("--only", default="", help="take only figures whose workload/metric contains this")
    return parser.parse_args()


def main() -> int:
    args = parse()
    options = ["--seconds", str(args.seconds), "--repeats", "1", "--only", args.only]
    systems = [(sys.executable, "bench.ours", options)]
    if args.ray_python:
        systems.append((args.ray_python, "bench.peers.ray_bench", [*options, "--parts", "objects"]))
    if args.reverb_python:
        systems.append((args.reverb_python, "bench.peers.reverb_bench", options))
    rounds: list[dict[Key, float]] = []
    for turn in range(args.rounds):
        figures: dict[Key, float] = {}
        for place in range(len(systems)):
            python, module, given = systems[(turn + place) % len(systems)]
            print(f"round {turn + 1} of {args.rounds}: {module}", file=sys.stderr, flush=True)
            figures |= measure(python, module, given)
        rounds.append(figures)
    keys = {key for figures in rounds for key in figures}
    medians = {key: statistics.median(f[key] for f in rounds if key in f) for key in keys}
    lines = compare(medians)
    show(lines)
    print(f"\nraw figures: {save(lines, rounds, args).relative_to(ROOT)}")
    return 1 if any(line.verdict == "MISSED" for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
