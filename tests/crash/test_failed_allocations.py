"""An allocation that fails, anywhere in any call: `MemoryError`, and nothing miscounted, lost or left behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import _core


def test_the_nth_allocation_of_the_thread_fails(store_name: Callable[[], str]) -> None:
    """What `fail_allocation` promises: once, the n-th, on the calling thread only."""
    with di_store.open(store_name(), memory="16MiB") as store:
        store.stats()
        _core.fail_allocation(0)
        store.stats()
        made = _core.allocations()
        assert made > 1
        for number in range(1, made + 1):
            _core.fail_allocation(number)
            with pytest.raises(MemoryError):
                store.stats()
            assert _core.allocations() >= number
            store.stats()  # only once
        _core.fail_allocation(1)
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(store.stats()))
        thread.start()
        thread.join()
        _core.fail_allocation(0)
        assert answers


WRITES = ("append", "next", "extend", "insert", "table_extend")
"""Calls whose items are all there after success, and none of them after an error."""
CALLS = (*WRITES, "end_episode", "sample", "take", "queue", "update", "delete", "peek", "reset")
CALLS += ("writer", "writers", "create", "put", "put_many", "get", "get_many", "remove", "publish", "latest")
CALLS += ("stats", "keys")
LONG = "a name too long to lie in a std::string itself"


def steps(*lead: int) -> dict[str, Any]:
    """Columns of steps with these leading axes."""
    flags = {name: np.zeros(lead, bool) for name in ("terminated", "truncated")}
    return {"obs": np.zeros((*lead, 40), "f4"), "reward": np.zeros(lead, "f4"), **flags}


def make_calls(store: di_store.Store) -> dict[str, Callable[[], Any]]:
    """Public calls that may be repeated for ever, each over chunks that several items share."""
    schema = {name: di_store.Spec(column.shape, column.dtype) for name, column in steps().items()}
    view = di_store.Transition(n_step=2)
    table = store.create_table("t", capacity=150, view=view, sampler=di_store.Prioritized(alpha=0.6), schema=schema)
    rows = store.create_table("rows", capacity=50, schema={"x": di_store.Spec((3_000,), "f4")})
    queue = store.create_table(
        "queue", capacity=5_000, limiter=di_store.Queue(5_000), schema={"x": di_store.Spec((8,), "f4")}
    )
    both = [store.create_table(name, capacity=100, view=view, schema=schema) for name in ("left", "right")]
    writer = table.writer()

    def pass_through() -> None:
        queue.extend({"x": np.zeros((5, 8), "f4")})
        queue.sample(5, timeout=10)

    def create() -> None:
        fresh = store.create_table("fresh", capacity=300, schema=schema, exist_ok=True)
        fresh.extend(steps(10))
        fresh.resize(capacity=3_000)
        store.drop_table("fresh")

    def write(made: di_store.Writer) -> None:
        with made:
            made.append(steps())
            made.extend(steps(100))

    writer.extend(steps(140))
    rows.extend({"x": np.zeros((50, 3_000), "f4")})
    store.publish(LONG, np.ones(10))
    refs = [store.put(np.ones(100)), store.put({"of": np.ones(100)})]
    values = [np.ones(50), {"of": np.ones(50)}]
    return {
        "append": lambda: writer.append(steps()),
        "next": lambda: writer.append(steps(), next={"obs": np.zeros(40, "f4")}),
        "extend": lambda: writer.extend(steps(100)),
        "insert": lambda: rows.insert({"x": np.zeros(3_000, "f4")}),
        "table_extend": lambda: rows.extend({"x": np.zeros((20, 3_000), "f4")}),
        "end_episode": lambda: (writer.append(steps()), writer.end_episode()),
        "sample": lambda: (table.sample(8), table.sample(600)),
        "take": lambda: rows.sample(200),
        "queue": pass_through,
        "update": lambda: table.update_priorities(table.keys(), np.ones(len(table.keys()))),
        "delete": lambda: (rows.insert({"x": np.zeros(3_000, "f4")}), rows.delete(rows.keys()[:1])),
        "peek": lambda: table.peek(table.keys()[:4]),
        "reset": lambda: (rows.extend({"x": np.zeros((20, 3_000), "f4")}), rows.reset()),
        "writer": lambda: write(table.writer()),
        "writers": lambda: write(store.writer(both)),
        "create": create,
        "put": lambda: store.put(values[1]),
        "put_many": lambda: store.delete(store.put_many(values)),
        "get": lambda: store.get(refs[1]),
        "get_many": lambda: store.get_many(refs),
        "remove": lambda: store.delete([store.put(values[1])]),
        "publish": lambda: store.publish(LONG, values[1]),
        "latest": lambda: store.latest(LONG),
        "stats": lambda: (store.stats(), table.stats()),
        "keys": lambda: (store.keys(), table.keys()),
    }


@contextmanager
def failing(number: int) -> Iterator[None]:
    """The n-th allocation inside fails; no other does."""
    _core.fail_allocation(number)
    try:
        yield
    finally:
        _core.fail_allocation(0)


def inserts(store: di_store.Store) -> list[int]:
    """Items ever inserted, by table."""
    return [table["inserts"] for table in store.stats()["tables"].values()]


def empty(store: di_store.Store) -> None:
    """Everything goes."""
    gc.collect()
    for name in list(store.stats()["tables"]):
        store.drop_table(name)
    while refs := store.keys():
        store.delete(refs)
    store.publish(LONG, None)


@pytest.mark.parametrize("name", CALLS)
def test_a_failed_allocation_leaves_nothing_miscounted(store_name: Callable[[], str], name: str) -> None:
    """The n-th allocation of a call fails, for every n: `MemoryError`, nothing is inserted, every count is right."""
    with di_store.open(store_name(), memory="64MiB") as store:
        call = make_calls(store)[name]
        call()
        failed, number, more = 0, 0, True
        while more:
            number += 1
            before = inserts(store)
            try:
                with failing(number):
                    call()
                    more = _core.allocations() >= number
            except MemoryError:
                failed += 1
                assert name not in WRITES or inserts(store) == before, number
            assert store.check() == [], number
            call()
            assert store.check() == [], number
        assert failed > 0
        assert store.stats()["pinned"] == 0
        del call
        empty(store)
        left = store.stats()
        names = ("objects", "live_objects_bytes", "pinned", "pending", "chunk_pages", "object_pages", "reserved")
        assert {each: left[each] for each in names} == dict.fromkeys(names, 0)
