"""`python -m bench.tier`: what the disk tier does beside the drive, other stores, and stores without it.

Run it from the repository root, against a release build (`make bench` makes one):

    PYTHONPATH=build/release python -m bench.tier --check --peers-python VENV-TIER/bin/python

Every part is a module of this folder and takes minutes; `--lines cold,rivals` takes some, `--scale 0.25` a quarter of
the bytes. With `--check` the exit status is 1 if a bar is missed, or was not measured. A part's lines go to
bench/results/tier_<part>-<UTC time>.json; `--doc` then shows the newest ones in docs/disk_figures.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from bench import RESULTS
from bench.kit import Result, apart
from bench.tier.checkpoints import checkpoints
from bench.tier.cold import cold
from bench.tier.elastic import elastic
from bench.tier.frames import frames
from bench.tier.hot import hot
from bench.tier.items import items, writes
from bench.tier.lines import PAGE, Line, Options, Part, block, show, write_page
from bench.tier.lookahead import lookahead
from bench.tier.objects import objects
from bench.tier.rivals import cache, dataset, rivals
from bench.tier.together import everything, together

PARTS: Mapping[str, Part] = {
    part.__name__: part
    for part in (
        *(cold, rivals, hot, frames, items, writes, lookahead, dataset, cache, elastic, objects, checkpoints),
        *(together, everything),
    )
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tier", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default all)")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="on the drive to measure (default build)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of everything; medians count (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on bytes and counts (default 1)")
    parser.add_argument("--peers-python", help="interpreter of the environment of bench/peers/tier.txt")
    parser.add_argument("--base", default=Options.base, help="revision that `hot` compares with (default %(default)s)")
    parser.add_argument("--frames", type=Path, help="file of 84 x 84 uint8 frames; else ALE records Qbert")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (default bench/results)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed or was not measured")
    parser.add_argument("--doc", action="store_true", help="show the newest results in docs/disk_figures.md")
    parser.add_argument("--doc-check", action="store_true", help="only check that the page shows them")
    args = parser.parse_args()
    args.lines = args.lines.split(",")
    if unknown := set(args.lines) - set(PARTS):
        parser.error(f"no lines {sorted(unknown)}: there are {', '.join(PARTS)}")
    return args


def command(part: str, args: argparse.Namespace) -> str:
    """What measures a part again."""
    peers = " --peers-python VENV-TIER/bin/python" if args.peers_python else ""
    return f"python -m bench.tier --lines {part} --rounds {args.rounds} --scale {args.scale:g}{peers}"


def main() -> int:
    args = parse()
    if args.doc_check:
        return 0 if PAGE.holds(block) else 1
    os.environ["OMP_NUM_THREADS"] = "1"
    options = Options(args.folder.resolve(), args.rounds, args.scale, args.peers_python, args.base, args.frames)
    found: list[Line] = []
    for part in args.lines:
        print(f"-- {part}", file=sys.stderr, flush=True)
        result = Result(command(part, args))
        lines = apart(PARTS[part], options)
        result.parts = {"lines": [line.plain for line in lines]}
        result.save(args.out, f"tier_{part}")
        show(lines)
        found += lines
    if args.doc:
        write_page()
    return 1 if args.check and not all(line.met for line in found) else 0


if __name__ == "__main__":
    sys.exit(main())
