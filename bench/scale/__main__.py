"""``python -m bench.scale [PART...]``: measure, print and save the figures that ``docs/performance.md`` shows.

Run it from the repository root. Without PART all parts are measured, which takes about 15 minutes; ``--scale 0.01
--seconds 0.1 --rounds 2`` is a quick test. ``--check``: exit 1 if a bar is missed, or was not measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from bench import RESULTS, ROOT
from bench.kit import Result, apart
from bench.scale.beside import beside
from bench.scale.figures import Figure, Options, rows, say
from bench.scale.items import capacity, items
from bench.scale.objects import objects
from bench.scale.processes import processes
from bench.scale.report import DOC, bars, show, shown
from bench.scale.shapes import shapes
from bench.scale.tables import tables
from bench.scale.writers import writers

PARTS: Mapping[str, Callable[[Options], list[Figure]]] = {
    part.__name__: part for part in (items, capacity, beside, objects, processes, writers, tables, shapes)
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description="what the store costs as things grow")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default all")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one measurement (default 0.5)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every case; medians count (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the largest counts (default 1)")
    parser.add_argument("--inprocess-python", help="interpreter of the environment of bench/peers/inprocess.txt")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the file (default bench/results)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed or was not measured")
    DOC.options(parser)
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no part {sorted(unknown)}: there are {', '.join(PARTS)}")
    return args


def main() -> int:
    args = parse()
    if (status := DOC.without_measuring(args)) is not None:
        return status
    peers = " --inprocess-python VENV-INPROCESS/bin/python" if args.inprocess_python else ""
    words = ["python -m bench.scale", *args.parts, f"--seconds {args.seconds:g} --rounds {args.rounds}"]
    result = Result(" ".join([*words, f"--scale {args.scale:g}{peers}"]))
    options, figures = Options(args.seconds, args.rounds, args.scale, args.inprocess_python), list[Figure]()
    for name in args.parts or PARTS:
        say(f"-- {name}")
        figures += apart(PARTS[name], options)
    verdicts, found = bars(figures), rows(figures)
    show(found, verdicts)
    result.parts = {"bars": [asdict(bar) for bar in verdicts], "figures": shown(found)}
    path = result.save(args.out, "scale")
    print(f"\nwhat the page shows: {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
    if args.doc is not None:
        DOC.write(path)
    return 1 if args.check and not all(bar.met for bar in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
