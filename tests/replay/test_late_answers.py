"""Answers to groups that are complete or gone, and groups that lack answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pains import until

import di_store
from di_store import Group, Spec

PLAIN = {"group": Spec((), "i8"), "x": Spec((), "i8")}
REWARD = {**PLAIN, "reward": Spec((), "f4", late=True)}
KEPT = 16_384


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB") as opened:
        yield opened
        assert opened.check() == []


def answers(group: int, count: int) -> dict[str, np.ndarray]:
    return {"group": np.full(count, group), "x": np.arange(count)}


def counts(table: di_store.Table) -> tuple[int, int, int]:
    """Groups that can be drawn, groups that lack answers, late answers."""
    stats = table.stats()
    return len(table), stats["waiting"], stats["late_answers"]


def end(table: di_store.Table, how: str) -> np.ndarray:
    """Have group 7 end; the keys of its answers."""
    if how in ("dropped", "deleted"):
        keys = table.extend(answers(7, 1))
    else:
        keys = table.extend(answers(7, 2))
    if how == "used up":
        assert table.sample(1, timeout=30).data["group"].tolist() == [[7, 7]]
    elif how == "deleted":
        assert table.delete(keys) == 1
    elif how == "dropped":
        for other in range(100, 104):
            table.extend(answers(other, 2))
        assert table.stats()["groups_dropped"] == 1
    elif how == "evicted":
        for other in range(100, 105):
            table.extend(answers(other, 2))
    return keys


@pytest.mark.parametrize("how", ["complete", "used up", "evicted", "dropped", "deleted"])
@pytest.mark.parametrize("path", ["insert", "extend", "writer"])
def test_an_answer_to_an_ended_group_is_refused(store: di_store.Store, how: str, path: str) -> None:
    """Only it: the others of its call are inserted, and nothing leaves for it."""
    uses = 1 if how == "used up" else 0
    table = store.create_table(
        "t", capacity=4, view=Group(2, unique=True), schema=PLAIN, max_times_sampled=uses, lanes=3
    )
    keys = end(table, how)
    there = len(table)
    live = bool(table.peek(keys[:1]).live[0])
    if path == "insert":
        made = table.insert({"group": 7, "x": 70})
        assert (made.dtype, made.shape) == (np.uint64, (0,))
        late = 1
    elif path == "extend":
        made = table.extend({"group": np.array([7, 8, 7]), "x": np.array([70, 80, 71])})
        late = 2
    else:
        with table.writer(lanes=3) as writer:
            items = writer.append({"group": np.array([7, 8, 7]), "x": np.array([70, 80, 71])})
            made, late = items.keys, 2
            assert items.lanes.tolist() == [1]
    assert len(made) == (path != "insert")
    assert table.stats()["late_answers"] == late
    assert table.stats()["waiting"] == (path != "insert")
    assert bool(table.peek(keys[:1]).live[0]) == live or path != "insert"
    if path == "insert":
        assert len(table) == there
    else:
        assert [each.value for each in table.incomplete()] == [8]
        table.extend(answers(8, 1))
        assert 8 in table.peek(table.keys()).data["group"]
    assert table.stats()["waiting"] == 0


@pytest.mark.parametrize("how", ["complete", "dropped"])
def test_without_unique_a_late_answer_begins_a_marked_group(store: di_store.Store, how: str) -> None:
    table = store.create_table("t", capacity=4, view=Group(2), schema=PLAIN)
    end(table, how)
    (key,) = table.insert({"group": 7, "x": 70})
    (last,) = [each for each in table.incomplete() if each.value == 7]
    assert (last.answers, last.missing, last.late, last.keys.tolist()) == (1, 1, True, [key])
    assert table.stats()["late_answers"] == 1
    table.insert({"group": 7, "x": 71})  # joins it
    assert table.stats()["late_answers"] == 1
    table.insert({"group": 9, "x": 0})
    assert [(each.value, each.late) for each in table.incomplete()] == [(9, False)]


def test_incomplete_groups_are_listed(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=400, view=Group(3), schema=REWARD, lanes=4)
    assert table.incomplete() == []
    keys = {group: table.extend(answers(group, 1 + group % 3)) for group in range(300)}
    found = table.incomplete()
    assert [each.value for each in found] == list(range(300))
    assert len(found) == table.stats()["waiting"]
    for each in found:
        assert (each.answers, each.missing, each.late) == (1 + each.value % 3, 2 - each.value % 3, False)
        assert each.keys.tolist() == keys[each.value].tolist()
    assert sum(each.missing == 0 for each in found) == table.stats()["gathered"] == 100
    table.update(keys[2], {"reward": np.ones(3, "f4")})
    table.delete(keys[0])
    assert [each.value for each in table.incomplete(timeout=1)] == [1, *range(3, 300)]
    assert table.delete(found[4].keys[:1]) == 1


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_incomplete_reports_the_values_of_the_column(store: di_store.Store, dtype: str) -> None:
    bounds = np.iinfo(dtype)
    table = store.create_table("t", capacity=4, view=Group(2, unique=True), schema={"group": Spec((), dtype)})
    values = [int(bounds.min), int(bounds.max)]
    table.extend({"group": np.array(values, dtype)})
    assert [each.value for each in table.incomplete()] == values
    table.extend({"group": np.array(values, dtype)})
    table.extend({"group": np.array(values, dtype)})
    assert counts(table) == (2, 0, 2)


@pytest.mark.parametrize("view", [di_store.Step(), di_store.Opaque()])
def test_other_views_have_no_groups(store: di_store.Store, view: di_store.View) -> None:
    table = store.create_table("t", capacity=4, view=view)
    with pytest.raises(ValueError, match=r"incomplete\(\) lists groups, of tables with view=Group"):
        table.incomplete()


def test_unique_is_a_flag() -> None:
    with pytest.raises(TypeError, match="unique="):
        Group(2, unique=1)  # type: ignore[arg-type]
    assert repr(Group(2)) == "Group(size=2, by='group', unique=False, deadline=None, short=False)"


def test_groups_of_one_answer(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=4, view=Group(1, unique=True), schema=PLAIN)
    table.extend({"group": np.array([1, 2, 1]), "x": np.arange(3)})
    assert (counts(table), table.incomplete()) == ((2, 0, 1), [])


def test_only_the_newest_ended_groups_are_remembered(store: di_store.Store) -> None:
    """Exactly so many: the oldest of them is refused, the one before begins a group."""
    table = store.create_table("t", capacity=2, view=Group(2, unique=True), schema=PLAIN)
    for first in range(0, KEPT + 2, 2):
        table.extend({"group": np.arange(first, first + 2).repeat(2), "x": np.zeros(4, int)})
    assert counts(table) == (2, 0, 0)
    table.extend({"group": np.array([2, KEPT, KEPT + 1]), "x": np.zeros(3, int)})
    assert counts(table) == (2, 0, 3)
    table.insert({"group": 1, "x": 0})
    assert counts(table) == (1, 1, 3)
    assert not table.incomplete()[0].late


def test_a_reset_forgets_ended_groups(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=4, view=Group(2, unique=True), schema=PLAIN)
    table.extend(answers(1, 2))
    table.extend(answers(1, 1))
    table.extend(answers(2, 1))
    assert counts(table) == (1, 1, 1)
    table.reset()
    table.extend({"group": np.array([1, 2]), "x": np.arange(2)})
    assert counts(table) == (0, 2, 0)


def test_a_resize_keeps_ended_groups(store: di_store.Store) -> None:
    """It makes other slots, and rebuilds all that is derived."""
    table = store.create_table("t", capacity=4, view=Group(2, unique=True), schema=PLAIN)
    for group in range(50):
        table.extend(answers(group, 2))
    table.resize(3000)
    table.extend({"group": np.arange(51), "x": np.zeros(51, int)})
    assert counts(table) == (4, 1, 50)


def test_a_group_evicted_for_a_slot_does_not_restart() -> None:
    """Draws hold the slots, and there is no memory for more: the oldest group goes, and its next answer is late."""
    with di_store.open(memory="32MiB") as store:
        options: dict[str, Any] = {"max_times_sampled": 1, "limiter": di_store.MinSize(1), "sampler": di_store.Fifo()}
        view = Group(2, by="group", unique=True)
        table = store.create_table("t", capacity=700, view=view, schema=PLAIN, lanes=1, **options)
        native = table._backend.session.arena.table("t")

        def write(first: int, groups: int) -> None:
            table.extend({"group": np.repeat(np.arange(first, first + groups), 2), "x": np.zeros(2 * groups, "i8")})

        write(1_000, 640)
        with table.loader(64, prefetch=16) as loader:
            next(loader)
            until(lambda: native.stats()["size"] == 0, "all are drawn ahead")
            table.insert({"group": 7, "x": 0})
            held = []
            for size in (1 << 18, 4_096, 256):
                with pytest.raises(di_store.StoreFull):
                    while True:
                        held.append(store.get(store.put(np.zeros(size, np.uint8), timeout=0)))
            now = native.stats()
            more = (now["slots"] - 2 * now["held"] - 1) // 2
            write(2_000, more)
            now = native.stats()
            if now["slots"] - 2 * (now["held"] + now["size"]) == 2:
                table.insert({"group": 8, "x": 0})  # takes the last slot
            assert now["evicted_for_room"] == 0
            assert table.insert({"group": 7, "x": 1}).tolist() == []
            now = native.stats()
        assert (now["evicted_for_room"], now["groups_dropped"], now["late_answers"]) == (1, 1, 1)
        assert 7 not in [each.value for each in table.incomplete()]
        assert store.check() == []
