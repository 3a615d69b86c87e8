"""Two builds of Di-store beside each other: what a change costs.

From the repository root, with each build installed into a folder (``pip install --no-deps --target FOLDER .``)::

    python -m bench.pairs BEFORE AFTER --check

Both take turns for ``--pairs`` pairs, each time in fresh processes; who begins changes from pair to pair. A pair gives
one ratio per figure, above 1 where the second build is better. Printed is the geometric mean of the ratios with its
95 % interval (Student's t over their logarithms). A figure is worse when that whole interval lies below the bar: 0.97,
for p99 0.90. Rates are those of ``bench.ours``, latencies those of ``bench.scale beside``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RATE_BAR, TAIL_BAR = 0.97, 0.90
STUDENT_95 = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179}
"""Two-sided 95 % quantiles of Student's t by degrees of freedom; in between the next lower one is taken."""
Figures = dict[str, float]


@dataclass(frozen=True)
class Ratio:
    """One figure of all pairs.

    Attributes:
        figure: its name.
        before: median of the first build.
        after: median of the second one.
        ratio: geometric mean over the pairs, above 1 where the second build is better.
        low: lower end of the 95 % interval.
        high: upper end.
        bar: least ratio that is no loss.
    """

    figure: str
    before: float
    after: float
    ratio: float
    low: float
    high: float
    bar: float

    @property
    def worse(self) -> bool:
        """Whether the loss is certain: the whole interval lies below the bar."""
        return self.high < self.bar


def run(build: Path, module: str, options: list[str]) -> str:
    """Standard output of a benchmark that imports this build."""
    path = os.pathsep.join([str(build), str(ROOT)])
    command = [sys.executable, "-m", module, *options]
    done = subprocess.run(
        command, cwd=tempfile.gettempdir(), env=dict(os.environ, PYTHONPATH=path), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{module} with {build} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def rates(build: Path, args: argparse.Namespace) -> Figures:
    """Items per second, by load and metric."""
    options = ["--seconds", str(args.seconds), "--repeats", "1", "--only", args.only, "--loads", args.loads]
    figures = (json.loads(line) for line in run(build, "bench.ours", options).splitlines() if line.startswith("{"))
    return {f"{f['workload']}, {f['metric']}": float(f["value"]) for f in figures if f["unit"] != "GiB"}


def latencies(build: Path, args: argparse.Namespace) -> Figures:
    """Inserts of 28 KB beside nobody, one and two samplers: percentiles, as calls per second so that more is better."""
    with tempfile.TemporaryDirectory() as folder:
        run(build, "bench.scale", ["beside", "--seconds", str(args.seconds), "--rounds", "1", "--out", folder])
        (path,) = Path(folder).glob("*.json")
        found = json.loads(path.read_text())["figures"]
    named = {f"insert beside {f['at']}, {f['metric']}": f for f in found}
    return {name: 1e6 / f["value"] for name, f in named.items() if f["unit"] == "µs" and "99.9" not in name}


def measure(build: Path, args: argparse.Namespace) -> Figures:
    """Every figure of one build, once."""
    return {**rates(build, args), **({} if args.only else latencies(build, args))}


def compare(figure: str, before: list[float], after: list[float]) -> Ratio:
    """The ratios of one figure over all pairs, with their interval."""
    logs = [math.log(new / old) for old, new in zip(before, after, strict=True)]
    mean, freedom = statistics.fmean(logs), len(logs) - 1
    quantile = STUDENT_95[max(known for known in STUDENT_95 if known <= freedom)]
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(
        figure,
        statistics.median(before),
        statistics.median(after),
        math.exp(mean),
        math.exp(mean - half),
        math.exp(mean + half),
        TAIL_BAR if "p99" in figure else RATE_BAR,
    )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.pairs", description="two builds beside each other")
    parser.add_argument("before", type=Path, help="folder that holds the first build")
    parser.add_argument("after", type=Path, help="folder that holds the second one")
    parser.add_argument("--pairs", type=int, default=7, help="turns of both (default 7, at least 3)")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of one measurement (default 0.2)")
    parser.add_argument("--loads", default="56KB,2KB,105B", help="of bench.ours (default 56KB,2KB,105B)")
    parser.add_argument("--only", default="", help="take only rates whose workload/metric contains this")
    parser.add_argument("--out", type=Path, help="write the table there as JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 when a figure is worse")
    args = parser.parse_args()
    if args.pairs < 3:
        parser.error("--pairs: an interval needs at least 3")
    return args


def main() -> int:
    args = parse()
    builds = {"before": args.before.resolve(), "after": args.after.resolve()}
    taken: dict[str, list[Figures]] = {name: [] for name in builds}
    for pair in range(args.pairs):
        for name in sorted(builds, reverse=pair % 2 == 0):
            begin = time.monotonic()
            taken[name].append(measure(builds[name], args))
            print(f"pair {pair + 1}, {name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    shared = [name for name in taken["before"][0] if all(name in each for each in taken["before"] + taken["after"])]
    ratios = [compare(f, [one[f] for one in taken["before"]], [one[f] for one in taken["after"]]) for f in shared]
    print(f"{'figure':34}{'before /s':>14}{'after /s':>14}{'ratio':>8}  95 % interval")
    for r in ratios:
        mark = "WORSE" if r.worse else ""
        print(f"{r.figure:34}{r.before:14,.4g}{r.after:14,.4g}{r.ratio:8.3f}  {r.low:.3f} to {r.high:.3f} {mark}")
    if args.out:
        args.out.write_text(json.dumps([asdict(r) for r in ratios], indent=1) + "\n")
    return 1 if args.check and any(r.worse for r in ratios) else 0


if __name__ == "__main__":
    sys.exit(main())
