"""What `stats()` shows of calls that wait while a process is stopped, held against a clock of the test's own."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crash import board as words
from crash.field import Field
from crash.test_deadlines import BOUND, STORED, field, held_up

__all__ = ["field"]

LATE = 5.0
"""Seconds after its begin in which a call must have begun to wait: ten times what it needs."""
LASTS = 0.8
"""A wait is looked at when it has lasted so long: more than all first tries of a call together."""


class Call(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.began = 0.0
        self.error: BaseException | None = None
        self._call = call
        self.start()

    def run(self) -> None:
        self.began = time.monotonic()
        try:
            self._call()
        except BaseException as error:
            self.error = error


class Looks:
    """Looks at `stats()`: what was shown of each thread, and from when the wait shown was.

    Attributes:
        shown: by thread, the pairs of kind and culprit.
        twice: what was shown when a thread had two records at once.
    """

    def __init__(self, store: Any) -> None:
        self.shown: dict[int, set[tuple[str, int | None]]] = {}
        self.times: dict[int, int] = {}
        self.twice: list[list[dict[str, Any]]] = []
        self._store = store
        self._since: dict[int, tuple[float, float]] = {}

    def look(self) -> None:
        before = time.monotonic()
        waiters = self._store.stats()["waiters"]
        after = time.monotonic()
        for thread in {waiter["thread"] for waiter in waiters}:
            of_it = [waiter for waiter in waiters if waiter["thread"] == thread]
            if len(of_it) > 1:
                self.twice.append(of_it)
            if (seconds := of_it[0]["seconds"]) < LASTS:
                continue
            self.times[thread] = self.times.get(thread, 0) + 1
            self.shown.setdefault(thread, set()).add((of_it[0]["kind"], of_it[0]["culprit"]))
            first, last = self._since.get(thread, (0.0, after))
            self._since[thread] = max(first, before - seconds), min(last, after - seconds)

    def began(self, thread: int) -> float:
        """When the wait began that all looks have shown: one moment."""
        first, last = self._since[thread]
        assert first <= last + 0.001, "the wait shown began anew meanwhile"
        return last


CALLS: dict[str, dict[str, Callable[[Field], Any]]] = {
    "replay": {
        "sample": lambda f: f.store.table("replay").sample(4),
        "sample of many": lambda f: f.store.table("replay").sample(700),
        "sample of a mixture": lambda f: f.store.mix({"replay": 1}).sample(64),
        "update_priorities": lambda f: f.store.table("replay").update_priorities(
            np.arange(4), np.ones(4), timeout=None
        ),
        "writer": lambda f: f.store.table("replay").writer(),
    },
    "heap": {
        "put": lambda f: f.store.put(np.zeros(9), timeout=None),
        "put_many": lambda f: f.store.put_many([1, 2], timeout=None),
        "publish": lambda f: f.store.publish("policy", 1, timeout=None),
        "latest": lambda f: f.store.latest("policy", timeout=None),
        "get": lambda f: f.store.get(STORED, timeout=None),
        "wait": lambda f: f.store.wait([STORED], timeout=None),
        "sample of many": lambda f: f.store.table("replay").sample(700),
    },
    "queue": {
        "insert": lambda f: f.store.table("queue").insert(words.rows(1)),
        "sample": lambda f: f.store.table("queue").sample(1),
    },
}
"""By lock, calls that cannot do without it."""


@pytest.mark.memory_only
@pytest.mark.parametrize("lock", CALLS)
def test_a_call_that_waits_for_a_lock_is_shown_once_with_its_reason_and_age(field: Field, lock: str) -> None:
    hand = held_up(field, lock)
    calls = {name: Call(lambda call=call: call(field)) for name, call in CALLS[lock].items()}
    looks = Looks(field.store)
    enough = lambda: looks.look() or all(looks.times.get(call.native_id or 0, 0) > 100 for call in calls.values())  # noqa: E731
    field.crew.until(enough, f"calls to be seen waiting: {sorted(calls)}")
    assert not looks.twice
    for name, call in calls.items():
        thread = call.native_id or 0
        assert looks.shown[thread] == {("lock", hand.pid)}, name
        assert call.began <= looks.began(thread) <= call.began + LATE, name
    field.board.put(0, words.STOP, 1)  # first: it would fill the queue again before `insert` can
    hand.signal(signal.SIGCONT)
    hand.finish()
    for name, call in calls.items():
        call.join(BOUND)
        assert not call.is_alive(), name
        assert call.error is None, (name, call.error)


def test_a_lock_in_the_middle_of_a_wait_is_its_reason_for_as_long_as_it_lasts(field: Field) -> None:
    """The call waits for items, then for a lock, then for items: one wait, as old as the call."""
    queue = field.store.table("queue")
    call = Call(lambda: queue.sample(700))
    looks = Looks(field.store)
    until = field.crew.until

    def last() -> set[tuple[str, int | None]]:
        looks.shown.clear()
        looks.look()
        return looks.shown.get(call.native_id or 0, set())

    until(lambda: last() == {("items", None)}, "the sample to be seen waiting for items")
    hand = held_up(field, "queue")
    until(lambda: last() == {("lock", hand.pid)}, "the sample to be seen waiting for the lock")
    for _ in range(300):
        assert last() == {("lock", hand.pid)}
    field.board.put(0, words.STOP, 1)
    hand.signal(signal.SIGCONT)
    hand.finish()
    until(lambda: last() == {("items", None)}, "the sample to be seen waiting for items again")
    assert call.began <= looks.began(call.native_id or 0) <= call.began + LATE
    assert not looks.twice
    queue.finish()
    call.join(BOUND)
    assert call.error is None, call.error
