"""fork with live views while the parent recycles, fork of a process in the middle of things, spawn and forkserver."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from crash import board as words
from crash.board import check_object, object_value
from crash.children import in_child, join
from crash.zygote import KILLED, Crew
from di_store import _core

GO, GONE = "aa" * 20, "bb" * 20


@pytest.fixture
def name(crew: Crew, store_name: Callable[[], str]) -> Iterator[str]:
    """A store held by this process, so that children may all go."""
    with di_store.open(store_name(), memory="64MiB") as store:
        store.create_table("t", capacity=1_000, schema=words.rows(0))
        yield store.name


def fork_with_views(name: str, turns: int, die: str) -> None:
    """Views stay true in both, whoever ends first; what was pinned comes free with the last of them."""
    store = di_store.attach(name, timeout=60)
    arena = _core.Arena.open(name, 2, 0, 0, 60.0)
    for turn in range(turns):
        refs = [store.put(object_value(9, number), timeout=60) for number in range(8)]
        views = [store.get(ref) for ref in refs]
        go = di_store.Ref.parse(f"{turn:040x}")

        def child(views: list[Any] = views, go: Any = go) -> None:
            store.get(go, timeout=60)  # the parent has deleted, dropped and overwritten by now
            for number, view in enumerate(views):
                check_object(view, 9, number)
            if die == "killed":
                os.kill(os.getpid(), signal.SIGKILL)

        pid = in_child(child)
        store.delete(refs)
        for number in range(8):
            check_object(views[number], 9, number)
        views.clear()
        for number in range(40):
            store.delete([store.put(np.full(9_000 + number, 255, np.uint8), timeout=60)])
        store.put(None, id=go.id)
        assert join(pid) == (KILLED if die == "killed" else 0)
        arena.reap()
        store.delete([go])
        assert store.stats()["pinned"] == 0
        assert store.stats()["pending"] == 0
    assert store.check() == []


@pytest.mark.parametrize("die", ["ends", "killed"])
def test_views_stay_valid_in_parent_and_child(
    crew: Crew, name: str, count: Callable[[int, int], int], die: str
) -> None:
    crew.start("crash.test_fork:fork_with_views", name, count(8, 200), die).finish(600)


def fork_and_exit_first(name: str) -> None:
    """The parent ends at once; the child's views stay."""
    store = di_store.attach(name, timeout=60)
    ref = store.put(object_value(9, 7))
    view = store.get(ref)

    def child() -> None:
        store.get(di_store.Ref.parse(GO), timeout=60)
        check_object(view, 9, 7)
        store.put("fine", id=GONE)

    in_child(child)
    store.delete([ref])


def test_a_child_keeps_its_views_after_the_parent_ends(crew: Crew, name: str) -> None:
    crew.start("crash.test_fork:fork_and_exit_first", name).finish()
    store = di_store.attach(name)
    _core.Arena.open(name, 2, 0, 0, 60.0).reap()
    for number in range(100):
        store.delete([store.put(np.full(9_000 + number, 255, np.uint8))])
    store.put(None, id=GO)
    assert store.get(di_store.Ref.parse(GONE), timeout=60) == "fine"
    store.close()


def fork_handles(name: str) -> None:
    """Handles work on in the child; an inherited writer is refused; the parent's goes on."""
    store = di_store.attach(name, timeout=60)
    table = store.table("t")
    writer = table.writer()
    writer.append(words.rows(0))
    batch = table.sample(1, timeout=60)

    def child() -> None:
        with pytest.raises(di_store.WriterClosed, match="fork"):
            writer.append(words.rows(1))
        with pytest.raises(di_store.WriterClosed):
            writer.close() or writer.append(words.rows(1))
        table.insert(words.rows(7), timeout=60)
        assert len(table.sample(4, timeout=60).keys) == 4
        assert (batch.data["obs"] == words.stamp(batch.data["n"])).all()
        with table.writer() as own:
            own.append(words.rows(2))

    assert join(in_child(child)) == 0
    writer.append(words.rows(3))
    writer.close()
    assert table.stats()["inserts"] == 4
    assert (batch.data["obs"] == words.stamp(batch.data["n"])).all()
    store.close()


def test_handles_work_in_a_child_and_writers_do_not(crew: Crew, name: str) -> None:
    crew.start("crash.test_fork:fork_handles", name).finish()
    with di_store.attach(name) as store:
        assert store.check() == []
        assert store.table("t").stats()["writers"] == 0


