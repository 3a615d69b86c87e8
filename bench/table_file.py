"""Exports and imports of tables: seconds and bytes for small steps and for frames, at a size and at four times that.

`python -m bench.table_file [--folder PATH]`; the folder lies on the disk that is measured (default: /dev/shm, so that
the figures are those of the code). Peaks are of this process's own memory, without the store.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import di_store
from di_store import Spec

ROUNDS = 3
FLAGS = {"reward": Spec((), "f4"), "terminated": Spec((), "?"), "truncated": Spec((), "?")}
SHAPES: dict[str, tuple[dict[str, Any], Any, int]] = {
    "CartPole, 3-step": ({"obs": Spec((4,), "f4"), "action": Spec((), "i8")}, di_store.Transition(3), 100_000),
    "frames 84x84, stacks of 4": (
        {"obs": Spec((84, 84), "u1"), "action": Spec((), "i8")},
        di_store.Transition(3, frame_stack={"obs": 4}),
        10_000,
    ),
}


def filled(store: di_store.Store, columns: dict[str, Any], view: Any, items: int) -> di_store.Table:
    """A table with so many items, of episodes of 200 steps from 8 lanes."""
    table = store.create_table(
        "t", capacity=items, view=view, schema=columns | FLAGS, sampler=di_store.Prioritized(0.6)
    )
    rng, lanes, steps = np.random.default_rng(0), 8, 200
    with table.writer(lanes=lanes) as writer:
        while len(table) < items:
            rows = {name: rng.random((steps, lanes, *spec.shape)) * 255 for name, spec in columns.items()}
            rows = {name: value.astype(columns[name].dtype) for name, value in rows.items()}
            ends = np.zeros((steps, lanes), bool)
            ends[-1] = True
            rows |= {"reward": np.ones((steps, lanes), "f4"), "terminated": ends & False, "truncated": ends}
            writer.extend(rows)
            writer.end_episode({"obs": rows["obs"][-1]})
    return table


def private_bytes() -> int:
    """Memory of this process alone, as it is now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def measure(name: str, items: int, folder: str) -> None:
    """Print a line."""
    columns, view, _ = SHAPES[name]
    out, back, memcpy = [], [], []
    with di_store.open(memory="fit") as store:
        table = filled(store, columns, view, items)
        path = os.path.join(folder, "t.npz")
        for _ in range(ROUNDS):
            began = time.perf_counter()
            written = table.export(path)
            out.append(time.perf_counter() - began)
            with di_store.open(memory="fit") as other:
                began = time.perf_counter()
                other.import_table(path)
                back.append(time.perf_counter() - began)
                stored = other.table("t").stats()["bytes_stored"]
            block = np.zeros(written.bytes, np.uint8)
            began = time.perf_counter()
            block.copy()
            memcpy.append(time.perf_counter() - began)
        os.unlink(path)
        ratio = stored / table.stats()["bytes_stored"]
    times = [statistics.median(each) for each in (out, back, memcpy)]
    rates = [written.bytes / each / 1e6 for each in times]
    print(
        f"{name:26} {items:9,} {written.bytes / 2**20:7.0f} MiB  export {times[0]:6.2f} s {rates[0]:6.0f} MB/s  "
        f"import {times[1]:6.2f} s {rates[1]:6.0f} MB/s  memcpy {rates[2]:6.0f} MB/s  stored {ratio:.2f} x",
        flush=True,
    )


def main() -> None:
    """Measure all shapes at one and four times their size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="/dev/shm")
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as folder:
        for name, (_, _, items) in SHAPES.items():
            for times in (1, 4):
                measure(name, items * times, folder)
    print(f"this process at the end: {private_bytes() / 2**20:.0f} MiB of its own")


if __name__ == "__main__":
    main()
