"""Checkpoints of a whole store: beside the drive and a writer, what a later one adds, how soon a store is back."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import di_store
from bench.tier.cold import fill
from bench.tier.disk import direct, fresh
from bench.tier.lines import Line, Options, alone, beside
from bench.tier.stores import open_in

ROW_BYTES, BLOCK, CHANGED = 84 * 84, 256, 0.01
ITEM_BYTES = 56
COMMITTED = 512 << 20
"""Of memory, for a store with a disk tier."""


def filled(store: di_store.Store, count: int) -> di_store.Table:
    sampler = di_store.Prioritized(alpha=0.6, beta=0.4)
    table = store.create_table("rows", capacity=count, lanes=1, compress=None, sampler=sampler)
    fill(table, count, ROW_BYTES)
    return table


def beside_writer(store: di_store.Store, table: di_store.Table, folder: Path) -> list[float]:
    """Milliseconds of each block written while checkpoints are made."""
    taken: list[float] = []
    maker = threading.Thread(target=lambda: [store.checkpoint(folder) for _ in range(3)])
    maker.start()
    while maker.is_alive():
        began = time.perf_counter()
        fill(table, BLOCK, ROW_BYTES)
        taken.append((time.perf_counter() - began) * 1e3)
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
        known = set((folder / "c").iterdir())
        keys = table.keys()[:: int(1 / CHANGED)]
        table.update_priorities(keys, np.random.default_rng(0).random(len(keys)) + 0.01)
        store.checkpoint(folder / "c")
        fresh_items = sum(path.stat().st_size for path in set((folder / "c").glob("[is]*-*")) - known)
        found["delta"].append(fresh_items / len(keys) / ITEM_BYTES)
        found["stall"] += beside_writer(store, table, folder / "busy")
    began = time.perf_counter()
    direct(folder / "drive", size, write=False)
    found["read"].append(size / (time.perf_counter() - began) / 1e9)
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
    found: dict[str, list[Any]] = {name: [] for name in ("drive", "ours", "delta", "stall", "read", "loaded", "linked")}
    for _ in range(options.rounds):
        with fresh(options.folder) as folder:
            once(options, folder, found)
    stall = float(np.percentile(found["stall"], 99))
    return [
        beside("checkpoint of rows in memory", "GB/s", found["ours"], found["drive"], "the drive", 0.7),
        alone(f"{BLOCK} rows written beside checkpoints, p99", "ms", [stall], 20, most=True),
        alone(f"a later one: bytes by {ITEM_BYTES} for each changed item", "", found["delta"], 1.2, most=True),
        alone("restore into memory, to the first batch", "GB/s", found["loaded"], 1.0),
        beside("… beside as many bytes read", "GB/s", found["loaded"], found["read"], "the drive", None),
        alone("restore with disk=, to the first batch", "s", found["linked"], 2, most=True),
    ]
