"""Calls that look through all processes of the machine let other threads of this process go on."""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

import di_store

NEVER = 1_000.0
"""Seconds after which Python itself takes the interpreter from a thread: a call that keeps it keeps it for good."""


@pytest.fixture
def unforced() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(NEVER)
    yield
    sys.setswitchinterval(before)


def not_there(name: str) -> None:
    with contextlib.suppress(di_store.StoreNotFound):
        di_store.attach(name)


CALLS: dict[str, Callable[[str], object]] = {
    "attach and close": lambda name: di_store.attach(name).close(),
    "open and close": lambda name: di_store.open(memory="8MiB").close(),
    "attach to none": lambda name: not_there(f"no-{name}"),
    "list_stores": lambda name: di_store.list_stores(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_busy_loop_of_a_call_starves_no_thread(call: str, unforced: None) -> None:
    """The other thread runs before the loop has come to its hundredth turn."""
    runs = threading.Event()
    with di_store.open(memory="64MiB") as store:
        _thread.start_new_thread(runs.set, ())  # Thread.start would wait until it runs
        turns = 0
        while turns < 100 and not runs.is_set():
            CALLS[call](store.name)
            turns += 1
        assert runs.wait(60)
    assert turns < 100
