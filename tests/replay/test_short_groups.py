"""Groups that are not complete at their deadline: dropped, or delivered short with a mask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pains import until

import di_store
from di_store import Group, Spec

PLAIN = {"group": Spec((), "i8"), "x": Spec((), "i4"), "wide": Spec((300,), "f4"), "tokens": Spec((None,), "i4", 8)}
REWARD = {**PLAIN, "reward": Spec((), "f4", late=True)}
SOON, NEVER = 0.05, 1000.0
PATIENCE = 60.0


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB") as opened:
        yield opened
        assert opened.check() == []


def answers(*counts: int) -> dict[str, Any]:
    """The answers of groups 1, 2, …, as many of each as given."""
    group = np.repeat(np.arange(1, len(counts) + 1), counts)
    x = (10 * group + np.concatenate([np.arange(count) for count in counts])).astype("i4")
    wide = np.repeat(x[:, None], 300, axis=1).astype("f4")
    return {"group": group, "x": x, "wide": wide, "tokens": [np.arange(each % 5 + 1, dtype="i4") + each for each in x]}


def agrees(batch: di_store.Batch, *counts: int) -> list[int]:
    """The groups of a batch of `answers(*counts)`; everything is zero where an answer is missing."""
    groups, size = batch.data["group"].max(axis=1).tolist(), batch.data["mask"].shape[1]
    assert batch.data["mask"].dtype == np.bool_
    assert batch.keys.shape == batch.weights.shape == (len(groups),)
    assert batch.episodes.shape == batch.starts.shape == (len(groups), size)
    for place, group in enumerate(groups):
        count = counts[group - 1]
        want = [10 * group + at for at in range(count)]
        assert batch.data["mask"][place].tolist() == [True] * count + [False] * (size - count)
        assert batch.data["group"][place].tolist() == [group] * count + [0] * (size - count)
        assert batch.data["x"][place].tolist() == want + [0] * (size - count)
        assert (batch.data["wide"][place] == batch.data["x"][place][:, None]).all()
        assert (batch.starts[place][count:] == -1).all()
        tokens = [batch.data["tokens"][place * size + at].tolist() for at in range(size)]
        assert tokens == [[x + i for i in range(x % 5 + 1)] for x in want] + [[]] * (size - count)
    return groups


SAMPLERS: dict[str, dict[str, Any]] = {
    "fifo": {"sampler": di_store.Fifo()},
    "lifo": {"sampler": di_store.Lifo()},
    "uniform": {},
    "prioritized": {"sampler": di_store.Prioritized(0.6, beta=0.4)},
    "once": {"sampler": di_store.Once(2)},
    "queue": {"limiter": di_store.Queue(8)},
    "twice": {"sampler": di_store.Fifo(), "max_times_sampled": 2},
}


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("lease", [None, 600])
def test_short_groups_are_drawn_as_others(store: di_store.Store, kind: str, lease: float | None) -> None:
    """In batches with whole ones: alone and many at once, with and without a lease, whole or in part."""
    view = Group(4, deadline=SOON, short=True)
    table = store.create_table("t", capacity=8, view=view, schema=PLAIN, **SAMPLERS[kind])
    counts = 3, 4, 1, 2
    keys = table.extend(answers(*counts))
    until(lambda: table.incomplete() == [], "the deadline")
    stats = table.stats()
    assert (len(table), stats["groups_short"], stats["groups_dropped"], stats["inserts"]) == (4, 3, 0, 4)
    assert agrees(table.peek(table.keys()), *counts) == [2, 1, 3, 4]
    assert agrees(table.peek(keys), *counts) == [1] * 3 + [2] * 4 + [3] + [4] * 2
    seen = set()
    for n in (1, 3):
        batch = table.sample(n, lease=lease, timeout=PATIENCE)
        seen |= set(agrees(batch, *counts))
        if lease is not None:
            assert table.ack(batch) == n
    assert len(seen) == 4 or kind not in ("once", "queue")
    if kind == "once":
        part = table.sample(4, timeout=PATIENCE, columns=("x", "mask"))
        assert sorted(part.data["mask"].sum(axis=1).tolist()) == [1, 2, 3, 4]
        assert set(part.data) == {"x", "mask"}
    if kind in ("uniform", "prioritized"):
        names = ("group", "mask", "x")
        out = table.sample(4, columns=names)
        out.data["x"][:] = -1
        table.sample(4, columns=names, out=out)
        assert (out.data["x"][~out.data["mask"]] == 0).all()
        assert (out.data["x"][out.data["mask"]] // 10 == out.data["group"][out.data["mask"]]).all()


def test_a_group_without_short_is_dropped(store: di_store.Store) -> None:
    """Its key comes as an event, and its value has ended."""
    table = store.create_table("t", capacity=4, view=Group(2, unique=True, deadline=SOON), schema=PLAIN)
    gone = table.evicted()
    assert list(gone) == []
    keys = table.extend(answers(1, 1))
    until(lambda: table.incomplete() == [], "the deadline")
    assert [(key, key.reason) for key in gone] == [(key, "overdue") for key in keys]
    stats = table.stats()
    assert (len(table), stats["waiting"], stats["groups_dropped"], stats["groups_short"]) == (0, 0, 2, 0)
    assert table.extend(answers(2)).size == 0
    assert table.stats()["late_answers"] == 2
    with pytest.raises(di_store.Timeout):
        table.sample(1, timeout=0)


@pytest.mark.parametrize("unique", [True, False])
def test_a_late_answer_does_not_join_a_short_group(store: di_store.Store, unique: bool) -> None:
    view = Group(2, unique=unique, deadline=SOON, short=True)
    table = store.create_table("t", capacity=4, view=view, schema=PLAIN)
    table.extend(answers(1))
    until(lambda: table.incomplete() == [], "the deadline")
    made = table.extend(answers(1))
    assert (len(made), table.stats()["late_answers"]) == (not unique, 1)
    assert agrees(table.peek(table.keys()[:1]), 1) == [1]


@pytest.mark.parametrize("path", ["sample", "loader"])
def test_a_draw_waits_until_the_deadline(store: di_store.Store, path: str) -> None:
    table = store.create_table("t", capacity=4, view=Group(4, deadline=0.3, short=True), schema=PLAIN)
    table.extend(answers(2))
    assert [each.missing for each in table.incomplete()] == [2]
    if path == "sample":
        assert agrees(table.sample(1, timeout=PATIENCE), 2) == [1]
    else:
        with table.loader(1, timeout=PATIENCE) as loader:
            assert agrees(next(loader), 2) == [1]


def test_the_end_of_data_gives_what_is_short(store: di_store.Store) -> None:
    """At once what only lacks answers; the rest once its late values are there."""
    view = Group(3, deadline=NEVER, short=True)
    table = store.create_table("t", capacity=8, view=view, schema=REWARD, limiter=di_store.Queue(8))
    keys = table.extend(answers(1, 2, 3))
    table.update(keys[:2], {"reward": np.float32([1, 2])})
    assert table.stats()["gathered"] == 1
    table.finish()
    assert agrees(table.sample(1, timeout=PATIENCE), 1) == [1]
    with pytest.raises(di_store.Timeout, match=r"finished; .*wait for late columns"):
        table.sample(1, timeout=0)
    table.update(keys[2:3], {"reward": np.float32([3])})
    batch = table.sample(1, timeout=PATIENCE)
    assert agrees(batch, 1, 2) == [2]
    assert batch.data["reward"].tolist() == [[2, 3, 0]]
    table.update(keys[3:], {"reward": np.float32([4, 5, 6])})
    assert agrees(table.sample(1, timeout=PATIENCE), 1, 2, 3) == [3]
    with pytest.raises(di_store.EndOfData):
        table.sample(1, timeout=PATIENCE)
    assert table.stats()["groups_short"] == 2


def test_the_end_of_data_comes_after_the_last_deadline(store: di_store.Store) -> None:
    """Of a group whose values never came; and one that is only dropped is not waited for."""
    for name, short in (("short", True), ("dropped", False)):
        view = Group(3, deadline=0.2 if short else NEVER, short=short)
        table = store.create_table(name, capacity=8, view=view, schema=REWARD, limiter=di_store.Queue(8))
        table.extend(answers(2))
        table.finish()
        with pytest.raises(di_store.EndOfData):
            table.sample(1, timeout=PATIENCE)
        assert table.stats()["groups_dropped"] == short


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="short=True: a group is short at its deadline; give deadline="):
        Group(2, short=True)
    for wrong in (-1, float("inf"), 2e7):
        with pytest.raises(ValueError, match="deadline="):
            Group(2, deadline=wrong)
    with pytest.raises(TypeError, match="short="):
        Group(2, deadline=1, short=1)  # type: ignore[arg-type]


def test_mask_is_a_column_of_short_groups_alone(store: di_store.Store) -> None:
    schema = {"group": Spec((), "i8"), "mask": Spec((), "i8")}
    with pytest.raises(ValueError, match="column 'mask': Group puts its own 'mask' into every batch"):
        store.create_table("t", capacity=4, view=Group(2, deadline=1, short=True), schema=schema)
    store.create_table("t", capacity=4, view=Group(2, deadline=1), schema=schema)


def test_groups_of_one_answer_end_too(store: di_store.Store) -> None:
    """They can lack nothing but late columns."""
    view = Group(1, deadline=SOON, short=True)
    table = store.create_table("t", capacity=4, view=view, schema={**PLAIN, "reward": Spec((), "f4", late=True)})
    table.extend(answers(1))
    until(lambda: table.incomplete() == [], "the deadline")
    assert (len(table), table.stats()["groups_dropped"]) == (0, 1)
