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

LEAVING = str(Path(__file__).parents[1] / "crash" / "leaving.py")

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
def test_the_interpreter_exits_with_threads_inside_calls(count: Callable[[int, int], int], store_dir: str) -> None:
    for _ in range(count(2, 100)):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
        assert done.stdout == "ending\n", done.stderr
        assert done.stderr == ""
        assert done.returncode == 0
    assert os.listdir(store_dir) == []


IN_PYTHON = """
import gc, sys, threading, numpy as np, di_store

def spin():
    for _ in range(2_000):
        pass

class Pickled:
    def __reduce__(self):
        spin()
        return Pickled, ()

class Restored:
    def __getstate__(self):
        return {"a": 1}
    def __setstate__(self, state):
        spin()

class Array:
    def __array__(self, dtype=None, copy=None):
        spin()
        return np.ones(64, "f4")

class Number:
    def __float__(self):
        spin()
        return 1.0

class Garbage:
    alive = []
    def __init__(self):
        self.ring = self
        self.alive.append(None)
    def __del__(self):
        spin()
        spin()
        self.alive.pop()

def put():
    while True:
        store.delete([store.put([Pickled()])])

def put_many():
    while True:
        store.delete(store.put_many([[Pickled()], {"a": np.ones(3)}]))

def get():
    ref = store.put([Restored()])
    while True:
        store.get(ref)

def publish():
    while True:
        store.publish("state", {f"layer{i}.weight": np.ones((8, 8), "f4") for i in range(50)})

def latest():
    while True:
        store.latest("state")

def copies():
    ref = store.put(np.ones(1 << 18))
    while True:
        store.get(ref, copy=True)

def append():
    with table.writer() as writer:
        while True:
            writer.append({"x": Array()})

def numbers():
    with table.writer() as writer:
        while True:
            writer.append({"x": np.ones(64, "f4")}, priority=[Number()])

def insert():
    while True:
        table.insert({"x": Array()}, priority=Number())

def refused():
    with table.writer() as writer:
        while True:
            try:
                writer.append({"y": Array()})
            except di_store.SchemaMismatch:
                pass

def collect():
    gc.set_threshold(2)
    while True:
        for _ in range(3):
            if len(Garbage.alive) < 100:  # or one collection never ends, as the other threads make more than it frees
                Garbage()
        for _ in range(20):
            table.sample(4)

store = di_store.open(memory="64MiB")
schema = {"x": di_store.Spec((64,), "f4")}
table = store.create_table("t", capacity=500, sampler=di_store.Prioritized(0.6, 0.4), schema=schema)
table.extend({"x": np.ones((100, 64), "f4")})
store.publish("state", {"a": 1})
for work in sys.argv[1:]:
    threading.Thread(target=globals()[work], daemon=True).start()
threading.Event().wait(0.1)
print("ending")
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "work",
    [
        ("put", "put_many"),
        ("get", "copies"),
        ("publish", "latest"),
        ("append", "numbers", "insert"),
        ("refused", "refused"),
        ("collect", "collect"),
    ],
    ids="-".join,
)
def test_the_interpreter_exits_with_threads_in_python_callbacks(
    work: tuple[str, ...], count: Callable[[int, int], int], store_dir: str
) -> None:
    for _ in range(count(1, 100)):
        done = subprocess.run([sys.executable, "-c", IN_PYTHON, *work], capture_output=True, text=True, timeout=120)
        assert (done.stdout, done.stderr, done.returncode) == ("ending\n", "", 0)
    assert os.listdir(store_dir) == []


SUB_INTERPRETER = """
import ctypes, os, signal, sys, numpy as np, di_store
from di_store import _core

PR_SET_PDEATHSIG = 1
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

store = di_store.attach(sys.argv[1], timeout=60)
table = store.table("large")
writer = table.writer()
writer.append({"x": np.ones(1 << 20, np.uint8)})
interpreters.destroy(interpreters.create())
holder = os.fork()
if holder == 0:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _core.arm_fault("heap.make_before_state:1:stop")
    store.put(np.ones(8))
