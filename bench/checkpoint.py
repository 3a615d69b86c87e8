"""`di_store.save` and `load` beside the disk itself, torch and safetensors: GB/s of one tree of tensors.

`python -m bench.checkpoint [--folder PATH] [--gigabytes 2]`; needs torch, and safetensors where it is to be compared
(bench/peers/checkpoint.txt). The folder lies on the disk that is measured. All take turns; a figure is the median of
the rounds. What peers write is synced to disk as well. Before each turn the page cache is emptied (as root; else peers
read from memory).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import di_store
from bench.tier.disk import direct

TENSOR_BYTES = 32 << 20
FRESH = "fresh"
"""Removed before each turn: a save that replaces another also frees the blocks of its file."""


def synced(path: Path, write: Callable[[Path], Any]) -> None:
    write(path)
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def ways(folder: Path, tree: dict[str, Any], into: dict[str, Any], size: int) -> dict[str, Callable[[], Any]]:
    """What is timed, by its name; who writes comes before who reads."""

    def fill(loaded: dict[str, Any]) -> None:
        for name, tensor in into.items():
            tensor.copy_(loaded[name])

    raw, ours, pt, st = (folder / name for name in ("raw", "ours", "pt", "st"))
    found: dict[str, Callable[[], Any]] = {
        "disk, direct write": lambda: direct(raw, size, write=True),
        "di_store.save": lambda: di_store.save(folder / FRESH, tree),
        "di_store.save, replaces one": lambda: di_store.save(ours, tree),
        "torch.save": lambda: synced(pt, lambda path: torch.save(tree, path)),
        "disk, direct read": lambda: direct(raw, size, write=False),
        "di_store.load(into=)": lambda: di_store.load(ours, into=into),
        "di_store.load": lambda: di_store.load(ours),
        "torch.load": lambda: torch.load(pt),
        "torch.load(mmap=True), copied": lambda: fill(torch.load(pt, mmap=True)),
    }
    if importlib.util.find_spec("safetensors"):
        from safetensors.torch import load_file, save_file

        found["safetensors save_file"] = lambda: synced(st, lambda path: save_file(tree, path))
        found["safetensors load_file"] = lambda: load_file(st)
        found["safetensors load_file, copied"] = lambda: fill(load_file(st))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="build")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    count = max(1, int(given.gigabytes * 1e9 / TENSOR_BYTES))
    tree = {f"layer {number}": torch.randn(TENSOR_BYTES // 4 // 1024, 1024) for number in range(count)}
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    taken: dict[str, list[float]] = {}
    try:
        timed = ways(folder, tree, {name: torch.zeros_like(leaf) for name, leaf in tree.items()}, count * TENSOR_BYTES)
        for _ in range(given.rounds):
            for name, call in timed.items():
                subprocess.run(["sh", "-c", "sync; echo 1 > /proc/sys/vm/drop_caches"], stderr=subprocess.DEVNULL)
                shutil.rmtree(folder / FRESH, ignore_errors=True)
                begin = time.perf_counter()
                call()
                taken.setdefault(name, []).append(time.perf_counter() - begin)
    finally:
        shutil.rmtree(folder)
    for name, seconds in taken.items():
        print(f"{name:32} {count * TENSOR_BYTES / statistics.median(seconds) / 1e9:5.2f} GB/s")


if __name__ == "__main__":
    main()
