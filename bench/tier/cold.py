"""Batches of rows on disk beside a reader of the same ranges: what the tier adds to the drive."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import di_store
from bench.tier.disk import Places, Reader, device_bytes, fresh, process_bytes
from bench.tier.lines import Line, Options, alone, beside
from bench.tier.stores import open_in

KIB = (28, 64, 128, 256)
BARS = {28: 0.7}
LEAST, LEAST_WANTED, LEAST_FROM_DEVICE = 0.8, 0.75, 0.95
DATA, MEMORY, TURN = 2 << 30, 128 << 20, 600 << 20
MOST_BATCH = 16 << 20
MAGIC = 0x9E3779B97F4A7C15
"""Begins every row, so that it is found in the files; followed by the row's number."""


def blocks(rows: int, size: int) -> list[int]:
    """How many rows each `extend` gets."""
    each = max(1, (16 << 20) // size)
    return [min(each, rows - at) for at in range(0, rows, each)]


def fill(table: di_store.Table, rows: int, size: int) -> None:
    """Append random rows, which do not compress."""
    rng, flags = np.random.default_rng(0), np.zeros(rows, bool)
    with table.writer() as writer:
        for count in blocks(rows, size):
            data = np.frombuffer(rng.bytes(count * size), np.uint8).reshape(count, size).copy()
            data[:, :8] = np.frombuffer(np.uint64(MAGIC).tobytes(), np.uint8)
            writer.extend({"x": data, "terminated": flags[:count], "truncated": flags[:count]})


def find(files: Sequence[Path]) -> Places:
    """Where the rows lie. Columns begin at multiples of 64 bytes of their file."""
    found = []
    for number, file in enumerate(files):
        words = np.fromfile(file, np.uint64)[::8]
        offsets = np.flatnonzero(words == MAGIC) * 64
        found.append(np.stack([np.full(len(offsets), number), offsets], 1))
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return np.concatenate(found)


def drawn(store: di_store.Store, table: di_store.Table, batch: int, batches: int, folder: Path) -> tuple[float, ...]:
    """GB/s of rows from disk, share of wanted ones among bytes read, and how much of that the device counted.

    As the draws are uniform, those from disk are as many as the share of rows whose bodies are not in memory.
    """
    held = store.stats()
    rows = held["tables"]["rows"]["bytes_stored"]
    read, device, begin = process_bytes(), device_bytes(folder)[0], time.perf_counter()
    size = sum(table.sample(batch).data["x"].nbytes for _ in range(batches))
    taken = time.perf_counter() - begin
    wanted = size * (1 - held["chunk_pages"] / rows)
    read, device = process_bytes() - read, device_bytes(folder)[0] - device
    return wanted / taken / 1e9, wanted / read, device / read


def rows_of(kib: int, options: Options) -> list[Line]:
    """The lines of one size of rows. The rounds alternate: a batch's turn, the reader's turn."""
    size, case = kib << 10, f"{kib} KiB rows from disk"
    data = max(4 * MEMORY, int(DATA * options.scale))
    rows, batch = data // size, min(256, MOST_BATCH // size)
    batches = max(2, int(TURN * options.scale) // (batch * size))
    with fresh(options.folder) as folder, open_in(folder, MEMORY, data * 3 // 2) as store:
        table = store.create_table("rows", capacity=rows, lanes=1)
        fill(table, rows, size)
        places = find(files := sorted((folder / "store").glob("segment-*")))
        reader, rng, taken = Reader(files, folder), np.random.default_rng(1), []
        drawn(store, table, batch, 1, folder)
        for _ in range(options.rounds):
            ours = drawn(store, table, batch, batches, folder)
            ranges = places[rng.integers(len(places), size=batch * batches)]
            taken.append((*ours, len(ranges) * size / reader.seconds(ranges, size) / 1e9))
        reader.close()
    ours, wanted, device, own = (list(each) for each in zip(*taken, strict=True))
    return [
        beside(case, "GB/s", ours, own, "reader, 16 threads", BARS.get(kib, LEAST)),
        alone(f"{case}: wanted of those read", "share", wanted, LEAST_WANTED),
        alone(f"{case}: counted by the device", "share", device, LEAST_FROM_DEVICE),
    ]


def cold(options: Options) -> list[Line]:
    return [line for kib in KIB for line in rows_of(kib, options)]
