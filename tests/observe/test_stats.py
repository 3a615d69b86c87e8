"""Figures that add up, and who waits for what."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from pains import until

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
    later = store.stats()  # it settles what this process has dropped
    assert later["pending"] == later["pinned"] == 0
    assert later["free"] >= stats["free"] + (3 << 20)


def test_table_stats_count_its_contents(store: Any) -> None:
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


@pytest.mark.parametrize("options", [{}, {"columns": ["n"]}, {"min_n": 1}, {"lease": 60}], ids=str)
def test_clients_report_their_roles(store: Any, options: dict[str, Any]) -> None:
    table = store.create_table("t", capacity=10)
    with table.writer() as writer:
        writer.append({"n": 1})
    table.sample(1, **options)
    (client,) = store.stats()["clients"]
    assert [role for role in client["roles"] if role != "agent"] == ["writer", "learner"]  # an agent, of a far store
    assert client["alive"]


@pytest.mark.memory_only
def test_every_waiting_thread_is_listed(store: Any) -> None:
    """Threads of one process too, each with what it waits for, why, and since when."""
    full = store.create_table("full", capacity=10, limiter=di_store.Queue(1))
    full.insert({"x": 1.0})
    empty = store.create_table("empty", capacity=10)

    def quiet(call: Callable[[], Any]) -> None:
        with suppress(di_store.StoreError):
            call()

    calls: dict[str, Callable[[], Any]] = {
        "items": lambda: empty.sample(1, timeout=600),
        "limiter": lambda: full.insert({"x": 1.0}, timeout=600),
        "object": lambda: store.get("ab" * 20, timeout=600),
        "weights": lambda: store.latest("policy", timeout=600),
        "table": lambda: store.table("none", timeout=600),
        "room": lambda: store.put(np.zeros(60 << 20, np.uint8), timeout=600),
    }
    every = [*calls.values(), calls["items"]]
    threads = [threading.Thread(target=quiet, args=(call,), daemon=True) for call in every]
    store.put(np.zeros(10 << 20, np.uint8))
    for thread in threads:
        thread.start()
    found: list[Any] = []

    def all_old() -> bool:
        found[:] = store.stats()["waiters"]
        return len(found) == len(threads) and all(waiter["seconds"] > 0.3 for waiter in found)

    until(all_old, "every thread to be listed")
    store.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a wait goes on though its handle was closed"
    assert sorted(waiter["kind"] for waiter in found) == sorted([*calls, "items"])
    assert len({waiter["thread"] for waiter in found}) == len(threads)
    reasons = {waiter["kind"]: waiter["reason"] for waiter in found}
    assert "min_size=1" in reasons["items"]
    assert "size=1" in reasons["limiter"]
    assert reasons["table"] == "a table that is not there yet"


def test_sample_age_is_a_running_mean(store: Any) -> None:
    """A mean over about the last 10,000 draws, in items inserted since."""
    table = store.create_table("t", capacity=10_000, sampler=di_store.Fifo())
    assert table.stats()["sample_age"] is None
    table.extend({"x": np.arange(100)})
    for n in (1, 16, 1_000):
        table.sample(n)
        assert table.stats()["sample_age"] == 99
    table.peek(table.keys()[-10:])
    assert table.stats()["sample_age"] == 99  # what is looked at is not drawn
    table.extend({"x": np.arange(100)})
    table.sample(2_000)
    assert 99 < table.stats()["sample_age"] < 120
    for _ in range(20):
        table.sample(5_000)
    assert 198 < table.stats()["sample_age"] <= 199
    table.reset()
    assert table.stats()["sample_age"] is None


def test_sample_age_is_right_for_groups_and_uniform_draws(store: Any) -> None:
    groups = store.create_table("g", capacity=100, view=di_store.Group(4, by="of"), sampler=di_store.Fifo())
    groups.extend({"of": np.repeat(np.arange(10), 4)})
    groups.sample(3)
    assert groups.stats()["sample_age"] == 9
    table = store.create_table("u", capacity=1_000)
    table.extend({"x": np.arange(1_000)})
    for _ in range(200):
        table.sample(256)
    assert 450 < table.stats()["sample_age"] < 550


def test_stats_report_the_priority_mass(store: Any) -> None:
    """Of a table with priorities the sum of p^alpha, and the least one where the sampler keeps it."""
    priorities = np.array([0.0, 0.5, 2.0, 4.0])
    expected = {"batch": None, "table": 0.5**0.7}
    for normalize, least in expected.items():
        sampler = di_store.Prioritized(0.7, normalize=normalize)  # type: ignore[arg-type]
        table = store.create_table(normalize, capacity=9, sampler=sampler)
        table.extend({"x": np.zeros(4)}, priority=priorities)
        stats = table.stats()
        assert stats["mass"] == pytest.approx((priorities[1:] ** 0.7).sum())
        assert stats["least_mass"] == (None if least is None else pytest.approx(least))
        table.reset()
        assert (table.stats()["mass"], table.stats()["least_mass"]) == (0.0, None)
    uniform = store.create_table("uniform", capacity=9)
    assert (uniform.stats()["mass"], uniform.stats()["least_mass"]) == (0.0, None)
    uniform.extend({"x": np.zeros(4)})
    assert (uniform.stats()["mass"], uniform.stats()["least_mass"]) == (4.0, 1.0)
