"""P16: gets under skewed popularity from memory over a drive, and sets on a miss: ours and others, one a process.

Environment: bench/peers/tier.txt, for ours that of the package. Prints one JSON line. Values are lognormal (median 400
B, at most 512 KB), keys follow Zipf's law with exponent 0.9, two threads get.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

MEDIAN, SIGMA, MOST, ZIPF, THREADS = 400, 2.0, 512 << 10, 0.9, 2
MEAN = 2_900
"""Bytes of a value."""
SPARE, MORE = 128 << 20, 100
"""Bytes beyond the cap and this program's lists; for each key of ours, as what it is found by stays in memory."""
Get = Callable[[int], Any]
Set = Callable[[int, Any], Any]


def ours(folder: Path, keys: int, cap: int) -> tuple[Get, Set]:
    import di_store

    store = di_store.open(
        memory=cap + SPARE // 4 + MORE * keys, disk=str(folder / "store"), disk_capacity=keys * MEAN * 2
    )

    def get(key: int) -> Any:
        try:
            return store.get(f"{key:040x}")
        except di_store.ObjectNotFound:
            return None

    return get, lambda key, value: store.put(value, id=f"{key:040x}")


def rocksdict(folder: Path, keys: int, cap: int) -> tuple[Get, Set]:
    import rocksdict as rocks  # type: ignore[import-not-found,unused-ignore]

    options, table = rocks.Options(raw_mode=True), rocks.BlockBasedOptions()
    table.set_block_cache(rocks.Cache(cap * 3 // 4))
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    options.set_compression_type(rocks.DBCompressionType.none())
    options.create_if_missing(True)
    db, write = rocks.Rdict(str(folder / "db"), options), rocks.WriteOptions()
    write.disable_wal = True
    return lambda key: db.get(key.to_bytes(8, "big")), lambda key, v: db.put(key.to_bytes(8, "big"), v.tobytes(), write)


def lmdb(folder: Path, keys: int, cap: int) -> tuple[Get, Set]:
    import lmdb as module  # type: ignore[import-not-found,unused-ignore]

    env = module.open(str(folder / "db"), 64 << 30, readahead=False, sync=False, writemap=True, max_spare_txns=THREADS)

    def get(key: int) -> Any:
        with env.begin() as view:
            return view.get(key.to_bytes(8, "big"))

    def put(key: int, value: Any) -> None:
        with env.begin(write=True) as change:
            change.put(key.to_bytes(8, "big"), value.tobytes())

    return get, put


def diskcache(folder: Path, keys: int, cap: int) -> tuple[Get, Set]:
    import diskcache as module  # type: ignore[import-not-found,unused-ignore]

    cache = module.Cache(str(folder / "cache"), eviction_policy="none", sqlite_synchronous=0)
    return cache.get, lambda key, value: cache.set(key, value.tobytes())


SYSTEMS = {"di-store": ours, "rocksdict": rocksdict, "lmdb": lmdb, "diskcache": diskcache}


def run(get: Get, put: Set, drawn: list[list[int]], taken: Any, sizes: Any, random: Any) -> tuple[float, float, float]:
    """Operations a second of all threads, p99 of a get in µs, share of hits. `taken` is for times of gets."""
    hits = [0] * THREADS

    def work(thread: int) -> None:
        clock = time.perf_counter_ns
        for at, key in enumerate(drawn[thread]):
            begin = clock()
            found = get(key)
            taken[thread, at] = clock() - begin
            if found is None:
                put(key, random[: sizes[key]])
            elif len(found) != sizes[key]:
                raise RuntimeError(f"{len(found)} bytes of {sizes[key]}")
            else:
                hits[thread] += 1

    begin = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    rate = taken.size / (time.perf_counter() - begin)
    return rate, float(np.percentile(taken, 99)) / 1e3, sum(hits) / taken.size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--operations", type=int, required=True, help="of a half; a multiple of the threads")
    parser.add_argument("--cap", type=int, required=True)
    parser.add_argument("--group", type=Path)
    args = parser.parse_args()
    if args.group:
        (args.group / "cgroup.procs").write_text(str(os.getpid()))
    rng = np.random.default_rng(0)
    sizes = np.minimum(rng.lognormal(np.log(MEDIAN), SIGMA, args.keys) + 1, MOST).astype(np.int64)
    weights = np.cumsum(np.arange(1, args.keys + 1) ** -ZIPF)
    ranks = rng.permutation(args.keys)
    drawn = ranks[np.searchsorted(weights, rng.random(2 * args.operations) * weights[-1])]
    first, second = drawn.reshape(2, THREADS, -1).tolist()
    taken = np.ones((THREADS, len(first[0])), np.int64)  # written, so that it has its memory before the limit
    random = np.frombuffer(rng.bytes(MOST), np.uint8)
    get, put = SYSTEMS[args.system](args.folder, args.keys, args.cap)
    if args.group:
        from bench.tier.disk import Cap

        Cap(args.group).limit(args.cap + SPARE + (MORE * args.keys if args.system == "di-store" else 0))
    for key in range(args.keys):
        put(key, random[: sizes[key]])
    run(get, put, first, taken, sizes, random)
    rate, p99, hits = run(get, put, second, taken, sizes, random)
    print(json.dumps({"rate": rate, "p99": p99, "hits": hits}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
