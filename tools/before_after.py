"""What a change costs who uses one machine alone: `di-store bench` of two builds in turns, and beside an idle agent.

From the repository root, with a release build of each version (`pip install --target FOLDER .` in its tree):
``python tools/before_after.py BEFORE AFTER``. Each turn measures the one before, the one after, and the one after with
a `di-store serve` beside it that serves another store to nobody; who is first changes. Shows the median of the
turns' ratios of the median time of a call, before by after: above 1 the one after is faster. The interval of 95 % is
by bootstrap. Exits with 1 if an interval lies below 0.98 as a whole.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

BAR = 0.98
KINDS = ("before", "after", "beside an agent")


@contextmanager
def idle_agent(build: str) -> Iterator[None]:
    """A store of another name that is served, and that nobody uses."""
    words = [sys.executable, "-P", "-m", "di_store", "serve", "--memory", "64MiB", "--listen", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": build})
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield
    finally:
        process.terminate()
        process.wait()


def measured(build: str, seconds: float) -> dict[str, float]:
    """Microseconds of a call, by workload and case."""
    words = [sys.executable, "-P", "-m", "di_store", "bench", "--json", "--rounds", "1", "--seconds", str(seconds)]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": build}, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {f"{each['workload']} {each['case']}": each["microseconds"]["p50"] for each in lines}


def one_turn(before: str, after: str, seconds: float, first: int) -> dict[str, dict[str, float]]:
    """What each kind took, begun with kind `first`."""
    found = {}
    for kind in (KINDS[(first + at) % 3] for at in range(3)):
        if kind == "beside an agent":
            with idle_agent(after):
                found[kind] = measured(after, seconds)
        else:
            found[kind] = measured(before if kind == "before" else after, seconds)
    return found


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Their median, and its interval of 95 %."""
    drawn = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(np.median(ratios)), float(low), float(high)


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", help="folder of a release build")
    parser.add_argument("after", help="folder of a release build")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one measurement")
    args = parser.parse_args()
    turns = [one_turn(args.before, args.after, args.seconds, at) for at in range(args.turns)]
    slower = False
    print(f"| {'call':24} | before, µs | after: speed | 95 % | beside an idle agent | 95 % |")
    print("|---|---:|---:|---|---:|---|")
    for case in turns[0]["before"]:
        cells = [f"{np.median([turn['before'][case] for turn in turns]):.2f}"]
        for kind in KINDS[1:]:
            middle, low, high = interval([turn["before"][case] / turn[kind][case] for turn in turns])
            cells += [f"{middle:.3f}", f"{low:.3f} to {high:.3f}"]
            slower = slower or high < BAR
        print(f"| {case:24} | {' | '.join(cells)} |", flush=True)
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
