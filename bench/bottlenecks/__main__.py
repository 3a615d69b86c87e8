"""Where a parallel training run spends its time, and what the size of its replay does: all runs, one command.

    python -m bench.bottlenecks --reverb-python P --ray-python P --inprocess-python P --doc

About 18 minutes. Each run is a fresh family of processes, one after the other; the systems take turns in an order that
rotates from load to load. The environments: `bench/README.md`, with `bench/peers/training.txt` on top; a system without
its interpreter is left out. Raw figures go to `bench/results/`, tables to the screen, with `--doc` into
`docs/bottlenecks.md`. Exit 1 if a run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.bottlenecks import ROOT, page, tables
from bench.bottlenecks.loads import LOADS
from bench.bottlenecks.planes import SYSTEMS
from bench.bottlenecks.result import Result, machine

SIZES: tuple[tuple[int, int | None], ...] = (
    (500, None),
    (2_000, None),
    (10_000, None),
    (50_000, None),
    (200_000, None),
    (50_000, 2_000),  # grows
)
RUN_LIMIT_SECONDS = 420.0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="where a parallel training run spends its time")
    for system in ("reverb", "ray", "inprocess"):
        parser.add_argument(f"--{system}-python", help=f"interpreter with {system}.txt and training.txt of bench/peers")
    parser.add_argument("--seconds", type=float, default=20.0, help="what is measured of each run of a load")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each load in each system; medians count")
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps of each CartPole run")
    parser.add_argument("--seeds", type=int, default=3, help="CartPole runs of each size")
    parser.add_argument(
        "--only", default="", help="only runs with this in their name, e.g. qbert/ray, loads, sizes/500"
    )
    parser.add_argument(
        "--doc", nargs="?", const="", metavar="FILE", help="write the page; of FILE, a result: run nothing"
    )
    return parser.parse_args()


def interpreters(args: argparse.Namespace) -> dict[str, str]:
    """Of every system that has one."""
    given = {
        "di-store": sys.executable,
        "in-process": args.inprocess_python,
        "reverb": args.reverb_python,
        "ray": args.ray_python,
    }
    return {system: python for system, python in given.items() if python}


def run(python: str, module: str, options: list[str], ours: bool) -> Any:
    """The JSON that a module of this package prints, run in a family of processes of its own.

    `RuntimeError` with the end of its stderr if it fails or takes too long.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if ours:
        import di_store

        above = Path(di_store.__file__).parent.parent
        environment["PYTHONPATH"] = f"{above}{os.pathsep}{ROOT}"
    command = [python, "-m", f"bench.bottlenecks.{module}", *options]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, error = process.communicate(timeout=RUN_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not done after {RUN_LIMIT_SECONDS:g} s") from None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # what it left behind
        except ProcessLookupError:
            pass
    lines = [line for line in out.splitlines() if line.startswith(("{", "["))]
    if process.returncode or not lines:
        raise RuntimeError(f"ended with {process.returncode}: {error[-1500:]}")
    return json.loads(lines[-1])


class Whole:
    """All runs of one command."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.pythons = interpreters(args)
        self.result = Result(command(args), machine(), [list(os.getloadavg())])

    def take(self, into: list[Any], name: str, system: str, module: str, options: list[str]) -> None:
        """One run, if it is asked for; its figures go into a list."""
        if self.args.only not in name:
            return
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            found = run(self.pythons[system], module, options, system == "di-store")
        except RuntimeError as error:
            self.result.failed[name] = str(error)
            print(f"FAILED {name}: {error}", file=sys.stderr, flush=True)
            return
        into += found if isinstance(found, list) else [found]

    def loads(self) -> None:
        """Every load in every system."""
        present = [system for system in SYSTEMS if system in self.pythons]
        turn = 0
        for _ in range(self.args.rounds):
            for load in LOADS:
                for system in present[turn:] + present[:turn]:
                    options = ["--system", system, "--load", load, "--seconds", f"{self.args.seconds:g}"]
                    self.take(self.result.loads, f"loads/{load}/{system}", system, "run", options)
                turn = (turn + 1) % len(present)

    def sizes(self) -> None:
        """Every size with every seed; the sizes take turns."""
        for seed in range(self.args.seeds):
            for capacity, grow_from in SIZES[seed:] + SIZES[:seed]:
                options = ["--capacity", str(capacity), "--seed", str(seed), "--steps", str(self.args.steps)]
                options += ["--grow-from", str(grow_from)] if grow_from else []
                name = f"sizes/{f'{grow_from}-' if grow_from else ''}{capacity}/{seed}"
                self.take(self.result.sizes, name, "di-store", "sizes", options)

    def speeds(self) -> None:
        """Calls against capacity."""
        self.take(self.result.speeds, "speeds", "di-store", "speeds", [])


def command(args: argparse.Namespace) -> str:
    """What repeats the run, without where the environments are."""
    words = ["python -m bench.bottlenecks"]
    words += [f"--{name}-python …" for name in ("reverb", "ray", "inprocess") if getattr(args, f"{name}_python")]
    words += [f"--seconds {args.seconds:g} --rounds {args.rounds} --steps {args.steps} --seeds {args.seeds}"]
    return " ".join(words + ([f"--only {args.only}"] if args.only else []))


def main() -> int:
    args = parse()
    if args.doc:
        page.write(Path(args.doc))
        return 0
    whole = Whole(args)
    whole.loads()
    whole.sizes()
    whole.speeds()
    whole.result.load_average.append(list(os.getloadavg()))
    path = whole.result.save()
    print(tables.whole(whole.result))
    print(f"\n{path.relative_to(ROOT)}")
    if args.doc is not None:
        page.write(path)
    return 1 if whole.result.failed else 0


if __name__ == "__main__":
    sys.exit(main())
