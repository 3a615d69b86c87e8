"""Two builds of Di-store beside each other: what a change costs.

From the repository root, with each build installed into a folder (``pip install --no-deps --target FOLDER .``)::

    python -m bench.pairs BEFORE AFTER --check

A pair is one fresh process of each build. Both set up what they measure, then take turns: while one measures for
``--seconds`` the other one waits, ``--turns`` times for each figure, so that what else the machine does meets both
alike. A figure of a process is the median over its turns, and a pair gives one ratio per figure, above 1 where the
second build is better. Printed is the geometric mean of the ratios over ``--pairs`` pairs with its 95 % interval
(Student's t over their logarithms): pairs differ in where their memory lies. A figure is worse when that whole interval
lies below the bar: 0.97, for p99 0.90. Rates are those of ``bench.ours``; latencies, those of ``bench.scale beside``,
are taken one process after the other.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.measure import TURNS

ROOT = Path(__file__).resolve().parent.parent
RATE_BAR, TAIL_BAR = 0.97, 0.90
BESIDE_SECONDS = 0.2
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


def start(build: Path, module: str, options: list[str], **environment: str) -> subprocess.Popen[str]:
    """A benchmark that imports this build."""
    path = os.pathsep.join([str(build), str(ROOT)])
    command = [sys.executable, "-m", module, *options]
    return subprocess.Popen(
        command,
        cwd=tempfile.gettempdir(),
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    """What it printed."""
    out, err = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{process.args} ended with {process.returncode}:\n{err[-3000:]}")
    return out


class Turns:
    """Lets processes measure one at a time: ``measure.my_turn`` asks by connecting, and is done when it closes."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(self.path)
        self._door.listen()
        self._door.settimeout(0.2)

    def next(self, process: subprocess.Popen[str]) -> socket.socket | None:
        """Somebody of this process who waits for a turn; None once it has ended."""
        while process.poll() is None:
            try:
                return self._door.accept()[0]
            except TimeoutError:
                continue
        return None

    @staticmethod
    def give(waiting: socket.socket) -> None:
        """One turn, until it is over."""
        with waiting, selectors.DefaultSelector() as until:
            waiting.send(b"1")
            until.register(waiting, selectors.EVENT_READ)
            until.select()


def take_turns(turns: list[Turns], processes: list[subprocess.Popen[str]]) -> None:
    """One after the other until all have ended; who begins changes from round to round."""
    order = list(zip(turns, processes, strict=True))
    while waiting := [one for each, process in order if (one := each.next(process)) is not None]:
        for one in waiting:
            Turns.give(one)
        order.reverse()


def rates(builds: list[Path], args: argparse.Namespace) -> list[Figures]:
    """Items per second of each build, by load and metric; they begin in the order given, then in the other one."""
    options = ["--seconds", str(args.seconds), "--repeats", str(args.turns), "--only", args.only, "--loads", args.loads]
    with tempfile.TemporaryDirectory() as folder:
        turns = [Turns(Path(folder) / str(number)) for number, _ in enumerate(builds)]
        started = [
            start(build, "bench.ours", options, **{TURNS: each.path}) for each, build in zip(turns, builds, strict=True)
        ]
        take_turns(turns, started)
        return [by_name(output(process)) for process in started]


def by_name(printed: str) -> Figures:
    """The rates among the JSON lines of ``bench.ours``."""
    figures = (json.loads(line) for line in printed.splitlines() if line.startswith("{"))
    return {f"{f['workload']}, {f['metric']}": float(f["value"]) for f in figures if f["unit"] != "GiB"}


def latencies(build: Path) -> Figures:
    """Inserts of 28 KB beside nobody, one and two samplers: percentiles, as calls per second so that more is better."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--seconds", str(BESIDE_SECONDS), "--rounds", "1", "--out", folder]
        output(start(build, "bench.scale", ["beside", *options]))
        (path,) = Path(folder).glob("*.json")
        found = json.loads(path.read_text())["figures"]
    named = {f"insert beside {f['at']}, {f['metric']}": f for f in found}
    return {name: 1e6 / f["value"] for name, f in named.items() if f["unit"] == "µs" and "99.9" not in name}


def measure(builds: list[Path], args: argparse.Namespace) -> list[Figures]:
    """Every figure of each build, once."""
    found = rates(builds, args)
    return found if args.only else [{**one, **latencies(build)} for one, build in zip(found, builds, strict=True)]


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
    parser.add_argument("--pairs", type=int, default=7, help="fresh processes of both (default 7, at least 3)")
    parser.add_argument("--turns", type=int, default=9, help="turns of a pair for each figure (default 9)")
    parser.add_argument("--seconds", type=float, default=0.03, help="length of one turn (default 0.03)")
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
        begin = time.monotonic()
        names = sorted(builds, reverse=pair % 2 == 0)
        for name, figures in zip(names, measure([builds[name] for name in names], args), strict=True):
            taken[name].append(figures)
        print(f"pair {pair + 1}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
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
