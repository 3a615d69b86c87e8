"""Ctrl-C in the calls of a remote writer: it goes on, and no row is lost or comes twice."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.nodes import Node, node, stop
from pains import Program, until

import di_store
from di_store.client.writer import RemoteWriter

Names = Callable[[], str]
CHILD = Path(__file__).with_name("interrupted_writer.py")
ROW = {"n": di_store.Spec((), "i8")}


@pytest.fixture(scope="module")
def served() -> Iterator[Node]:
    with node(f"i-{uuid.uuid4().hex[:12]}") as running:
        yield running


@pytest.mark.parametrize(
    ("row", "kills"),
    [
        ("small", 0),
        ("large", 2),
        pytest.param("large", 0, marks=pytest.mark.extended),
        pytest.param("small", 2, marks=pytest.mark.extended),
    ],
)
def test_a_writer_continues_after_interrupts(
    row: str, kills: int, store_name: Names, count: Callable[[int, int], int]
) -> None:
    """KeyboardInterrupt at any place of `append`, `flush` and `Items.keys`, also beside an agent that is killed.

    What was acknowledged is there once, what an interrupted call had begun at most once, in order.
    """
    size = 1 if row == "small" else 60_000
    schema = {"n": di_store.Spec((), "i8"), "obs": di_store.Spec((size,), "u1")}
    with node(store_name()) as served, di_store.attach(served.name) as store:
        table = store.create_table("t", capacity=1_000_000 if row == "small" else 4_000, schema=schema)
        interrupts = count(300, 5_000)
        command = [sys.executable, str(CHILD), served.address, str(size), str(interrupts)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            for _ in range(kills):
                seen = len(table)
                until(lambda seen=seen: len(table) > seen or child.poll() is not None, "rows")  # type: ignore[misc]
                served.kill_agent()
            told = json.loads(child.communicate(timeout=100)[0])
        finally:
            child.kill()
            child.communicate()
        assert child.returncode == 0
        batch = table.peek(table.keys())
        rows = batch.data["n"].tolist()
        assert max(Counter(rows).values()) == 1, "a row came twice"
        assert rows == sorted(rows)
        kept = set(range(rows[0], told["written"]))  # a queue of the newest
        assert not kept & set(told["acknowledged"]) - set(rows), "rows that were acknowledged are not there"
        assert not kept - set(rows) - set(told["interrupted"]), "rows of calls that had returned are not there"
        assert told["written"] - 1 in rows, "the writer has not gone on"
        assert len(told["interrupted"]) > interrupts // 4
        assert (batch.data["obs"] == (np.array(rows) % 251)[:, None]).all(), "a row is torn"
        assert not store.check()


def test_waits_for_an_agent_that_is_stopped_can_be_interrupted(store_name: Names) -> None:
    """`Items.keys`, `flush` and a full window; the writer goes on with the agent. `close` ends it at once."""
    schema = {"n": di_store.Spec((), "i8")}
    with node(store_name()) as served, served.connect() as store, di_store.attach(served.name) as near:
        store.create_table("t", capacity=1_000, schema=schema)
        table = near.table("t")
        writer = store.table("t").writer()
        assert isinstance(writer._backend, RemoteWriter)
        shared = writer._backend._pipe._connection
        numbers, made = itertools.count(), dict[int, Any]()

        def append() -> None:
            n = next(numbers)
            made[n] = writer.append({"n": n})

        append()
        writer.flush()
        stopped = served.agent
        stop(stopped)

        def fill() -> None:
            while True:
                append()

        def interrupted(call: Callable[[], object]) -> None:
            main = threading.get_ident()

            def interrupt() -> None:
                until(lambda: shared._reader == main, "the call to wait")
                os.kill(os.getpid(), signal.SIGINT)

            other = threading.Thread(target=interrupt)
            other.start()
            with pytest.raises(KeyboardInterrupt):
                call()
            other.join(30)

        append()
        for call in (lambda: made[1].keys, writer.flush, fill):
            interrupted(call)
        os.kill(stopped, signal.SIGCONT)
        append()
        writer.flush(timeout=60)
        rows = table.peek(table.keys()).data["n"].tolist()
        assert rows == sorted(set(rows)), "a row came twice"
        assert set(made) <= set(rows) <= set(range(next(numbers)))
        assert len(made[1].keys) == 1
        stop(stopped)
        interrupted(writer.close)
        with pytest.raises(di_store.WriterClosed):
            writer.append({"n": 0})
        os.kill(stopped, signal.SIGCONT)
        assert len(table) == len(rows)


ENDING = """
import sys, threading
import di_store
from di_store.client import pipe

pipe.settle.__defaults__ = (1000.0,)  # how long the end waits for writers that were dropped
address, name, how = sys.argv[1:]
store = di_store.connect(address)
writer = store.table(name).writer()
writer.append({"n": 1})
writer.append({"n": 1})
writer.flush()  # the queue takes two

def tell():
    while writer._backend._pipe.window.has_room():
        threading.Event().wait(0.01)
    print("full", flush=True)

threading.Thread(target=tell).start()
try:
    while True:
        writer.append({"n": 1})
except KeyboardInterrupt:
    print("interrupted", flush=True)
if how == "close":
    try:
        writer.close(timeout=1000)
    except di_store.Timeout:
        print("closed", flush=True)
"""


def test_close_after_an_interrupt_does_not_wait_for_room(served: Node) -> None:
    """What a full queue has not taken is given up, and the log says how much that is."""
    with di_store.attach(served.name) as near, ExitStack() as running:
        tables, children = [], []
        for how in ("end", "close"):
            tables.append(near.create_table(how, capacity=10, limiter=di_store.Queue(2), schema=ROW))
            children.append(running.enter_context(Program(ENDING, served.address, how, how)))
        for child in children:
            assert child.line() == "full"
            child.signal(signal.SIGINT)
        for table, child, told in zip(tables, children, (["interrupted"], ["interrupted", "closed"]), strict=True):
            out, err = child.finish()
            assert out.split() == told
            assert re.search("gives up 8 rows that node .* has not acknowledged", err)
            assert len(table) == 2


def test_calls_not_done_by_a_stopped_agent_are_counted(served: Node) -> None:
    """The call that waits counts, and the silence begins with it: before, nobody had asked."""
    with served.connect() as store:
        store.create_table("t", capacity=10, schema=ROW)
        writer = store.table("t").writer()
        assert isinstance(writer._backend, RemoteWriter)
        writer.append({"n": 1}, timeout=60)
        writer._backend._pipe._heard -= 1_000.0
        stopped = served.agent
        stop(stopped)
        with pytest.raises(di_store.Timeout, match="a call is not acknowledged") as told:
            writer.append({"n": 2}, timeout=1)
        silent = re.search(r"silent for (\d+) s", str(told.value))
        assert silent is not None
        assert int(silent[1]) < 500
        os.kill(stopped, signal.SIGCONT)
        writer.close()
