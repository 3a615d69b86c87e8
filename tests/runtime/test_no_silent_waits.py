"""Nothing waits in silence: every stall ends in time, with an error that names reason and culprit, or goes on."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pains import MIB, Program, until

import di_store
from di_store.runtime import waits

TIMEOUT = 0.3
LATE_SECONDS = 10.0
"""How much later than its timeout a call may end on a busy machine."""


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[Any]:
    with di_store.open(store_name(), memory="64MiB") as made:
        yield made


def error_of(call: Callable[[], Any], kind: type[Exception], words: str, timeout: float = TIMEOUT) -> Any:
    """The error of a call that has to end in time; its text holds what matches `words`."""
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        call()
    assert time.monotonic() - began < timeout + LATE_SECONDS
    assert re.search(words, str(caught.value)), caught.value
    if isinstance(caught.value, di_store.Timeout):
        assert caught.value.reason
        assert isinstance(caught.value, TimeoutError)
    return caught.value


def step(number: int) -> dict[str, Any]:
    """A row."""
    return {"x": number}


def test_sampling_an_empty_table_names_the_reason(store: Any) -> None:
    table = store.create_table("t", capacity=10, schema=step(0))
    error_of(lambda: table.sample(1, timeout=TIMEOUT), di_store.Timeout, r"'t'.*(empty|size|0)")


def test_sampling_an_undeclared_table_names_the_reason(store: Any) -> None:
    table = store.create_table("t", capacity=10)
    error_of(lambda: table.sample(1, timeout=TIMEOUT), di_store.Timeout, "first step|nothing was written")


def test_an_insert_blocked_by_the_limiter_names_the_reason(store: Any) -> None:
    table = store.create_table("t", capacity=10, limiter=di_store.Queue(2))
    with table.writer() as writer:
        for number in range(2):
            writer.append(step(number), timeout=0)
        error = error_of(lambda: writer.append(step(2), timeout=TIMEOUT), di_store.Timeout, "'?t'?")
        assert "2" in error.reason
    error_of(lambda: table.insert(step(2), timeout=TIMEOUT), di_store.Timeout, "2")


def test_a_sample_blocked_by_the_limiter_names_the_reason(store: Any) -> None:
    table = store.create_table("t", capacity=1_000, schema=step(0), limiter=di_store.MinSize(100))
    table.extend({"x": np.arange(40)}, timeout=60)
    error = error_of(lambda: table.sample(1, timeout=TIMEOUT), di_store.Timeout, "min")
    assert "40" in error.reason
    assert "100" in error.reason


def test_a_ratio_blocks_both_sides_in_turn(store: Any) -> None:
    limiter = di_store.SamplesPerInsert(1.0, min_size=10, tolerance=0.1)
    table = store.create_table("t", capacity=1_000, schema=step(0), limiter=limiter)
    table.extend({"x": np.arange(10)}, timeout=60)

    def insert_on() -> None:
        for number in range(100):
            table.insert(step(number), timeout=TIMEOUT)

    def sample_on() -> None:
        for _ in range(100):
            table.sample(1, timeout=TIMEOUT)

    for _ in range(2):
        error_of(insert_on, di_store.Timeout, "sampl")
        error_of(sample_on, di_store.Timeout, "insert")


def test_sampling_with_all_priorities_zero_names_the_reason(store: Any) -> None:
    table = store.create_table("t", capacity=10, schema=step(0), sampler=di_store.Prioritized(alpha=1.0))
    keys = table.extend({"x": np.arange(5)}, timeout=60)
    table.update_priorities(keys, np.zeros(5))
    error = error_of(lambda: table.sample(1, timeout=TIMEOUT), di_store.Timeout, "priorit")
    assert "0" in error.reason


def test_a_sample_without_writers_ends_after_a_minute(store: Any, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    """Also without a timeout: no writer open and no insert for a minute."""
    if not full:
        monkeypatch.setattr(waits, "ABANDONED_SECONDS", 0.5)
    table = store.create_table("t", capacity=10, schema=step(0))
    error = error_of(lambda: table.sample(1), di_store.Timeout, "forever", waits.ABANDONED_SECONDS)
    assert "writer" in error.reason


def test_a_tightened_limiter_names_the_reason(store: Any) -> None:
    table = store.create_table("t", capacity=100, schema=step(0), limiter=di_store.MinSize(1))
    table.extend({"x": np.arange(20)}, timeout=60)
    assert len(table.sample(4, timeout=60).keys) == 4
    table.configure(limiter=di_store.MinSize(50))
    error = error_of(lambda: table.sample(4, timeout=TIMEOUT), di_store.Timeout, "50")
    assert "20" in error.reason


def test_an_object_larger_than_the_store_is_refused_at_once(store: Any) -> None:
    error_of(lambda: store.put(np.zeros(100 * MIB, np.uint8), timeout=60), di_store.CapacityError, "memory", 0)


def test_a_put_into_full_memory_names_the_reason(store: Any) -> None:
    held = [store.get(store.put(np.zeros(4 * MIB, np.uint8), timeout=60)) for _ in range(10)]
    error = error_of(lambda: store.put(np.zeros(30 * MIB, np.uint8), timeout=TIMEOUT), di_store.StoreFull, "memory")
    assert re.search(r"\d", str(error))
    assert len(held) == 10


def test_an_invalid_id_is_refused_at_once(store: Any) -> None:
    ref = di_store.Ref.parse("12" * 20)
    error_of(lambda: store.get(ref), di_store.ObjectNotFound, "12", 0)
    error_of(lambda: store.get(ref, timeout=TIMEOUT), di_store.ObjectNotFound, "12")
    done, pending = store.wait([ref], timeout=TIMEOUT)
    assert (done, pending) == ([], [ref])


def test_missing_names_time_out_with_a_reason(store: Any) -> None:
    error_of(lambda: store.table("none", timeout=TIMEOUT), di_store.TableNotFound, "none")
    error_of(lambda: di_store.attach("none-at-all", timeout=TIMEOUT), di_store.StoreNotFound, "none-at-all")
    assert store.latest("none", timeout=TIMEOUT) is None


def end_of(call: Callable[[], Any], then: Callable[[], Any], blocked: Callable[[], bool]) -> BaseException:
    """The error of a call that blocks in a thread of its own, after `then` was done."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(blocked, "the call to block")
    then()
    thread.join(60)
    assert not thread.is_alive(), "a blocked call did not notice"
    assert errors, "a blocked call came through"
    return errors[0]


