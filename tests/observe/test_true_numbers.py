"""The numbers are true: they add up, on a full store too, and every waiter is listed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pains import MIB, Program, until

import di_store

HOLD = """
import sys, di_store
store = di_store.attach(sys.argv[1], timeout=60)
views = [store.get(di_store.Ref.parse(f"{n:040x}")) for n in range(int(sys.argv[2]))]
print("held", flush=True)
sys.stdin.readline()
"""

WAIT = """
import sys, di_store
store = di_store.attach(sys.argv[1], timeout=60)
table = store.table("waited")
print("ready", flush=True)
try:
    if sys.argv[2] == "insert":
        with table.writer() as writer:
            while True:
                writer.append({"x": 1}, timeout=600)
    elif sys.argv[2] == "sample":
        store.table("empty").sample(1, timeout=600)
    elif sys.argv[2] == "get":
        store.get(di_store.Ref.parse("ff" * 20), timeout=600)
    elif sys.argv[2] == "put":
        import numpy as np
        while True:
            store.put(np.zeros(1 << 20, np.uint8), timeout=600)
    else:
        store.latest("nobody-publishes", timeout=600)
except di_store.StoreClosed:
    pass
"""


@pytest.fixture(scope="module")
def full_store(count: Callable[[int, int], int]) -> Iterator[tuple[Any, int]]:
    """A store with very many objects and a table, filled to the brim; and how many objects."""
    number = count(50_000, 1_000_000)
    memory = number * 512 + 96 * MIB
    with di_store.open(memory=memory) as store:
        table = store.create_table(
            "t", capacity=5_000, schema={"x": di_store.Spec((64,), "f4")}, sampler=di_store.Prioritized(alpha=1.0)
        )
        table.extend({"x": np.ones((4_000, 64), np.float32)}, timeout=60)
        for at in range(number):
            store.put(np.full(16, at), id=f"{at:040x}", timeout=60)
        while True:
            try:
                store.put(np.zeros(2 * MIB, np.uint8), timeout=0)
            except di_store.StoreFull:
                break
        yield store, number


def test_memory_parts_add_up_to_the_total(full_store: tuple[Any, int]) -> None:
    store, number = full_store
    stats = store.stats()
    assert stats["objects"] >= number
    parts = sum(stats[name] for name in ("live", "pinned", "pending", "free"))
    assert abs(parts - stats["budget"]) <= 0.01 * stats["budget"], stats
    # What is committed is what the kernel has given, to the page.
    assert abs(stats["present"] - stats["committed"]) <= 0.01 * stats["committed"]
    assert stats["committed"] <= stats["budget"]


def test_stats_answer_on_a_full_store(full_store: tuple[Any, int]) -> None:
    """The best of several: a busy machine may hold up one of them."""
    store, _ = full_store
    spans = []
    for _ in range(10):
        began = time.monotonic()
        store.stats()
        spans.append(time.monotonic() - began)
    assert min(spans) < 0.2


@pytest.mark.memory_only
def test_pinned_bytes_are_reported_by_owner(full_store: tuple[Any, int]) -> None:
    """What each client pins adds up to what is pinned; it comes free with the client."""
    store, _ = full_store
    before = store.stats()["pinned"]
    with Program(HOLD, store.name, 300) as first, Program(HOLD, store.name, 200) as second:
        assert [first.line(), second.line()] == ["held", "held"]
        stats = store.stats()
        by_pid = {client["pid"]: client["pinned"] for client in stats["clients"]}
        assert by_pid[first.pid] > by_pid[second.pid] > 0
        # 200 objects are pinned by both, and pinned once.
        assert stats["pinned"] - before == by_pid[first.pid]
    until(lambda: len(store.stats()["clients"]) == 1 or not store.check(), "the holders to be gone")
    assert store.stats()["pinned"] == before
    sizes = {name: entry["used_bytes"] for name, entry in store.stats()["tables"].items()}
    assert set(sizes) == {"t"}
    assert sizes["t"] >= 4_000 * 64 * 4


def test_live_table_can_be_paged(full_store: tuple[Any, int]) -> None:
    """Items and priorities, read-only, without counting as samples."""
    store, _ = full_store
    table = store.table("t")
    keys = table.keys()
    table.update_priorities(keys, np.arange(1.0, len(keys) + 1))
    samples, found, at = table.stats()["samples"], [], 0
    reader = di_store.open(store.name, mode="r").table("t")
    while len(some := reader.keys(start=at, n=999)):
        batch = reader.peek(some)
        assert np.asarray(batch.live).all()
        assert (batch.priorities == np.arange(at + 1.0, at + len(some) + 1)).all()
        found += some.tolist()
        at += len(some)
    assert found == keys.tolist()
    assert table.stats()["samples"] == samples
    assert (table.peek(keys).times_sampled == 0).all()


def waiters(store: Any) -> dict[int, dict[str, Any]]:
    """What each client waits for."""
    return {client["pid"]: client["waiting"] for client in store.stats()["clients"] if client["waiting"]}


def test_every_waiter_is_listed(store_name: Callable[[], str]) -> None:
    """With reason, age and table; gone from the list when it is gone."""
    with di_store.open(store_name(), memory="64MiB") as store:
        store.create_table("waited", capacity=10, limiter=di_store.Queue(3))
        store.create_table("empty", capacity=10, schema={"x": di_store.Spec((), "i8")})
        kinds = ["insert", "sample", "get", "put", "latest"]
        programs = {kind: Program(WAIT, store.name, kind) for kind in kinds}
        try:
            for program in programs.values():
                assert program.line() == "ready"

            def all_there() -> bool:
                return {program.pid for program in programs.values()} <= set(waiters(store))

            until(all_there, "all to be listed as waiting")
            pid = {kind: program.pid for kind, program in programs.items()}
            tables = {
                kind: {wait["table"] for wait in [waiters(store).get(pid[kind])] if wait}
                for kind in ("insert", "sample")
            }
            assert tables["insert"] <= {"waited"}
            assert tables["sample"] <= {"empty"}
            found = waiters(store)
            assert all(wait["kind"] and wait["since_seconds"] >= 0 for wait in found.values())
            assert {found[pid["insert"]]["kind"], found[pid["sample"]]["kind"]} <= {"limiter", "items", "room"}
        finally:
            for program in programs.values():
                program.__exit__(None, None, None)
        store.check()
        assert waiters(store) == {}
        assert [client["pid"] for client in store.stats()["clients"]] == [os.getpid()]
