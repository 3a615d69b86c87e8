"""Our store beside Ray, Reverb, in-process buffers and this machine's memcpy, in one run.

From the repository root::

    python -m bench --check --ray-python RAY/bin/python --reverb-python REV/bin/python --inprocess-python IN/bin/python

(``bench/README.md`` says how the environments are made; what is not given is not measured.) The systems take turns for
``--rounds`` rounds, each in a fresh process, in an order that rotates, so that a slow minute of the machine hits them
all. Printed: a table of medians over the rounds, ratios to the best figure the peer has for the purpose, and the bars
(``bench/bars.py``); raw figures go to ``bench/results/``. With ``--check`` the exit code is 1 when a bar is missed.
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
from dataclasses import asdict
from pathlib import Path

from bench.bars import Key, Line, compare

ROOT = Path(__file__).resolve().parent.parent
RUN_LIMIT_SECONDS = 3600


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


def show(lines: list[Line]) -> None:
    """Print the table."""

    def number(value: float | None) -> str:
        return "-" if value is None else format(value, ",.0f" if value >= 1000 else ".3g")

    print(f"\n{'workload':9}{'metric':23}{'ours':>13}{'theirs':>13}  {'':10}{'ratio':>8}{'bar':>8}")
    for line in lines:
        if line.ours is None and line.theirs is None:
            continue
        bar = "" if line.bar is None else f"{'<=' if line.most else '>='}{line.bar:g}"
        print(
            f"{line.workload:9}{line.metric:23}{number(line.ours):>13}{number(line.theirs):>13}  {line.system:10}"
            f"{'-' if line.ratio is None else format(line.ratio, '.2f'):>8}{bar:>8}  {line.verdict:7} {line.by}"
        )


def save(lines: list[Line], rounds: list[dict[Key, float]], args: argparse.Namespace) -> Path:
    """Write the raw figures of every round and the table, with what is needed to judge them; the file's path."""
    results = ROOT / "bench" / "results"
    results.mkdir(exist_ok=True)
    path = results / f"bench-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    content = {
        "command": f"python -m bench --check --seconds {args.seconds:g} --rounds {args.rounds}"
        + (f" --only '{args.only}'" if args.only else ""),
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
    parser = argparse.ArgumentParser(prog="python -m bench", description="our store beside its peers in one run")
    parser.add_argument("--ray-python", help="interpreter of the environment of bench/peers/ray.txt")
    parser.add_argument("--reverb-python", help="interpreter of the environment of bench/peers/reverb.txt")
    parser.add_argument("--inprocess-python", help="interpreter of the environment of bench/peers/inprocess.txt")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every system; the median counts")
    parser.add_argument("--only", default="", help="take only figures whose workload/metric contains this")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    return parser.parse_args()


def systems(args: argparse.Namespace) -> list[tuple[str, str, list[str]]]:
    """Interpreter, module and options of everything that is measured."""
    options = ["--seconds", str(args.seconds), "--repeats", "1", "--only", args.only]
    found = [(sys.executable, "bench.ours", options)]
    found.append(
        (sys.executable, "bench.peers.limits", [*options[:4], "--only", "copy, 1 thread", "--parts", "memory"])
    )
    if args.ray_python:
        found.append((args.ray_python, "bench.peers.ray_bench", [*options, "--parts", "objects"]))
    if args.reverb_python:
        found.append((args.reverb_python, "bench.peers.reverb_bench", options))
    if args.inprocess_python:
        found.append((args.inprocess_python, "bench.peers.inprocess_bench", options))
    return found


def main() -> int:
    args = parse()
    measured = systems(args)
    rounds: list[dict[Key, float]] = []
    for turn in range(args.rounds):
        figures: dict[Key, float] = {}
        for place in range(len(measured)):
            python, module, given = measured[(turn + place) % len(measured)]
            print(f"round {turn + 1} of {args.rounds}: {module}", file=sys.stderr, flush=True)
            figures |= measure(python, module, given)
        rounds.append(figures)
    keys = {key for figures in rounds for key in figures}
    medians = {key: statistics.median(f[key] for f in rounds if key in f) for key in keys}
    lines = compare(medians)
    show(lines)
    print(f"\nraw figures: {save(lines, rounds, args).relative_to(ROOT)}")
    missed = [line for line in lines if line.verdict == "MISSED"]
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
