"""Deadlines of groups, by a clock that the tests move: what counts, who notices, what is left out."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_tasks import wake_by_changes_alone

import di_store
from di_store import Group, Spec, _core
from di_store.runtime import waits

SCHEMA = {"group": Spec((), "i8"), "x": Spec((), "i4"), "reward": Spec((), "f4", late=True)}
PLAIN = {"group": Spec((), "i8"), "x": Spec((), "i4")}
DEADLINE = 100.0
SHORT = Group(4, unique=True, deadline=DEADLINE, short=True)
TICK = 0.02
"""A deadline is noticed so much later at most: the slots count in steps of 17 ms."""


class Clock:
    """CLOCK_BOOTTIME of this process, moved by tests."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def move(self, seconds: float) -> None:
        self.ahead += seconds
        _core.shift_clock(self.ahead)


@pytest.fixture
def clock() -> Iterator[Clock]:
    yield Clock()
    _core.shift_clock(0.0)


@pytest.fixture
def store(clock: Clock) -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB") as opened:
        yield opened
        assert opened.check() == []


def answers(group: int, count: int) -> dict[str, np.ndarray]:
    return {"group": np.full(count, group), "x": np.arange(10 * group, 10 * group + count, dtype="i4")}


def judge(table: di_store.Table, keys: Any) -> None:
    table.update(np.asarray(keys), {"reward": np.ones(len(keys), "f4")})


def short(table: di_store.Table) -> int:
    found: int = table.stats()["groups_short"]
    return found


def _append(table: di_store.Table) -> None:
    with table.writer() as writer:
        writer.append({"group": 9, "x": np.int32(1)})


NOTICE = {
    "draw": lambda store, table, keys: table.sample(1, timeout=0),
    "draw of some columns": lambda store, table, keys: table.sample(1, timeout=0, columns=("x",)),
    "draw with a lease": lambda store, table, keys: table.sample(1, timeout=0, lease=60),
    "insert": lambda store, table, keys: table.extend(answers(9, 4)),
    "writer": lambda store, table, keys: _append(table),
    "update": lambda store, table, keys: judge(table, keys),
    "incomplete": lambda store, table, keys: table.incomplete(),
    "check": lambda store, table, keys: store.check(),
}


@pytest.mark.parametrize("notice", NOTICE)
def test_calls_notice_a_deadline_and_none_is_early(store: di_store.Store, clock: Clock, notice: str) -> None:
    table = store.create_table("t", capacity=8, view=SHORT, schema=SCHEMA)
    keys = table.extend(answers(1, 3))
    judge(table, keys)
    clock.move(DEADLINE - 1)
    if notice.startswith("draw"):
        with pytest.raises(di_store.Timeout, match="the oldest has 3 of 4 answers"):
            NOTICE[notice](store, table, keys)
    else:
        table.incomplete()
        store.check()
    assert short(table) == 0
    clock.move(1 + TICK)
    NOTICE[notice](store, table, keys)
    assert (short(table), table.extend(answers(1, 1)).size) == (1, 0)


