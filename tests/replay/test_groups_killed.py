"""Groups and deaths: writers, reward workers and learners that are killed inside a call."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

import di_store
from di_store import Group, Spec, _core

PLAIN = {"group": Spec((), "i8"), "x": Spec((), "i8")}
REWARD = {**PLAIN, "reward": Spec((), "f4", late=True)}


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB") as opened:
        yield opened
        assert opened.check() == []


def answers(group: int, xs: list[int]) -> dict[str, np.ndarray]:
    return {"group": np.full(len(xs), group), "x": np.array(xs)}


def _write_and_die(table: di_store.Table, point: str) -> None:
    _core.arm_fault(point)
    for group in range(100, 120):
        table.extend(answers(group, [4 * group + at for at in range(4)]))
    os._exit(0)


def _written_to_death(store: di_store.Store, view: Group, point: str) -> tuple[di_store.Table, bool]:
    """A full table of groups, to which a process has written that was to be killed at this point; whether it was."""
    table = store.create_table("t", capacity=6, view=view, schema=PLAIN)
    for group in range(6):
        table.extend(answers(group, [4 * group + at for at in range(4)]))
    party = mp.get_context("fork").Process(target=_write_and_die, args=(table, point))
    party.start()
    party.join(60)
    assert party.exitcode in (-signal.SIGKILL, 0)
    return table, party.exitcode != 0


@pytest.mark.parametrize(
    "point", ["table.insert_answer", "table.insert_item", "undo.between", "undo.before_commit", "undo.after_commit"]
)
@pytest.mark.parametrize("count", [1, 3, 4, 29, 60])
def test_a_kill_leaves_groups_whole(store: di_store.Store, point: str, count: int) -> None:
    """Evictions, joins and completions in one hold. What was complete stays whole; what the dead began can go on."""
    table, killed = _written_to_death(store, Group(4), f"{point}:{count}")
    held = table.peek(table.keys())  # recovers the table
    assert (held.data["x"] == 4 * held.data["group"] + np.arange(4)).all()
    assert len(held) + table.stats()["waiting"] <= 6
    assert len(held) >= 5 or not killed
    for group in range(100, 120):  # completes what is there, whatever it lacks
        while group in [table_value(table)]:
            table.insert({"group": group, "x": 0})
    assert table.stats()["waiting"] == 0
    held = table.peek(table.keys())
    assert (held.data["group"] == held.data["group"][:, :1]).all()
    assert sorted(set(held.data["group"][:, 0].tolist())) == sorted(held.data["group"][:, 0].tolist())


@pytest.mark.parametrize(
    "point", ["table.insert_answer", "table.insert_item", "undo.between", "undo.before_commit", "undo.after_commit"]
)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 29, 60])
def test_a_kill_does_not_mark_a_rolled_back_group_as_ended(store: di_store.Store, point: str, count: int) -> None:
    """Every answer is sent again. Where a value names one group only, each group comes about once, and none is left."""
    table, _ = _written_to_death(store, Group(4, unique=True), f"{point}:{count}")
    for group in range(100, 120):
        for _ in range(4):
            table.insert({"group": group, "x": 0})
    stats = table.stats()
    assert (stats["inserts"], stats["waiting"], stats["groups_dropped"]) == (26, 0, 0)


def table_value(table: di_store.Table) -> int | None:
    """The value of the oldest group that is not complete; None: there is none."""
    waiting = table.incomplete()
    return waiting[0].value if waiting else None


def _update_and_die(table: di_store.Table, keys: np.ndarray, point: str) -> None:
    _core.arm_fault(point)
    table.update(keys, {"reward": np.ones(len(keys), "f4")})
    os._exit(0)


@pytest.mark.parametrize("point", ["late.before_show", "late.item_went_on", "undo.between", "undo.before_commit"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_kill_inside_update_leaves_groups_whole(store: di_store.Store, point: str, count: int) -> None:
    table = store.create_table("t", capacity=6, view=Group(2), schema=REWARD)
    keys = np.concatenate([table.extend(answers(group, [2 * group, 2 * group + 1])) for group in range(4)])
    party = mp.get_context("fork").Process(target=_update_and_die, args=(table, keys, f"{point}:{count}"))
    party.start()
    party.join(60)
    assert party.exitcode in (-signal.SIGKILL, 0)
    live = table.peek(table.keys())  # recovers the table: groups whose values are all there have gone on
    assert (live.data["reward"] == 1).all()
    shown = {"late.before_show": count - 1, "late.item_went_on": 2 * count}.get(point)
    if shown is not None and party.exitcode:
        assert len(live) == shown // 2
    assert table.stats()["gathered"] == table.stats()["waiting"] == 4 - len(live)
    assert table.update(keys, {"reward": np.ones(8, "f4")}) == 8
    assert (len(table), table.stats()["waiting"]) == (4, 0)


def _draw_and_die(table: di_store.Table, point: str, n: int) -> None:
    _core.arm_fault(point)
    for _ in range(4):
        table.sample(n)
    os._exit(0)


@pytest.mark.parametrize(
    "point", ["table.draw_item", "sample.before_copy", "sample.before_deliver", "table.settle_item", "undo.between"]
)
@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_dead_learners_groups_come_back_whole(store: di_store.Store, point: str, count: int) -> None:
    """Each group is delivered whole or comes back whole; its answers' bytes are let go."""
    table = store.create_table("t", capacity=12, view=Group(3), schema=PLAIN, limiter=di_store.Queue(12))
    for group in range(12):
        table.extend(answers(group, [3 * group + at for at in range(3)]))
    party = mp.get_context("fork").Process(target=_draw_and_die, args=(table, f"{point}:{count}", 3))
    party.start()
    party.join(60)
    left = 0
    if party.exitcode:
        assert party.exitcode == -signal.SIGKILL
        got = table.sample(12, min_n=1, linger=0.3, timeout=30)
        left = len(got)
        assert (got.data["x"] == 3 * got.data["group"] + np.arange(3)).all()
        groups = got.data["group"][:, 0].tolist()
        assert groups == list(range(12 - left, 12))
        assert left % 3 == 0 or point in ("table.settle_item", "undo.between")
    assert (len(table), table.stats()["held"]) == (0, 0)
    table.extend(answers(50, [150, 151, 152]))
    assert table.sample(1).data["x"].tolist() == [[150, 151, 152]]


