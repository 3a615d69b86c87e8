"""What a scrape of a store's metrics costs: `scrape_cost.py [ITEMS [PROCESSES]]`.

Prints medians of processor time, of this process, with a prioritized table of so many items and so many processes that
have the store open.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable

import numpy as np

import di_store
from di_store import observe

ROUNDS, ROWS = 50, 1000
HOLDERS = """
import os, sys, di_store
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        store = di_store.attach(sys.argv[1], timeout=60)
        print("ready", flush=True)
        sys.stdin.read()
        os._exit(0)
sys.stdin.read()
"""


def median_ms(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return statistics.median(taken) * 1e3


def main(items: int = 1_000_000, processes: int = 200) -> None:
    spec = {"x": di_store.Spec((4,), "f4")}
    with di_store.open(memory="1GiB") as store:
        table = store.create_table("t", capacity=items, sampler=di_store.Prioritized(0.6), schema=spec)
        for _ in range(0, items, ROWS):
            table.extend({"x": np.ones((ROWS, 4), "f4")})
        words = [sys.executable, "-c", HOLDERS, store.name, str(processes)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holders:
            assert holders.stdin is not None
            assert holders.stdout is not None
            for _ in range(processes):
                holders.stdout.readline()
            with observe.serve_metrics(store) as server:
                scrape = median_ms(lambda: urllib.request.urlopen(server.url).read())
            print(f"{len(table):,} items, {len(store.stats()['clients'])} processes")
            print(f"stats {median_ms(store.stats):.2f} ms, a scrape with its client {scrape:.2f} ms")
            holders.stdin.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
