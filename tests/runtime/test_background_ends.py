"""Threads of a store and its end: none has the store when `close` returns, and want of memory ends none for good."""

from __future__ import annotations

import resource
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint.test_tree_kills import child, ended

import di_store
from di_store import _core
from di_store.checkpoint.store import durable
from di_store.runtime import background, chores

SCHEMA = {"x": di_store.Spec((4,), "f4")}
ROWS = {"x": np.ones((10, 4), np.float32)}
STACK = 1 << 28


@pytest.fixture
def looks() -> Iterator[list[Callable[[_core.Arena], None]]]:
    """What each thread calls now and then."""
    before = list(chores._looks)
    yield chores._looks
    chores._looks[:] = before


def _arena(store: di_store.Store) -> weakref.ref[Any]:
    return weakref.ref(store._backend.session.arena)


def test_close_waits_for_background_writes(
    store_name: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, work = threading.Event(), durable._renew

    def slowly(arena: _core.Arena) -> None:
        began.set()
        while not session.ended():
            pass
        threading.Event().wait(0.2)  # it has more to do
        work(arena)

    store = di_store.open(store_name(), memory="16MiB", disk=tmp_path, disk_capacity="64MiB")
    session, arena = store._backend.session, _arena(store)
    monkeypatch.setattr(durable, "_renew", slowly)
    table = store.create_table("t", capacity=100, lanes=1, durability="disk", schema=SCHEMA)
    with table.writer() as writer:
        writer.extend(ROWS)
    assert began.wait(60)
    store.close()
    assert arena() is None


def test_close_waits_for_the_thread_of_a_dropped_loader(store_name: Callable[[], str]) -> None:
    interval = sys.getswitchinterval()
    for _ in range(5):
        store = di_store.open(store_name(), memory="16MiB")
        arena = _arena(store)
        table = store.create_table("t", capacity=100, lanes=1, schema=SCHEMA)
        table.extend(ROWS)
        loader = table.loader(4, timeout=60)
        next(loader)
        chores._stop()  # nothing else is waited for
        try:
            sys.setswitchinterval(60)  # the loader's thread runs only when this one waits
            del loader
            store.close()
            assert arena() is None
        finally:
            sys.setswitchinterval(interval)


def test_no_thread_starts_after_the_last_close(store_name: Callable[[], str]) -> None:
    """Somebody is in a call of the store for a little longer."""
    store = di_store.open(store_name(), memory="16MiB")
    inside = store._backend.session.arena
    store.create_table("t", capacity=100, lanes=1, schema=SCHEMA).writer()
    thread = chores._all[id(inside)].thread
    other = di_store.attach(store.name)
    while not thread.lives():  # it was started, and begins a little later
        pass
    store.close()
    assert thread.lives()
    other.close()
    starts = thread._starts
    assert not any(thread.lives() or threading.Event().wait(0.01) for _ in range(20))
    assert thread._starts == starts


def _writer_without_threads() -> None:
    threading.stack_size(STACK)
    with di_store.open(memory="16MiB") as store:
        table = store.create_table("t", capacity=100, lanes=1, schema=SCHEMA)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + STACK // 2, limits[1]))
        writer = table.writer()
        (of_store,) = chores._all.values()
        writer.extend(ROWS)
        assert not of_store.thread.lives()
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for _ in range(600):
            writer.extend(ROWS)
            if of_store.thread.lives():
                return
            threading.Event().wait(0.1)
        raise AssertionError("the chores are left undone")


def test_a_thread_that_found_no_memory_is_started_again() -> None:
    assert ended(child(_writer_without_threads)) == 0


def test_lack_of_memory_does_not_end_background_chores(
    store_name: Callable[[], str], looks: list[Callable[[_core.Arena], None]], caplog: pytest.LogCaptureFixture
) -> None:
    seen, enough = [0], threading.Event()

    def look(arena: _core.Arena) -> None:
        seen[0] += 1
        if seen[0] < 3:
            raise MemoryError
        enough.set()

    looks.append(look)
    with di_store.open(store_name(), memory="16MiB") as store:
        store.create_table("t", capacity=100, lanes=1, schema=SCHEMA).writer()
        assert enough.wait(60)
    assert sum("background work" in record.message for record in caplog.records) == 1


def test_a_thread_that_ends_at_once_can_be_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    worked, failed = threading.Event(), threading.Event()
    thread = background.Background(worked.set)

    def fails(seconds: float) -> bool:
        monkeypatch.delattr(thread._ends, "wait")
        failed.set()
        raise MemoryError

    monkeypatch.setattr(thread._ends, "wait", fails)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    thread.start()
    assert failed.wait(60)
    assert thread.join(60)
    thread.start()
    assert worked.wait(60)


def test_a_stopping_thread_is_not_restarted(store_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a thread that makes a writer while another one closes the store, and waits for the end."""
    with di_store.open(store_name(), memory="16MiB") as store:
        table = store.create_table("t", capacity=100, lanes=1, schema=SCHEMA)
        table.writer()
        known, starts = chores._all[id(store._backend.session.arena)], list[None]()
        known.end()
        assert known.thread.join(60)
        monkeypatch.setattr(known.thread, "start", lambda: starts.append(None))
        table.writer()
        assert starts == []
        late = threading.Thread(target=known._run, daemon=True)
        late.start()
        late.join(60)
        assert not late.is_alive()
        known.go_on()
        table.writer()
        assert starts == [None]
