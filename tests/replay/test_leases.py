"""Leases: items held for one batch, until it is acknowledged, given back, or the lease ends."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import Fifo, Group, Lifo, MaxHeap, MinHeap, Once, Prioritized, Queue, SamplesPerInsert, Spec, Uniform
from di_store.runtime import waits

LONG = 600.0
"""Seconds of a lease that does not end by itself."""
SAMPLERS = {
    "uniform": Uniform(),
    "fifo": Fifo(),
    "lifo": Lifo(),
    "minheap": MinHeap(),
    "maxheap": MaxHeap(),
    "prioritized": Prioritized(0.6, 0.4),
    "once": Once(),
    "ordered": Once(shuffle=False),
}


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened
        assert opened.check() == []


def numbers(store: Any, n: int = 10, **options: Any) -> Any:
    """A table of n numbered items."""
    table = store.create_table("t", **{"capacity": 100, **options})
    table.extend({"n": np.arange(n)})
    return table


def drawn(batch: Any) -> list[int]:
    return [int(n) for n in batch.data["n"]]


def leased(table: Any) -> int:
    return int(table.stats()["leased"]["items"])


def over(table: Any, batch: Any) -> None:
    """Let the batch's lease end now."""
    assert batch.lease.extend(0) == len(batch)


def in_another(work: Any, *arguments: Any) -> None:
    """Run in a forked process."""
    process = mp.get_context("fork").Process(target=work, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode == 0


def _draw_and_die(table: Any, n: int, kill: bool) -> None:
    table.sample(n, lease=LONG)
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)


def dead_holder(table: Any, n: int) -> None:
    """A process that leases n items and is killed."""
    process = mp.get_context("fork").Process(target=_draw_and_die, args=(table, n, True))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_nobody_else_draws_a_leased_item(store: Any, sampler: str, limit: int) -> None:
    table = numbers(store, sampler=SAMPLERS[sampler], max_times_sampled=limit)
    batches = [table.sample(2, lease=LONG) for _ in range(5)]
    assert sorted(n for batch in batches for n in drawn(batch)) == list(range(10))
    assert (len(table), leased(table)) == (0, 10)
    with pytest.raises(di_store.Timeout, match="10 items are leased"):
        table.sample(1, timeout=0)
    assert [table.ack(batch) for batch in batches] == [2] * 5
    assert (len(table), leased(table)) == (0 if limit == 1 else 10, 0)
    assert table.stats()["samples"] == 10
    assert [table.ack(batch) for batch in batches] == [0] * 5


@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("how", ["give_back", "end", "death", "close"])
def test_what_comes_back_is_drawn_next_and_undoes_its_draw(store: Any, sampler: str, limit: int, how: str) -> None:
    table = numbers(store, sampler=SAMPLERS[sampler], max_times_sampled=limit)
    before = table.peek(table.keys()).times_sampled.sum()
    if how in ("death", "close"):
        dead_holder(table, 4) if how == "death" else in_another(_draw_and_die, table, 4, False)
        assert store.check() == []  # notices that a process has gone
        assert leased(table) == 0
    else:
        batch = table.sample(4, lease=LONG)
        assert table.give_back(batch) == 4 if how == "give_back" else over(table, batch) is None
    late = table.sample(4, lease=LONG, timeout=60)
    counts = late.times_sampled.tolist()
    assert counts == [1] * 4, "as if it had not been drawn before"
    keys = table.sample(6, lease=LONG, timeout=60).keys
    assert not set(keys) & set(late.keys)
    if how in ("give_back", "end"):
        assert set(late.keys) == set(batch.keys)
        assert table.ack(batch) == 0, "fenced"
    assert leased(table) == 10
    assert table.ack(late) == 4
    assert table.stats()["samples"] == 10
    assert before == 0


