"""Figures that add up, and who waits for what."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def test_bytes_add_up_to_the_arena(store: Any) -> None:
    refs = [store.put(np.zeros(3 << 20, np.uint8)) for _ in range(4)]
    views = [store.get(ref) for ref in refs[:2]]
    store.delete(refs[0])
    store.create_table("t", capacity=1000).extend({"x": np.zeros((1000, 100), np.float32)})
    stats = store.stats()
    assert stats["live"] + stats["pinned"] + stats["pending"] + stats["free"] == stats["memory"] == 64 << 20
    assert stats["pending"] >= 3 << 20
    assert stats["pinned"] >= 3 << 20
    assert stats["live"] >= 6 << 20
    assert len(views[0]) == 3 << 20
    del views
    later = store.stats()
    store.put(1)
    assert store.stats()["pending"] == 0
    assert later["free"] <= store.stats()["free"] + (1 << 20)


def test_a_table_tells_what_it_holds(store: Any) -> None:
    view = di_store.Transition(n_step=3, frame_stack={"obs": 4})
    table = store.create_table("t", capacity=500, view=view)
    frame = np.zeros((40, 40), np.uint8)
    with table.writer() as writer:
        for _ in range(500):
            writer.append({"obs": frame, "reward": 0.0, "terminated": False}, next={"obs": frame})
        stats = table.stats()
        assert stats["writers"] == 1
    table.sample(7)
    stats = store.stats()["tables"]["t"]
    assert (stats["size"], stats["inserts"], stats["samples"], stats["capacity"]) == (500, 500, 7, 500)
    assert stats["writers"] == 0
    assert stats["bytes_logical"] > 6 * stats["bytes_stored"], "each frame is stored once and given out eight times"
    assert stats["limiter"]["state"] == "flowing"


def test_limiters_say_why_they_wait(store: Any) -> None:
    table = store.create_table("t", capacity=10, limiter=di_store.Queue(2))
    table.insert({"n": 1})
    assert table.stats()["limiter"]["state"] == "flowing"
    table.insert({"n": 1})
    limiter = table.stats()["limiter"]
    assert limiter["state"] == "inserts wait"
    assert "Queue" in limiter["reason"]
    table.sample(2)
    limiter = table.stats()["limiter"]
    assert limiter["state"] == "samples wait"
    assert "empty" in limiter["reason"]


def test_waiters_are_listed_with_reason_and_age(store: Any) -> None:
    table = store.create_table("t", capacity=10, limiter=di_store.MinSize(3))
    table.insert({"n": 1})
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            table.sample(1, timeout=60)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not (waiters := store.stats()["waiters"]):
        pass
    (waiter,) = waiters
    assert (waiter["table"], waiter["kind"]) == ("t", "items")
    assert "min_size=3" in waiter["reason"]
    assert 0 <= waiter["seconds"] < 60
    assert waiter["pid"] == store.stats()["clients"][0]["pid"]
    table.extend({"n": np.arange(3)})
    thread.join(60)
    assert not failed
    while store.stats()["waiters"]:  # a wait that ended is listed for a moment, since most go on at once
        pass


def test_roles(store: Any) -> None:
    table = store.create_table("t", capacity=10)
    with table.writer() as writer:
        writer.append({"n": 1})
    table.sample(1)
    (client,) = store.stats()["clients"]
    assert client["roles"] == ["writer", "learner"]
    assert client["alive"]
