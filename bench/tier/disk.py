"""The drive: what was read from it, how fast it is, and how much memory may cache it."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import ROOT

THREADS = 16
PIECE, MOVERS = 4 << 20, 4
"""Bytes moved at once, and by how many threads, where only the drive counts."""
SECTOR = 512
Places = Any
"""Array [n, 2] of int64: number of the file, offset in it."""


def direct(path: Path, size: int, *, write: bool) -> None:
    """Direct I/O of so many bytes by threads, and nothing else."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)

    def move(first: int) -> None:
        piece = mmap.mmap(-1, PIECE)
        for place in range(first * PIECE, size, MOVERS * PIECE):
            if write:
                os.pwrite(file, piece, place)
            else:
                os.preadv(file, [piece], place)

    threads = [threading.Thread(target=move, args=(first,)) for first in range(MOVERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.fdatasync(file)
    os.close(file)


@contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """A new folder in that one, removed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(dir=folder, prefix="tier-"))
    try:
        yield path
    finally:
        for _ in range(100):  # a store may be removing its files at the same time
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                break
            time.sleep(0.1)


def device_bytes(folder: Path) -> tuple[int, int]:
    """Bytes read from and written to the device that holds the folder, by everybody, since it started."""
    device = os.stat(folder).st_dev
    wanted = [str(os.major(device)), str(os.minor(device))]
    rows = [line.split() for line in Path("/proc/diskstats").read_text().splitlines()]
    found = next((row for row in rows if row[:2] == wanted), None) or max(rows, key=lambda row: int(row[5]))
    return int(found[5]) * SECTOR, int(found[9]) * SECTOR


def process_bytes(which: str = "read_bytes") -> int:
    """Bytes that this process has caused to be read from devices, or written: "write_bytes"."""
    return next(int(line.split()[1]) for line in Path("/proc/self/io").read_text().splitlines() if which in line)


class Reader:
    """Reads ranges of files past the page cache with `THREADS` threads; native code (bench/native/ranges.cc)."""

    def __init__(self, files: Sequence[Path], build: Path) -> None:
        library = build / "ranges.so"
        source = ROOT / "bench" / "native" / "ranges.cc"
        subprocess.run(["g++", "-std=c++20", "-O2", "-shared", "-fPIC", source, "-o", library, "-pthread"], check=True)
        self._read = ctypes.CDLL(str(library)).read_ranges
        self._read.restype = ctypes.c_uint64
        self._files = np.array([os.open(file, os.O_RDONLY | os.O_DIRECT) for file in files], np.int32)

    def seconds(self, places: Places, size: int) -> float:
        """How long it takes to read `size` bytes from every place."""
        files = np.ascontiguousarray(self._files[places[:, 0]])
        offsets, sizes = np.ascontiguousarray(places[:, 1], np.uint64), np.full(len(places), size, np.uint64)
        pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (files, offsets, sizes))
        begin = time.perf_counter()
        failed = self._read(*pointers, ctypes.c_uint64(len(places)), ctypes.c_uint(THREADS))
        taken = time.perf_counter() - begin
        if failed:
            raise OSError(f"{failed} of {len(places)} ranges could not be read")
        return taken

    def close(self) -> None:
        for file in self._files:
            os.close(file)


@dataclass(frozen=True)
class Cap:
    """A memory cgroup of this process's own one; the page cache of those in it counts."""

    path: Path

    def limit(self, more: int) -> None:
        """Allow so many bytes beyond what is in use now."""
        old = self.path / "memory.limit_in_bytes"
        used = int((self.path / ("memory.usage_in_bytes" if old.exists() else "memory.current")).read_text())
        (old if old.exists() else self.path / "memory.max").write_text(str(used + more))


@contextmanager
def cap() -> Iterator[Cap]:
    """A new cgroup without a limit; needs the right to make one (root).

    Raises:
        OSError: there is no memory controller, or no right.
    """
    groups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    controller = "memory" if "memory" in groups else ""  # "": version 2
    path = Path("/sys/fs/cgroup", controller, groups[controller].lstrip("/"), f"di-store-tier-{os.getpid()}")
    path.mkdir()
    try:
        yield Cap(path)
    finally:
        for _ in range(600):
            try:
                path.rmdir()
                break
            except OSError:  # the last process has not ended yet
                time.sleep(0.1)
