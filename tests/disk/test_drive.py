"""Pain 13: the drive is used: batches read little beside their rows, past the page cache. Speed: `bench.tier`."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np

import di_store

MIB = 1 << 20
BYTES = 28_224
ROWS = 4_000


def cached(path: Path) -> int:
    """Bytes of a file in the page cache."""
    size = path.stat().st_size
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
        pages = -(-size // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        view = np.frombuffer(mapped, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size), found) == 0
        del view
        return int(np.frombuffer(found, np.uint8).astype(bool).sum()) * mmap.PAGESIZE


def test_batches_read_only_the_bytes_they_need(tmp_path: Path) -> None:
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="256MiB", seed=1) as store:
        table = store.create_table("t", capacity=ROWS, lanes=1, compress=None)
        rng = np.random.default_rng(0)
        with table.writer() as writer:
            for at in range(0, ROWS, 100):
                obs = rng.integers(0, 256, (100, BYTES), dtype=np.uint8)
                obs[:, :8] = np.arange(at, at + 100)[:, None].view(np.uint8)
                flags = np.zeros(100, bool)
                writer.extend({"obs": obs, "terminated": flags, "truncated": flags})

        def figures() -> tuple[int, int]:
            found = store.stats()["disk"]
            assert found is not None
            return int(found["read"]), int(found["reads"])

        files = list((tmp_path / "disk").glob("segment-*"))
        in_cache = sum(cached(path) for path in files)
        before, calls = figures()
        drawn = 0
        for _ in range(20):
            drawn += len(table.sample(256))
        read, reads = figures()
        assert read - before > MIB
        # A row of 28 KiB lies in 7 or 8 pages; neighbours that are both drawn are read at once.
        assert read - before <= 1.3 * drawn * BYTES
        assert reads - calls <= drawn
        assert sum(path.stat().st_size for path in files) > 64 * MIB
        assert sum(cached(path) for path in files) - in_cache <= 8 * MIB
