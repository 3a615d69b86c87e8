"""Random batches of rows from a store that holds more than its memory: ours and others, one a process.

Environment: bench/peers/tier.txt, for ours that of the package. `bench.tier.rivals` starts it for each system. Prints
one JSON line: rows/s of each round, and the seconds that it took to fill.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

BATCH, BLOCK_BYTES = 256, 7 << 20
THREADS = 16
OTHER_BYTES = 160 << 20
"""Of the cap, beside three batches, for what is not in our store's memory; or an eighth of it if that is more."""
Array = Any


class System:
    """One of those compared; `make` is called once, then `add` for blocks of rows in order, `done`, and `read`.

    Args:
        folder: for its files; rows, size: how many, of how many bytes each; cap: bytes of memory.
        options: attributes that differ from those of the class.
    """

    more = 0
    """Bytes beyond the cap, for processes that start later."""
    threads = 0
    """Threads that share a batch; 0: one `read` without any."""
    draws = False
    """Whether it draws by itself: `read` then ignores which rows are asked for."""

    def __init__(self, folder: Path, rows: int, size: int, cap: int, **options: Any) -> None:
        self.folder, self.rows, self.size, self.cap = folder, rows, size, cap
        vars(self).update(options)
        self.block = BLOCK_BYTES // size
        self.out = np.empty((BATCH, size), np.uint8)
        self.pool = ThreadPoolExecutor(max(1, self.threads))

    def make(self) -> None:
        """Open it. The limit of memory is set after that, so that it is for rows."""

    def add(self, first: int, block: Array) -> None:
        """Store the rows `[n, size]` from number `first` on."""
        raise NotImplementedError

    def done(self) -> None:
        """All rows were added."""

    def bytes_of(self, row: int) -> Any:
        """What is stored as that row."""
        raise NotImplementedError

    def some(self, first: int, rows: Array) -> None:
        """Copy rows into the batch, from its place `first` on."""
        for i, row in enumerate(rows, first):
            np.copyto(self.out[i], np.frombuffer(self.bytes_of(int(row)), np.uint8))

    def plan(self, order: Array) -> None:
        """All rows that will be read, in order."""

    def read(self, rows: Array) -> Array:
        """A batch `[n, size]` of those rows."""
        each = BATCH // max(1, self.threads)
        starts = range(0, BATCH, each)
        parts = [rows[first : first + each] for first in starts]
        list((self.pool.map if self.threads else map)(self.some, starts, parts))
        return self.out


def key(row: int) -> bytes:
    return row.to_bytes(8, "big")


