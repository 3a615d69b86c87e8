"""Stores that hold four times as many bytes as memory, each under one cap: ours beside others.

`rivals`: random batches of 28 KiB rows. `dataset`: P15's shuffled epochs of 108 KB rows, in an order that is known.
`cache`: P16's single values by key under skewed popularity.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from bench import ROOT, import_path
from bench.kit import records_of, start_module
from bench.peers.tier_bench import SYSTEMS
from bench.tier.disk import cap, fresh
from bench.tier.lines import Line, Options, beside

LIMIT_SECONDS = 1800
OURS, READER = "di-store", "NoPFS-like reader"
THREE = 3.0
BARS = {"ray": 5.0, "LazyMemmapStorage": 5.0, "rocksdict": THREE, "lmdb": THREE, "memmap": THREE}
"""By the first word of the name. The bar of 3 is for the best of its three."""
Rates = list[float]


def run(system: str, options: Options, module: str, words: Iterable[str]) -> dict[str, Any]:
    """What one system prints, with a folder and a memory cgroup of its own. RuntimeError: it failed; why is printed."""
    python = sys.executable if system == OURS else str(options.python)
    with ExitStack() as stack:
        folder = stack.enter_context(fresh(options.folder))
        words = [system, str(folder), "--group", str(stack.enter_context(cap()).path), *words]
        started = start_module(python, f"bench.peers.{module}", words, import_path(python), cwd=ROOT)
        try:
            (found,) = records_of(started, LIMIT_SECONDS)
        except RuntimeError as error:
            print(f"{system}: {error}", file=sys.stderr, flush=True)
            raise
    print(f"{system}: {found}", file=sys.stderr, flush=True)
    return found


@dataclass(frozen=True)
class Trial:
    """So many rows of so many bytes, bytes of memory, and further options of `bench.peers.tier_bench`."""

    rows: int
    size: int
    cap: int
    more: tuple[str, ...]

    def measure(self, system: str, options: Options) -> Rates:
        """MB/s of a system's rounds, in a process of its own."""
        words = ["--rows", str(self.rows), "--size", str(self.size), "--cap", str(self.cap), *self.more]
        return [rate * self.size / 1e6 for rate in run(system, options, "tier_bench", words)["rates"]]

    def all_of(self, names: Iterable[str], options: Options) -> tuple[Rates, Rates, dict[str, float]]:
        """Ours first and last, so that a drift of the drive shows; medians of the others that end."""
        taken, first = dict[str, float](), self.measure(OURS, options)
        if options.python is None:
            return first, first, taken
        for name in names:
            with suppress(RuntimeError):
                taken[name] = statistics.median(self.measure(name, options))
        return first, self.measure(OURS, options), taken


def line(name: str, ours: float, theirs: float | None, bar: float | None, case: str = "") -> Line:
    return Line(case or name, "MB/s", ours, theirs, name, ours / theirs if theirs else None, bar)


def both(first: Rates, last: Rates) -> tuple[float, Line]:
    """Our figure, and the line that shows how far its two parts are apart."""
    ours = (statistics.median(first) + statistics.median(last)) / 2
    return ours, beside("first, and again at the end", "MB/s", first, last, "ours", None)


def rivals(options: Options) -> list[Line]:
    size, rows = 28 << 10, max(20_000, int(12e9 * options.scale) // (28 << 10))
    trial = Trial(rows, size, rows * size // 4, ("--rounds", str(options.rounds)))
    names = [name for name in SYSTEMS if name not in (OURS, READER)]
    first, last, taken = trial.all_of(names, options)
    ours, again = both(first, last)
    bars = {name: BARS.get(name.split(",")[0]) for name in names}
    lines = [line(name, ours, taken.get(name), None if bars[name] == THREE else bars[name]) for name in names]
    for threads in (False, True):
        mine = {n: rate for n, rate in taken.items() if bars[n] == THREE and ("threads" in n) == threads}
        best = max(mine, key=lambda name: mine[name], default="one of them")
        how = "read by 16 threads" if threads else "as they are"
        lines.append(line(best, ours, mine.get(best), THREE, f"best of rocksdict, lmdb, memmap, {how}"))
    return [again, *lines]


def dataset(options: Options) -> list[Line]:
    rows = max(5_000, int(20_000 * options.scale))
    trial = Trial(rows, 108_000, rows * 27_000, ("--epochs", "3"))
    names = [name for name in SYSTEMS if name.split(",")[0] in ("rocksdict", "lmdb", "diskcache", READER)]
    first, last, taken = trial.all_of(names, options)
    ours, again = both(first, last)
    return [again, *(line(name, ours, taken.get(name), None) for name in names)]


def cache(options: Options) -> list[Line]:
    keys = int(3_700_000 * options.scale)  # 11 GB
    operations = int(5_000_000 * options.scale) // 2
    words = ["--keys", str(keys), "--operations", str(operations), "--cap", str(int(5e8 * options.scale))]
    ours, lines = run(OURS, options, "cache_bench", words), list[Line]()
    rate, p99 = ours["rate"], ours["p99"]
    for name in ("rocksdict", "lmdb", "diskcache") if options.python else ():
        with suppress(RuntimeError):
            theirs = run(name, options, "cache_bench", words)
            lines += [
                Line(f"{name}: gets, and sets on a miss", "/s", rate, theirs["rate"], name, rate / theirs["rate"]),
                Line(f"{name}: p99 of a get", "µs", p99, theirs["p99"], name, p99 / theirs["p99"]),
            ]
    return lines
