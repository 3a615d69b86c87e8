"""`table.evicted()`: the keys of items that left."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import signal
from collections.abc import Iterator

import numpy as np
import pytest

import di_store
from di_store import _core


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def test_keys_of_every_kind_of_removal_are_reported(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=3)
    before = [int(table.insert({"x": x})[0]) for x in range(5)]
    gone = table.evicted()
    assert list(gone) == []
    keys = before[2:] + [int(table.insert({"x": x})[0]) for x in range(2)]
    assert list(gone) == keys[:2]
    table.delete(np.array(keys[3:4], np.uint64))
    assert list(gone) == keys[3:4]
    other = table.evicted()
    table.resize(1)
    assert list(gone) == list(other) == keys[2:3]
    table.reset()
    assert list(gone) == keys[4:5]
    queue = store.create_table("q", capacity=3, limiter=di_store.Queue(3))
    left = queue.evicted()
    key = int(queue.insert({"x": 1})[0])
    batch = queue.sample(1)
    assert list(left) == [key] == batch.keys.tolist()


def test_each_key_says_why_its_item_left(store: di_store.Store) -> None:
    def reasons() -> list[str]:
        return [key.reason for key in gone]

    store.publish("policy", {"w": np.zeros(1)})
    options = {"sampler": di_store.Fifo(), "max_times_sampled": 2, "weights": "policy", "max_staleness": 0}
    table = store.create_table("t", capacity=4, **options)
    gone = table.evicted()
    keys = [int(table.insert({"x": x, "version": 1})[0]) for x in range(5)]
    found = list(gone)
    assert found == keys[:1]
    assert pickle.loads(pickle.dumps(found[0])).reason == found[0].reason == "evicted"
    table.delete(keys[1:2])
    assert reasons() == ["deleted"]
    table.sample(2)
    for counts in (True, False):
        table.ack(table.sample(1, lease=60), counts=counts)
    assert reasons() == ["used_up", "dropped"]
    table.give_back(table.sample(1, lease=60))
    for counts in (False, True):
        table.ack(table.sample(1, lease=60), counts=counts)
    assert reasons() == ["used_up"]
    table.insert({"x": 5, "version": 1})
    store.publish("policy", {"w": np.zeros(1)})
    with pytest.raises(di_store.Timeout):
        table.sample(1, timeout=0)
    assert reasons() == ["stale"]
    table.extend({"x": np.arange(3), "version": np.full(3, 2)})
    table.resize(2)
    table.reset()
    assert reasons() == ["evicted", "reset", "reset"]


def test_a_side_map_fed_by_evicted_stays_exact(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=50, remover=di_store.Uniform(), seed=1)
    gone, side = table.evicted(), {}
    for start in range(0, 2_000, 20):
        for key in table.extend({"x": np.arange(start, start + 20)}):
            side[int(key)] = start
        for key in gone:
            del side[key]
        assert set(side) == set(table.keys().tolist())


def test_missed_keys_raise_an_error(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=1_000)
    gone = table.evicted()
    for _ in range(67):
        table.extend({"x": np.arange(1_000)})
    with pytest.raises(di_store.StoreError, match=r"were (missed|lost).*table.keys"):
        next(gone)
    last = table.keys()
    table.extend({"x": np.arange(2)})
    assert list(gone) == last[:2].tolist()


def _die(table: di_store.Table) -> None:
    _core.arm_fault("undo.after_commit:1")
    table.insert({"x": 0})
    os._exit(0)


def test_a_kill_between_removal_and_report_raises(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=2)
    table.extend({"x": np.arange(2)})
    gone = table.evicted()
    party = mp.get_context("fork").Process(target=_die, args=(table,))
    party.start()
    party.join(60)
    assert party.exitcode == -signal.SIGKILL
    with pytest.raises(di_store.StoreError, match=r"were missed|were lost"):
        list(gone)
    last = int(table.keys()[0])
    table.insert({"x": 3})
    assert list(gone) == [last]