def fork_among_threads(name: str, turns: int) -> None:
    """Threads put, get, sample and load all the time while the main thread forks: no lock is left held in a child."""
    store = di_store.attach(name, timeout=60)
    table = store.table("t")
    table.extend(words.rows(np.arange(100)), timeout=60)
    stop = threading.Event()
    failed: list[BaseException] = []

    def work(kind: int) -> None:
        try:
            while not stop.is_set():
                if kind == 0:
                    view = store.get(store.put(object_value(9, 3), ttl=5, timeout=60))
                    check_object(view, 9, 3)
                elif kind == 1:
                    table.sample(16, timeout=60)
                else:
                    loader = table.loader(8, prefetch=2)
                    next(iter(loader))
                    loader.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(kind,)) for kind in range(3)]
    for thread in threads:
        thread.start()

    def child() -> None:
        signal.alarm(100)  # a child that hangs dies of it
        check_object(store.get(store.put(object_value(9, 5), ttl=5, timeout=60)), 9, 5)
        words.stamp(table.sample(16, timeout=60).data["n"])
        table.insert(words.rows(1), timeout=60)

    try:
        for _ in range(turns):
            assert join(in_child(child)) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed, failed
    assert table.stats()["held"] == 0
    store.close()


def test_a_fork_among_running_threads_is_safe(crew: Crew, name: str, count: Callable[[int, int], int]) -> None:
    crew.start("crash.test_fork:fork_among_threads", name, count(20, 500)).finish(600)
    with di_store.attach(name) as store:
        _core.Arena.open(name, 2, 0, 0, 60.0).reap()
        assert store.check() == []


def fork_twice(name: str, depth: int) -> None:
    """Children of children of children, each with the views of all above."""
    store = di_store.attach(name, timeout=60)
    views = []

    def descend(level: int) -> None:
        ref = store.put(object_value(9, level), timeout=60)
        views.append(store.get(ref))
        store.delete([ref])
        if level < depth:
            assert join(in_child(lambda: descend(level + 1))) == 0
        for number, view in enumerate(views):
            check_object(view, 9, number)

    descend(0)
    views.clear()
    store.close()


def test_forks_of_forks_are_safe(crew: Crew, name: str) -> None:
    crew.start("crash.test_fork:fork_twice", name, 6).finish()
    with di_store.attach(name) as store:
        assert store.check() == []
        assert store.stats()["pinned"] == 0


def fork_dies_repeating(name: str) -> None:
    """The child is killed while it repeats the parent's pins: the parent goes on, with its own pins as they were."""
    store = di_store.attach(name, timeout=60)
    refs = [store.put(object_value(9, number), timeout=60) for number in range(6)]
    views = [store.get(ref) for ref in refs]
    _core.arm_fault("fork.pin_between:3")
    assert join(in_child(lambda: None)) == KILLED
    _core.arm_fault("")
    store.delete(refs)
    for number, view in enumerate(views):
        check_object(view, 9, number)
    views.clear()
    del view
    _core.Arena.open(name, 2, 0, 0, 60.0).reap()
    assert store.check() == []
    assert store.stats()["pending"] == 0
    assert store.stats()["pinned"] == 0


def test_a_child_killed_while_copying_pins_leaves_nothing(crew: Crew, name: str) -> None:
    crew.start("crash.test_fork:fork_dies_repeating", name).finish()


def fill(store: Any, number: int) -> list[Any]:
    """Views of one object, so many that the store has no room for one more entry in a ledger."""
    views = [store.get(store.put(object_value(9, number + at))) for at in range(5)]
    ref = store.put(object_value(9, number))
    held = []
    with contextlib.suppress(di_store.StoreFull):
        while True:
            store.put(np.zeros(100_000, np.uint8), timeout=0)
    with contextlib.suppress(di_store.StoreFull):
        while True:
            held.append(store.get(ref))
    return [*views, *held]


def fork_without_room(name: str) -> None:
    """The store has no room for the child's pins: its views stay true, and it works on when there is room again."""
    store = di_store.open(f"{name}-full", memory="8MiB")
    views = fill(store, 7)
    assert len(views) > 255
    hears, says = os.pipe()

    def child() -> None:
        os.read(hears, 1)  # the parent has deleted, dropped and overwritten by now
        for at in range(5):
            check_object(views[at], 9, 7 + at)
        check_object(views[-1], 9, 7)
        ref = store.put(object_value(9, 99), timeout=10)
        check_object(store.get(ref), 9, 99)
        views.clear()
        own = [store.get(ref) for _ in range(600)]
        check_object(own[-1], 9, 99)

    pid = in_child(child)
    views.clear()
    store.delete(store.keys(n=100_000))
    for number in range(400):
        store.delete([store.put(np.full(9_000 + number, 255, np.uint8))])
    os.write(says, b"x")
    assert join(pid) == 0
    assert store.check() == []
    assert store.stats()["pinned"] == 0