class DiStore(System):
    draws, once = True, False

    def make(self) -> None:
        import di_store

        other = max(OTHER_BYTES + 3 * BATCH * self.size, self.cap // 8)
        memory, capacity = self.cap - other, self.rows * self.size * 3 // 2
        self.store = di_store.open(memory=memory, disk=str(self.folder / "store"), disk_capacity=capacity, seed=1)
        sampler = di_store.Once(epochs=None) if self.once else di_store.Uniform()
        self.table = self.store.create_table("rows", capacity=self.rows, lanes=1, sampler=sampler)
        self.writer = self.table.writer()

    def add(self, first: int, block: Array) -> None:
        flags = np.zeros(len(block), bool)
        self.writer.extend({"x": block, "terminated": flags, "truncated": flags})

    def done(self) -> None:
        self.writer.close()

    def plan(self, order: Array) -> None:  # Once() shuffles by itself
        self.loader = self.table.loader(BATCH, prefetch=2)

    def read(self, rows: Array) -> Array:
        batch = next(self.loader) if self.once else self.table.sample(len(rows))
        return batch.data["x"]


class Memmap(System):
    advice: int | None = None

    def make(self) -> None:
        self.map = np.memmap(self.folder / "rows", np.uint8, "w+", shape=(self.rows, self.size))

    def add(self, first: int, block: Array) -> None:
        self.map[first : first + len(block)] = block

    def done(self) -> None:
        self.map.flush()
        if self.advice is not None:
            self.map._mmap.madvise(self.advice)  # type: ignore[attr-defined]

    def some(self, first: int, rows: Array) -> None:
        self.out[first : first + len(rows)] = self.map[rows]


class Lmdb(System):
    def make(self) -> None:
        import lmdb  # type: ignore[import-not-found,unused-ignore]

        size = self.rows * (self.size + 8192) + (1 << 30)
        self.env = lmdb.open(str(self.folder / "db"), size, readahead=False, sync=False, max_spare_txns=THREADS)

    def add(self, first: int, block: Array) -> None:
        with self.env.begin(write=True) as change:
            for i, row in enumerate(block, first):
                change.put(key(i), row.data, append=True)

    def done(self) -> None:
        self.env.sync(True)

    def some(self, first: int, rows: Array) -> None:
        with self.env.begin(buffers=True) as view:
            for i, row in enumerate(rows, first):
                np.copyto(self.out[i], np.frombuffer(view.get(key(int(row))), np.uint8))


class Known(System):
    """What NoPFS does with an order that is known, for one process: 16 threads read ahead past the page cache.

    Half of the cap holds the rows read first in all epochs: each row is read once an epoch, so none is better to keep.
    """

    threads, ahead = THREADS, 3

    def make(self) -> None:
        self.stride = -(-self.size // 4096) * 4096
        self.file = os.open(self.folder / "rows", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        self.page, self.kept = threading.local(), dict[int, Array]()

    def add(self, first: int, block: Array) -> None:
        memory = mmap.mmap(-1, len(block) * self.stride)
        np.frombuffer(memory, np.uint8).reshape(len(block), -1)[:, : self.size] = block
        os.pwrite(self.file, memory, first * self.stride)

    def plan(self, order: Array) -> None:
        self.order, self.next = order, 0
        self.batches = [np.empty((BATCH, self.size), np.uint8) for _ in range(self.ahead + 1)]
        self.begun = deque[list[Any]]()

    def fetch(self, row: int, to: Array) -> None:
        if (kept := self.kept.get(row)) is not None:
            np.copyto(to, kept)
            return
        if not hasattr(self.page, "memory"):
            self.page.memory = mmap.mmap(-1, self.stride)
        os.preadv(self.file, [self.page.memory], row * self.stride)
        np.copyto(to, np.frombuffer(self.page.memory, np.uint8, self.size))
        if len(self.kept) < self.cap // 2 // self.size:
            self.kept[row] = to.copy()

    def read(self, rows: Array) -> Array:
        while len(self.begun) < self.ahead and self.next + BATCH <= len(self.order):
            out = self.batches[self.next // BATCH % len(self.batches)]
            part = self.order[self.next : self.next + BATCH].tolist()
            self.begun.append([out, *(self.pool.submit(self.fetch, row, out[i]) for i, row in enumerate(part))])
            self.next += BATCH
        out, *reads = self.begun.popleft()
        for read in reads:
            read.result()
        return out


class Rocksdict(System):
    """Large values in blob files, direct reads, half of the cap as its cache, no compression, no log."""

    def make(self) -> None:
        import rocksdict as rocks  # type: ignore[import-not-found,unused-ignore]

        options, table = rocks.Options(raw_mode=True), rocks.BlockBasedOptions()
        table.set_block_cache(rocks.Cache(self.cap // 2))
        options.set_block_based_table_factory(table)
        options.set_compression_type(rocks.DBCompressionType.none())
        options.set_enable_blob_files(True)
        options.set_use_direct_reads(True)
        options.set_use_direct_io_for_flush_and_compaction(True)
        options.create_if_missing(True)
        self.db = rocks.Rdict(str(self.folder / "db"), options)
        self.write = rocks.WriteOptions()
        self.write.disable_wal = True

    def add(self, first: int, block: Array) -> None:
        for i, row in enumerate(block, first):
            self.db.put(key(i), row.tobytes(), self.write)

    def done(self) -> None:
        self.db.flush()

    def some(self, first: int, rows: Array) -> None:
        for i, value in enumerate(self.db[[key(int(row)) for row in rows]], first):
            np.copyto(self.out[i], np.frombuffer(value, np.uint8))


class Diskcache(System):
    def make(self) -> None:
        import diskcache  # type: ignore[import-not-found,unused-ignore]

        self.cache = diskcache.Cache(str(self.folder / "cache"), eviction_policy="none")

    def add(self, first: int, block: Array) -> None:
        with self.cache.transact():
            for i, row in enumerate(block, first):
                self.cache[i] = row.tobytes()

    def bytes_of(self, row: int) -> Any:
        return self.cache[row]


class Torchrl(System):
    """TorchRL's LazyMemmapStorage."""

    draws, advice = True, None

    def make(self) -> None:
        import torch
        from tensordict import TensorDict  # type: ignore[import-not-found,unused-ignore]
        from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer  # type: ignore[import-not-found,unused-ignore]

        self.wrap = lambda block: TensorDict({"x": torch.from_numpy(block)}, [len(block)])
        storage = LazyMemmapStorage(self.rows, scratch_dir=self.folder / "map")
        self.buffer = TensorDictReplayBuffer(storage=storage, batch_size=BATCH)

    def add(self, first: int, block: Array) -> None:
        self.buffer.extend(self.wrap(block))

    def done(self) -> None:
        os.sync()
        if self.advice is not None:
            rows = self.buffer.storage._storage["x"]
            advise = ctypes.CDLL(None, use_errno=True).madvise
            if advise(ctypes.c_void_p(rows.data_ptr()), ctypes.c_size_t(rows.nbytes), self.advice):
                raise OSError(ctypes.get_errno(), "madvise")

    def read(self, rows: Array) -> Array:
        return self.buffer.sample()["x"].numpy()


class Ray(System):
    """Ray's object store, which spills to the folder; an object for each `bundle` of rows."""

    bundle, more = 1, 3 << 30

    def make(self) -> None:
        import ray  # type: ignore[import-not-found,unused-ignore]

        self.ray, self.refs = ray, list[Any]()
        more = {"include_dashboard": False, "log_to_driver": False, "num_cpus": 2}
        ray.init(object_store_memory=self.cap, object_spilling_directory=str(self.folder), **more)

    def add(self, first: int, block: Array) -> None:
        self.refs += [self.ray.put(block[at : at + self.bundle].copy()) for at in range(0, len(block), self.bundle)]

    def read(self, rows: Array) -> Array:
        blocks, places = np.divmod(rows, self.block)
        refs = blocks * -(-self.block // self.bundle) + places // self.bundle
        for at in range(0, BATCH, 64):  # a batch of bundles need not fit at once
            for i, value in enumerate(self.ray.get([self.refs[ref] for ref in refs[at : at + 64]]), at):
                self.out[i] = value[places[i] % self.bundle]
        return self.out


RANDOM = {"advice": mmap.MADV_RANDOM}
SYSTEMS: dict[str, tuple[type[System], dict[str, Any]]] = {
    "di-store": (DiStore, {}),
    "ray": (Ray, {}),
    "ray, bundles of 4 MiB": (Ray, {"bundle": (4 << 20) // (28 << 10)}),
    "LazyMemmapStorage": (Torchrl, {}),
    "LazyMemmapStorage, MADV_RANDOM": (Torchrl, RANDOM),
    "rocksdict": (Rocksdict, {}),
    "rocksdict, 16 threads": (Rocksdict, {"threads": THREADS}),
    "lmdb": (Lmdb, {}),
    "lmdb, 16 threads": (Lmdb, {"threads": THREADS}),
    "memmap": (Memmap, {}),
    "memmap, MADV_RANDOM": (Memmap, RANDOM),
    "memmap, 16 threads": (Memmap, {**RANDOM, "threads": THREADS}),
    "diskcache": (Diskcache, {}),
    "NoPFS-like reader": (Known, {}),
}


def blocks(rows: int, size: int, each: int) -> Iterator[tuple[int, Array]]:
    """The rows, `each` at a time: random bytes after their number."""
    rng = np.random.default_rng(0)
    for first in range(0, rows, each):
        count = min(each, rows - first)
        block = np.frombuffer(rng.bytes(count * size), np.uint8).reshape(count, size).copy()
        block[:, :8] = np.arange(first, first + count, dtype=np.int64)[:, None].view(np.uint8)
        yield first, block


def rate(system: System, rng: np.random.Generator, seconds: float) -> float:
    """Rows per second of random batches; checks that they are those asked for."""
    count, begin = 0, time.perf_counter()
    while (taken := time.perf_counter() - begin) < seconds or not count:
        check(system, rng.integers(system.rows, size=BATCH))
        count += BATCH
    return count / taken


def epoch_rates(system: System, rng: np.random.Generator, epochs: int) -> list[float]:
    """Rows per second of each epoch: all rows in an order that the system is told beforehand."""
    orders = [rng.permutation(system.rows)[: system.rows // BATCH * BATCH] for _ in range(epochs)]
    system.plan(np.concatenate(orders))
    rates = []
    for order in orders:
        begin = time.perf_counter()
        for first in range(0, len(order), BATCH):
            check(system, order[first : first + BATCH])
        rates.append(len(order) / (time.perf_counter() - begin))
    return rates


def check(system: System, rows: Array) -> None:
    """Read a batch; the rows begin with their numbers."""
    found = system.read(rows)[:, :8].copy().view(np.int64)[:, 0]
    if not system.draws and (found != rows).any():
        raise RuntimeError(f"asked for {rows[:4]}…, got {found[:4]}…")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--size", type=int, default=28 << 10)
    parser.add_argument("--cap", type=int, required=True, help="bytes of memory")
    parser.add_argument("--group", type=Path, help="memory cgroup to join, and to limit to the cap")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=0, help="read everything so often, shuffled, in place of rounds")
    args = parser.parse_args()
    if args.group:
        (args.group / "cgroup.procs").write_text(str(os.getpid()))
    make, options = SYSTEMS[args.system]
    if args.epochs and make is DiStore:
        options = {"once": True}
    system = make(args.folder, args.rows, args.size, args.cap, **options)
    system.make()
    if args.group:
        from bench.tier.disk import Cap

        Cap(args.group).limit(args.cap + system.more)
    begin = time.perf_counter()
    for first, block in blocks(args.rows, args.size, system.block):
        system.add(first, block)
    system.done()
    filled, rng = time.perf_counter() - begin, np.random.default_rng(2)
    if args.epochs:
        rates = epoch_rates(system, rng, args.epochs)
    else:
        rate(system, rng, args.seconds)
        rates = [rate(system, rng, args.seconds) for _ in range(args.rounds)]
    print(json.dumps({"rates": rates, "filled": filled}), flush=True)
    os._exit(0)  # not in the files of anybody


if __name__ == "__main__":
    main()
