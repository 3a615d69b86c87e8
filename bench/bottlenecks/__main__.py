"""Measures where a parallel training run spends its time on four data planes.

    python -m bench.bottlenecks --reverb-python P --ray-python P --inprocess-python P --doc

Takes about three minutes. Each run uses new processes; the systems take turns. The environments are those of
`bench/README.md` plus `bench/peers/training.txt`; a system without an interpreter is left out. The figures are written
to `bench/results/` and to the screen, with `--doc` also into `docs/bottlenecks.md`. Exit status 1 if a run failed.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bench import RESULTS, ROOT, import_path
from bench.bottlenecks.planes import SYSTEMS
from bench.bottlenecks.report import DOC, whole_table
from bench.kit import Result, records_of, start_module, turns

RUN_LIMIT_SECONDS = 420.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="where a parallel training run spends its time")
    for system in ("reverb", "ray", "inprocess"):
        parser.add_argument(f"--{system}-python", help=f"interpreter with {system}.txt and training.txt of bench/peers")
    parser.add_argument("--env", default="ALE/Qbert-v5", help="an environment of the demo (default ALE/Qbert-v5)")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each run is measured")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each system; medians count")
    parser.add_argument("--only", default="", help="only systems with this in their name")
    DOC.options(parser)
    return parser.parse_args()


def run(python: str, options: list[str]) -> Any:
    """The figures of one run, in new processes; `RuntimeError` if it fails or takes longer than the limit."""
    threads = {"OMP_NUM_THREADS": "1"}
    process = start_module(python, "bench.bottlenecks.training", options, import_path(python), cwd=ROOT, env=threads)
    return records_of(process, RUN_LIMIT_SECONDS)[-1]


def main() -> int:
    args = parse()
    if (status := DOC.without_measuring(args)) is not None:
        return status
    given = {name: getattr(args, f"{name}_python") for name in ("reverb", "ray", "inprocess")}
    pythons = {system: given.get(system.replace("-", ""), sys.executable) for system in SYSTEMS}
    systems = [system for system, python in pythons.items() if python and args.only in system]
    words = ["python -m bench.bottlenecks", *(f"--{name}-python …" for name, python in given.items() if python)]
    words += [f"--env {args.env} --seconds {args.seconds:g} --rounds {args.rounds}"]
    result = Result(" ".join(words + ([f"--only {args.only}"] if args.only else [])), parts={"runs": []})
    failed = 0
    for system in turns(systems, args.rounds):
        print(f"{system} …", file=sys.stderr, flush=True)
        options = ["--system", system, "--env", args.env, "--seconds", f"{args.seconds:g}"]
        try:
            result.parts["runs"].append(run(pythons[system], options))
        except RuntimeError as error:
            failed += 1
            print(f"FAILED {system}: {error}", file=sys.stderr, flush=True)
    path = result.save(RESULTS, "bottlenecks")
    print(whole_table(result))
    print(f"\n{path.relative_to(ROOT)}")
    if args.doc is not None:
        DOC.write(path)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
