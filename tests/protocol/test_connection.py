"""Connections between threads of one process: what a long message costs, and what ends one."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from di_store.base.dtypes import Array
from di_store.protocol.connection import Connection, Disconnected
from di_store.protocol.frame import Kind


@contextmanager
def pair() -> Iterator[tuple[Connection, Connection]]:
    here, there = map(Connection, socket.socketpair())
    here.most_bytes = there.most_bytes = 1 << 30
    try:
        yield here, there
    finally:
        here.close()
        there.close()


def calls_of(act: Callable[[], Any]) -> int:
    """How many functions this thread enters meanwhile."""
    found = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return found


def test_a_long_message_takes_no_more_calls_than_a_short_one() -> None:
    """Each would be a time when the thread needs the interpreter, and holds up others or waits for them."""
    body = np.random.default_rng(1).integers(0, 256, 32 << 20, np.uint8)
    with pair() as (here, there), ThreadPoolExecutor(1) as pool:
        found: list[Array] = []
        reading = pool.submit(calls_of, lambda: found.append(there.receive().body))
        assert calls_of(lambda: here.send(Kind.ANSWER, body=[body])) < 32
        assert reading.result(60) < 32
        assert np.array_equal(found[0], body)


def test_two_threads_do_not_read_at_once() -> None:
    with pair() as (here, there), ThreadPoolExecutor(2) as pool:
        reading = {pool.submit(there.receive), pool.submit(there.receive)}
        (refused,), others = wait(reading, 60, FIRST_COMPLETED)
        with pytest.raises(ValueError, match="another thread uses this side of the connection"):
            refused.result()
        here.send(Kind.PING)
        assert [each.result(60).kind for each in others] == [Kind.PING]


def test_a_peer_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("di_store.protocol.connection.STALLED_SECONDS", 1.0)
    with pair() as (here, _), pytest.raises(Disconnected, match="has read nothing for 1 s"):
        here.send(Kind.ANSWER, body=[bytes(64 << 20)])
