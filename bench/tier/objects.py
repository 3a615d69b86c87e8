"""Durable objects: opening a folder that holds many, and what a put waits for the drive."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import di_store
from bench.tier.disk import fresh
from bench.tier.lines import Line, Options, alone, beside
from bench.tier.stores import open_in

COUNT, BLOCK, PUTS, THREADS = 1_000_000, 10_000, 200, 16


def one_by_one(path: Path, store: di_store.Store) -> tuple[float, float]:
    """Median milliseconds of a put of 1 KiB, and of a write of as much with its fdatasync, in turns."""
    value, ours, theirs = os.urandom(1024), [], []
    with path.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, PUTS * 1152)
        for _ in range(PUTS):
            times = [time.perf_counter()]
            store.put(value, durability="disk")
            times.append(time.perf_counter())
            file.write(value)
            os.fdatasync(file.fileno())
            ours.append(times[1] - times[0])
            theirs.append(time.perf_counter() - times[1])
    return sorted(ours)[PUTS // 2] * 1e3, sorted(theirs)[PUTS // 2] * 1e3


def objects(options: Options) -> list[Line]:
    """Reopening, puts one after the other, and puts of 16 threads, as often as there are rounds."""
    count, opening, ours, theirs, rate = int(COUNT * options.scale) // BLOCK * BLOCK, [], [], [], []
    with fresh(options.folder) as folder:
        with open_in(folder, 2 << 30, 8 << 30) as store:
            for _ in range(count // BLOCK):
                store.put_many([b"%0100d" % i for i in range(BLOCK)], durability="disk")
        for _ in range(options.rounds):
            began = time.perf_counter()
            with open_in(folder, 2 << 30, 8 << 30) as store, ThreadPoolExecutor(THREADS) as pool:
                opening.append(time.perf_counter() - began)
                one, other = one_by_one(folder / "beside", store)
                ours, theirs, began = [*ours, one], [*theirs, other], time.perf_counter()
                refs = list(pool.map(lambda _, put=store.put: put(bytes(1024), durability="disk"), range(2_000)))
                rate.append(2_000 / (time.perf_counter() - began))
                store.delete(refs)
    return [
        alone(f"{count:,} objects of 100 B: opening their folder", "s", opening, 3, most=True),
        beside("put of 1 KiB on disk, one after the other", "ms", ours, theirs, "write and fdatasync", None),
        alone("puts of 1 KiB on disk, 16 threads", "/s", rate, None),
    ]