@pytest.mark.memory_only
def test_a_child_without_room_keeps_its_views(crew: Crew, name: str) -> None:
    crew.start("crash.test_fork:fork_without_room", name).finish()


def fork_dies_copying(name: str) -> None:
    """The child is killed while it copies what it cannot pin: the parent goes on, with its own pins as they were."""
    store = di_store.open(f"{name}-full", memory="8MiB")
    views = fill(store, 7)
    _core.arm_fault("fork.pin_copied:3")
    assert join(in_child(lambda: None)) == KILLED
    _core.arm_fault("")
    store.delete(store.keys(n=100_000))
    for at in range(5):
        check_object(views[at], 9, 7 + at)
    views.clear()
    assert store.check() == []
    assert store.stats()["pinned"] == 0


@pytest.mark.memory_only
def test_a_child_killed_while_it_copies_leaves_nothing(crew: Crew, name: str) -> None:
    crew.start("crash.test_fork:fork_dies_copying", name).finish()


def fork_without_memory(name: str) -> None:
    """Each allocation on the way into the child fails once: its views stay true, and none of the parent's pins go."""
    store = di_store.attach(name, timeout=60)
    failed = 0
    for number in range(1, 40):
        refs = [store.put(object_value(9, at), timeout=60) for at in range(6)]
        views = [store.get(ref) for ref in refs]
        go = di_store.Ref.parse(f"{number:040x}")

        def child(views: list[Any] = views, go: Any = go) -> None:
            _core.fail_allocation(0)
            store.get(go, timeout=60)
            for at, view in enumerate(views):
                check_object(view, 9, at)

        _core.fail_allocation(number)
        pid = in_child(child)
        failed += _core.allocations() >= number
        _core.fail_allocation(0)
        store.delete(refs)
        for at, view in enumerate(views):
            check_object(view, 9, at)
        views.clear()
        del view
        for at in range(40):
            store.delete([store.put(np.full(9_000 + at, 255, np.uint8), timeout=60)])
        store.put(None, id=go.id)
        assert join(pid) == 0, number
        store.delete([go])
    assert failed > 0
    _core.Arena.open(name, 2, 0, 0, 60.0).reap()
    assert store.check() == []
    assert store.stats()["pinned"] == 0


def test_a_child_without_memory_keeps_its_views(crew: Crew, name: str) -> None:
    crew.start("crash.test_fork:fork_without_memory", name).finish()


def test_garbage_is_collected_in_a_child_before_any_hook(name: str, count: Callable[[int, int], int]) -> None:
    """Python's collector may run in a child before the store knows: nothing hangs, nothing of the parent's goes."""
    forks = count(12, 10_000)
    with di_store.attach(name) as store:
        store.create_table("queue", capacity=100, limiter=di_store.Queue(100), schema={"x": di_store.Spec((64,), "f4")})
        store.create_table("g", capacity=500, schema={"x": di_store.Spec((64,), "f4")})
        program = os.path.join(os.path.dirname(__file__), "garbage.py")
        done = subprocess.run([sys.executable, program, name, str(forks)], capture_output=True, text=True)
        assert done.stdout == f"{forks} forks\n", done.stderr
        _core.Arena.open(name, 2, 0, 0, 60.0).reap()
        assert store.check() == []
        assert store.stats()["pinned"] == 0
        assert store.table("g").stats()["writers"] == 0


# -- handles through every start method --------------------------------------------------------------------------------


def use_handles(store: Any, table: Any, ref: Any, answer: Any) -> None:
    """In a process of any start method: everything a handle can do."""
    assert store.get(ref) == "hello"
    with table.writer() as writer:
        for number in range(10):
            writer.append(words.rows(number), timeout=60)
    batch = table.sample(8, timeout=60)
    assert (batch.data["obs"] == words.stamp(batch.data["n"])).all()
    table.update_priorities(batch.keys, np.ones(8))
    answer.put((os.getpid(), str(store.put(os.getpid()))))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_handles_pass_to_processes(store_name: Callable[[], str], method: str) -> None:
    context = mp.get_context(method)
    with di_store.open(store_name(), memory="64MiB") as store:
        table = store.create_table("t", capacity=100, sampler=di_store.Prioritized(alpha=1.0), schema=words.rows(0))
        ref, answers = store.put("hello"), context.Queue()
        processes = [context.Process(target=use_handles, args=(store, table, ref, answers)) for _ in range(2)]
        for process in processes:
            process.start()
        found = [answers.get(timeout=120) for _ in processes]
        for process in processes:
            process.join(120)
            assert process.exitcode == 0
        for pid, text in found:
            assert store.get(di_store.Ref.parse(text)) == pid
        assert table.stats()["inserts"] == 20
        assert table.stats()["writers"] == 0
        assert store.check() == []