os.waitpid(holder, os.WUNTRACED)
try:
    writer.extend({"x": np.ones((8, 1 << 20), np.uint8)}, timeout=0.3)
except di_store.Timeout as error:
    print(error.culprit == f"pid {holder}, stopped")
os.kill(holder, signal.SIGKILL)
os.waitpid(holder, 0)
writer.close()
print(len(table))
"""


def test_a_copy_waiting_for_a_lock_survives_a_sub_interpreter(store: di_store.Store) -> None:
    store.create_table("large", capacity=50, schema={"x": di_store.Spec((1 << 20,), "u1")})
    done = subprocess.run([sys.executable, "-c", SUB_INTERPRETER, store.name], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("True\n1\n", "", 0)


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
def test_no_interpreter_exit_hangs_or_aborts(store: di_store.Store, count: Callable[[int, int], int]) -> None:
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
def test_no_fresh_interpreter_hangs_at_exit(
    store: di_store.Store, count: Callable[[int, int], int], tmp_path: Path
) -> None:
    """Real interpreters that spawn two others: three ends each, the tenth of the full count."""
    program = tmp_path / "fresh.py"
    program.write_text(FRESH)
    for _ in range(count(2, 334)):
        done = subprocess.run([sys.executable, str(program), store.name], capture_output=True, text=True, timeout=120)
        assert (done.stdout, done.stderr, done.returncode) == ("ending\n", "", 0)


WAITS_ON = """
import atexit, contextlib, threading
stop = threading.Event()

def end():
    before = dict(seen)
    while any(seen[name] < count + 2 for name, count in before.items()):  # each goes on, with its own deadline
        pass
    stop.set()
    for worker in workers:
        worker.join()
    print("joined", flush=True)

atexit.register(end)  # as of a library that was imported first
import numpy as np, di_store

def work(name, call):
    while not stop.is_set():
        with contextlib.suppress(di_store.StoreError):
            call()
        seen[name] += 1

def forever():
    table.sample(1)

def load():
    for _ in table.loader(1):
        pass

store = di_store.open(memory="64MiB")
schema = {"x": di_store.Spec((), "f4")}
table = store.create_table("t", capacity=5, schema=schema)
full = store.create_table("full", capacity=1, schema=schema, limiter=di_store.Queue(1))
full.insert({"x": 1.0})
calls = {
    "sample": lambda: table.sample(1, timeout=0.3),
    "mixture": lambda: store.mix({"t": 1}).sample(1, timeout=0.3),
    "insert": lambda: full.insert({"x": 1.0}, timeout=0.3),
    "get": lambda: store.get("ab" * 20, timeout=0.3),
    "latest": lambda: store.latest("w", newer_than=9, timeout=0.3),
    "table": lambda: store.table("never", timeout=0.3),
}
seen = dict.fromkeys(calls, 0)
workers = [threading.Thread(target=work, args=each, daemon=True) for each in calls.items()]
workers.append(threading.Thread(target=load, daemon=True))
for thread in (*workers, threading.Thread(target=forever, daemon=True)):
    thread.start()
while min(seen.values()) == 0 or len(store.stats()["waiters"]) < len(workers):
    pass
"""


def test_an_earlier_exit_handler_may_wait_for_threads() -> None:
    """It runs after those of the store: blocked calls go on till their deadlines, and threads can be joined."""
    done = subprocess.run([sys.executable, "-c", WAITS_ON], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("joined\n", "", 0)


LAST_COPY = """
import sys, numpy as np, di_store

class Last:
    def __init__(self, store, value):
        self.store, self.value, self.sys = store, value, sys

    def __del__(self):
        ref = self.store.put(self.value)
        print(self.sys.is_finalizing(), self.store.get(ref)[-1], flush=True)

last = Last(di_store.open(memory="64MiB"), np.ones(4 << 20, np.uint8))
"""


def test_a_destructor_at_exit_may_copy_without_the_gil() -> None:
    """The thread that ends the interpreter gets the GIL back, as ever."""
    done = subprocess.run([sys.executable, "-c", LAST_COPY], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("True 1\n", "", 0)
