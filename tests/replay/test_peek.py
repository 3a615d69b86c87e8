"""Reading beside drawing: `peek`, `out=`, and what a changed limiter begins with."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import _core
from di_store.runtime import waits


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened


def test_peek_before_the_first_row_raises(store: Any) -> None:
    table = store.create_table("t", capacity=10)
    batch = table.peek(np.array([3, 5], np.uint64))
    assert len(batch) == 2
    assert batch.live is not None
    assert not batch.live.any()
    assert batch.data == {}
    assert batch.keys.tolist() == [3, 5]
    assert batch.versions.tolist() == batch.episodes.tolist() == batch.starts.tolist() == [-1, -1]
    assert len(table.peek([])) == 0
    assert len(table.keys()) == 0
    table.insert({"n": 1})
    after = table.peek(np.array([3, 5], np.uint64))
    for name in ("keys", "priorities", "probabilities", "weights", "times_sampled", "versions", "episodes", "starts"):
        assert getattr(after, name).dtype == getattr(batch, name).dtype
        assert getattr(after, name).tolist() == getattr(batch, name).tolist(), name


@pytest.mark.parametrize(
    "sampler", [di_store.Uniform(), di_store.Fifo(), di_store.MaxHeap(), di_store.Prioritized(0.6, 0.4)], ids=str
)
def test_peek_gives_the_same_data_as_sample(store: Any, sampler: Any) -> None:
    table = store.create_table("t", capacity=10, sampler=sampler)
    table.extend({"n": np.arange(10)}, priority=np.arange(10) + 1.0)
    drawn = table.sample(6)
    seen = table.peek(drawn.keys)
    for name in ("priorities", "probabilities", "weights", "versions", "episodes", "starts"):
        assert getattr(seen, name).tolist() == getattr(drawn, name).tolist(), name
    assert seen.data["n"].tolist() == drawn.data["n"].tolist()


def test_peek_works_while_sampling_is_blocked(store: Any) -> None:
    table = store.create_table("t", capacity=10, sampler=di_store.Prioritized(0.6, 0.4))
    keys = table.extend({"n": np.arange(3)}, priority=np.zeros(3))
    batch = table.peek(keys)
    assert batch.probabilities.tolist() == [0, 0, 0]
    assert np.isfinite(batch.weights).all()


def test_no_weight_exceeds_the_largest(store: Any) -> None:
    """Items leave while a batch is drawn, the least one too: weights over the table's largest stay within 1."""
    sampler = di_store.Prioritized(1.0, 1.0, normalize="table")
    table = store.create_table("t", capacity=20, sampler=sampler, max_times_sampled=1, seed=1)
    table.extend({"n": np.arange(20)}, priority=np.arange(20) + 1.0)
    table.finish()
    for _ in range(3):
        assert table.sample(7).weights.max() <= 1


def test_out_receives_the_next_batch(store: Any) -> None:
    table = store.create_table("t", capacity=10, limiter=di_store.Queue(10))
    table.extend({"x": {"n": np.arange(10)}})
    batch = table.sample(4)
    numbers, keys = batch.data["x"]["n"], batch.keys
    assert table.sample(4, out=batch) is batch
    assert batch.data["x"]["n"] is numbers
    assert numbers.tolist() == [4, 5, 6, 7]
    assert (batch.keys != keys).all()
    assert table.peek(keys).live is not None
    with pytest.raises(ValueError, match="out= holds 4 examples"):
        table.sample(3, out=batch)
    with pytest.raises(TypeError, match="out="):
        table.sample(3, out={"n": numbers})
    assert len(table) == 2
    table.finish()
    rest = table.sample(4, out=batch)
    assert rest.data["x"]["n"].tolist() == [8, 9]
    assert len(rest) == 2
    assert numbers.tolist() == [8, 9, 6, 7]


def test_a_changed_limiter_over_a_full_table_lets_both_sides_move(store: Any) -> None:
    table = store.create_table("t", capacity=100)
    table.extend({"n": np.arange(100)})
    table.configure(limiter=di_store.SamplesPerInsert(1, 50, 0.0))
    assert table.stats()["limiter"]["inserts"] == 50, "the first min_size items count as its inserts"
    assert table.stats()["limiter"]["kind"] == "SamplesPerInsert"
    table.sample(1, timeout=0)
    for _ in range(2):
        table.insert({"n": 1}, timeout=0)
    with pytest.raises(di_store.Timeout):
        table.insert({"n": 1}, timeout=0)
    table.configure(limiter=di_store.MinSize(3))
    assert table.stats()["limiter"]["kind"] == "MinSize"