def test_given_back_items_come_first_whoever_draws(store: Any) -> None:
    table = numbers(store, 100, sampler=Uniform())
    batch = table.sample(5, lease=LONG)
    table.give_back(batch)
    assert drawn(table.sample(5)) == sorted(drawn(batch)), "the oldest first"
    assert set(drawn(table.sample(64, replace=False))) != set(drawn(batch)), "once"


def test_a_priority_of_0_is_not_drawn_though_it_was_given_back(store: Any) -> None:
    table = numbers(store, 3, sampler=Prioritized(1.0))
    batch = table.sample(2, lease=LONG)
    table.update_priorities(batch.keys, [0.0, 1.0])
    table.give_back(batch)
    assert {int(key) for key in table.sample(50).keys} == set(map(int, table.keys())) - {int(batch.keys[0])}


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("limit", [0, 3])
def test_each_item_comes_once_an_epoch_though_leases_end_late(store: Any, shuffle: bool, limit: int) -> None:
    table = numbers(store, 6, sampler=Once(3, shuffle), max_times_sampled=limit)
    held = table.sample(2, lease=LONG)
    ahead = [table.sample(1, lease=LONG) for _ in range(4)]  # this epoch's others
    for batch in ahead:
        table.ack(batch)
    ahead += [table.sample(1, lease=LONG) for _ in range(4)]  # of the next one, what is there
    assert table.stats()["epoch"] == 1
    table.give_back(held)
    seen = Counter(n for batch in ahead for n in drawn(batch))
    for batch in ahead[4:]:
        table.ack(batch)
    table.finish()
    while True:
        try:
            batch = table.sample(1, lease=LONG, timeout=60)
        except di_store.EndOfData:
            break
        seen.update(drawn(batch))
        assert table.ack(batch) == 1
    assert seen == dict.fromkeys(range(6), 3)


def test_a_later_epochs_item_waits_for_its_epoch(store: Any) -> None:
    """An item of a later epoch that was given back stays marked while an earlier epoch goes on."""
    table = numbers(store, 3, sampler=Once(2, shuffle=False))
    early = table.sample(1, lease=LONG)
    for _ in range(2):
        table.ack(table.sample(1, lease=LONG))
    later = table.sample(1, lease=LONG)  # of the second epoch
    table.give_back(later)
    table.give_back(early)
    assert drawn(table.sample(1)) == drawn(early)
    assert drawn(table.sample(3))[0] in (drawn(early)[0], drawn(later)[0])
    with pytest.raises(di_store.Timeout):
        table.sample(1, timeout=0)


def test_calls_on_ended_leases_touch_nothing(store: Any) -> None:
    """They do not disturb the next holder, nor the epoch of `Once`."""
    table = numbers(store, 4, sampler=Once(None))
    ended = table.sample(2, lease=0)
    table.ack(table.sample(4, lease=LONG))
    following = table.sample(1, lease=LONG)
    epoch = table.stats()["epoch"]
    assert epoch == 1
    for call in (table.ack, table.give_back):
        assert call(ended) == 0
    assert ended.lease.extend(LONG) == 0
    assert (table.stats()["epoch"], leased(table)) == (1, 1)
    assert table.ack(following) == 1


@pytest.mark.parametrize("end", ["ack", "give_back"])
def test_a_queue_lets_inserts_in_for_leased_items(store: Any, end: str) -> None:
    table = store.create_table("t", capacity=4, limiter=Queue(4))
    table.extend({"n": np.arange(4)})
    batch = table.sample(3, lease=LONG)
    table.extend({"n": np.arange(4, 7)}, timeout=60)
    assert getattr(table, end)(batch) == 3
    stats = table.stats()
    if end == "ack":
        assert (stats["size"], stats["held"], stats["held_bytes"]) == (4, 0, 0)
        assert drawn(table.sample(4)) == [3, 4, 5, 6]
        return
    with pytest.raises(di_store.Timeout):
        table.insert({"n": 9}, timeout=0)
    assert drawn(table.sample(7)) == list(range(7))


