"""A process attaches to the store of its node: other threads wait for that by their own timeout."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pains import until

from di_store.base.errors import NodeUnavailable
from di_store.cluster.own_stores import OwnStores


class Opened:
    """A store that says whether it is closed."""

    closed = False

    def is_closed(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Slow(threading.Thread):
    """A thread that attaches until it is told to end."""

    def __init__(self, own: OwnStores[str], key: str) -> None:
        super().__init__()
        self.own, self.key = own, key
        self.began, self.may_end = threading.Event(), threading.Event()
        self.store, self.found, self.error = Opened(), list[Any](), list[NodeUnavailable]()
        self.start()
        assert self.began.wait(60)

    def run(self) -> None:
        def attach(_: float | None) -> Any:
            self.began.set()
            self.may_end.wait(60)
            return self.store

        try:
            self.found.append(self.own.get(self.key, None, attach))
        except NodeUnavailable as error:
            self.error.append(error)

    def end(self) -> None:
        self.may_end.set()
        self.join(60)
        assert not self.is_alive()


def test_a_call_without_time_does_not_wait_for_another_thread() -> None:
    own = OwnStores[str]()
    slow = Slow(own, "one")

    def never(_: float | None) -> Any:
        pytest.fail("two threads attach")

    with pytest.raises(NodeUnavailable, match="another thread of this process"):
        own.get("one", 0, never)
    other: Any = Opened()
    assert own.get("two", 0, lambda _: other) is other, "of another cluster"
    found = list[Any]()
    waits = threading.Thread(target=lambda: found.append(own.get("one", None, never)))
    waits.start()
    slow.end()
    waits.join(60)
    assert found == slow.found == [slow.store]


def test_down_does_not_wait_for_an_attaching_thread() -> None:
    own = OwnStores[str]()
    slow, other = Slow(own, "one"), Opened()
    own.get("two", 0, lambda _: other)  # type: ignore[arg-type, return-value]
    own.clear()
    assert other.closed
    slow.end()
    until(lambda: slow.store.closed, "the store to be closed")
    assert slow.error
    again: Any = Opened()
    assert own.get("one", 0, lambda _: again) is again


def test_an_attempt_that_fails_leaves_nothing() -> None:
    own = OwnStores[str]()

    def fail(_: float | None) -> Any:
        raise NodeUnavailable("not served")

    for _ in range(2):
        with pytest.raises(NodeUnavailable, match="not served"):
            own.get("one", 0, fail)
    closed, opened = Opened(), Opened()
    closed.close()
    own.get("one", 0, lambda _: closed)  # type: ignore[arg-type, return-value]
    assert own.get("one", 0, lambda _: opened) is opened  # type: ignore[arg-type, return-value, comparison-overlap]