def waiting(store: Any) -> bool:
    """Whether somebody waits for anything in this store."""
    return bool(store.stats()["waiters"])


@pytest.mark.parametrize("side", ["sample", "append"])
def test_waiting_calls_end_when_the_table_is_dropped(store: Any, side: str) -> None:
    """Who waits for a table that is dropped learns so at once, without a timeout."""
    table = store.create_table("t", capacity=10, schema=step(0), limiter=di_store.Queue(1))
    table.writer()
    if side == "append":
        table.insert(step(0), timeout=60)
    call = (lambda: table.sample(1)) if side == "sample" else (lambda: table.insert(step(1)))
    error = end_of(call, lambda: store.drop_table("t"), lambda: waiting(store))
    assert isinstance(error, di_store.TableNotFound), repr(error)
    error_of(lambda: table.sample(1, timeout=TIMEOUT), di_store.TableNotFound, "t")


def test_waiting_calls_end_when_the_handle_is_closed(store: Any) -> None:
    """Also for who waits already."""
    other = di_store.attach(store.name)
    table = store.create_table("t", capacity=10, schema=step(0), limiter=di_store.Queue(1))
    theirs = other.table("t")
    table.writer()
    error = end_of(lambda: theirs.sample(1), other.close, lambda: waiting(store))
    assert isinstance(error, di_store.StoreClosed), repr(error)
    error_of(lambda: other.get(di_store.Ref.parse("12" * 20)), di_store.StoreClosed, "closed", 0)
    error_of(lambda: theirs.sample(1, timeout=TIMEOUT), di_store.StoreClosed, "closed")


DIE = """
import os, sys, di_store
from di_store import _core
store = di_store.attach(sys.argv[1], timeout=60)
_core.arm_fault(sys.argv[2])
try:
    store.table("t").sample(4, timeout=60)
except di_store.StoreError:
    pass
"""


def test_a_dead_lock_holder_does_not_block_waits(store: Any) -> None:
    """Killed with the table's lock in its hand and items drawn: the next one goes on, and gets them all."""
    table = store.create_table("t", capacity=100, schema=step(0), limiter=di_store.Queue(50))
    table.extend({"x": np.arange(20)}, timeout=60)
    for point in ("table.draw_item:2", "undo.before_commit:1", "sample.before_copy:1", "sample.before_deliver:1"):
        with Program(DIE, store.name, point) as program:
            program.process.communicate(timeout=60)
            assert program.process.returncode == -signal.SIGKILL
    assert table.sample(20, timeout=60).data["x"].tolist() == list(range(20))
    assert store.check() == []


def test_a_stopped_process_is_named_by_waits(store: Any) -> None:
    """It may go on at any moment, so it keeps what it holds; the error says who it is."""
    table = store.create_table("t", capacity=100, schema=step(0))
    table.extend({"x": np.arange(20)}, timeout=60)
    with Program(DIE, store.name, "table.draw_item:2:stop") as program:
        until(lambda: [c for c in store.stats()["clients"] if c["state"] == "T"], "the process to stop")
        error = error_of(lambda: table.sample(1, timeout=TIMEOUT), di_store.Timeout, "stopped")
        assert str(program.pid) in error.culprit
        program.process.send_signal(signal.SIGCONT)
        program.finish()
    assert len(table.sample(1, timeout=60).keys) == 1


PATIENT = """
import sys, di_store
from di_store.runtime import waits
waits.LOG_SECONDS = float(sys.argv[2])
store = di_store.attach(sys.argv[1], timeout=60)
kind = sys.argv[3]
print("waiting", flush=True)
if kind == "sample":
    store.table("t").sample(1)
elif kind == "append":
    store.table("q").insert({"x": 2})
elif kind == "get":
    store.get(di_store.Ref.parse("ab" * 20), timeout=None)
else:
    store.latest("w", timeout=None)
"""


@pytest.mark.parametrize("kind", ["sample", "append", "get", "latest"])
def test_a_long_wait_is_logged(store: Any, kind: str, full: bool) -> None:
    """Without a limit one waits on, but says so: after 30 s, on stderr, at once flushed; then it comes through."""
    table = store.create_table("t", capacity=10, schema=step(0), limiter=di_store.MinSize(2))
    queue = store.create_table("q", capacity=10, schema=step(0), limiter=di_store.Queue(1))
    queue.insert(step(1), timeout=60)
    writer = table.writer()
    with Program(PATIENT, store.name, waits.LOG_SECONDS if full else 0.5, kind) as program:
        assert program.line() == "waiting"
        assert program.process.stderr is not None
        line = program.process.stderr.readline()
        assert re.search(r"waited \d+ s", line), line
        assert {"sample": "'t'", "append": "'q'", "get": "ab" * 20, "latest": "'w'"}[kind] in line
        writer.append(step(0), timeout=60)
        writer.append(step(1), timeout=60)
        queue.sample(1, timeout=60)
        store.put(1, id="ab" * 20)
        store.publish("w", 1)
        program.finish()