def test_a_reconfigured_queue_keeps_its_items(store: Any) -> None:
    table = store.create_table("t", capacity=20, limiter=di_store.Queue(5))
    table.extend({"n": np.arange(5)})
    reader = table._backend.handle.reader()
    held = reader.begin()
    assert reader.draw(held, 2) == 2
    table.configure(limiter=di_store.Queue(10))
    assert table.sample(2, timeout=0).data["n"].tolist() == [2, 3]
    reader.give_back(held)
    assert table.sample(3, timeout=0).data["n"].tolist() == [0, 1, 4]
    table.extend({"n": np.arange(10)}, timeout=0)
    with pytest.raises(di_store.Timeout):
        table.insert({"n": 10}, timeout=0)


def test_draws_given_back_after_a_limiter_change_cause_no_deadlock(store: Any) -> None:
    """They lift the table above capacity, while the limiter in force lets nothing be drawn."""
    table = store.create_table("t", capacity=4, sampler=di_store.Fifo(), max_times_sampled=1)
    table.extend({"n": np.arange(4)})
    reader = table._backend.handle.reader()
    held = reader.begin()
    assert reader.draw(held, 2) == 2
    table.extend({"n": np.arange(4, 6)})
    table.configure(limiter=di_store.SamplesPerInsert(1, 1, 0.0))
    table.sample(1, timeout=0)
    reader.give_back(held)
    assert len(table) == 5
    with pytest.raises(di_store.Timeout):
        table.sample(1, timeout=0)
    table.insert({"n": 6}, timeout=0)
    table.sample(1, timeout=0)


def test_a_writer_counts_as_open_before_its_first_step(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner does not give up while an actor still compiles."""
    monkeypatch.setattr(waits, "ABANDONED_SECONDS", 0.3)
    table = store.create_table("t", capacity=10)
    writer = table.writer()
    assert table.stats()["writers"] == 1

    def learner() -> None:
        table.sample(1)

    thread = threading.Thread(target=learner)
    thread.start()
    while not (waiting := store.stats()["waiters"]) or waiting[0]["seconds"] < 0.6:
        pass
    writer.append({"n": 1})
    thread.join(60)
    assert not thread.is_alive()
    assert table.stats()["writers"] == 1
    writer.close()
    unused = table.writer()
    unused.close()
    assert table.stats()["writers"] == 0
    assert store.check() == []


def stop_inside(store: str, pipe: Any) -> None:
    """Stop while the table's lock is held."""
    with di_store.attach(store, timeout=60) as attached:
        table = attached.table("t")
        pipe.send("ready")
        _core.arm_fault("table.draw_item:1:stop")
        table.sample(1)


def test_calls_that_wait_for_a_lock_have_a_timeout(store: Any) -> None:
    table = store.create_table("t", capacity=10, limiter=di_store.MinSize(1))
    keys = table.extend({"n": np.arange(5)})
    ours, theirs = mp.Pipe()
    child = mp.get_context("spawn").Process(target=stop_inside, args=(store.name, theirs), daemon=True)
    child.start()
    assert ours.recv() == "ready"
    _, status = os.waitpid(child.pid or 0, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    calls: list[Callable[..., Any]] = [
        lambda: table.update_priorities(keys, np.ones(5), timeout=0.05),
        lambda: table.delete(keys, timeout=0.05),
        lambda: table.keys(timeout=0.05),
        lambda: table.reset(timeout=0.05),
        lambda: table.resize(9, timeout=0.05),
        lambda: table.configure(limiter=di_store.MinSize(2), timeout=0.05),
        lambda: table.finish(timeout=0.05),
        lambda: table.insert({"n": 1}, timeout=0.05),
        lambda: table.sample(1, timeout=0.05),
        lambda: table.peek(keys),
    ]
    for call in calls:
        with pytest.raises(di_store.Timeout) as caught:
            call()
        assert str(child.pid) in str(caught.value)
    os.kill(child.pid or 0, signal.SIGKILL)
    os.waitpid(child.pid or 0, 0)
    assert table.delete(keys) == 5


@pytest.mark.parametrize("uses", [0, 1])
def test_a_batch_tells_the_size_of_the_table_it_was_drawn_from(store: Any, uses: int) -> None:
    """Items that the draw itself uses up were there; so N of the importance weights is what the draw was made from."""
    table = store.create_table("t", capacity=50, sampler=di_store.Uniform(), max_times_sampled=uses)
    table.extend({"n": np.arange(20)})
    assert table.sample(5, timeout=60).table_size == 20
    assert table.sample(5, timeout=60).table_size == 20 - 5 * uses
    assert table.peek(table.keys()).table_size == 20 - 10 * uses