@pytest.mark.parametrize("judged", [[0], [2], [1, 2], [0, 1, 2, 3], []])
@pytest.mark.parametrize("count", [3, 4])
def test_answers_without_their_late_values_are_left_out(
    store: di_store.Store, clock: Clock, judged: list[int], count: int
) -> None:
    """In their places, also the first; values that come later change nothing. Without any answer the group is gone."""
    table = store.create_table("t", capacity=8, view=SHORT, schema=SCHEMA)
    gone = table.evicted()
    assert list(gone) == []
    keys = table.extend(answers(1, count))
    judged = [each for each in judged if each < count]
    judge(table, keys[judged])
    whole = len(judged) == 4
    clock.move(DEADLINE + TICK)
    assert table.incomplete() == []
    stats = table.stats()
    assert (stats["waiting"], stats["gathered"]) == (0, 0)
    assert (stats["groups_short"], stats["groups_dropped"]) == (int(bool(judged) and not whole), int(not judged))
    assert list(gone) == ([] if judged else [keys[0]])
    if not judged:
        assert table.delete(keys) == 0
        return
    for late in (False, True):
        if late:
            judge(table, keys)
        part = table.sample(1, columns=("x", "reward", "mask"))
        for batch in (table.sample(1), table.sample(keys=keys[-1:]), part, table.peek(keys[:1])):
            mask = [at in judged for at in range(4)]
            assert batch.data["mask"].tolist() == [mask]
            assert batch.data["x"].tolist() == [[10 + at if at in judged else 0 for at in range(4)]]
            assert batch.data["reward"].tolist() == [[float(each) for each in mask]]
            assert batch.keys.tolist() == [keys[0]]
    assert table.delete(keys[-1:]) == 1
    assert len(table) == 0


def test_a_whole_group_has_a_whole_mask(store: di_store.Store, clock: Clock) -> None:
    table = store.create_table("t", capacity=8, view=SHORT, schema=PLAIN)
    table.extend(answers(1, 4))
    clock.move(2 * DEADLINE)
    assert table.sample(1).data["mask"].tolist() == [[True] * 4]
    assert (short(table), table.extend(answers(1, 1)).size) == (0, 0)


def test_groups_end_in_their_own_time(store: di_store.Store, clock: Clock) -> None:
    """More of them than one hold of the lock ends; those that began later stay."""
    table = store.create_table("t", capacity=600, view=SHORT, schema=PLAIN)
    for group in range(300):
        table.extend(answers(group, 1 + group % 3))
        clock.move(1 if group == 199 else 0)
    clock.move(DEADLINE - 1 + TICK)
    assert len(table.sample(200, replace=False).keys) == 200
    assert [each.value for each in table.incomplete()] == list(range(200, 300))
    assert {round(each.age) for each in table.incomplete()} == {DEADLINE - 1}
    clock.move(1)
    assert table.incomplete() == []
    assert (len(table), short(table)) == (300, 300)


def test_a_draw_goes_on_past_groups_that_are_dropped(store: di_store.Store, clock: Clock) -> None:
    """Without a wait, though one hold of the lock does not end all of them."""
    table = store.create_table("t", capacity=300, view=SHORT, schema=SCHEMA)
    for group in range(200):
        table.extend(answers(group, 1))
    judge(table, table.extend(answers(200, 2)))
    clock.move(DEADLINE + TICK)
    assert table.sample(1, timeout=0).data["group"].tolist() == [[200, 200, 0, 0]]
    assert table.stats()["groups_dropped"] == 200


def test_an_answer_makes_no_deadline_later(store: di_store.Store, clock: Clock) -> None:
    table = store.create_table("t", capacity=8, view=SHORT, schema=PLAIN)
    for answer in range(3):
        table.extend(answers(1, 1))
        clock.move(DEADLINE / 3 - 1 + answer)
    clock.move(TICK)
    assert table.sample(1).data["mask"].sum() == 3


def test_the_clock_may_be_set_and_run_over(store: di_store.Store, clock: Clock) -> None:
    """A process whose clock is behind ends nothing too early; counts of ticks in a slot go round after 834 days."""
    table = store.create_table("t", capacity=8, view=SHORT, schema=PLAIN)
    clock.move(1e6)
    table.extend(answers(1, 2))
    clock.move(-1e6)
    assert table.incomplete()[0].age == 0.0
    with pytest.raises(di_store.Timeout):
        table.sample(1, timeout=0)
    table.extend(answers(2, 2))
    clock.move(1e6 + DEADLINE + TICK)
    assert sorted(table.sample(2, replace=False).data["group"][:, 0].tolist()) == [1, 2]
    clock.move(2**56 / 1e9 - time.clock_gettime(time.CLOCK_BOOTTIME) - clock.ahead - DEADLINE / 2)
    table.extend(answers(3, 2))
    clock.move(DEADLINE - 1)
    assert [round(each.age) for each in table.incomplete()] == [DEADLINE - 1]
    clock.move(1 + TICK)
    assert table.incomplete() == []


