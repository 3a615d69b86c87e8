"""Calls over many items hold a table's lock for 64 at a time, and are whole all the same."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import _core
from di_store.store.local import LocalStore

MANY = 1_000
FIRST = 64


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def numbers(table: Any) -> list[int]:
    """Column `n` of all items, oldest first."""
    found: list[int] = table.peek(table.keys()).data["n"].tolist()
    return found


def act(table: Any, way: str, fault: str, pipe: Any) -> None:
    """In a child: one call over many items, which stops (or dies) at a fault point."""
    if way == "writer":
        with table.writer() as writer:
            _core.arm_fault(fault)
            keys = writer.extend({"n": np.arange(MANY)}, timeout=0.2).keys
    elif way == "both":
        writer = di_store.Store(LocalStore(table[0]._backend.session)).writer(table)
        _core.arm_fault(fault)
        with pytest.raises(di_store.TableNotFound) as caught:
            writer.extend({"n": np.arange(MANY)})
        table[1].insert({"n": 5}, timeout=60)
        keys = np.array([ord(each) for each in caught.type.__name__])
    elif way == "table":
        table.insert({"n": -1})  # what its writer needs is there
        table.delete(table.keys())
        _core.arm_fault(fault)
        keys = table.extend({"n": np.arange(MANY)}, timeout=0.2)
    elif way == "keys":
        _core.arm_fault(fault)
        keys = table.keys()
    else:
        _core.arm_fault(fault)
        keys = table.sample(1, timeout=60).keys
    pipe.send(keys.tolist())
    pipe.close()


def start(table: Any, way: str, fault: str) -> tuple[Any, Any]:
    """A child that has stopped at the fault point or died there; its process and what it will say."""
    context = mp.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=act, args=(table, way, fault, theirs), daemon=True)
    child.start()
    theirs.close()
    if fault.endswith(":stop"):
        assert child.pid is not None
        assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
    return child, ours


def end(child: Any, pipe: Any) -> list[int]:
    """Let a stopped child go on; what it returned."""
    os.kill(child.pid, signal.SIGCONT)
    assert pipe.poll(60)
    found: list[int] = pipe.recv()
    child.join(60)
    assert child.exitcode == 0
    return found


@pytest.mark.parametrize("way", ["writer", "table"])
def test_other_calls_run_between_the_slices_of_an_extend(store: Any, way: str) -> None:
    table = store.create_table("t", capacity=2 * MANY, schema={"n": 0})
    child, pipe = start(table, way, "writer.between_slices:1:stop")
    assert numbers(table) == list(range(FIRST))
    table.insert({"n": -5}, timeout=60)
    assert len(table.sample(8, timeout=60).keys) == 8
    keys = end(child, pipe)
    assert table.peek(np.array(keys, np.uint64)).data["n"].tolist() == list(range(MANY)), "in order, each its key"
    assert sorted(numbers(table)) == [-5, *range(MANY)]
    assert table.stats()["inserts"] == MANY + 1 + (way == "table")
    assert store.check() == []


def test_an_extend_past_the_limiter_writes_all_its_items(store: Any) -> None:
    """Also when somebody who is stopped holds the lock, for longer than its timeout."""
    table = store.create_table("t", capacity=2 * MANY, schema={"n": 0})
    child, pipe = start(table, "writer", "writer.between_slices:1:stop")
    holder, held = start(table, "sample", "table.draw_item:1:stop")
    os.kill(child.pid, signal.SIGCONT)
    while not any(client["pid"] == child.pid and client["waits"] for client in clients(store)):
        os.sched_yield()
    assert not pipe.poll(0.5), "0.2 s are over, and it has not given up in the middle"
    assert len(end(holder, held)) == 1
    assert len(end(child, pipe)) == MANY
    assert numbers(table) == list(range(MANY))
    assert store.check() == []


def clients(store: Any) -> list[dict[str, Any]]:
    """The processes of the store, with what each waits for ("" for nothing)."""
    stats = store.stats()
    waiting = {each["pid"] for each in stats["waiters"]}
    return [{"pid": each["pid"], "waits": each["pid"] in waiting} for each in stats["clients"]]


def test_a_kill_between_slices_leaves_whole_items(store: Any) -> None:
    table = store.create_table("t", capacity=2 * MANY, schema={"n": 0})
    child, _ = start(table, "writer", "writer.between_slices:2")
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert numbers(table) == list(range(2 * FIRST))
    assert store.check() == []
    with table.writer() as writer:
        writer.append({"n": 7}, timeout=60)
    assert numbers(table) == [*range(2 * FIRST), 7]


def test_dropping_a_table_between_slices_ends_the_call(store: Any) -> None:
    tables = [store.create_table(name, capacity=2 * MANY, schema={"n": 0}) for name in ("t", "other")]
    child, pipe = start(tables, "both", "writer.between_slices:1:stop")
    store.drop_table("t")
    assert end(child, pipe) == [ord(each) for each in "TableNotFound"]
    assert numbers(tables[1]) == [*range(MANY), 5], "the other one has all of the call, and the next"
    assert store.check() == []


def test_other_calls_run_while_keys_are_listed(store: Any) -> None:
    table = store.create_table("t", capacity=MANY, schema={"n": 0})
    table.extend({"n": np.arange(MANY)})
    before = table.keys().tolist()
    child, pipe = start(table, "keys", "table.keys_between:3:stop")
    table.delete(before[:100] + before[150:200] + before[300:310])  # the last one that was seen and many before it
    table.insert({"n": 5}, timeout=60)
    found = end(child, pipe)
    gone = set(before[:100] + before[150:200] + before[300:310])
    assert found[: 3 * FIRST] == before[: 3 * FIRST]
    assert found[3 * FIRST :] == [key for key in table.keys().tolist() if key in found[3 * FIRST :]]
    assert [key for key in found if key not in gone] == table.keys().tolist()


@pytest.mark.parametrize(("start_at", "n"), [(0, 3), (0, None), (3, 100), (90, 200), (200, 5), (0, 0), (299, 1)])
def test_keys_are_listed_in_pages(store: Any, start_at: int, n: int | None) -> None:
    table = store.create_table("t", capacity=300, schema={"n": 0})
    table.extend({"n": np.arange(300)})
    table.delete(table.keys()[::3])
    everything = table.keys().tolist()
    assert len(everything) == 200
    assert table.keys(start_at, n).tolist() == everything[start_at : None if n is None else start_at + n]


# --- whole sequences and episodes ---------------------------------------------------------------------------------


def episodes(*lengths: int, wide: int = 2) -> dict[str, Any]:
    """Episodes of these lengths as one batch."""
    return {
        "obs": [np.full((length, wide), at, np.float32) for at, length in enumerate(lengths)],
        "n": [np.arange(length) + 100 * at for at, length in enumerate(lengths)],
    }


@pytest.mark.parametrize("view", [di_store.Sequence(4), di_store.Episode(4), di_store.Episode(4, bootstrap=("obs",))])
def test_an_extend_of_whole_items_is_all_or_nothing(store: Any, view: Any) -> None:
    table = store.create_table("t", capacity=200, view=view, sampler=di_store.Prioritized(1.0))
    keys = table.extend(episodes(4, 1, 3), priority=[1.0, 2.0, 3.0])
    batch = table.peek(keys)
    assert batch.priorities.tolist() == [1, 2, 3]
    assert batch.data["mask"].sum(axis=1).tolist() == [4, 1, 3]
    assert batch.data["n"].tolist() == [[0, 1, 2, 3], [100, 0, 0, 0], [200, 201, 202, 0]]
    wrong: list[tuple[Any, Any, str]] = [
        (episodes(4, 5), None, "4"),
        (episodes(4, 0), None, "0"),
        ({**episodes(4, 2), "n": [np.arange(4), np.arange(3)]}, None, "rows"),
        ({**episodes(4, 2), "n": [np.arange(4)]}, None, "'n'"),
        ({**episodes(4, 2), "n": [np.arange(4), np.zeros(2, np.float32)]}, None, "'n'"),
        ({**episodes(4, 2), "n": 5}, None, "'n'"),
        ({**episodes(4, 2), "n": [1, 2]}, None, "'n'"),
        ({**episodes(4, 2), "m": [1, 2]}, None, "'m'"),
        (episodes(4, 2), [1.0, -1.0], "priorit"),
        (episodes(4, 2), [1.0, 2.0, 3.0], "priorit"),
    ]
    for batch, priority, word in wrong:
        with pytest.raises((di_store.SchemaMismatch, ValueError), match=word):
            table.extend(batch, priority=priority)
        assert table.keys().tolist() == keys.tolist()
        assert table.stats()["inserts"] == 3
    assert len(table.extend(episodes(*[3] * 150), priority=2.0)) == 150


def test_whole_items_may_omit_the_following_row(store: Any) -> None:
    table = store.create_table("t", capacity=10, view=di_store.Episode(4, bootstrap=("obs",)))
    batch = episodes(3, 2)
    batch["obs"][1] = np.array([[1, 1], [1, 1], [9, 9]], np.float32)
    found = table.peek(table.extend(batch)).data
    assert found["lengths"].tolist() == [3, 2]
    assert found["obs"][1, 2].tolist() == [9, 9]
    assert found["obs"][0, 3].tolist() == [0, 0]


@pytest.mark.parametrize("view", [di_store.Sequence(4), di_store.Episode(4)])
def test_an_extend_of_whole_items_passes_as_a_whole_or_waits(store: Any, view: Any) -> None:
    table = store.create_table("t", capacity=100, view=view, limiter=di_store.Queue(2), lanes=1)
    assert len(table.extend(episodes(*[2] * 90), timeout=60)) == 90, "as soon as one may pass"
    before = table.keys().tolist()
    with pytest.raises(di_store.Timeout):
        table.extend(episodes(2, 2), timeout=0.05)
    assert table.keys().tolist() == before
    assert table.stats()["inserts"] == 90
    table.sample(89, timeout=60)
    assert len(table.extend(episodes(2, 2), timeout=60)) == 2
    assert len(table) == 3


@pytest.mark.parametrize("leaf", [1.0, np.float32(1), np.zeros((0, 2), np.float32), []])
@pytest.mark.parametrize("declared", [True, False])
def test_a_whole_item_without_rows_is_refused(store: Any, leaf: Any, declared: bool) -> None:
    schema = {"obs": di_store.Spec((2,), "f4")} if declared else None
    table = store.create_table("t", capacity=10, view=di_store.Sequence(4), schema=schema)
    with pytest.raises(di_store.SchemaMismatch, match="'obs'"):
        table.insert({"obs": leaf})
    assert len(table) == 0
    table.insert({"obs": np.zeros((3, 2), np.float32)})
