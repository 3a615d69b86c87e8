"""Calls of several nodes at once."""

from __future__ import annotations

import threading

import pytest

from di_store.base.errors import Timeout
from di_store.cluster.at_once import at_once


def test_results_come_as_calls_end() -> None:
    second = threading.Event()
    found = at_once([lambda: second.wait(60), lambda: "first"])
    assert next(found) == "first"
    second.set()
    assert list(found) == [True]


def test_what_is_late_is_not_waited_for() -> None:
    ended = threading.Event()
    assert list(at_once([lambda: ended.wait(60), lambda: 1], 1.0)) == [1]
    ended.set()


def test_an_error_comes_when_all_have_ended() -> None:
    """Also one that is a `TimeoutError`, as the end of the time is."""
    other, done = threading.Event(), list[int]()

    def fail() -> None:
        threading.Timer(0.1, other.set).start()
        raise Timeout("late", "a reason", None)

    def last() -> None:
        other.wait(60)
        done.append(1)

    with pytest.raises(Timeout, match="late"):
        list(at_once([fail, last]))
    assert done == [1]


def test_no_calls_have_no_results() -> None:
    assert list(at_once([])) == []
