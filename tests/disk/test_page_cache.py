"""Files of objects leave the page cache while they are filled: in a cgroup it counts as memory of the job."""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import di_store

LIBC = ctypes.CDLL(None, use_errno=True)


def cached(path: Path) -> int:
    """Bytes of a file that lie in the page cache, which is asked without a read."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as view:
        pages = -(-len(view) // mmap.PAGESIZE)
        address = np.frombuffer(view, np.uint8).ctypes.data
        found = (ctypes.c_ubyte * pages)()
        if LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(view)), found) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(page & 1 for page in found) * mmap.PAGESIZE


@pytest.fixture
def folder() -> Iterator[Path]:
    """Beside the built package: a temporary folder may lie in memory, where pages of files stay."""
    build = Path(__file__).resolve().parents[2] / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as made:
        yield Path(made)


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_appended_log_bytes_leave_the_page_cache(folder: Path, durability: Literal["memory", "disk"]) -> None:
    """Of 60 MB little is left; so much only where the drive is far behind."""
    value = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8)
    with di_store.open(memory="16MiB", disk=folder, disk_capacity="2GiB") as store:
        refs = [store.put(value, durability=durability, timeout=60) for _ in range(600)]
        files = list(folder.glob("objects-*"))
        assert sum(path.stat().st_size for path in files) > 40 << 20
        assert sum(cached(path) for path in files) < 24 << 20
        assert np.array_equal(store.get(refs[0]), value)