def test_leased_items_count_for_capacity_and_are_not_evicted(store: Any) -> None:
    table = numbers(store, 10, capacity=10, sampler=Uniform())
    batch = table.sample(4, lease=LONG)
    table.extend({"n": np.arange(10, 20)})
    assert len(table) == 6
    assert table.peek(batch.keys).live.all()
    assert table.ack(batch) == 4
    assert len(table) == 10


def test_min_size_counts_leased_items(store: Any) -> None:
    table = numbers(store, 10, limiter=SamplesPerInsert(4, min_size=10, tolerance=1))
    batch = table.sample(6, lease=LONG)
    assert len(table.sample(4, lease=LONG, timeout=0)) == 4
    assert table.ack(batch) == 6


def test_a_lease_is_extended_and_ends(store: Any) -> None:
    table = numbers(store)
    batch = table.sample(3, lease=0.05)
    assert batch.lease.extend(LONG) == 3
    with pytest.raises(di_store.Timeout):
        table.sample(10, lease=LONG, timeout=0.2)
    assert batch.lease.extend(0) == 3
    assert batch.lease.extend(LONG) == 0
    assert len(table.sample(10, lease=LONG, timeout=60)) == 10


def test_a_waiting_call_gets_what_comes_back_by_itself(store: Any) -> None:
    table = numbers(store, 2, sampler=Fifo(), max_times_sampled=1)
    table.sample(1, lease=0.3)
    table.sample(1, lease=0.1)
    assert drawn(table.sample(2, timeout=60)) == [1, 0], "as their leases end"


def test_a_finished_table_ends_when_its_leases_have(store: Any) -> None:
    table = numbers(store, 3, limiter=Queue(10))
    batch = table.sample(3, lease=LONG)
    table.finish()
    with pytest.raises(di_store.Timeout, match="not delivered yet"):
        table.sample(1, timeout=0.1)
    table.ack(batch.keys[:1])
    table.give_back(batch)
    assert len(table.sample(5, timeout=60)) == 2
    with pytest.raises(di_store.EndOfData):
        table.sample(1)


@pytest.mark.parametrize("finished", [False, True])
def test_a_call_without_a_timeout_waits_for_leases(store: Any, monkeypatch: pytest.MonkeyPatch, finished: bool) -> None:
    """However long nobody writes: their items may come back."""
    monkeypatch.setattr(waits, "ABANDONED_SECONDS", 0.2)
    table = numbers(store, 1, limiter=Queue(2))
    table.sample(1, lease=1.0)
    if finished:
        table.finish()
    assert drawn(table.sample(1)) == [0]


def test_keys_mean_the_present_lease_and_batches_their_own(store: Any) -> None:
    table = numbers(store, 1)
    first = table.sample(1, lease=0)
    second = table.sample(1, lease=LONG)
    assert first.lease.number != second.lease.number
    assert table.ack(first) == table.ack(first.lease) == 0
    assert table.ack(first.keys) == 1
    assert table.ack(second) == 0
    assert table.ack(np.array([12345], np.uint64)) == table.ack([]) == table.give_back([]) == 0


def _ack_of_parent(pickled: bytes, table: Any) -> None:
    assert table.ack(pickle.loads(pickled)) == 3


def test_a_lease_pickles_and_others_may_acknowledge(store: Any) -> None:
    table = numbers(store)
    batch = table.sample(3, lease=LONG)
    again = pickle.loads(pickle.dumps(batch.lease))
    assert (again.number, again.keys.tolist()) == (batch.lease.number, batch.keys.tolist())
    assert again.extend(LONG) == 3
    in_another(_ack_of_parent, pickle.dumps(batch.lease), table)
    assert leased(table) == 0
    with pytest.raises(TypeError, match="does not pickle"):
        pickle.dumps(batch)


