"""What others see of a blocked call, held against the caller's own clock; and calls that nobody will ever let pass."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import Program, until
from undelivered import stop_outside_locks

import di_store
from di_store.runtime import waits

# -- the age shown ----------------------------------------------------------------------------------------------------

ACTOR = """
import json, sys, threading, time, di_store
store = di_store.attach(sys.argv[1], timeout=60)
table = store.table("t")
calls, ends, began = [], [], threading.Event()
def ask():
    sys.stdin.readline()
    ends.append(True)
threading.Thread(target=ask, daemon=True).start()
with table.writer() as writer:
    print("ready", flush=True)
    while not ends:
        begin = time.monotonic()
        writer.append({"x": 1})
        calls.append((begin, time.monotonic()))
with open(sys.argv[2], "w") as file:
    json.dump(calls, file)
"""
LEARNER = """
import sys, di_store
store = di_store.attach(sys.argv[1], timeout=60)
table = store.table("t")
print("ready", flush=True)
while True:
    table.sample(64)
"""


def test_the_age_of_a_wait_is_that_of_the_call_in_progress(
    store_name: Callable[[], str], tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    """Three actors under a limiter at full rate time each of their calls; somebody reads `stats()` all the time."""
    limiter = di_store.SamplesPerInsert(8, min_size=100, tolerance=0.1)
    with di_store.open(store_name(), memory="64MiB") as store:
        table = store.create_table("t", capacity=10_000, schema={"x": di_store.Spec((), "i8")}, limiter=limiter)
        seen: list[tuple[float, float, list[Any]]] = []
        actors = [Program(ACTOR, store.name, tmp_path / str(number)) for number in range(3)]
        learner = Program(LEARNER, store.name)
        try:
            for program in (*actors, learner):
                assert program.line() == "ready"
            until(lambda: table.stats()["samples"] > 10_000, "the limiter to be in force")
            for _ in range(count(400, 10_000)):
                before = time.monotonic()
                waiters = store.stats()["waiters"]
                seen.append((before, time.monotonic(), waiters))
            pids = {actor.pid for actor in actors}
            for _ in range(100):
                learner.signal(signal.SIGSTOP)
                until(lambda: lasting(store, pids).keys() == pids, "every actor to be listed, as all of them wait now")
                if set(lasting(store, pids).values()) == {"limiter"}:
                    break
                learner.signal(signal.SIGCONT)  # it was stopped inside the table's lock
                until(lambda: not lasting(store, pids), "the lock to be free again")
            for waiter in store.stats()["waiters"]:
                if waiter["pid"] in pids:
                    assert (waiter["kind"], waiter["table"]) == ("limiter", "t")
                    assert "samples_per_insert" in waiter["reason"]
            for actor in actors:
                actor.say()
            learner.signal(signal.SIGCONT)
            for actor in actors:
                until(lambda actor=actor: actor.process.poll() is not None, "the actor to end")
                assert actor.process.returncode == 0, actor.process.communicate()
        finally:
            for program in (*actors, learner):
                program.__exit__(None, None, None)
    ages = 0
    for number, actor in enumerate(actors):
        calls = np.asarray(json.loads((tmp_path / str(number)).read_text()))
        for before, after, waiters in seen:
            for waiter in waiters:
                if waiter["pid"] != actor.pid or waiter["kind"] == "lock":
                    continue
                ages += 1
                going_on = calls[(calls[:, 0] <= after) & (calls[:, 1] >= before)]
                assert len(going_on), "a wait is shown, and no call was in progress"
                assert waiter["seconds"] <= after - going_on[0, 0] + 0.01, "the wait shown is older than the call"
    assert ages > 20


def lasting(store: Any, pids: set[int]) -> dict[int, str]:
    """Which of these processes have waited for 0.3 s, and for what kind of thing."""
    return {
        each["pid"]: each["kind"] for each in store.stats()["waiters"] if each["seconds"] > 0.3 and each["pid"] in pids
    }


@pytest.mark.memory_only
def test_no_wait_is_shown_once_its_call_has_ended(store: Any) -> None:
    """However it ended; also while its error is still held by somebody."""
    table = store.create_table("t", capacity=10, schema={"x": di_store.Spec((), "i8")}, limiter=di_store.Queue(1))
    store.put(np.zeros(30 << 20, np.uint8))
    errors = []
    for call in (
        lambda: table.sample(1, timeout=0.2),
        lambda: store.get("ab" * 20, timeout=0.2),
        lambda: store.table("none", timeout=0.2),
        lambda: [table.insert({"x": 1}, timeout=0.2) for _ in range(2)],
        lambda: store.mix({"t": 1}).sample(4, timeout=0.2),
        lambda: store.put(np.zeros(40 << 20, np.uint8), timeout=0.2),
    ):
        with pytest.raises(di_store.StoreError) as caught:
            call()
        errors.append(caught.value)
        assert store.stats()["waiters"] == [], caught.value
    assert store.wait([di_store.Ref.parse("ab" * 20)], timeout=0.2)[0] == []
    assert store.latest("none", timeout=0.2) is None
    assert store.stats()["waiters"] == []


# -- learners that have gone ------------------------------------------------------------------------------------------

DRAW = """
import sys, di_store
store = di_store.attach(sys.argv[1], timeout=60)
held = store.table("t").sample(1, timeout=60)
print("drawn", flush=True)
sys.stdin.readline()
"""
PATIENCE = 0.5


@pytest.fixture
def store(store_name: Callable[[], str]) -> Iterator[Any]:
    with di_store.open(store_name(), memory="64MiB") as made:
        yield made


@pytest.fixture
def queue(store: Any, monkeypatch: pytest.MonkeyPatch, full: bool) -> Any:
    """A queue with one item in it, whose appends lose patience early."""
    if not full:
        monkeypatch.setattr(waits, "ABANDONED_SECONDS", PATIENCE)
    table = store.create_table("t", capacity=10, schema={"x": di_store.Spec((), "i8")}, limiter=di_store.Queue(1))
    table.insert({"x": 0})
    return table


class Blocked:
    """An insert without a timeout in a thread of its own."""

    def __init__(self, store: Any, call: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self._store = store
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error

    def lasts(self, seconds: float) -> None:
        """Wait until it has waited so long."""
        until(
            lambda: (
                not self._thread.is_alive() or any(each["seconds"] > seconds for each in self._store.stats()["waiters"])
            ),
            "the insert to wait on",
        )
        assert self._thread.is_alive(), self.error

    def end(self) -> BaseException | None:
        """Its error, once it has ended."""
        self._thread.join(120 + waits.ABANDONED_SECONDS)
        assert not self._thread.is_alive()
        return self.error


@pytest.mark.parametrize("how", ["append", "extend", "insert", "table.extend"])
def test_a_waiting_insert_ends_when_its_learners_are_gone(store: Any, queue: Any, how: str) -> None:
    """They had been there, and for a minute of the wait none was: nobody will let it pass."""
    with Program(DRAW, store.name) as learner:
        assert learner.line() == "drawn"
    with queue.writer() as writer:
        writer.append({"x": 1}, timeout=60)
        calls: dict[str, Callable[[], Any]] = {
            "append": lambda: writer.append({"x": 2}),
            "extend": lambda: writer.extend({"x": np.arange(3)}),
            "insert": lambda: queue.insert({"x": 2}),
            "table.extend": lambda: queue.extend({"x": np.arange(3)}),
        }
        with pytest.raises(di_store.Timeout, match="would wait forever") as caught:
            calls[how]()
        assert "no process that has drawn from the table was there" in caught.value.reason
        assert queue.sample(1, timeout=60).data["x"].tolist() == [
            1
        ]  # nothing was written, and the call may be repeated
        calls[how]()
        queue.sample(1, timeout=60)


def test_an_insert_waits_as_long_as_a_learner_lives(store: Any, queue: Any) -> None:
    """Also a stopped one; and it ends when that one is killed."""
    with Program(DRAW, store.name) as learner:
        assert learner.line() == "drawn"
        queue.insert({"x": 1}, timeout=60)
        learner.signal(signal.SIGSTOP)
        blocked = Blocked(store, lambda: queue.insert({"x": 2}))
        blocked.lasts(4 * waits.ABANDONED_SECONDS)
        learner.process.kill()
        error = blocked.end()
    assert isinstance(error, di_store.Timeout)
    assert "would wait forever" in str(error)


def test_an_insert_waits_for_a_learner_that_is_still_to_come(store: Any, queue: Any) -> None:
    """Warm-up and compilation last: who has never drawn is waited for."""
    blocked = Blocked(store, lambda: queue.insert({"x": 1}))
    blocked.lasts(4 * waits.ABANDONED_SECONDS)
    with Program(DRAW, store.name) as learner:
        assert learner.line() == "drawn"
        assert blocked.end() is None


def test_a_callers_own_timeout_holds(store: Any, queue: Any) -> None:
    with Program(DRAW, store.name) as learner:
        assert learner.line() == "drawn"
    queue.insert({"x": 1}, timeout=60)
    began = time.monotonic()
    with pytest.raises(di_store.Timeout, match="timed out"):
        queue.insert({"x": 2}, timeout=3 * PATIENCE)
    assert time.monotonic() - began >= 3 * PATIENCE


def test_learners_are_counted_by_table(store: Any) -> None:
    """A table that takes a dropped one's place begins without; death and drop end a learner."""
    other = store.create_table("other", capacity=10, schema={"x": di_store.Spec((), "i8")})
    table = store.create_table("t", capacity=10, schema={"x": di_store.Spec((), "i8")})
    assert native(table).learners() is None
    table.insert({"x": 1})
    table.sample(1)
    with Program(DRAW, store.name) as learner:
        assert learner.line() == "drawn"
        assert native(table).learners() == 2
        learner.signal(signal.SIGSTOP)
        assert native(table).learners() == 2
    assert native(table).learners() == 1
    assert native(other).learners() is None
    store.drop_table("t")
    again = store.create_table("t", capacity=10, schema={"x": di_store.Spec((), "i8")})
    assert native(again).learners() is None
    again.insert({"x": 1})
    iterator = iter(again.loader(1))
    next(iterator)
    assert native(again).learners() == 1


