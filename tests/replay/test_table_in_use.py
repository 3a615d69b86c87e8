"""What goes on beside a table in use: slots, chunks of a table that grows, chores."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from di_store.runtime import chores


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened


def test_an_open_writer_follows_a_resize(store: Any) -> None:
    """Its next chunks are as large as the new capacity reckons with, so that it holds all of it."""
    schema = {"obs": di_store.Spec((4,), "f4"), "action": di_store.Spec((), "i8")}
    table = store.create_table("t", capacity=1_000, lanes=16, view=di_store.Step(), schema=schema)
    block = {"obs": np.zeros((50, 16, 4), np.float32), "action": np.zeros((50, 16), np.int64)}
    with table.writer(lanes=16) as writer:
        for capacity in (1_000, 40_000, 900, 20_000):
            table.resize(capacity)
            for _ in range(capacity // 800 + 10):
                writer.extend(block)
            stats = table.stats()
            assert (stats["size"], stats["evicted_for_room"]) == (capacity, 0)


def test_an_extend_into_a_full_table_takes_no_more_slots(store: Any) -> None:
    table = store.create_table("t", capacity=3000, view=di_store.Step(), schema={"x": di_store.Spec((), "int64")})
    slots = table.stats()["slots"]
    rows = np.arange(12_000)
    for first in range(0, 8000, 2000):
        table.extend({"x": rows[first : first + 2000]})
    with table.writer() as writer:
        for first in range(8000, 12_000, 2000):
            writer.extend({"x": rows[first : first + 2000]})
    assert table.stats()["slots"] == slots
    assert sorted(table.peek(table.keys(n=5000)).data["x"].tolist()) == rows[9000:].tolist()


def test_ragged_rows_that_need_no_conversion_keep_their_bound(store: Any) -> None:
    table = store.create_table(
        "t", capacity=100, view=di_store.Step(), schema={"tokens": di_store.Spec((None,), "int32", max=4)}
    )
    with table.writer(lanes=2) as writer:
        writer.append({"tokens": [np.arange(4, dtype=np.int32), np.arange(0, dtype=np.int32)]})
        writer.append({"tokens": (np.arange(1, dtype=np.int32), [7, 8])})
        for wrong in (np.arange(5, dtype=np.int32), np.zeros((2, 2), np.int32), np.zeros(2, np.float32)):
            with pytest.raises(di_store.SchemaMismatch, match="tokens"):
                writer.append({"tokens": [np.arange(2, dtype=np.int32), wrong]})
        with pytest.raises(di_store.SchemaMismatch, match="list of 2 arrays"):
            writer.append({"tokens": [np.arange(2, dtype=np.int32)] * 3})
    found = table.peek(table.keys()).data["tokens"]
    assert sorted(row.tolist() for row in found) == [[], [0], [0, 1, 2, 3], [7, 8]]


def _draw_once(table: Any, done: Any) -> None:
    table.sample(1)
    (of_store,) = chores._all.values()
    while not of_store.thread.lives():  # it was started, and begins a little later
        pass
    done.put(True)


def test_a_learner_alone_runs_background_chores(store: Any) -> None:
    table = store.create_table("t", capacity=10, view=di_store.Step(), schema={"x": di_store.Spec((), "int64")})
    table.insert({"x": 1})
    spawn = mp.get_context("spawn")
    done = spawn.Queue()
    process = spawn.Process(target=_draw_once, args=(table, done))
    process.start()
    assert done.get(timeout=60)
    process.join(60)
