"""A fork while another thread is at any line of a call: no lock of Python is inherited taken, so no child hangs."""

from __future__ import annotations

import functools
import gc
import linecache
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import di_store
from crash import board as words
from crash.children import in_child, join
from crash.zygote import Crew

PACKAGE = str(Path(di_store.__file__).parent)
CHILD_SECONDS = 60
"""A child that hangs dies of SIGALRM after this: a hundred times what it needs."""


class Stepper:
    """A thread that stops at lines that it meets for the first time, until it is told to go on.

    Args:
        work: what it does, once.
        every: of so many new lines it stops at one; at the first line inside a ``with``, where locks are held, always.
    """

    def __init__(self, work: Callable[[], None], every: int) -> None:
        self.line = ""  # where it stands
        self.failed = ""
        self.ended = False
        self._work, self._every = work, every
        self._seen: set[tuple[str, int]] = set()
        self._stands, self._goes = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> bool:
        """Wait until it stands at a new line; False: it has ended."""
        self._stands.acquire()
        return not self.ended

    def go_on(self) -> None:
        self._goes.release()

    def _run(self) -> None:
        sys.settrace(self._enter)
        try:
            self._work()
        except BaseException:
            self.failed = traceback.format_exc()
        finally:
            sys.settrace(None)
        self.ended = True
        self._stands.release()

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        return self._at if file.startswith(PACKAGE) or file == functools.__file__ else None

    def _at(self, frame: FrameType, event: str, _: Any) -> Any:
        place = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and place not in self._seen:
            self._seen.add(place)
            if len(self._seen) % self._every == 0 or _opens_with(*place):
                self.line = f"{Path(place[0]).name}:{place[1]}, in {frame.f_code.co_name}"
                self._stands.release()
                self._goes.acquire()
        return self._at


def _opens_with(file: str, line: int) -> bool:
    return linecache.getline(file, line - 1).lstrip().startswith("with ")


class Scene:
    """Handles that a thread and a forked child share: what the thread has made so far."""

    def __init__(self, name: str) -> None:
        self.store = di_store.attach(name, timeout=60)
        self.tables: list[Any] = []
        self.mixtures: list[Any] = []

    def work(self) -> None:
        """Every kind of call, first and later ones; what it makes is shared at once."""
        self.store.stats()
        self.tables.append(self.store.table("t"))
        self.mixtures.append(self.store.mix({"t": 1, "two": 1}))
        for _ in range(2):
            self.use()

    def use(self) -> None:
        """What the child does: it must come through."""
        self.store.stats()
        self.store.get(self.store.put({"a": words.stamp(3), "b": [1]}, ttl=5, timeout=60))
        self.store.publish("w", [1], timeout=60)
        self.store.latest("w")
        for table in [*self.tables, self.store.table("t", timeout=60)]:
            table.insert(words.rows(5), timeout=60)
            batch = table.sample(4, timeout=60)
            table.update_priorities(batch.keys, np.ones(4), timeout=60)
            table.stats()
            with table.writer() as writer:
                writer.append(words.rows(1), timeout=60)
        for mixture in self.mixtures:
            mixture.sample(8, timeout=60)


def fork_at_lines(name: str, every: int, least: int) -> None:
    """Forks one child for each line at which the thread stands."""
    scene = Scene(name)
    stepper = Stepper(scene.work, every)
    forks = 0
    while stepper.step():
        code = join(in_child(scene.use, CHILD_SECONDS))
        assert code == 0, f"the child ended with {code}: forked while a thread was at {stepper.line}"
        forks += 1
        stepper.go_on()
    assert not stepper.failed, stepper.failed
    assert forks >= least, forks
    scene.store.close()


def make(name: str, store: Any) -> None:
    """The tables of a scene."""
    sampler = di_store.Prioritized(alpha=1.0)
    for table in ("t", "two"):
        made = store.create_table(table, capacity=1_000, sampler=sampler, schema=words.rows(0))
        made.extend(words.rows(np.arange(10)), timeout=60)


def test_a_fork_during_another_threads_call_is_safe(
    crew: Crew, store_name: Callable[[], str], count: Callable[[int, int], int]
) -> None:
    with di_store.open(store_name(), memory="64MiB") as store:
        make(store.name, store)
        crew.start("crash.test_fork_lines:fork_at_lines", store.name, count(19, 1), count(30, 300)).finish(600)
        assert store.check() == []


def fork_with_generators_locked(name: str) -> None:
    """A thread is inside every random generator of numpy's that the process has; the child draws from a mixture."""
    scene = Scene(name)
    scene.work()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            generators = [each for each in gc.get_objects() if isinstance(each, np.random.Generator)]
            for lock in {id(each.bit_generator): each.bit_generator.lock for each in generators}.values():
                stack.enter_context(lock)
            assert generators
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(CHILD_SECONDS)
        assert join(in_child(scene.use, CHILD_SECONDS)) == 0
    finally:
        done.set()
        thread.join()
    scene.store.close()


def test_a_fork_during_random_number_generation_is_safe(crew: Crew, store_name: Callable[[], str]) -> None:
    with di_store.open(store_name(), memory="64MiB") as store:
        make(store.name, store)
        crew.start("crash.test_fork_lines:fork_with_generators_locked", store.name).finish()
