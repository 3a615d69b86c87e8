"""Compares two builds of Di-store, to find what a change costs.

From the repository root, with each build installed into a folder (``pip install --no-deps --target FOLDER .``)::

    python -m bench.pairs BEFORE AFTER --check

A pair is one fresh process of each build. Both prepare what they measure, then take turns, ``--turns`` times for each
figure: while one measures for ``--seconds``, the other one waits, so that other load of the machine affects both alike.
A figure of a process is the median over its turns. A pair gives one ratio per figure, above 1 if the second build is
better. The geometric mean of the ratios over ``--pairs`` pairs is printed with its 95 % interval (Student's t of the
logarithms), since pairs differ in the physical placement of their memory. A figure is worse if the whole interval is
below the bar: 0.97; for p99: 0.90. Rates are those of ``bench.ours``. Latencies are those of ``bench.scale beside``,
and are measured in one process after the other.
"""

from __future__ import annotations

import argparse
import json
import math
import selectors
import socket
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import ROOT
from bench.kit import Result, kill_all, output_of, records_of, start_module
from bench.measure import TURNS

RATE_BAR, TAIL_BAR = 0.97, 0.90
BESIDE_SECONDS = 0.2
# Two-sided 95 % quantiles of Student's t by degrees of freedom; for missing ones the next lower number is used.
STUDENT_95 = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179}
Figures = dict[str, float]


@dataclass(frozen=True)
class Ratio:
    """One figure, over all pairs."""

    figure: str
    before: float  # medians of the two builds
    after: float
    ratio: float  # geometric mean over the pairs, above 1 if the second build is better
    low: float  # ends of its 95 % interval
    high: float
    bar: float  # a ratio below it is a loss

    @property
    def worse(self) -> bool:
        """Whether the loss is significant: the whole interval is below the bar."""
        return self.high < self.bar


def start(build: Path, module: str, options: list[str], **environment: str) -> Any:
    """Start a benchmark that imports this build of the package, and ``bench`` from this checkout."""
    return start_module(sys.executable, module, options, [build, ROOT], cwd=tempfile.gettempdir(), env=environment)


class Turns:
    """Lets processes measure one at a time: ``measure.my_turn`` asks by connecting and ends its turn by closing."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(self.path)
        self._door.listen()
        self._door.settimeout(0.2)

    def next(self, process: Any) -> socket.socket | None:
        """A connection of this process, which waits for its turn; None: the process has ended."""
        while process.poll() is None:
            try:
                return self._door.accept()[0]
            except TimeoutError:
                continue
        return None

    @staticmethod
    def give(waiting: socket.socket) -> None:
        """Give one turn, and wait until it is over."""
        with waiting, selectors.DefaultSelector() as until:
            waiting.send(b"1")
            until.register(waiting, selectors.EVENT_READ)
            until.select()


def take_turns(doors: list[Turns], processes: list[Any]) -> None:
    """Give turns one after the other until all processes have ended; the order is reversed every round."""
    order = list(zip(doors, processes, strict=True))
    while waiting := [one for each, process in order if (one := each.next(process)) is not None]:
        for one in waiting:
            Turns.give(one)
        order.reverse()


def rates(builds: list[Path], args: argparse.Namespace) -> list[Figures]:
    """Items per second of each build, by load and metric. The first turns are in the order of `builds`."""
    options = ["--seconds", str(args.seconds), "--repeats", str(args.turns), "--only", args.only, "--loads", args.loads]
    with tempfile.TemporaryDirectory() as folder:
        doors = [Turns(Path(folder) / str(number)) for number, _ in enumerate(builds)]
        started = [
            start(build, "bench.ours", options, **{TURNS: door.path}) for door, build in zip(doors, builds, strict=True)
        ]
        try:
            take_turns(doors, started)
            printed = [records_of(process) for process in started]
        finally:
            for process in started:
                kill_all(process)
    return [{f"{f['workload']}, {f['metric']}": f["value"] for f in each if f["unit"] != "GiB"} for each in printed]


def latencies(build: Path) -> Figures:
    """Percentiles of 28 KB inserts beside 0, 1 and 2 samplers, as calls per second, so that more is better."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--seconds", str(BESIDE_SECONDS), "--rounds", "1", "--out", folder]
        output_of(start(build, "bench.scale", ["beside", *options]))
        (path,) = Path(folder).glob("*.json")
        rows = Result.load(path).parts["figures"]
    return {
        f"insert beside {at}, {row['metric']}": 1e6 / value
        for row in rows
        if row["metric"] in ("insert p50", "insert p99")
        for at, value in row["values"]
    }


def compare(figure: str, before: list[float], after: list[float]) -> Ratio:
    """The mean ratio of one figure over all pairs, with its interval."""
    logs = [math.log(new / old) for old, new in zip(before, after, strict=True)]
    mean, freedom = statistics.fmean(logs), len(logs) - 1
    quantile = STUDENT_95[max(known for known in STUDENT_95 if known <= freedom)]
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    interval = (math.exp(mean), math.exp(mean - half), math.exp(mean + half))
    bar = TAIL_BAR if "p99" in figure else RATE_BAR
    return Ratio(figure, statistics.median(before), statistics.median(after), *interval, bar)


def parse() -> argparse.Namespace:
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
        for name, figures in zip(names, rates([builds[name] for name in names], args), strict=True):
            taken[name].append(figures if args.only else {**figures, **latencies(builds[name])})
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