@pytest.mark.parametrize("began", ["before", "meanwhile"])
def test_a_draw_sleeps_until_the_deadline(
    store: di_store.Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, began: str
) -> None:
    """Not longer, and not in slices."""
    table = store.create_table("t", capacity=8, view=SHORT, schema=PLAIN)
    slept = []

    def sleep(awaited: Any, shown: Any, seen: int, seconds: float) -> None:
        slept.append(seconds)
        if began == "meanwhile" and len(slept) == 1:
            table.extend(answers(1, 3))
            assert awaited.seq != seen
        else:
            assert awaited.seq == seen
            clock.move(seconds + 0.001)

    monkeypatch.setattr(waits, "SLICE_SECONDS", math.inf)
    monkeypatch.setattr(waits, "sleep_inside", sleep)
    if began == "before":
        table.extend(answers(1, 3))
    assert table.sample(1, timeout=1e6).data["mask"].sum() == 3
    assert DEADLINE - 1 < slept[-1] < DEADLINE + TICK
    assert len(slept) == (1 if began == "before" else 2)


def test_a_group_that_begins_wakes_a_draw(store: di_store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which then sleeps until that group's deadline."""
    view = Group(4, deadline=0.2, short=True)
    table = store.create_table("t", capacity=8, view=view, schema=PLAIN)
    sleep_inside, slept, asleep = waits.sleep_inside, [], threading.Event()

    def sleep(*arguments: Any) -> None:
        slept.append(arguments[-1])
        asleep.set()
        sleep_inside(*arguments)

    def insert() -> None:
        asleep.wait(60)
        table.extend(answers(1, 3))

    monkeypatch.setattr(waits, "SLICE_SECONDS", math.inf)
    monkeypatch.setattr(waits, "sleep_inside", sleep)
    other = threading.Thread(target=insert)
    other.start()
    assert table.sample(1, timeout=5).data["mask"].sum() == 3
    other.join()
    assert len(slept) >= 2


def test_a_task_sleeps_until_the_deadline(store: di_store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wake_by_changes_alone(monkeypatch)
    table = store.create_table("t", capacity=8, view=Group(4, deadline=0.2, short=True), schema=PLAIN)
    table.extend(answers(1, 3))
    assert asyncio.run(asyncio.wait_for(table.aio.sample(1), 30)).data["mask"].sum() == 3


def test_a_draw_without_a_timeout_waits_for_a_deadline(
    store: di_store.Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nobody writes any more."""
    monkeypatch.setattr(waits, "ABANDONED_SECONDS", 1e-6)
    table = store.create_table("t", capacity=8, view=SHORT, schema=PLAIN)
    with pytest.raises(di_store.Timeout, match="would wait forever"):
        table.sample(1, timeout=None)
    table.extend(answers(1, 3))
    monkeypatch.setattr(waits, "sleep_inside", lambda awaited, shown, seen, seconds: clock.move(DEADLINE))
    assert table.sample(1, timeout=None).data["mask"].sum() == 3


def test_leases_hold_short_groups(store: di_store.Store, clock: Clock) -> None:
    table = store.create_table("t", capacity=8, view=SHORT, schema=SCHEMA, limiter=di_store.Queue(8))
    keys = table.extend(answers(1, 3))
    judge(table, keys[1:])
    clock.move(DEADLINE + TICK)
    first = table.sample(1, lease=50)
    with pytest.raises(di_store.Timeout):
        table.sample(1, timeout=0)
    assert table.give_back(first) == 1
    second = table.sample(1, lease=50)
    clock.move(51)
    third = table.sample(1, lease=50)
    assert table.ack(second) == 0
    for batch in (first, second, third):
        assert batch.data["x"].tolist() == [[0, 11, 12, 0]]
    given = np.arange(4, dtype="f4").reshape(1, 4)
    assert table.update(third, {"reward": given}, row=None, ack=True) == 1
    assert (len(table), table.stats()["leased"]["items"]) == (0, 0)


@pytest.mark.parametrize("disk", [False, True])
def test_a_restored_group_has_its_time_again(clock: Clock, tmp_path: Path, disk: bool) -> None:
    """A short group stays short; a waiting one waits from the restore on."""
    options: dict[str, Any] = {"memory": "64MiB"} | ({"disk": tmp_path / "disk"} if disk else {})
    clock.move(1e5)
    with di_store.open(**options) as store:
        table = store.create_table("t", capacity=8, view=SHORT, schema=SCHEMA)
        keys = table.extend(answers(1, 3))
        judge(table, keys[1:])
        clock.move(DEADLINE - 10)
        table.extend(answers(2, 2))
        clock.move(10 + TICK)
        assert short(table) == 0
        assert table.sample(1, lease=60).data["x"].tolist() == [[0, 11, 12, 0]]
        store.checkpoint(tmp_path / "saved")
    clock.move(-5000.0)  # another start of the machine
    with di_store.restore(tmp_path / "saved", memory="64MiB") as store:
        table = store.table("t")
        assert short(table) == 1
        assert [(each.value, each.age < 1) for each in table.incomplete()] == [(2, True)]
        batch = table.sample(1)
        assert (batch.data["x"].tolist(), batch.data["mask"].tolist()) == (
            [[0, 11, 12, 0]],
            [[False, True, True, False]],
        )
        assert table.extend(answers(1, 1)).size == 0
        judge(table, table.incomplete()[0].keys)
        clock.move(DEADLINE - 1)
        assert len(table.incomplete()) == 1
        clock.move(1 + TICK)
        assert table.incomplete() == []
        assert len(table) == 2
        assert store.check() == []


def test_a_resize_keeps_deadlines_and_short_groups(store: di_store.Store, clock: Clock) -> None:
    table = store.create_table("t", capacity=8, view=SHORT, schema=SCHEMA)
    judge(table, table.extend(answers(1, 3))[:2])
    clock.move(DEADLINE - 10)
    judge(table, table.extend(answers(2, 2)))
    clock.move(10 + TICK)
    assert len(table.incomplete()) == 1
    table.resize(5000)
    assert [round(each.age) for each in table.incomplete()] == [10]
    assert table.sample(1).data["mask"].tolist() == [[True, True, False, False]]
    clock.move(DEADLINE - 10)
    assert (table.incomplete(), len(table)) == ([], 2)


@pytest.mark.parametrize("limiter", [di_store.Queue(2), di_store.MinSize(1)])
def test_limiters_count_short_groups(store: di_store.Store, clock: Clock, limiter: di_store.Limiter) -> None:
    """A queue that is full of groups which lack values lets inserts pass once they are dropped, or drawn short."""
    view = Group(2, deadline=DEADLINE, short=True)
    table = store.create_table("t", capacity=8, view=view, schema=SCHEMA, limiter=limiter)
    keys = np.concatenate([table.extend(answers(group, 2)) for group in (1, 2)])
    judge(table, keys[:1])
    queued = isinstance(limiter, di_store.Queue)
    if queued:
        with pytest.raises(di_store.Timeout, match="2 items wait to be sampled"):
            table.extend(answers(3, 2), timeout=0)
    clock.move(DEADLINE + TICK)
    table.extend(answers(3, 2), timeout=0)  # group 2 is gone, group 1 is short
    assert (len(table), table.stats()["gathered"], table.stats()["inserts"]) == (1, 1, 1)
    assert table.sample(1).data["mask"].tolist() == [[True, False]]
