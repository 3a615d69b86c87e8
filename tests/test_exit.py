"""A program may end while threads of it are inside the core: quietly, with its own exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

PROGRAM = """
import threading, numpy as np, di_store

def put_and_get(store):
    value = np.ones(1 << 20, np.uint8)
    while True:
        store.delete([store.put(value)])

def append(table):
    with table.writer() as writer:
        while True:
            writer.append({"x": np.ones(1 << 16, np.uint8)})

def load(table):
    for _ in table.loader(16):
        pass

def sample(table):
    while True:
        table.sample(16)

def wait(table):
    table.sample(1)

store = di_store.open(memory="256MiB")
table = store.create_table("t", capacity=500, schema={"x": di_store.Spec((1 << 16,), "u1")})
empty = store.create_table("empty", capacity=5, schema={"x": di_store.Spec((), "f4")})
writer = table.writer()
writer.append({"x": np.ones(1 << 16, np.uint8)})
work = [(put_and_get, store), (append, table), (load, table), (sample, table), (wait, empty)]
threads = [threading.Thread(target=target, args=(given,), daemon=True) for target, given in work]
for thread in threads:
    thread.start()
while table.stats()["samples"] < 100:
    pass
print("ending")
"""


@pytest.mark.timeout(600)
def test_the_end_with_threads_inside(count: Callable[[int, int], int], store_dir: str) -> None:
    for _ in range(count(3, 100)):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
        assert done.stdout == "ending\n", done.stderr
        assert done.stderr == ""
        assert done.returncode == 0
    assert os.listdir(store_dir) == []
