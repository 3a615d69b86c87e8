"""`di-store top` on a terminal and in a pipe, and `inspect` of a table that is written to."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cli_run import Terminal, call, command, read_json
from pains import Program, until

import di_store

X = {"x": di_store.Spec((), "i8")}


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[Any]:
    with di_store.open(store_name(), memory="64MiB") as made:
        yield made


def test_top_reacts_to_keys(store: Any) -> None:
    with Terminal("top", store.name, "--interval", "60") as screen:
        until(lambda: screen.shows(store.name), "the first look")
        screen.type("?")
        until(lambda: screen.shows("q quit"), "the keys to be shown")
        screen.type("q")
        until(lambda: screen.process.poll() is not None, "top to end")
        assert screen.process.returncode == 0


WAIT = """
import sys, di_store
store = di_store.attach(sys.argv[1], timeout=60)
print("ready", flush=True)
store.table("t").sample(1, timeout=600)
"""


def test_waiting_and_stopped_processes_are_coloured(store: Any) -> None:
    store.create_table("t", capacity=10, schema=X)
    with Program(WAIT, store.name) as program, Terminal("top", store.name) as screen:
        assert program.line() == "ready"
        until(lambda: screen.shows("\x1b[33m"), "yellow")  # who waits
        program.signal(signal.SIGSTOP)
        until(lambda: screen.shows(f"\x1b[1;31mpid {program.pid}: stopped"), "red")
        screen.process.send_signal(signal.SIGINT)
        until(lambda: screen.process.poll() is not None, "top to end")


def test_plain_top_prints_one_line_per_refresh(store: Any) -> None:
    table = store.create_table("t", capacity=10, schema=X)
    table.insert({"x": 1})
    words = command("top", store.name, "--stat", "--interval", "0.1")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        head, *lines = [process.stdout.readline() for _ in range(4)]
        process.send_signal(signal.SIGINT)
    assert head.split()[:2] == ["time", "store"]
    for line in lines:
        assert line.split()[1] == store.name
        assert len(line.split()) >= 8


@pytest.mark.memory_only
def test_inspect_shows_the_requested_number_of_items(store: Any) -> None:
    """Also where the oldest go faster than one can look at them."""
    table = store.create_table("t", capacity=2_000, schema=X)
    rows, end = {"x": np.arange(500)}, threading.Event()
    table.extend(rows)

    def write() -> None:
        while not end.is_set():
            table.extend(rows)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        until(lambda: len(table) == 2_000, "a full table")
        for values in ((), ("--values",)):
            for _ in range(3):
                assert len(read_json("inspect", store.name, "t", "--items", "20", *values, by=call)["items"]) == 20
        page = read_json("inspect", store.name, "t", "--start", "1000", "--items", "100", "--values", by=call)["items"]
        assert len({item["key"] for item in page}) == 100
    finally:
        end.set()
        thread.join(60)
    assert len(read_json("inspect", store.name, "t", "--items", "3000", by=call)["items"]) == 2_000
