"""A process may end in any way and at any moment, with anything alive, beside any load: at once, by its own status."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import di_store
from di_store import _core

LEAVING = str(Path(__file__).parent / "crash" / "leaving.py")

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


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[di_store.Store]:
    """A store with what the programs below use."""
    with di_store.open(store_name(), memory="256MiB") as store:
        table = store.create_table("t", capacity=500, schema={"x": di_store.Spec((64,), "f4")})
        table.extend({"x": np.zeros((100, 64), "f4")})
        store.publish("policy", {"w": np.ones(1_000)})
        yield store
        _core.Arena.open(store.name, 2, 0, 0, 60.0).reap()
        assert store.check() == []
        assert table.stats()["writers"] == 0


@pytest.mark.timeout(7_200)
def test_no_end_hangs_or_aborts(store: di_store.Store, count: Callable[[int, int], int]) -> None:
    """Forks of a warm process, each through its interpreter's real end: nine in ten of the full count."""
    ends = count(60, 9_000)
    done = subprocess.run([sys.executable, LEAVING, store.name, str(ends), "1"], capture_output=True, text=True)
    assert done.stdout == f"{ends} ended\n", done.stdout + done.stderr


FRESH = """
import multiprocessing as mp, sys, threading, numpy as np, di_store

def work(store):
    kept = store.get(store.put(np.ones(512), ttl=60))
    threading.Thread(target=endless, args=(store,), daemon=True).start()
    store.table("t").sample(4)

def endless(store):
    while True:
        store.delete([store.put(np.ones(40_000))])

if __name__ == "__main__":
    store = di_store.attach(sys.argv[1], timeout=60)
    kept = [store.get(store.put(np.ones(512), ttl=60)), store.latest("policy"), store.table("t").sample(4)]
    threading.Thread(target=endless, args=(store,), daemon=True).start()
    children = [mp.get_context("spawn").Process(target=work, args=(store,)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0, child.exitcode
    print("ending")
"""


@pytest.mark.timeout(7_200)
def test_no_end_of_a_fresh_interpreter_hangs(
    store: di_store.Store, count: Callable[[int, int], int], tmp_path: Path
) -> None:
    """Real interpreters that spawn two others: three ends each, the tenth of the full count."""
    program = tmp_path / "fresh.py"
    program.write_text(FRESH)
    for _ in range(count(2, 334)):
        done = subprocess.run([sys.executable, str(program), store.name], capture_output=True, text=True, timeout=120)
        assert (done.stdout, done.stderr, done.returncode) == ("ending\n", "", 0)
