"""What the tier costs those who do not need it: this build beside an earlier one, with and without `disk=`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np

import di_store
from bench import ROOT, import_path
from bench.kit import Worker, output_of, start_module, time_alone, turns
from bench.tier.disk import fresh
from bench.tier.lines import Line, Options, beside

BURSTS = 40
BARS = {"without disk=": 1.03, "disk=, all in memory": 1.10}
TAIL_BAR, TAIL_SECONDS = 2.0, 4.0
FULL_SECONDS = 3.0
"""Until the rows that are inserted have filled the memory."""
MEMORY, ROW, DRAWN, BATCH, FEED = 256 << 20, 28 << 10, 1_000, 32, 100e6
"""Bytes of a store and a row; rows of the table that is sampled, and in a batch; bytes/s inserted beside it."""


@contextmanager
def built(revision: str) -> Iterator[Path]:
    """A release build of a revision of this repository, which takes minutes; or of a folder that holds one."""
    if Path(revision).is_dir():
        yield Path(revision).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "build")
        subprocess.run(["git", "worktree", "add", "-q", "--detach", source, revision], cwd=ROOT, check=True)
        try:
            words = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", target, source]
            subprocess.run([sys.executable, *words], check=True)
            yield target
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", source], cwd=ROOT, check=True)


def rates(options: Options) -> list[Line]:
    """Processor time of `bench.tier.paths`: bursts of three processes in turns, of fresh ones in each round."""
    ours = import_path(sys.executable)[0]
    taken: defaultdict[str, dict[str, list[float]]] = defaultdict(dict)
    with built(options.base) as base, fresh(options.folder) as folder:
        cases = {"before": (base, []), "without disk=": (ours, []), "disk=, all in memory": (ours, [str(folder)])}
        for _ in range(options.rounds):
            started = {
                name: start_module(sys.executable, "bench.tier.paths", words, [build, ROOT], cwd=folder, stdin=PIPE)
                for name, (build, words) in cases.items()
            }
            calls, *_ = (json.loads(process.stdout.readline()) for process in started.values())
            for call in calls:
                for name in turns(list(cases), BURSTS):
                    print(call, file=started[name].stdin, flush=True)
                    taken[name].setdefault(call, []).append(float(started[name].stdout.readline()))
            for process in started.values():
                output_of(process)
    return [
        beside(f"{call}, {name}", "µs", taken[name][call], theirs, "before", bar, True)
        for name, bar in BARS.items()
        for call, theirs in taken["before"].items()
    ]


def feed(pipe: Any, store: di_store.Store) -> None:
    """Insert rows at FEED bytes/s until the pipe closes."""
    table = store.table("fed")
    row = {"x": np.random.default_rng(0).integers(0, 255, ROW, np.uint8), "terminated": False, "truncated": False}
    with table.writer() as writer:
        begin, count = time.perf_counter(), 0
        pipe.send(None)
        while not pipe.poll(max(0.0, begin + count * ROW / FEED - time.perf_counter())):
            writer.append(row)
            count += 1


def p99(store: di_store.Store, compress: str | None, rows: int, seconds: float) -> float:
    """Microseconds of the 99th percentile of batches from a table in memory, while another process inserts."""
    drawn = store.create_table("drawn", capacity=DRAWN, lanes=1)
    store.create_table("fed", capacity=rows, lanes=1, compress=compress)
    zeros = np.zeros(DRAWN, bool)
    with drawn.writer() as writer:
        writer.extend({"x": np.ones((DRAWN, ROW), np.uint8), "terminated": zeros, "truncated": zeros})
    worker = Worker(feed, store)
    worker.pipe.recv()
    time_alone(lambda: drawn.sample(BATCH), FULL_SECONDS)
    calls = time_alone(lambda: drawn.sample(BATCH), seconds)
    worker.pipe.send(None)
    worker.end()
    return float(np.percentile(calls, 99)) / 1e3


def tail(options: Options) -> Line:
    """p99 of sampling rows in memory while a writer's rows go to disk, beside that while they are evicted."""
    spilling, evicting = list[float](), list[float]()
    seconds = TAIL_SECONDS * options.scale
    with fresh(options.folder) as folder:
        for name in turns(["spilling", "evicting"], options.rounds):
            if name == "spilling":
                with di_store.open(memory=MEMORY, disk=str(folder / "store"), disk_capacity="4GiB") as store:
                    spilling.append(p99(store, None, (3 << 30) // ROW, seconds))
            else:
                with di_store.open(memory=MEMORY) as store:
                    evicting.append(p99(store, "auto", MEMORY // 2 // ROW, seconds))
    return beside("sample p99 beside spilling", "µs", spilling, evicting, "beside eviction", TAIL_BAR, True)


def hot(options: Options) -> list[Line]:
    return [tail(options), *rates(options)]
