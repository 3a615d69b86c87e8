"""What a backup of a node costs: `sync()` of a table to another node on this machine, and the way back.

tools/backup_costs.py --gigabytes 1    prints seconds
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import di_store
from di_store import cluster

ROW_BYTES, ROWS_A_CALL = 28_224, 500


def ports() -> list[int]:
    """Two that nothing listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return sorted([one.getsockname()[1], other.getsockname()[1]])


def serve(at: int, folder: Path, where: list[int], memory: int, *more: str) -> subprocess.Popen[str]:
    """A node, once it is served."""
    words = ["serve", f"backup-costs-{at}", "--memory", str(memory), "--disk", str(folder / str(at)), *more]
    words += ["--disk-capacity", str(4 * memory), "--listen", f"127.0.0.1:{where[at]}"]
    words += ["--peers", ",".join(f"127.0.0.1:{port}" for port in where)]
    started = subprocess.Popen([sys.executable, "-m", "di_store", *words], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    if not started.stdout.readline():
        raise SystemExit("it was not served")
    return started


def lose(node: subprocess.Popen[str]) -> None:
    """SIGKILL to the node and its agents."""
    with open(f"/proc/{node.pid}/task/{node.pid}/children") as file:
        pids = [node.pid, *map(int, file.read().split())]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    node.wait()


def timed(what: str, call: Callable[[], Any]) -> None:
    """Print the seconds of a call."""
    began = time.perf_counter()
    call()
    print(f"{what:50} {time.perf_counter() - began:6.2f} s", flush=True)


def fill(table: di_store.Table, rows: int) -> None:
    """Insert random rows, which no compression makes smaller."""
    random = np.random.default_rng(rows)
    for _ in range(0, rows, ROWS_A_CALL):
        table.extend({"x": random.integers(0, 256, (ROWS_A_CALL, ROW_BYTES), np.uint8)})


def opened(store: di_store.Store) -> di_store.Table:
    """The table, once the directory says where it is."""
    while True:
        try:
            return store.table("replay", timeout=5)
        except di_store.StoreError:
            time.sleep(0.05)


def measure(folder: Path, rows: int) -> None:
    """All of it."""
    where, memory = ports(), rows * ROW_BYTES * 2 + (256 << 20)
    nodes = [serve(at, folder, where, memory if at == 0 else 256 << 20) for at in range(2)]
    try:
        with cluster.attach("backup-costs-0") as store:
            schema = {"x": di_store.Spec((ROW_BYTES,), "u1")}
            table = store.create_table("replay", capacity=rows, schema=schema, durability="disk", sync_every=3600)
            fill(table, rows)
            timed(f"own disk, {rows * ROW_BYTES / 1e9:.2f} GB", lambda: cluster_sync(store, 1))
            timed("the other node, all of it", lambda: cluster_sync(store, 2))
            for more in (0, rows // 10):
                fill(table, more)
                timed(f"sync after another {more * ROW_BYTES / 1e9:.2f} GB", lambda: cluster_sync(store, 2))
        lose(nodes[0])
        shutil.rmtree(folder / "0")
        began = time.perf_counter()
        nodes[0] = serve(0, folder, where, memory, "--rejoin", "backup-costs-0")
        with cluster.attach("backup-costs-1") as store:
            if (found := len(opened(store))) != rows:
                raise SystemExit(f"{found} of {rows} rows came back")
        print(f"{'lost, until another node finds the table again':50} {time.perf_counter() - began:6.2f} s")
    finally:
        for node in nodes:
            lose(node)


def cluster_sync(store: Any, copies: int) -> None:
    """`sync` of a store of a cluster."""
    store.sync(copies=copies)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    rows = int(parser.parse_args().gigabytes * 1e9 / ROW_BYTES) // ROWS_A_CALL * ROWS_A_CALL
    folder = Path(tempfile.mkdtemp())
    try:
        measure(folder, rows)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
