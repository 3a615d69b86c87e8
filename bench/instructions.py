"""Instructions that a call takes, in two builds of Di-store: figures that do not depend on what else the machine does.

`python -m bench.instructions BEFORE AFTER`, with builds as for `bench.pairs`: valgrind counts what the calling thread
executes, Python included, in two runs of different length. Their difference is the calls'.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import di_store

FEW, MANY = 500, 5_500


def call_of(name: str) -> Callable[[], object]:
    """The call that is measured, on a store that it makes."""
    store = di_store.open(memory="256MiB")
    if name in ("get", "put and delete"):
        value = np.zeros(250, np.float32)
        ref = store.put(value)
        return (lambda: store.get(ref)) if name == "get" else (lambda: store.delete(store.put(value)))
    if name == "sample(32) of groups":
        table = store.create_table("t", capacity=4_096, view=di_store.Group(4, by="prompt"), sampler=di_store.Uniform())
        for answer in range(2_000):
            table.insert({"prompt": answer // 4, "x": np.zeros(16, np.float32)})
        return lambda: table.sample(32)
    table = store.create_table("t", capacity=20_000, sampler=di_store.Prioritized(alpha=0.6, beta=0.4))
    writer, step = table.writer(), {"obs": np.zeros(24, np.float32), "reward": 1.0}
    writer.extend({"obs": np.zeros((300, 24), np.float32), "reward": np.ones(300)})
    keys, priorities = table.sample(32).keys, np.ones(32)
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: writer.append(step),
        "sample(32)": lambda: table.sample(32),
    }
    return calls.get(name, lambda: table.update_priorities(keys, priorities))


def counted(build: Path, name: str, calls: int) -> int:
    """Instructions of a process that makes so many calls."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={folder}/out"]
        words += [sys.executable, "-m", "bench.instructions", name, str(calls)]
        environment = {**os.environ, "PYTHONPATH": f"{build}:.", "PYTHONHASHSEED": "0"}
        subprocess.run(words, env=environment, check=True, capture_output=True)
        found = re.findall(r"(?m)^(?:summary|totals): (\d+)", Path(folder, "out-01").read_text())
    return int(found[0])


if __name__ == "__main__":
    if sys.argv[2].isdigit():
        call = call_of(sys.argv[1])
        for _ in range(int(sys.argv[2])):
            call()
        os._exit(0)  # the end of the interpreter is not measured
    for each in ("get", "put and delete", "append", "sample(32)", "update_priorities", "sample(32) of groups"):
        many, few = ([counted(Path(build), each, calls) for build in sys.argv[1:]] for calls in (MANY, FEW))
        before, after = ((more - less) / (MANY - FEW) for more, less in zip(many, few, strict=True))
        print(f"{each:22}{before:10,.0f}{after:10,.0f}{after / before:8.3f}")