def test_groups_are_leased_whole(store: Any) -> None:
    schema = {"n": Spec((), "i8"), "group": Spec((), "i8")}
    table = store.create_table("t", capacity=4, view=Group(3), schema=schema, limiter=Queue(4))
    keys = [table.extend({"n": np.arange(3) + 3 * group, "group": np.full(3, group)}) for group in range(3)]
    batch = table.sample(2, lease=LONG)
    assert batch.data["group"].tolist() == [[0] * 3, [1] * 3]
    assert (len(table), leased(table)) == (1, 2)
    assert table.ack(keys[0][2:]) == 1, "any answer stands for its group"
    assert table.give_back(batch) == 1
    assert table.sample(2).data["group"].tolist() == [[1] * 3, [2] * 3]
    assert table.stats()["size"] == 0


def test_late_values_and_acknowledgement_in_one_call(store: Any) -> None:
    schema = {"n": Spec((), "i8"), "reward": Spec((), "f4", late=True)}
    work = store.create_table("work", capacity=10, schema=schema, columns=["n"], sampler=Fifo(), max_times_sampled=1)
    done = store.create_table("done", capacity=10, schema=schema)
    with store.writer([work, done]) as writer:
        for n in range(4):
            writer.append({"n": n})
    batch = work.sample(3, lease=LONG)
    assert work.update(batch, {"reward": np.ones(3, "f4")}, ack=True) == 3
    assert (len(done), leased(work), len(work)) == (3, 0, 1)
    late = work.sample(1, lease=0)
    newer = work.sample(1, lease=LONG)
    assert work.update(late, {"reward": np.ones(1, "f4")}, ack=True) == 1, "the value is written"
    assert work.ack(newer) == 1, "the newer lease stays"
    assert len(done) == 4


@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize("sampler", ["uniform", "fifo", "once", "ordered", "prioritized"])
def test_files_hold_leased_items_as_not_drawn(store: Any, tmp_path: Path, sampler: str, limit: int) -> None:
    table = numbers(store, sampler=SAMPLERS[sampler], max_times_sampled=limit, remover=Uniform())
    table.ack(table.sample(2, lease=LONG))
    table.sample(3, lease=LONG)
    left = 8 if limit == 1 else 10
    store.checkpoint(tmp_path / "checkpoint")
    table.export(tmp_path / "t.npz")
    with di_store.restore(tmp_path / "checkpoint") as restored:
        again = restored.table("t")
        assert (len(again), leased(again), again.stats()["samples"]) == (left, 0, 2)
        assert again.peek(again.keys()).times_sampled.sum() == (0 if limit == 1 else 2)
        assert restored.check() == []
    with di_store.open(memory="64MiB") as other:
        imported = other.import_table(tmp_path / "t.npz")
        assert len(imported) == left
        assert imported.peek(imported.keys()).times_sampled.sum() == (0 if limit == 1 else 2)
        if sampler in ("once", "ordered") and limit == 0:
            assert len(set(drawn(imported.sample(8)))) == 8, "the rest of the epoch"
        assert other.check() == []


@pytest.mark.parametrize("call", ["delete", "reset", "resize", "configure"])
def test_changes_of_the_table_beside_leases(store: Any, call: str) -> None:
    table = numbers(store, limiter=SamplesPerInsert(2, min_size=1, tolerance=20))
    batch = table.sample(4, lease=LONG)
    if call == "delete":
        assert table.delete(batch.keys) == 4
    elif call == "reset":
        table.reset()
    elif call == "resize":
        table.resize(5)
        assert len(table) == 1
    else:
        table.configure(limiter=SamplesPerInsert(3, min_size=1, tolerance=20))
    ended = 0 if call in ("delete", "reset") else 4
    assert table.give_back(batch) == ended
    stats = table.stats()
    assert stats["samples"] == (4 if call == "delete" else 0)
    assert stats["limiter"]["samples"] == (4 if call == "delete" else 0)
    assert leased(table) == 0


def test_drop_and_a_new_table_of_the_name(store: Any) -> None:
    table = numbers(store)
    batch = table.sample(4, lease=LONG)
    store.drop_table("t")
    again = numbers(store)
    assert again.sample(10, lease=LONG).keys.tolist() != []
    assert again.ack(batch) == 0


