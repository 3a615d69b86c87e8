"""How much longer `import di_store` takes than `import numpy`, in new processes, with `import asyncio` to compare with.

    python tools/import_time.py [ROUNDS] [FOLDER…]

A folder holds another version of the package. Rounds are interleaved; least times and medians are shown.
"""

import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

SOURCE = str(Path(__file__).resolve().parent.parent / "src")
PROGRAM = """
import time{first}
wall, cpu = time.perf_counter(), time.process_time()
import {module}
print((time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3)
"""


def taken(first: str, module: str, folder: str) -> tuple[float, float]:
    """Milliseconds of wall and CPU time that an import takes in a new process, after the import of `first`."""
    environment = {**os.environ, "PYTHONPATH": folder}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    program = PROGRAM.format(first=f", {first}" * bool(first), module=module)
    words = [sys.executable, "-c", program]
    wall, cpu = subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout.split()
    return float(wall), float(cpu)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    cases = {"asyncio": ("", "asyncio", SOURCE), "numpy": ("", "numpy", SOURCE)}
    cases |= {f"di_store after numpy, {folder}": ("numpy", "di_store", folder) for folder in sys.argv[2:] or [SOURCE]}
    found: dict[str, list[tuple[float, float]]] = {name: [taken(*case)][:0] for name, case in cases.items()}
    for _ in range(rounds):
        for name in random.sample(list(cases), len(cases)):
            found[name].append(taken(*cases[name]))
    for name, times in found.items():
        wall, cpu = zip(*times, strict=True)
        print(f"wall {min(wall):6.1f} median {statistics.median(wall):6.1f} ms", end="   ")
        print(f"cpu {min(cpu):6.1f} median {statistics.median(cpu):6.1f} ms   {name}")


if __name__ == "__main__":
    main()
