"""`Pace`: draws keep pace with published weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from leasing import LONG, PATIENCE, Holder, expired
from pacing import PROMPTS, drawn_later, prompts, publish, room
from pains import until

import di_store
from di_store import Once, Pace, Queue


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened
        assert opened.check() == []


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_version_allows_a_batch(store: di_store.Store, before: int, ahead: int) -> None:
    """Counted from the newest version when the table was made, or from none; leased or not."""
    publish(store, before)
    table = prompts(store, ahead=ahead)
    for trained in range(3):
        assert room(table) == (4 if trained else 4 * (1 + ahead))
        table.sample(room(table), lease=None if trained else LONG, timeout=0)
        with pytest.raises(di_store.Timeout, match=rf"version {before + trained} of weights 'policy' allows"):
            table.sample(1, timeout=0)
        publish(store)
    publish(store, 2)
    assert room(table) == 12, "also for versions that nothing was drawn for"


def test_publish_wakes_draws_that_wait(store: di_store.Store) -> None:
    publish(store)
    table = prompts(store, ahead=0)
    table.sample(4)
    waiter, found = drawn_later(table, 8)
    until(lambda: store.stats()["waiters"], "the draw to wait")
    publish(store)
    waiter.join(PATIENCE)
    assert found == [4, 5, 6, 7]


@pytest.mark.parametrize("end", ["given back", "run out", "killed", "dropped", "dropped by keys"])
def test_what_is_not_trained_gives_its_room_back(store: di_store.Store, end: str) -> None:
    """The prompt comes again, or another one in its place."""
    publish(store)
    table = prompts(store, ahead=0)
    first = table.sample(1, lease=LONG)
    assert room(table) == 3
    if end == "killed":
        holder = Holder(table, 3)
        assert room(table) == 0
        holder.kill()
        until(lambda: room(table) == 3, "the leases of the dead to end")
    elif end == "run out":
        expired(table, 3)
    else:
        batch = table.sample(3, lease=LONG)
        assert room(table) == 0
        if end == "given back":
            assert table.give_back(batch) == 3
        else:
            what = batch if end == "dropped" else batch.keys
            assert (table.ack(what, counts=False), table.ack(what, counts=False)) == (3, 0)
    assert room(table) == 3
    assert table.ack(first) == 1
    again = table.sample(9, lease=LONG).data["n"].tolist()
    assert again == ([4, 5, 6] if end.startswith("dropped") else [1, 2, 3])
    stats = table.stats()
    assert (stats["samples"], stats["limiter"]["samples"]) == (7 if end.startswith("dropped") else 4, 4)


def test_dropped_items_with_uses_left_stay(store: di_store.Store) -> None:
    publish(store)
    table = prompts(store, max_times_sampled=2)
    batch = table.sample(8, lease=LONG)
    assert table.ack(batch, counts=False) == 8
    assert table.peek(batch.keys).times_sampled.tolist() == [1] * 8
    assert len(table) == PROMPTS
    ratio = store.create_table("ratio", capacity=9, limiter=di_store.SamplesPerInsert(1.0, 1, 0.0))
    ratio.insert({"n": 0})
    ratio.ack(ratio.sample(1, lease=LONG), counts=False)
    assert ratio.stats()["limiter"]["samples"] == 0


def test_a_short_batch_rather_than_a_standstill(store: di_store.Store) -> None:
    """Workers that hold a part of what the trainer needs, and wait for the rest, would stop everything."""
    publish(store)
    table = prompts(store, batch=10, ahead=0)
    assert [len(table.sample(4, lease=LONG)) for _ in range(3)] == [4, 4, 2]
    publish(store)
    assert [len(table.sample(4, min_n=n, timeout=0)) for n in (4, 1, 2)] == [4, 4, 2]
    publish(store)
    table.sample(8, timeout=0)
    with pytest.raises(di_store.Timeout, match="2 of 3 drawn; pace: 30 draws"):
        table.sample(3, min_n=3, timeout=0)
    assert room(table) == 2


@pytest.mark.parametrize("drop_last", [False, True])
def test_loaders_and_mixtures_wait_for_whole_batches(store: di_store.Store, drop_last: bool) -> None:
    publish(store)
    table = prompts(store, batch=3, ahead=0)
    table.finish()
    with table.loader(2, timeout=0, drop_last=drop_last) as loader:
        assert next(loader).data["n"].tolist() == [0, 1]
        for _ in range(2):
            with pytest.raises(di_store.Timeout, match="pace"):
                next(loader)
        publish(store)
        assert [next(loader).data["n"].tolist() for _ in range(2)] == [[2, 3], [4, 5]]
    mixture = store.mix({"t": 1.0})
    with pytest.raises(di_store.Timeout):
        mixture.sample(4, timeout=0)
    publish(store)
    assert len(mixture.sample(3, timeout=0)) == 3


@pytest.mark.parametrize("sampler", [di_store.Fifo(), Once(1), Once(2, False)])
def test_a_finished_table_keeps_its_pace_to_the_end(store: di_store.Store, sampler: Any) -> None:
    """Draws wait for versions rather than end, even if nobody writes any more; then they end."""
    publish(store)
    times = {"max_times_sampled": 0} if isinstance(sampler, Once) else {}
    table = prompts(store, batch=30, ahead=0, sampler=sampler, **times)
    table.finish()
    rounds = 2 * (2 if sampler == Once(2, False) else 1)
    for trained in range(rounds):
        assert len(table.sample(PROMPTS)) == 30
        if trained < rounds - 1:
            with pytest.raises(di_store.Timeout, match="pace"):
                table.sample(1, timeout=0)
            publish(store)
    with pytest.raises(di_store.EndOfData):
        table.sample(1)


def test_configure_keeps_the_draws_that_are_ahead(store: di_store.Store) -> None:
    publish(store, 3)
    table = prompts(store, batch=8, ahead=1)
    batch = table.sample(16, lease=LONG)
    publish(store)
    table.configure(limiter=Pace("policy", 20, 0))  # 8 draws are not trained
    assert table.stats()["limiter"]["samples"] == 8
    assert room(table) == 12
    table.give_back(batch.keys[:2])
    assert room(table) == 14
    publish(store)
    assert room(table) == 34
    table.configure(limiter=Pace("policy", 3, 2))
    assert room(table) == 23, "9, and 14 that nobody drew"
    limiter = table.stats()["limiter"]
    assert (limiter["kind"], limiter["state"], limiter["ratio"], limiter["min_diff"]) == ("Pace", "flowing", 3, -9)
    assert (limiter["inserts"], limiter["samples"]) == (0, -14)
    for wrong in (Pace("other", 3), di_store.MinSize(1), Queue(3)):
        with pytest.raises(ValueError, match="cannot change what its draws wait for"):
            table.configure(limiter=wrong)
    plain = store.create_table("plain", capacity=9)
    with pytest.raises(ValueError, match="cannot change what its draws wait for; create a new table"):
        plain.configure(limiter=Pace("policy", 3))
    assert room(table) == 23


def test_reset_counts_from_the_newest_version(store: di_store.Store) -> None:
    table = prompts(store)
    table.sample(8)
    publish(store, 5)
    table.reset()
    table.extend({"n": np.arange(PROMPTS)})
    assert room(table) == 8
    publish(store)
    assert room(table) == 12


def test_a_queue_refuses_draws_that_do_not_count(store: di_store.Store) -> None:
    queue = store.create_table("queue", capacity=9, limiter=Queue(9))
    queue.insert({"n": 1})
    batch = queue.sample(1, lease=LONG)
    with pytest.raises(ValueError, match="counts=False"):
        queue.ack(batch, counts=False)
    with pytest.raises(TypeError, match="counts"):
        queue.ack(batch, counts=None)  # type: ignore[arg-type]
    assert queue.ack(batch) == 1
