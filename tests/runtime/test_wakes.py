"""What is waited for is announced: who sleeps on a table or the store is woken by the change itself, not by the clock.

Calls look again every 100 ms, so that a missing wake-up would only make them slow, which no other test sees. Here the
sleeper is the core's own wait, for far longer than any test.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import until

import di_store
from di_store import _core

ASLEEP_SECONDS = 600.0
BOUND_SECONDS = 30.0
FUTEX_PRIVATE = 128
SCHEMA = {"x": di_store.Spec((), "i8")}


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as made:
        yield made


def sleeps(thread: threading.Thread) -> bool:
    """Whether it is inside a futex wait that other processes can end: Python's own locks are private ones."""
    call = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()
    return call[0] == "202" and not int(call[2], 16) & FUTEX_PRIVATE


def assert_wakes(store: Any, wait: Callable[..., None], seen: int, change: Callable[[], object]) -> None:
    """A thread sleeps until the number is another one than `seen`; the change must wake it."""
    shown = _core.Wait(store._backend.session.arena)
    sleeper = threading.Thread(target=wait, args=(shown, seen, ASLEEP_SECONDS), daemon=True)
    sleeper.start()
    until(lambda: store.stats()["waiters"] and sleeps(sleeper), "the thread to be asleep")
    change()
    sleeper.join(BOUND_SECONDS)
    assert not sleeper.is_alive(), "nobody woke it"


def items(store: Any, table: Any, change: Callable[[], object]) -> None:
    """The change announces items."""
    native = table._backend.handle.native
    assert_wakes(store, native.wait_items, native.items_seq(), change)


def room(store: Any, table: Any, change: Callable[[], object]) -> None:
    """The change announces room for inserts."""
    native = table._backend.handle.native
    assert_wakes(store, native.wait_room, native.room_seq(), change)


def filled(store: Any, count: int = 8, **options: Any) -> Any:
    table = store.create_table("t", capacity=options.pop("capacity", 100), schema=SCHEMA, **options)
    table.extend({"x": np.arange(count)})
    return table


def test_inserts_wake_waiting_samples(store: Any) -> None:
    table = filled(store)
    items(store, table, lambda: table.insert({"x": 1}))
    with table.writer() as writer:
        items(store, table, lambda: writer.append({"x": 1}))


def test_draws_and_their_return_wake_waiting_calls(store: Any) -> None:
    table = filled(store, limiter=di_store.Queue(10))
    reader = table._backend.handle.reader()
    draws = reader.begin()
    room(store, table, lambda: reader.draw(draws, 9))  # of 8: whoever has to wait lets others go on first
    items(store, table, lambda: reader.give_back(draws))
    draws = reader.begin()
    items(store, table, lambda: reader.draw(draws, 3))  # it leaves more
    room(store, table, lambda: reader.finish(draws, None, None, None, False))  # the batch is copied
    room(store, table, lambda: reader.deliver(draws))


def test_a_priority_update_wakes_waiting_samples(store: Any) -> None:
    table = filled(store, sampler=di_store.Prioritized(1.0))
    keys = table.keys()
    table.update_priorities(keys, np.zeros(len(keys)))
    items(store, table, lambda: table.update_priorities(keys[:1], np.ones(1)))


def test_table_changes_wake_waiting_calls(store: Any) -> None:
    table = filled(store)
    room(store, table, lambda: table.delete(table.keys()[:2]))
    room(store, table, lambda: table.resize(200))
    for look in (items, room):
        look(store, table, lambda: table.configure(limiter=di_store.MinSize(2)))
    writer = table.writer()
    writer.append({"x": 1})
    items(store, table, writer.close)
    items(store, table, table.finish)


def test_finish_wakes_waiting_writers(store: Any) -> None:
    table = filled(store)
    room(store, table, table.finish)


def test_a_dead_process_wakes_waiting_calls(store: Any) -> None:
    """What a dead process had drawn can be drawn again, and its room is free again."""
    table = filled(store, count=4, limiter=di_store.Queue(4))
    child = mp.get_context("spawn").Process(target=draw_and_die, args=(store.name,))
    child.start()
    child.join(BOUND_SECONDS)
    assert child.exitcode == -9
    items(store, table, lambda: until(lambda: store._backend.session.arena.reap(), "the death to be settled"))
    assert len(table) == 4


def draw_and_die(name: str) -> None:
    """In a child: hold two draws, and be killed."""
    with di_store.attach(name, timeout=BOUND_SECONDS) as store:
        reader = store.table("t")._backend.handle.reader()
        draws = reader.begin()
        held = reader.draw(draws, 2)
        assert held == 2
        os.kill(os.getpid(), signal.SIGKILL)


def test_object_changes_wake_waiting_calls(store: Any) -> None:
    arena = _core.Arena.open(store.name, 2, 0, 0, BOUND_SECONDS)
    ref = store.put(np.zeros(100))
    assert_wakes(store, arena.wait_room, arena.room_seq(), lambda: store.delete(ref))
    assert_wakes(store, arena.wait_sealed, arena.sealed_seq(), lambda: store.put(1))
    assert_wakes(store, arena.wait_sealed, arena.sealed_seq(), lambda: store.publish("policy", {"w": np.zeros(3)}))
    table = filled(store)
    assert_wakes(store, arena.wait_room, arena.room_seq(), lambda: store.drop_table("t"))
    del table
