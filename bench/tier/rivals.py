"""Random batches of 28 KiB rows, four times as many bytes as memory: ours beside other stores, each under one cap."""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack

from bench import ROOT, import_path
from bench.kit import records_of, start_module
from bench.peers.tier_bench import SYSTEMS
from bench.tier.disk import cap, fresh
from bench.tier.lines import Line, Options, beside

DATA, CAP, SIZE = 12_000_000_000, 3_000_000_000, 28 << 10
LIMIT_SECONDS = 900
OURS = "di-store"
THREE = 3.0
BARS = {"ray": 5.0, "LazyMemmapStorage": 5.0, "rocksdict": THREE, "lmdb": THREE, "memmap": THREE}
"""By the first word of the name. The bar of 3 is for the best of its three."""


def measure(system: str, options: Options) -> list[float]:
    """MB/s of a system's rounds, in a process of its own; raises what `output_of` does."""
    python = sys.executable if system == OURS else str(options.python)
    rows = max(20_000, int(DATA * options.scale) // SIZE)
    with ExitStack() as stack:
        folder = stack.enter_context(fresh(options.folder))
        words = [system, str(folder), "--rows", str(rows), "--cap", str(rows * SIZE * CAP // DATA)]
        words += ["--rounds", str(options.rounds), "--group", str(stack.enter_context(cap()).path)]
        started = start_module(python, "bench.peers.tier_bench", words, import_path(python), cwd=ROOT)
        (found,) = records_of(started, LIMIT_SECONDS)
    print(f"{system}: {found['filled']:.0f} s to fill", file=sys.stderr, flush=True)
    return [rate * SIZE / 1e6 for rate in found["rates"]]


def rivals(options: Options) -> list[Line]:
    """Ours is measured first and last, so that a drift of the drive shows; the mean of both is compared."""
    names = [name for name in SYSTEMS if name != OURS] if options.python else []
    taken: dict[str, float] = {}
    first = measure(OURS, options)
    for name in names:
        try:
            taken[name] = statistics.median(measure(name, options))
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    last = measure(OURS, options) if names else first
    ours = (statistics.median(first) + statistics.median(last)) / 2
    lines = [
        beside("first, and again at the end", "MB/s", first, last, "ours", None),
        *(line(name, ours, taken.get(name), BARS.get(name.split(",")[0])) for name in names),
    ]
    for threads in (False, True):
        mine = {n: r for n, r in taken.items() if BARS.get(n.split(",")[0]) == THREE and ("threads" in n) == threads}
        best = max(mine, key=lambda name: mine[name], default="one of them")
        how = "read by 16 threads" if threads else "as they are"
        lines.append(line(best, ours, mine.get(best), THREE, f"best of rocksdict, lmdb, memmap, {how}"))
    return lines


def line(name: str, ours: float, theirs: float | None, bar: float | None, case: str = "") -> Line:
    ratio = ours / theirs if theirs else None
    return Line(case or name, "MB/s", ours, theirs, name, ratio, None if bar == THREE and not case else bar)