def test_many_open_leases(store: Any) -> None:
    """The block of leases grows while they are held; each still ends alone."""
    table = numbers(store, 3_000, capacity=3_000, sampler=Uniform())
    batches = [table.sample(1, lease=LONG) for _ in range(1_000)]
    large = table.sample(2_000, lease=10 * 365 * 24 * 3600.0)
    assert leased(table) == 3_000
    assert sum(table.ack(batch) for batch in batches[::2]) == 500
    assert table.give_back(large) == 2_000
    assert len({int(key) for batch in batches for key in batch.keys} | set(map(int, large.keys))) == 3_000
    assert set(map(int, table.sample(2_000, lease=LONG).keys)) == set(map(int, large.keys))


def test_stats_tell_of_leases(store: Any) -> None:
    table = numbers(store)
    assert table.stats()["leased"] == {"items": 0, "oldest_seconds": None, "holders": {}}
    table.sample(2, lease=LONG)
    seen = table.stats()["leased"]
    assert (seen["items"], seen["holders"]) == (2, {f"pid {os.getpid()}": 2})
    assert 0 <= seen["oldest_seconds"] < 60
    shown = subprocess.run(
        [sys.executable, "-m", "di_store", "inspect", store.name, "t"], capture_output=True, text=True
    )
    assert f"leased: 2 by pid {os.getpid()}, the oldest for " in " ".join(shown.stdout.split()), shown


def test_batches_of_all_kinds_have_their_lease(store: Any) -> None:
    table = numbers(store, 10, sampler=Prioritized(0.6, 0.4))
    first = table.sample(3, lease=LONG, columns="n", min_n=1)
    out = table.sample(3, lease=LONG)
    assert table.sample(3, lease=LONG, out=out) is out
    assert table.sample(1, lease=LONG).to("cpu").lease is not None
    assert [table.ack(batch) for batch in (first, out)] == [3, 3]
    assert table.sample(2).lease is None
    values = store.create_table("values", capacity=10, view=di_store.Opaque(), limiter=Queue(10))
    values.extend(["a", "b"])
    assert values.ack(values.sample(2, lease=LONG)) == 2


def test_the_parts_of_a_batch_end_on_their_own(store: Any) -> None:
    table = numbers(store, sampler=Fifo())
    batch = table.sample(6, lease=LONG)
    first, second = batch.split(2, by="n")
    assert first.lease.number == second.lease.number == batch.lease.number
    assert (table.ack(first), table.give_back(second)) == (3, 3)
    assert drawn(table.sample(3)) == drawn(second)
    assert table.ack(batch) == 0


class Broken:
    def __reduce__(self) -> Any:
        return float, ("no number",)


def test_values_that_cannot_be_loaded_are_acknowledged(store: Any) -> None:
    table = store.create_table("t", capacity=10, view=di_store.Opaque(), limiter=Queue(10))
    table.extend(["a", Broken(), "b"])
    with pytest.raises(di_store.StoreError, match="cannot be loaded"):
        table.sample(3, lease=LONG)
    batch = table.sample(2, lease=LONG)
    assert batch.data == ["a", "b"]
    assert leased(table) == 2


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", True, None, [1]])
def test_odd_seconds_are_refused(store: Any, seconds: Any) -> None:
    table = numbers(store)
    if seconds is not None:
        with pytest.raises((ValueError, TypeError), match="lease="):
            table.sample(1, lease=seconds)
    batch = table.sample(1, lease=LONG)
    with pytest.raises((ValueError, TypeError), match="seconds="):
        batch.lease.extend(seconds)
    assert leased(table) == 1


def test_what_has_no_lease_is_refused_in_words(store: Any) -> None:
    table = numbers(store)
    with pytest.raises(ValueError, match="drawn without lease="):
        table.ack(table.sample(1))
    with pytest.raises(TypeError, match="keys are"):
        table.ack([1.5])
    with pytest.raises(TypeError, match="ack="):
        table.update([], {}, ack=1)
