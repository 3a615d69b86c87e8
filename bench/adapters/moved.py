"""The programs of examples/moved, before and after they were moved to Di-store: returns and time.

`python -m bench.adapters.moved NAME [--seeds N] [--steps STEPS]`, for example pytorch_dqn; takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent.parent / "examples/moved"


def run(program: Path, arguments: list[str]) -> tuple[str, float]:
    """The last line that a program prints, and its seconds of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout.splitlines()[-1], taken


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of the program, without .py")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", default="12000")
    given = parser.parse_args()
    programs = [FOLDER / f"{given.name}_before.py", FOLDER / f"{given.name}.py"]
    ratios = []
    for seed in range(given.seeds):
        order = programs if seed % 2 else programs[::-1]
        found = {program: run(program, [given.steps, str(seed)]) for program in order}
        (before, old), (after, new) = (found[program] for program in programs)
        ratios.append(new / old)
        print(f"seed {seed}: before {old:.1f} s, {before}; after {new:.1f} s, {after}", flush=True)
    print(f"time, after / before: median {statistics.median(ratios):.3f}")
