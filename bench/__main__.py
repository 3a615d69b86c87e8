"""Compares our store with Ray, Reverb, in-process buffers and this machine's memcpy, in one run.

From the repository root::

    python -m bench --check --ray-python RAY/bin/python --reverb-python REV/bin/python --inprocess-python IN/bin/python

``bench/README.md`` says how to make the environments. Systems without an interpreter are not measured. The systems take
turns for ``--rounds`` rounds, each time in a fresh process. The printed table has medians over the rounds, ratios to
the peer's best figure for the same purpose, and the bars (``bench/bars.py``). It is saved in ``bench/results/``. With
``--check`` the exit status is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import asdict

from bench import RESULTS, ROOT, import_path
from bench.bars import Key, Line, compare
from bench.kit import Result, records_of, start_module, turns
from bench.readme import DOC

RUN_LIMIT_SECONDS = 3600


def measure(python: str, module: str, options: list[str]) -> dict[Key, float]:
    """Run one system's script in its environment, and return its figures."""
    figures = records_of(start_module(python, module, options, import_path(python), cwd=ROOT), RUN_LIMIT_SECONDS)
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


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="our store beside its peers in one run")
    for system in ("ray", "reverb", "inprocess"):
        parser.add_argument(f"--{system}-python", help=f"interpreter of the environment of bench/peers/{system}.txt")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every system; the median counts")
    parser.add_argument("--only", default="", help="take only figures whose workload/metric contains this")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    DOC.options(parser)
    return parser.parse_args()


def systems(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Interpreter and module of each system to measure."""
    peers = {system: getattr(args, f"{system}_python") for system in ("ray", "reverb", "inprocess")}
    found = [(sys.executable, "bench.ours"), (sys.executable, "bench.peers.memcpy")]
    return found + [(python, f"bench.peers.{system}_bench") for system, python in peers.items() if python]


def main() -> int:
    args = parse()
    if (status := DOC.without_measuring(args)) is not None:
        return status
    only = f" --only '{args.only}'" if args.only else ""
    result = Result(f"python -m bench --check --seconds {args.seconds:g} --rounds {args.rounds}{only}")
    options = ["--seconds", str(args.seconds), "--repeats", "1", "--only", args.only]
    figures: dict[Key, list[float]] = {}
    for python, module in turns(systems(args), args.rounds):
        print(module, file=sys.stderr, flush=True)
        for key, value in measure(python, module, options).items():
            figures.setdefault(key, []).append(value)
    lines = compare({key: statistics.median(values) for key, values in figures.items()})
    show(lines)
    result.parts["lines"] = [asdict(line) for line in lines]
    path = result.save(RESULTS, "bench")
    print(f"\nall figures: {path.relative_to(ROOT)}")
    if args.doc is not None:
        DOC.write(path)
    return 1 if args.check and any(line.verdict == "MISSED" for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
