"""Back-pressure by default: a consumer that stands still makes writers wait; nothing piles up, nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pains import MIB, Program, private_bytes, until

import di_store

WRITERS = 4

WRITE = """
import sys, numpy as np, di_store
name, number, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = di_store.attach(name, timeout=60)
print("ready", flush=True)
sys.stdin.readline()
with store.table("t").writer() as writer:
    for n in range(most):
        writer.append({"n": number * 10**9 + n, "obs": np.full((84, 84), n % 256, np.uint8)})
print("done", flush=True)
sys.stdin.readline()  # not gone before its memory is read
"""

READ = """
import sys, numpy as np, di_store
name = sys.argv[1]
store = di_store.attach(name, timeout=60)
table, numbers = store.table("t"), []
print("ready", flush=True)
try:
    while True:
        batch = table.sample(32, min_n=1, linger=0)
        assert (batch.data["obs"] == (batch.data["n"] % 10**9 % 256)[:, None, None]).all()
        numbers.extend(batch.data["n"].tolist())
except di_store.EndOfData:
    np.save(sys.argv[2], np.array(numbers))
print("done", flush=True)
"""


def blocked(store: Any) -> int:
    """How many clients wait for the limiter; the stopped consumer may have been stopped while it waited for items."""
    waiting = [client["waiting"] for client in store.stats()["clients"] if client["waiting"]]
    return sum(1 for wait in waiting if wait["table"] == "t" and wait["kind"] == "limiter")


def test_writers_wait_for_a_stopped_consumer(
    count: Callable[[int, int], int], store_name: Callable[[], str], tmp_path: Any
) -> None:
    most = count(1_000, 50_000)
    result = str(tmp_path / "numbers.npy")
    with di_store.open(store_name(), memory="64MiB") as store:
        table = store.create_table(
            "t",
            capacity=1_000,
            schema={"n": di_store.Spec((), "i8"), "obs": di_store.Spec((84, 84), "u1")},
            limiter=di_store.Queue(500),
        )
        writers = [Program(WRITE, store.name, number, most) for number in range(WRITERS)]
        with writers[0], writers[1], writers[2], writers[3], Program(READ, store.name, result) as reader:
            for program in (*writers, reader):
                assert program.line() == "ready"
            reader.signal(signal.SIGSTOP)
            before = [private_bytes(writer.pid) for writer in writers]
            for writer in writers:
                writer.say()
            until(lambda: blocked(store) == WRITERS, "all writers to wait")
            inserts = table.stats()["inserts"]
            assert inserts <= 500 + WRITERS
            after = [private_bytes(writer.pid) for writer in writers]
            assert max(now - then for now, then in zip(after, before, strict=True)) <= 32 * MIB
            assert table.stats()["inserts"] == inserts, "writers got on although nobody received anything"
            reader.signal(signal.SIGCONT)
            for writer in writers:
                assert writer.line() == "done"
            table.finish()
            assert reader.line() == "done"
            grown = [private_bytes(writer.pid) for writer in writers]
            assert max(now - then for now, then in zip(grown, before, strict=True)) <= 48 * MIB
        numbers = np.load(result)
        expected = [number * 10**9 + n for number in range(WRITERS) for n in range(most)]
        assert sorted(numbers.tolist()) == expected
        # One writer's items arrive in the order in which it wrote them.
        for number in range(WRITERS):
            own = numbers[numbers // 10**9 == number]
            assert (np.diff(own) == 1).all()


def test_a_declared_timeout_raises(store_name: Callable[[], str]) -> None:
    """The other policy: an append that may not wait says what it waits for, and wrote nothing."""
    with di_store.open(store_name(), memory="64MiB") as store:
        table = store.create_table("t", capacity=100, limiter=di_store.Queue(10))
        with table.writer() as writer:
            for number in range(10):
                writer.append({"n": number}, timeout=0)
            for _ in range(3):
                with pytest.raises(di_store.Timeout) as full:
                    writer.append({"n": 10}, timeout=0.05)
                assert full.value.reason
            assert table.stats()["inserts"] == 10
            assert sorted(table.sample(4, timeout=60).data["n"].tolist()) == [0, 1, 2, 3]
            writer.append({"n": 10}, timeout=0)
        assert table.sample(7, timeout=60).data["n"].tolist() == [4, 5, 6, 7, 8, 9, 10]