def native(table: Any) -> Any:
    """The core's handle of a table."""
    return table._backend.handle.native


# -- who may be the culprit -------------------------------------------------------------------------------------------

PARTS = {
    "stranger": "store.put(1); store.table('other').sample(1, timeout=60); store.table('other').insert({'x': 1})",
    "learner": "held = table.sample(1, timeout=60)",
    "had drawn": "table.sample(1, timeout=60)",
    "writer": "writer = table.writer()",
}
"""By what a process has done with the table, a line of a program."""
PART = """
import sys, di_store
store = di_store.attach(sys.argv[1], timeout=60)
table = store.table("t")
exec(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
"""


def stopped(store: Any, part: str) -> Program:
    """A process that has stopped after that."""
    program = Program(PART, store.name, PARTS[part])
    assert program.line() == "ready"
    stop_outside_locks(program.process.pid, *(store.table(name) for name in store.stats()["tables"]))
    return program


@pytest.mark.parametrize("part", ["learner", "had drawn", "writer"])
def test_only_processes_using_the_table_are_culprits(store: Any, part: str) -> None:
    """Another one was stopped before, and in a slot before: it is not named, however the wait ends."""
    schema, queue = {"x": di_store.Spec((), "i8")}, di_store.Queue(2)
    store.create_table("other", capacity=10, schema=schema).insert({"x": 0})
    table = store.create_table("t", capacity=10, schema=schema, limiter=queue)
    table.insert({"x": 0})

    def culprits() -> set[str | None]:
        with pytest.raises(di_store.Timeout) as drawn:
            table.sample(4, timeout=0.2)
        while len(table) < 2:
            table.insert({"x": 0}, timeout=60)
        with pytest.raises(di_store.Timeout) as inserted:
            for _ in range(3):
                table.insert({"x": 0}, timeout=0.2)
        return {drawn.value.culprit, inserted.value.culprit}

    with stopped(store, "stranger") as stranger:
        assert culprits() == {None}
        table.reset()
        table.insert({"x": 0})
        with stopped(store, part) as program:
            assert culprits() == {f"pid {program.pid}, stopped"}
        stranger.signal(signal.SIGCONT)


def test_an_unrelated_process_is_not_named_for_gone_learners(
    store: Any, queue: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the error nor in the log."""
    monkeypatch.setattr(waits, "LOG_SECONDS", waits.ABANDONED_SECONDS / 4)
    store.create_table("other", capacity=10, schema={"x": di_store.Spec((), "i8")}).insert({"x": 0})
    with stopped(store, "stranger") as stranger:
        with Program(DRAW, store.name) as learner:
            assert learner.line() == "drawn"
        queue.insert({"x": 1}, timeout=60)
        with pytest.raises(di_store.Timeout, match="would wait forever") as caught:
            queue.insert({"x": 2})
        assert caught.value.culprit is None
        assert "has waited" in caplog.text
        assert str(stranger.pid) not in caplog.text + str(caught.value)
