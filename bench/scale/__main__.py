"""``python -m bench.scale [PART...]``: measure, print, write the file; ``--doc`` puts a file into the docs.

From the repository root. Without parts all are measured, about a quarter of an hour; ``--scale 0.01 --seconds 0.1
--rounds 2`` is a quick look. ``--check``: exit 1 when a bar is missed, or was not measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.scale import page
from bench.scale.bars import verdicts
from bench.scale.beside import beside
from bench.scale.figures import Figure, Options, apart, say
from bench.scale.items import capacity, items
from bench.scale.objects import objects
from bench.scale.processes import processes
from bench.scale.report import RESULTS, ROOT, Result, machine, show
from bench.scale.shapes import shapes
from bench.scale.tables import tables
from bench.scale.writers import writers

PARTS: Mapping[str, Callable[[Options], list[Figure]]] = {
    part.__name__: part for part in (items, capacity, beside, objects, processes, writers, tables, shapes)
}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description="what the store costs as things grow")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default all")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one measurement (default 0.5)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every case; medians count (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the largest counts (default 1)")
    parser.add_argument("--inprocess-python", help="interpreter of the environment of bench/peers/inprocess.txt")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the file (default bench/results)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed or was not measured")
    parser.add_argument("--doc", nargs="?", const="", metavar="FILE", help="write a result into docs/performance.md")
    parser.add_argument("--doc-check", action="store_true", help="exit 1 when that page differs from its result")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no part {sorted(unknown)}: there are {', '.join(PARTS)}")
    return args


def command(args: argparse.Namespace) -> str:
    """What repeats the run."""
    peers = " --inprocess-python VENV-INPROCESS/bin/python" if args.inprocess_python else ""
    parts = "".join(f" {part}" for part in args.parts)
    return (
        f"python -m bench.scale{parts} --seconds {args.seconds:g} --rounds {args.rounds} --scale {args.scale:g}{peers}"
    )


def measure(args: argparse.Namespace) -> Result:
    """Every part in a process of its own."""
    options = Options(args.seconds, args.rounds, args.scale, args.inprocess_python)
    before, figures = list(os.getloadavg()), list[Figure]()
    for name in args.parts or PARTS:
        say(f"-- {name}")
        figures += apart(PARTS[name], options)
    return Result(command(args), machine(), [before, list(os.getloadavg())], verdicts(figures), figures)


def main() -> int:
    args = parse()
    if args.doc_check:
        return 0 if page.write(page.shown(), check=True) else 1
    if args.doc is not None:
        page.write(Path(args.doc).resolve() if args.doc else page.shown(), check=False)
        return 0
    result = measure(args)
    show(result)
    path = result.save(args.out)
    print(f"\nraw figures: {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
    return 1 if args.check and not all(bar.met for bar in result.bars) else 0


if __name__ == "__main__":
    sys.exit(main())
