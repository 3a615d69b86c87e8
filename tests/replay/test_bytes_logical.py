"""`bytes_logical` of tables with ragged columns: what a batch of all items holds, or an estimate of that."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pains import Program

import di_store
from di_store.replay.batch import encode_blob

STOP = """
import sys, di_store
table = di_store.attach(sys.argv[1]).table("t")
table.keys()
di_store._core.arm_fault("table.insert_item:1:stop")
table.insert({"x": [1, 2, 3], "n": 1})
"""

SCHEMA = {
    "words": di_store.Spec((None, 2), "i4", max=40),
    "obs": di_store.Spec((3,), "f4"),
    "reward": di_store.Spec((), "f4"),
    "terminated": di_store.Spec((), "?"),
    "truncated": di_store.Spec((), "?"),
}
VIEWS: dict[str, Any] = {
    "step": di_store.Step(),
    "transition": di_store.Transition(n_step=3, obs=("obs", "words")),
    "stack": di_store.Transition(frame_stack={"obs": 2}, obs=("obs", "words"), frame_pad="zero"),
    "pad": di_store.Sequence(4, period=2, burn_in=1),
    "shift": di_store.Sequence(5, period=3, tail="shift", bootstrap=("words",)),
    "first": di_store.Sequence(3, first=("words",)),
    "cross": di_store.Sequence(6, period=2, cross_episodes=True),
    "episode": di_store.Episode(8),
    "cut": di_store.Episode(4, bootstrap=("obs", "words")),
}


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="512MiB") as opened:
        yield opened


def rows(rng: Any, count: int) -> dict[str, Any]:
    """Steps whose words differ in number."""
    return {
        "words": [np.zeros((n, 2), np.int32) for n in rng.integers(0, 40, count)],
        "obs": np.zeros((count, 3), np.float32),
        "reward": np.zeros(count, np.float32),
        "terminated": rng.random(count) < 0.1,
        "truncated": rng.random(count) < 0.1,
    }


def held(data: Any) -> int:
    """Bytes of all arrays of a batch."""
    if isinstance(data, dict):
        return sum(held(each) for each in data.values())
    if isinstance(data, list):
        return sum(len(encode_blob(value)) for value in data)
    return int(data.values.nbytes if isinstance(data, di_store.Ragged) else data.nbytes)


def logical(table: Any) -> int:
    return int(table.stats()["bytes_logical"])


@pytest.mark.parametrize("view", VIEWS)
def test_bytes_logical_are_those_of_a_batch_of_all_items(store: Any, view: str) -> None:
    rng = np.random.default_rng(7)
    table = store.create_table("t", capacity=300, view=VIEWS[view], schema=SCHEMA)
    assert logical(table) == 0
    with table.writer() as writer:
        for _ in range(8):
            writer.extend(rows(rng, 60))
            assert logical(table) == held(table.peek(table.keys()).data) > 1000
    keys = table.keys()
    table.delete(keys[::3])
    assert logical(table) == held(table.peek(table.keys()).data)
    assert store.stats()["tables"]["t"]["bytes_logical"] == logical(table)
    assert table.stats()["held"] == 0
    assert store.check() == []


def test_whole_items_and_python_values_are_counted(store: Any) -> None:
    rng = np.random.default_rng(8)
    sequences = store.create_table("s", capacity=50, view=di_store.Sequence(6), schema=SCHEMA)
    for _ in range(20):
        sequences.insert(rows(rng, int(rng.integers(1, 7))))
    values = store.create_table("v", capacity=50, view=di_store.Opaque())
    values.extend([list(range(n)) for n in range(30)])
    for table in (sequences, values):
        assert logical(table) == held(table.peek(table.keys()).data) > 100


def test_only_chosen_columns_count(store: Any) -> None:
    tables = [
        store.create_table(name, capacity=50, schema=SCHEMA, columns=columns)
        for name, columns in (("all", None), ("few", ("obs",)))
    ]
    with store.writer(tables) as writer:
        writer.extend(rows(np.random.default_rng(9), 50))
    assert logical(tables[1]) == 50 * 12 < logical(tables[0])


def test_a_large_table_is_estimated(store: Any) -> None:
    """Sizes that rise from the oldest item to the newest: those looked at lie evenly among all."""
    schema = {"x": di_store.Spec((None,), "u1", max=64), "n": di_store.Spec((), "i8")}
    count = 60_000
    lengths = np.arange(count) * 64 // count
    for name, keep in (("full", count), ("sparse", 20_000)):
        table = store.create_table(name, capacity=count, schema=schema)
        for at in range(0, count, 5000):
            part = lengths[at : at + 5000]
            table.extend({"x": [np.zeros(n, np.uint8) for n in part], "n": part})
        keys = table.keys()
        table.delete(np.random.default_rng(10).permutation(keys)[keep:])
        exact = sum(held(table.peek(part).data) for part in np.array_split(table.keys(), 10))
        assert abs(logical(table) - exact) < 0.05 * exact


def test_long_items_are_estimated(store: Any) -> None:
    """Few items with more rows than are looked at."""
    schema = SCHEMA | {"words": di_store.Spec((None,), "i4", max=4)}
    table = store.create_table("t", capacity=60, view=di_store.Episode(600), schema=schema)
    rng = np.random.default_rng(11)
    with table.writer() as writer:
        for _ in range(60):
            episode = rows(rng, 500)
            ends = np.arange(500) == 499
            words = [np.zeros(n, np.int32) for n in rng.integers(0, 5, 500)]
            writer.extend({**episode, "words": words, "terminated": ends, "truncated": np.zeros(500, bool)})
    exact = held(table.peek(table.keys()).data)
    assert abs(logical(table) - exact) < 0.05 * exact


def test_bytes_logical_is_right_during_writes(store: Any) -> None:
    """Items of one size: whatever comes and goes meanwhile, their number tells the bytes."""
    schema = {"x": di_store.Spec((None,), "u1", max=64), "n": di_store.Spec((), "i8")}
    table = store.create_table("t", capacity=1000, schema=schema)
    with table.writer() as writer:
        writer.append({"x": np.zeros(40, np.uint8), "n": 0})
    stop, failed = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            with table.writer() as writer:
                while not stop.is_set():
                    writer.append({"x": np.ones(40, np.uint8), "n": 1})
                    if np.random.default_rng().random() < 0.02:
                        table.delete(table.keys()[100:300])
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(150):
            stats = table.stats()
            assert stats["bytes_logical"] == stats["size"] * 48
    finally:
        stop.set()
        thread.join(60)
    assert not failed
    assert store.check() == []


def test_a_locked_table_is_counted_without_its_ragged_values(store: Any) -> None:
    """A process stopped in the table's lock holds no `stats` up."""
    schema = {"x": di_store.Spec((None,), "i8", max=64), "n": di_store.Spec((), "i8")}
    table = store.create_table("t", capacity=50, schema=schema)
    table.extend({"x": [np.zeros(10, np.int64)] * 20, "n": np.arange(20)})
    with Program(STOP, store.name) as stopped:
        _, status = os.waitpid(stopped.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert store.stats()["tables"]["t"]["bytes_logical"] == logical(table) == 20 * 8
    assert logical(table) == held(table.peek(table.keys()).data) >= 20 * 88


@pytest.mark.memory_only
def test_items_with_damaged_lengths_are_not_counted(store: Any) -> None:
    """Items whose values lie outside their chunk are left out; the others tell the size of all."""
    schema = {"x": di_store.Spec((None,), "u1", max=64), "n": di_store.Spec((), "i8")}
    table = store.create_table("t", capacity=50, schema=schema)
    table.extend({"x": [np.zeros(40, np.uint8)] * 30, "n": np.full(30, 0x1122334455667788)})
    number, length = (0x1122334455667788).to_bytes(8, "little"), (40).to_bytes(4, "little")  # in one record
    with open(f"/proc/self/fd/{store._backend.session.arena.fd_number}", "r+b", buffering=0) as file:
        data = os.pread(file.fileno(), 64 << 20, 0)
        found, at = list[int](), data.find(number)
        while at >= 0:
            found += [near for near in range(at - 8, at + 16, 4) if data[near : near + 4] == length]
            at = data.find(number, at + 1)
        assert len(found) == 30
        for at in found[::3]:
            os.pwrite(file.fileno(), (2**31).to_bytes(4, "little"), at)
    with pytest.raises(di_store.CorruptData):
        table.peek(table.keys())
    assert logical(table) == 30 * 48
    assert table.stats()["held"] == 0
