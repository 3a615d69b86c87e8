"""Checkpoints of a whole store: beside the drive and a writer, what a later one adds, how soon a store is back."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import di_store
from bench.tier.disk import direct, fresh
from bench.tier.lines import Line, Options, alone, beside
from bench.tier.stores import open_in

ROW, BLOCK, CHANGED = (84, 84), 256, 0.01
ROW_BYTES = int(np.prod(ROW))
ITEM_BYTES = 56
COMMITTED = 512 << 20
"""Of memory, for a store with a disk tier."""
FLAGS = np.zeros(BLOCK, bool)


class Rows:
    """Writes blocks of random rows to a table."""

    def __init__(self, table: di_store.Table) -> None:
        self.writer, self.seed = table.writer(), 0

    def write(self) -> float:
        """A block; seconds of the call."""
        self.seed += 1
        obs = np.random.default_rng(self.seed).integers(0, 256, (BLOCK, *ROW), dtype=np.uint8)
        began = time.perf_counter()
        self.writer.extend({"obs": obs, "terminated": FLAGS, "truncated": FLAGS})
        return time.perf_counter() - began


def filled(store: di_store.Store, count: int) -> di_store.Table:
    sampler = di_store.Prioritized(alpha=0.6, beta=0.4)
    table = store.create_table("rows", capacity=count, lanes=1, compress=None, sampler=sampler)
    rows = Rows(table)
    for _ in range(count // BLOCK):
        rows.write()
    rows.writer.close()  # a chunk that is open is written each time
    return table


def size_of(folder: Path, known: set[str]) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.name not in known)


def beside_writer(store: di_store.Store, rows: Rows, folder: Path) -> list[float]:
    """Milliseconds of each block written while checkpoints are made."""
    taken: list[float] = []
    maker = threading.Thread(target=lambda: [store.checkpoint(folder) for _ in range(3)])
    maker.start()
    while maker.is_alive():
        taken.append(rows.write() * 1e3)
        time.sleep(0.005)
    maker.join()
    return taken


def once(options: Options, folder: Path, found: dict[str, list[Any]]) -> None:
    count = int(2e9 * options.scale) // ROW_BYTES // BLOCK * BLOCK
    size = count * ROW_BYTES
    with di_store.open(memory=int(size * 1.3) + COMMITTED) as store:
        table = filled(store, count)
        began = time.perf_counter()
        direct(folder / "drive", size, write=True)
        found["drive"].append(size / (time.perf_counter() - began) / 1e9)
        began = time.perf_counter()
        store.checkpoint(folder / "c")
        found["ours"].append(size / (time.perf_counter() - began) / 1e9)
        known = {path.name for path in (folder / "c").iterdir()}
        keys = table.keys()[:: int(1 / CHANGED)]
        table.update_priorities(keys, np.random.default_rng(0).random(len(keys)) + 0.01)
        store.checkpoint(folder / "c")
        chunks = sum(path.stat().st_size for path in (folder / "c").glob("chunks-*"))
        found["delta"].append((size_of(folder / "c", {*known, "manifest.json"}) - chunks) / len(keys) / ITEM_BYTES)
        rows = Rows(table)
        found["stall"] += beside_writer(store, rows, folder / "busy")
        rows.writer.close()
    began = time.perf_counter()
    with di_store.restore(folder / "c", memory=int(size * 1.3) + COMMITTED) as store:
        store.table("rows").sample(64)
        found["loaded"].append(size / (time.perf_counter() - began) / 1e9)
    with open_in(folder, COMMITTED, int(size * 1.5) + COMMITTED) as store:
        filled(store, count)
        store.checkpoint(folder / "d")
    began = time.perf_counter()
    more = {"disk": folder / "again", "disk_capacity": int(size * 1.5) + COMMITTED}
    with di_store.restore(folder / "d", memory=COMMITTED, **more) as store:
        store.table("rows").sample(64)
        found["linked"].append(time.perf_counter() - began)


def checkpoints(options: Options) -> list[Line]:
    """2 GB of rows that cannot be packed."""
    found: dict[str, list[Any]] = {name: [] for name in ("drive", "ours", "delta", "stall", "loaded", "linked")}
    for _ in range(options.rounds):
        with fresh(options.folder) as folder:
            once(options, folder, found)
    stall = float(np.percentile(found["stall"], 99))
    return [
        beside("checkpoint of rows in memory", "GB/s", found["ours"], found["drive"], "the drive", 0.7),
        alone(f"{BLOCK} rows written beside checkpoints, p99", "ms", [stall], 20, most=True),
        alone(f"a later one: bytes by {ITEM_BYTES} for each changed item", "", found["delta"], 1.2, most=True),
        alone("restore into memory, to the first batch", "GB/s", found["loaded"], 1.0),
        alone("restore with disk=, to the first batch", "s", found["linked"], 2, most=True),
    ]
