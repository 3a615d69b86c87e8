"""A thread that keeps Python's interpreter lock holds up its own process alone.

A thread in a call of C may keep that lock (the GIL) for as long as it likes: a call through `ctypes.PyDLL`, say, or an
extension that never releases it. Other threads of the process then stand still where they next need it. None of them
holds a lock of a store there, so that other processes go on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

import di_store
from crash.zygote import BOUND_SECONDS, Crew

ITEMS = 64


def store_of(name: str) -> di_store.Store:
    """A store with a table whose draws take the heap's lock beside the table's: drawn items are held."""
    store = di_store.open(name, memory="64MiB")
    schema = {"x": di_store.Spec((), "i8")}
    limited = store.create_table(
        "limited", capacity=ITEMS, schema=schema, max_times_sampled=1000, sampler=di_store.Prioritized(alpha=0.6)
    )
    limited.extend({"x": np.arange(ITEMS)})
    limited.sample(8)
    return store


def keep_heap(name: str) -> None:
    """In a child: stops while it holds the heap's lock."""
    di_store._core.arm_fault("heap.make_before_state:1:stop")
    di_store.attach(name).put(1, timeout=60)


def keep_interpreter(name: str, ready: str, started: str, release: str) -> None:
    """In a child: a thread takes the interpreter lock as soon as the one that draws lets it go, and keeps it."""
    table = di_store.attach(name).table("limited")
    table.sample(8)
    sys.setswitchinterval(1000)  # the thread that draws is not asked to let go, so it does in a wait of its own
    drawing = threading.Event()
    read = ctypes.PyDLL(None).read  # a call of PyDLL keeps the interpreter lock
    os.mkdir(ready)
    end = os.open(release, os.O_RDONLY)  # waits until the test opens it
    byte = ctypes.create_string_buffer(1)

    def keep() -> None:
        drawing.wait()
        os.mkdir(started)
        assert read(end, byte, 1) == 1

    thread = threading.Thread(target=keep)
    thread.start()
    drawing.set()
    assert len(table.sample(8, timeout=BOUND_SECONDS).keys) == 8
    thread.join()


def test_other_threads_run_during_a_long_call(crew: Crew, tmp_path: Path, store_name: Callable[[], str]) -> None:
    store = store_of(store_name())
    table = store.table("limited")
    keys = table.sample(8).keys
    ready, started, release = tmp_path / "ready", tmp_path / "started", tmp_path / "release"
    os.mkfifo(release)
    learner = crew.start(
        "crash.test_interpreter_lock:keep_interpreter", store.name, str(ready), str(started), str(release)
    )
    crew.until(ready.exists, "the learner to have drawn once")
    heap = crew.start("crash.test_interpreter_lock:keep_heap", store.name)
    crew.until(lambda: heap.stopped, "a process to stop with the heap's lock")
    with open(release, "wb", buffering=0) as end:
        crew.until(started.exists, "a thread to keep the interpreter lock")
        # What needs the table's lock alone, while another thread of the learner cannot go on.
        assert table.update_priorities(keys, np.ones(8), timeout=10) == 8
        heap.signal(signal.SIGCONT)
        heap.finish()
        assert len(table.sample(8, timeout=10).keys) == 8
        end.write(b"x")
    learner.finish()
    assert store.check() == []
