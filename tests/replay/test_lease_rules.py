"""Leases, rule by rule. An acknowledged draw is a delivered one; a draw whose lease ended otherwise never happened."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leasing import ENDS, LONG, PATIENCE, Holder, expired, keys_of, leased, take
from pains import until
from warm import WARM

import di_store
from di_store import Fifo, Lifo, MaxHeap, MinHeap, Once, Prioritized, Spec, Uniform

ITEMS = 6
SCHEMA = {"n": Spec((), "i8")}
SAMPLERS = [Uniform(), Prioritized(0.6, 0.4), Fifo(), Lifo(), MinHeap(), MaxHeap(), Once(None), Once(None, False)]
each_sampler = pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
each_limit = pytest.mark.parametrize("uses", [0, 1, 3])
each_end = pytest.mark.parametrize("end", ENDS)


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened
        assert opened.check() == []


def filled(store: di_store.Store, items: int = ITEMS, **options: Any) -> di_store.Table:
    """A table of items whose priorities are 1, 2 and so on."""
    table = store.create_table("t", **{"capacity": 50, "schema": SCHEMA, **options})
    table.extend({"n": np.arange(items)}, priority=np.arange(items) + 1.0)
    return table


def shown(table: di_store.Table) -> dict[str, Any]:
    """All that a draw changes, of the table and of each item."""
    stats, batch = table.stats(), table.peek(table.keys())
    counts = [stats["size"], stats["samples"], stats["removed"], stats["held"], stats["epoch"], leased(table)]
    items = [batch.keys.tolist(), batch.times_sampled.tolist(), batch.priorities.tolist()]
    limiter = stats["limiter"]
    return {"counts": counts, "limiter": (limiter["inserts"], limiter["samples"]), "items": items}


def nothing_to_draw(table: di_store.Table) -> str:
    """Neither with a lease nor without; why."""
    with pytest.raises(di_store.Timeout):
        take(table, 1, timeout=0)
    with pytest.raises(di_store.Timeout) as caught:
        table.sample(1, timeout=0)
    return str(caught.value.reason)


@each_sampler
@each_limit
@each_end
def test_a_draw_that_is_not_acknowledged_has_not_happened(
    store: di_store.Store, sampler: Any, uses: int, end: str
) -> None:
    """Its items come next, before all others, the oldest first."""
    table = filled(store, sampler=sampler, max_times_sampled=uses)
    table.ack(take(table, 2))
    order, before = table.keys().tolist(), shown(table)
    for _ in range(2):
        back = ENDS[end](table, 3)
        assert shown(table) == before
    found = table.sample(3, timeout=PATIENCE, replace=isinstance(sampler, Once))
    assert found.keys.tolist() == sorted(back, key=order.index)


@each_sampler
@each_limit
def test_leased_items_are_drawn_by_nobody_else(store: di_store.Store, sampler: Any, uses: int) -> None:
    """They are not among those that can be drawn, and can be looked at."""
    table = filled(store, sampler=sampler, max_times_sampled=uses)
    inserted = sorted(table.keys().tolist())
    first, holder, rest = take(table, 2), Holder(table, 2), take(table, 2)
    assert sorted([*first.keys.tolist(), *holder.keys, *rest.keys.tolist()]) == inserted
    assert (leased(table), len(table), len(table.keys())) == (ITEMS, 0, 0)
    assert table.stats()["leased"]["holders"] == {f"pid {os.getpid()}": 4, f"pid {holder.process.pid}": 2}
    assert table.peek(inserted).live.all()  # type: ignore[union-attr]
    assert "lease" in nothing_to_draw(table)
    holder.kill()
    assert keys_of(take(table, 2)) == holder.keys
    assert table.ack(first) + table.ack(rest) == 4


def test_items_of_a_lease_end_one_by_one(store: di_store.Store) -> None:
    """By any process that has their keys. Repeated keys, and those of items that nobody leases, count nothing."""
    table = filled(store, sampler=Fifo(), max_times_sampled=1)
    inserted = table.keys().tolist()
    batch, holder = take(table, 3), Holder(table, 2)
    assert table.ack([inserted[0], inserted[0]]) == 1
    assert table.ack([inserted[0], inserted[5], 12345]) == table.give_back([inserted[5]]) == 0
    assert table.give_back([inserted[1]]) == 1
    assert table.ack([inserted[1]]) == table.ack([]) == 0
    assert table.ack(holder.keys[:1]) == table.give_back(holder.keys[1:]) == 1
    holder.kill()
    assert leased(table) == 1
    assert take(table, 2).keys.tolist() == [inserted[1], inserted[4]]
    assert table.ack(batch) == 1


@each_sampler
def test_leases_of_any_length(store: di_store.Store, sampler: Any) -> None:
    """One of no time ends at once, one that is extended lives on."""
    table = filled(store, sampler=sampler)
    years = take(table, 2, 10 * 365 * 86_400)
    before = shown(table)
    batch = take(table, 3, 0)
    assert table.ack(batch) == 0
    for wrong in (-1, float("nan"), float("inf"), "5", True, np.zeros(2)):
        with pytest.raises((ValueError, TypeError), match="lease"):
            take(table, 1, wrong)
    assert shown(table) == before
    back = take(table, 3, 0.3)
    assert keys_of(back) == keys_of(batch)
    assert back.lease.extend(LONG) == 3
    late = take(table, 1, 0.3)
    until(lambda: leased(table) == 5, "the lease that was not extended to run out")
    assert (table.ack(late), late.lease.extend(LONG), table.ack(back), table.ack(years)) == (0, 0, 3, 2)


def test_ten_thousand_leases_end_in_any_order(store: di_store.Store) -> None:
    count = 10_000
    table = filled(store, items=2 * count, capacity=2 * count, limiter=di_store.Queue(2 * count))
    batches, large = [take(table, 1) for _ in range(count)], take(table, count)
    assert leased(table) == 2 * count
    assert table.ack(large) == count
    order = np.random.default_rng(0).permutation(count).tolist()
    assert sum(table.give_back(batches[at]) for at in order[: count // 2]) == count // 2
    assert sum(table.ack(batches[at]) for at in order) == count // 2
    assert leased(table) == 0
    assert table.sample(count // 2, timeout=PATIENCE).data["n"].tolist() == sorted(order[: count // 2])


def test_a_lease_is_the_batchs_also_when_it_was_pickled(store: di_store.Store) -> None:
    """A plain batch has none."""
    table = filled(store, max_times_sampled=1)
    assert table.peek(table.keys()).lease is None
    assert table.sample(1).lease is None
    batch = take(table, 3)
    assert table.ack(pickle.loads(pickle.dumps(batch.lease))) == 3
    assert (leased(table), table.ack(batch.lease), len(table)) == (0, 0, 2)


def test_leases_end_with_the_last_handle_of_their_process(store: di_store.Store) -> None:
    table = filled(store)
    ours, theirs = WARM.Pipe()
    WARM.Process(target=_close_handles, args=(store.name, theirs), daemon=True).start()
    for left in (2, 2, 0):  # after no handle, the first and the last one was closed
        ours.recv()
        assert table.give_back(take(table, ITEMS - 2)) == ITEMS - 2
        until(lambda left=left: leased(table) == left, "the leases to end")
        ours.send("go on")


def _close_handles(name: str, pipe: Any) -> None:
    first, last = di_store.attach(name), di_store.attach(name)
    take(first.table("t"), 2)
    for close in (gc.collect, first.close, last.close):
        close()
        pipe.send("done")
        pipe.recv()


# -- with other parts of a table ------------------------------------------------------------------------------------


def test_values_and_acknowledgement_come_in_one_step(store: di_store.Store) -> None:
    """Those of a lease that ended acknowledge nothing."""
    schema = {"x": Spec((), "i8"), "reward": Spec((), "f4", late=True)}
    todo = store.create_table("todo", capacity=20, schema=schema, columns=("x",), sampler=Fifo(), max_times_sampled=1)
    learn = store.create_table("learn", capacity=20, schema=schema, sampler=Fifo(), max_times_sampled=1)
    with store.writer([todo, learn]) as writer:
        writer.extend({"x": np.arange(6)})
    batch = take(todo, 3)
    assert todo.update(batch.keys, {"reward": np.float32(batch.data["x"])}, ack=True) == 3
    assert (leased(todo), len(todo), len(learn)) == (0, 3, 3)
    got = learn.sample(3)
    assert got.data["x"].tolist() == got.data["reward"].tolist() == [0, 1, 2]
    assert todo.update(batch, {"reward": np.zeros(3, "f4")}, ack=True) == 0
    late, values = expired(todo, 1), {"reward": np.ones(1, "f4")}
    now = take(todo, 1)
    todo.update(late, values, ack=True)
    assert todo.update(now.keys, values) == leased(todo) == 1
    assert todo.update(now, values, ack=True) == 1
    assert leased(todo) == 0


@pytest.mark.parametrize("limiter", [di_store.Queue(4), di_store.Stack(4)], ids=repr)
@each_end
def test_a_queue_gives_each_item_once(store: di_store.Store, limiter: Any, end: str) -> None:
    """Leased items leave room. If they come back, they lift it above its size: inserts wait, and nothing is evicted."""
    table = filled(store, limiter=limiter, items=4)
    kept = take(table, 2)
    ENDS[end](table, 2)
    table.extend({"n": np.arange(4, 6)}, timeout=0)
    assert (len(table), leased(table)) == (4, 2)
    assert table.give_back(kept) == 2
    batches = []
    for size in (6, 4):
        assert len(table) == size
        with pytest.raises(di_store.Timeout):
            table.insert({"n": 6}, timeout=0)
        batches.append(take(table, 2))
    assert sum(map(table.give_back, batches)) == 4
    assert sorted(table.sample(6, timeout=PATIENCE).data["n"].tolist()) == list(range(6))


@each_limit
def test_leased_items_are_not_evicted(store: di_store.Store, uses: int) -> None:
    """They count for the capacity, unless it is their last draw. The next inserts make up for what was too much."""
    table = filled(store, capacity=ITEMS, max_times_sampled=uses, sampler=Fifo())
    batch = take(table, 3)
    table.extend({"n": np.arange(10, 16)})
    assert len(table) == (6 if uses == 1 else 3)
    batches = [batch, take(table, len(table))]
    if uses == 3:  # nothing can be evicted
        with pytest.raises(di_store.Timeout, match="no item can be evicted; 6 items are leased"):
            table.extend({"n": np.arange(20, 26)}, timeout=0)
    else:
        table.extend({"n": np.arange(20, 26)})
    for each in batches:
        assert table.peek(each.keys).live.all()  # type: ignore[union-attr]
        assert table.ack(each) == len(each)
    table.extend({"n": np.arange(30, 33)}, timeout=0)
    assert len(table) == ITEMS


@each_end
def test_the_end_of_data_waits_for_leases(store: di_store.Store, end: str) -> None:
    table = filled(store, sampler=Fifo(), max_times_sampled=1, items=4)
    assert table.ack(take(table, 2)) == 2
    table.finish()
    batch = take(table, 2)
    assert f"pid {os.getpid()}" in nothing_to_draw(table)
    assert table.give_back(batch) == 2
    assert ENDS[end](table, 2) == keys_of(batch)
    assert table.ack(take(table, 2)) == 2
    for lease in (None, LONG):
        with pytest.raises(di_store.EndOfData):
            table.sample(1, lease=lease)


def test_leases_outlive_changes_of_their_table(store: di_store.Store) -> None:
    table = filled(store, sampler=Prioritized(0.6, 0.4), max_times_sampled=1)
    one, two = take(table, 2), take(table, 2)
    table.resize(5_000)
    table.extend({"n": np.arange(4_000)})
    table.configure(limiter=di_store.MinSize(2), alpha=0.5)
    table.resize(3)
    assert leased(table) == 4
    assert (table.ack(one), table.give_back(two)) == (2, 2)
    assert keys_of(take(table, 2)) == keys_of(two)


def test_after_a_reset_or_drop_a_lease_counts_nothing(store: di_store.Store) -> None:
    table = filled(store)
    batch, other = take(table, 2), take(table, 2)
    table.reset()
    table.extend({"n": np.arange(3)})
    before = shown(table)
    assert (table.ack(batch), table.give_back(other)) == (0, 0)
    assert shown(table) == before
    batch = take(table, 2)
    store.drop_table("t")
    for call in (table.ack, table.give_back):
        with pytest.raises(di_store.TableNotFound):
            call(batch)
    again = filled(store)
    take(again, ITEMS)
    assert (again.ack(batch), leased(again)) == (0, ITEMS)


@each_sampler
@each_limit
@pytest.mark.parametrize("how", ["export", "checkpoint", "reopen"])
def test_copies_have_leased_items_as_not_drawn(tmp_path: Path, sampler: Any, uses: int, how: str) -> None:
    """A lease of the store counts there, and nothing in its copy."""
    options: dict[str, Any] = {"memory": "32MiB"}
    if how == "reopen":
        options |= {"disk": tmp_path / "disk", "disk_capacity": "64MiB"}
    with di_store.open(**options) as store:
        durability = "disk" if how == "reopen" else "memory"
        table = filled(store, sampler=sampler, max_times_sampled=uses, durability=durability)
        table.ack(take(table, 2))
        items = table.peek(table.keys())
        batch = take(table, 3)
        {"export": table.export, "checkpoint": store.checkpoint}.get(how, lambda path: store.sync())(tmp_path / "c")
        assert leased(table) == 3
        if how != "reopen":  # which is saved as it is at the end
            assert table.ack(batch) == 3
    with di_store.restore(tmp_path / "c", **options) if how == "checkpoint" else di_store.open(**options) as other:
        copy = other.import_table(tmp_path / "c") if how == "export" else other.table("t")
        found = copy.peek(copy.keys())
        assert found.data["n"].tolist() == items.data["n"].tolist()
        assert found.times_sampled.tolist() == items.times_sampled.tolist()
        assert leased(copy) == 0
        assert len(now := take(copy, len(items))) == len(items)
        assert (copy.ack(batch), copy.ack(now)) == (0, len(items))
        assert other.check() == []