def _end_and_die(table: di_store.Table, point: str) -> None:
    _core.arm_fault(point)
    table.incomplete()
    os._exit(0)


@pytest.mark.parametrize("point", ["groups.ended", "undo.between", "undo.before_commit", "undo.after_commit"])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 21, 40])
@pytest.mark.parametrize("short", [True, False])
def test_a_kill_at_the_deadline_ends_each_group_once(
    store: di_store.Store, point: str, count: int, short: bool
) -> None:
    """Groups are drawn with the answers that were judged, or waiting as before; the next look ends the others."""
    view = Group(4, unique=True, deadline=100, short=short)
    table = store.create_table("t", capacity=12, view=view, schema=REWARD)
    keys = [table.extend(answers(group, [4 * group + at for at in range(1 + group % 4)])) for group in range(12)]
    for group in range(1, 12, 2):
        table.update(keys[group][1:], {"reward": np.ones(len(keys[group]) - 1, "f4")})
    _core.shift_clock(101.0)
    try:
        party = mp.get_context("fork").Process(target=_end_and_die, args=(table, f"{point}:{count}"))
        party.start()
        party.join(60)
        assert party.exitcode in (-signal.SIGKILL, 0)
        for waits in (True, False):
            held = table.peek(table.keys())  # recovers the table
            ended = [int(each) for each in held.data["group"].max(axis=1)]
            if short:
                assert held.data["mask"].tolist() == [[0 < at <= group % 4 for at in range(4)] for group in ended]
                assert (held.data["x"] == (held.data["mask"] * (4 * held.data["group"] + np.arange(4)))).all()
            if waits:
                assert len(ended) + table.stats()["waiting"] <= 12
                table.incomplete()
        assert sorted(ended) == (list(range(1, 12, 2)) if short else [])
        assert (table.stats()["waiting"], table.stats()["inserts"]) == (0, 6 if short else 0)
        for group in range(12):
            assert table.extend(answers(group, [0])).size == 0
    finally:
        _core.shift_clock(0.0)
