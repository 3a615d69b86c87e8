"""What befalls a call while it runs.

Signals whose handlers call the store or raise, allocations that fail, limits of memory and descriptors, forks.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

import di_store
from di_store import _core
from soak.fuzz.verdict import Finding, Interrupted, judge
from soak.fuzz.world import World

HAZARDS = ("odd", "signals", "threads", "allocations", "memory", "descriptors", "forks")
"""One for each round. "odd": nothing but odd arguments."""
PATIENCE_SECONDS = 0.15
"""After which a call that may wait for ever is interrupted."""
LATEST_SECONDS = 0.003
"""After which a handler runs, at most; and as early as the next bytecode."""
SPARE = (0, 4 << 10, 100 << 10, 4 << 20)
"""Bytes that a process may still take, for one call."""


class Alarm:
    """The handler of SIGALRM: raises, or calls the store, but only inside a call under test.

    Args:
        report: takes what went wrong in a handler.
    """

    def __init__(self, world: World, report: Callable[[Finding], None]) -> None:
        self._world, self._report = world, report
        self._inside = False
        self._plan = ""
        self._act: Callable[[], None] = self._interrupt
        signal.signal(signal.SIGALRM, self._handle)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """A call that may wait for ever is interrupted, again and again until it ends."""
        with self._armed(self._interrupt, PATIENCE_SECONDS, 0.5):
            yield

    @contextmanager
    def striking(self, rng: random.Random, plan: str) -> Iterator[None]:
        """At some moment of the call a handler calls the store, raises, or forks."""
        self._plan = plan
        act = rng.choice((self._enter, self._enter, self._enter, self._interrupt, self._keyboard, self._fork))
        with self._armed(act, rng.choice((1e-6, 3e-5, 2e-4, LATEST_SECONDS)) * (0.1 + rng.random()), 0.0):
            yield

    @contextmanager
    def _armed(self, act: Callable[[], None], seconds: float, again: float) -> Iterator[None]:
        self._act, self._inside = act, True
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, again)
            yield
        finally:
            self._inside = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, *_: Any) -> None:
        if self._inside:
            self._act()

    def _interrupt(self) -> None:
        raise Interrupted("a handler raises")

    def _keyboard(self) -> None:
        raise KeyboardInterrupt

    def _enter(self) -> None:
        try:
            self._world.enter()
        except Exception as error:
            if found := judge(f"inside {self._plan}", error):
                self._report(found)

    def _fork(self) -> None:
        fork(lambda: self._world.store.get(self._world.refs[0], timeout=0))


def fork(work: Callable[[], Any]) -> None:
    """A child that works with all it has inherited and is gone.

    Raises:
        AssertionError: it did not end well.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            work()
            code = 0
        except (di_store.StoreError, Interrupted, KeyboardInterrupt):
            code = 0
        finally:
            os._exit(code)
    while True:
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            break
        except (Interrupted, KeyboardInterrupt):
            continue  # it must not stay behind
    assert status == 0, f"a forked child ended with {status}"


@contextmanager
def failing_allocation(rng: random.Random) -> Iterator[None]:
    """One allocation of the core fails."""
    _core.fail_allocation(int(1.06 ** rng.randrange(90)))
    try:
        yield
    finally:
        _core.fail_allocation(0)


def warm_up() -> None:
    """What others load or take at first use: without descriptors or memory they fail in ways that are not ours.

    The stack that Python's deepest recursion takes, and torch's modules for nested tensors.
    """
    torch.nested.nested_tensor_from_jagged(torch.arange(3), torch.tensor([0, 1, 3]))
    deep: object = []
    for _ in range(sys.getrecursionlimit()):
        deep = [deep]
    with suppress(RecursionError):
        repr(deep)


@contextmanager
def little_memory(rng: random.Random) -> Iterator[None]:
    """The address space may hardly grow."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    with _limit(resource.RLIMIT_AS, size + rng.choice(SPARE)):
        yield


@contextmanager
def no_descriptors(rng: random.Random) -> Iterator[None]:
    """No more than a few descriptors can be opened."""
    lowest = os.dup(0)
    os.close(lowest)
    with _limit(resource.RLIMIT_NOFILE, lowest + rng.choice((0, 0, 1, 2, 3))):
        yield


@contextmanager
def _limit(what: int, value: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))
