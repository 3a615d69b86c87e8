"""An exception of a signal handler, at any instruction of `insert` and `extend`: the table takes inserts afterwards."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupting import Interrupt, forget_handled

import di_store
from di_store.base import config
from di_store.replay import inserter as insert
from di_store.replay import table as table_module
from di_store.runtime import waits

INSERT = str(Path(insert.__file__))
TABLE = str(Path(table_module.__file__))
CONFIG = str(Path(config.__file__))


class Tick(Exception):
    """What the handler of a program raises."""


def interrupted(at: int, call: Callable[[], Any], *files: str) -> tuple[bool, BaseException | None]:
    """Whether the call had an instruction of that number, and what came out."""
    raiser = Interrupt(at, files or (INSERT,), Tick)
    before, raised = sys.gettrace(), None
    sys.settrace(raiser)
    try:
        call()
    except BaseException as error:
        raised = error
    finally:
        sys.settrace(before)
    forget_handled()
    return raiser.left <= 0, raised


def in_thread(call: Callable[[], Any]) -> Any:
    """What a call in another thread returns."""
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(call()), daemon=True)
    thread.start()
    thread.join(60)
    assert made, "the other thread hangs, or failed"
    return made[0]


class Inside:
    """A value that is read until somebody says so: its insert has the table's turn meanwhile."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.begun.set()
        assert self.go_on.wait(60)
        return np.zeros(4)


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    """A small store."""
    with di_store.open(memory="64MiB") as made:
        yield made


@pytest.fixture
def occupied(store: di_store.Store) -> Iterator[di_store.Table]:
    """A table in whose insert another thread is."""
    table = store.create_table("t", capacity=64, schema={"n": di_store.Spec((4,), "f8")})
    value = Inside()
    thread = threading.Thread(target=lambda: table.insert({"n": value}), daemon=True)
    thread.start()
    assert value.begun.wait(60)
    yield table
    value.go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert table.insert({"n": np.ones(4)}, timeout=60).size == 1


ROW = {"n": np.full(4, 7), "m": 7}
BATCH = {"n": np.full((3, 4), 7), "m": np.full(3, 7)}
VIEWS: dict[str, tuple[Any, Any, Any]] = {
    "rows": (di_store.Step(), ROW, BATCH),
    "sequences": (di_store.Sequence(3), BATCH, {name: np.stack([leaf] * 2) for name, leaf in BATCH.items()}),
    "values": (di_store.Opaque(), [7], [[7], [7]]),
}


def check_serves(table: di_store.Table, value: Any) -> None:
    """Inserts of the calling thread and of another one pass."""
    assert table.insert(value, timeout=60).size == 1
    assert in_thread(lambda: table.insert(value, timeout=60)).size == 1


def check_whole(table: di_store.Table) -> None:
    """Every item has the value that all of them were given."""
    data = table.peek(table.keys()).data
    if isinstance(data, dict):
        assert all((np.asarray(data[name]) == 7).all() for name in ("n", "m"))
    else:
        assert all(value == [7] for value in data)


@pytest.mark.parametrize("one", [True, False], ids=["insert", "extend"])
@pytest.mark.parametrize("name", VIEWS)
def test_an_extend_interrupted_anywhere_is_consistent(store: di_store.Store, name: str, one: bool) -> None:
    view, value, batch = VIEWS[name]
    table = store.create_table("t", capacity=32, view=view)
    table.insert(value)
    # A timeout of another type than float or int is one that the core leaves to the package.
    call = (lambda: table.insert(value, timeout=np.float64(60))) if one else (lambda: table.extend(batch))
    at, more = 0, True
    while more:
        at += 1
        more, error = interrupted(at, call)
        assert isinstance(error, Tick) if more else error is None, f"at instruction {at}: {error!r}"
        check_serves(table, value)
    assert at > 20
    check_whole(table)
    assert store.check() == []


def test_a_fast_insert_interrupted_anywhere_is_consistent(store: di_store.Store) -> None:
    """One that the core does by itself: few instructions are left."""
    table = store.create_table("t", capacity=32)
    table.insert(ROW)
    at, more = 0, True
    while more:
        at += 1
        more, error = interrupted(at, lambda: table.insert(ROW), INSERT, TABLE)
        assert isinstance(error, Tick) if more else error is None, f"at instruction {at}: {error!r}"
        check_serves(table, ROW)
    assert 2 < at < 40
    check_whole(table)
    assert store.check() == []


def test_a_first_insert_interrupted_anywhere_is_consistent(store: di_store.Store) -> None:
    """The one that declares the columns and opens the writer."""
    at, more = 0, True
    while more:
        at += 1
        table = store.create_table("t", capacity=4)
        more, error = interrupted(at, lambda table=table: table.insert(ROW))  # type: ignore[misc]
        assert isinstance(error, Tick) if more else error is None, f"at instruction {at}: {error!r}"
        check_serves(table, ROW)
        check_whole(table)
        store.drop_table("t")
    assert store.check() == []


def test_a_waiting_insert_interrupted_anywhere_is_consistent(store: di_store.Store) -> None:
    """For the limiter, with the turn passed on meanwhile."""
    table = store.create_table("t", capacity=8, limiter=di_store.Queue(2))
    table.insert(ROW)
    at, more = 0, True
    while more:
        at += 1
        while table.stats()["size"] < 2:
            table.insert(ROW)
        more, error = interrupted(at, lambda: table.insert(ROW, timeout=0.001), INSERT, str(waits.__file__))
        assert isinstance(error, Tick if more else di_store.Timeout), f"at instruction {at}: {error!r}"
        assert in_thread(lambda: table.sample(2, timeout=60)).keys.size == 2
        check_serves(table, ROW)
    check_whole(table)


def test_an_interrupted_wait_for_another_thread_is_consistent(
    occupied: di_store.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "SLICE_SECONDS", 0.0005)
    at, more = 0, True
    while more:
        at += 1
        call = lambda: occupied.insert({"n": np.ones(4)}, timeout=0)  # noqa: E731
        more, error = interrupted(at, call, INSERT, str(waits.__file__))
        assert isinstance(error, Tick if more else di_store.Timeout), f"at instruction {at}: {error!r}"


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_a_wait_for_another_threads_insert_has_the_timeout_of_the_call(
    occupied: di_store.Table, timeout: float
) -> None:
    with pytest.raises(di_store.Timeout, match="another thread of this process"):
        occupied.insert({"n": np.ones(4)}, timeout=timeout)
    assert len(occupied) == 0


def test_a_busy_inserting_thread_does_not_starve_others(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=8)
    table.insert(ROW)
    over = threading.Event()

    def insert_on() -> None:
        while not over.is_set():
            table.insert(ROW, timeout=60)

    others = [threading.Thread(target=insert_on, daemon=True) for _ in range(2)]
    for each in others:
        each.start()
    try:
        for _ in range(50):
            table.insert(ROW, timeout=30)
    finally:
        over.set()
    for each in others:
        each.join(60)
        assert not each.is_alive()


@pytest.mark.parametrize("timeout", [5, 5.0, np.float32(5), np.int64(5)])
def test_a_signal_handlers_exception_is_not_swallowed(timeout: Any) -> None:
    for check in (lambda: waits.check_timeout(timeout), lambda: config.count("n", int(timeout), minimum=1)):
        at, more = 0, True
        while more:
            at += 1
            more, error = interrupted(at, check, CONFIG)
            assert isinstance(error, Tick) if more else error is None, f"at instruction {at}: {error!r}"
        assert at > 1


def test_a_dict_that_holds_itself_is_refused_by_extend(store: di_store.Store) -> None:
    endless: dict[str, Any] = {}
    endless["a"] = endless
    table = store.create_table("t", capacity=8, schema={"x": di_store.Spec((), "f4")})
    for call in (table.insert, table.extend, table.writer().extend, table.writer().append):
        with pytest.raises(ValueError, match="nested more than 32 deep"):
            call(endless)


def test_final_of_a_wrong_length_is_refused(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=8, schema={"x": di_store.Spec((), "f4")})
    with table.writer() as writer, pytest.raises(ValueError, match=f"final= has {2**40} entries"):
        writer.append({"x": 1.0}, final=np.broadcast_to(np.uint8(1), (2**40,)))
