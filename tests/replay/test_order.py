"""Which key stands for which rows: what a call returns is in the order of what it was given.

Every row spells its lane and time, so that the items of a call can be told from the episodes' lengths alone. Key, rows
and priority of each item must belong together, however many items a call makes and however many episodes it holds.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import Episode, Opaque, Prioritized, Sequence, Step, Transition

FULL = os.environ.get("DI_STORE_TEST_SCALE", "small") == "full"
COUNTS = (1, 2, 16, 17, 63, 64, 65, 129, 1_000, 2_049, 4_096, 10_000) if FULL else (1, 2, 17, 65, 700)
STEPS = (1, 16, 17, 64, 65, 500, 5_000) if FULL else (1, 17, 65, 300)
TIME = 4  # rows of a whole sequence or episode
N_STEP = 3

Places = list[tuple[int, int, int]]
"""Lane, first and last time of each item of a call."""


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="512MiB" if FULL else "128MiB") as opened:
        yield opened


def given_items(view: Any, n: int) -> Any:
    """A batch of `n` items for `table.extend`, whose k-th says k."""
    numbers = np.arange(n)
    if isinstance(view, Step):
        return {"obs": numbers}
    if isinstance(view, Opaque):
        return list(range(n))
    if isinstance(view, Transition):
        flags = {"terminated": np.zeros(n, bool), "reward": np.zeros(n, np.float32)}
        return {"obs": numbers, "next_obs": numbers + 1, "discount": np.ones(n, np.float32), **flags}
    return {"obs": np.repeat(numbers[:, None], TIME, axis=1), "terminated": np.zeros((n, TIME), bool)}


def said(batch: Any) -> list[int]:
    """What each item of a batch says."""
    if isinstance(batch.data, list):
        return list(batch.data)
    obs = np.asarray(batch.data["obs"])
    found: list[int] = (obs if obs.ndim == 1 else obs[:, 0]).tolist()
    return found


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("view", [Step(), Transition(), Sequence(TIME), Episode(TIME), Opaque()], ids=str)
def test_keys_of_inserted_items_are_in_the_order_given(store: Any, view: Any, n: int) -> None:
    table = store.create_table("t", capacity=2 * n, view=view, sampler=Prioritized(1.0), lanes=1)
    for turn in range(2):  # the second call finds slots, chunks and an open lane
        priorities = np.random.default_rng(turn).permutation(n) + 1.0
        keys = table.extend(given_items(view, n), priority=priorities)
        found = table.peek(keys)
        assert said(found) == list(range(n))
        assert found.priorities.tolist() == priorities.tolist()
        changed = priorities[::-1] + 0.5
        assert table.update_priorities(keys, changed) == n
        batch = table.peek(table.keys(turn * n, n))
        assert dict(zip(said(batch), batch.priorities.tolist(), strict=True)) == dict(enumerate(changed.tolist()))


def transitions(lane: int, begin: int, end: int, closed: bool) -> Places:
    last = [min(at + N_STEP, end) - 1 for at in range(begin, end)]
    return [(lane, at, to) for at, to in zip(range(begin, end), last, strict=True) if closed or to - at == N_STEP - 1]


def sequences(lane: int, begin: int, end: int, closed: bool) -> Places:
    found: Places = []
    for at in range(begin, end, 2):  # period=2
        if at + TIME <= end or closed:
            found.append((lane, at, min(at + TIME, end) - 1))
        if at + TIME >= end:
            break
    return found


def episodes(lane: int, begin: int, end: int, closed: bool) -> Places:
    return [(lane, begin, end - 1)] if closed else []


def steps(lane: int, begin: int, end: int, closed: bool) -> Places:
    return [(lane, at, at) for at in range(begin, end)]


VIEWS: list[tuple[Any, Callable[[int, int, int, bool], Places]]] = [
    (Step(), steps),
    (Transition(n_step=N_STEP), transitions),
    (Sequence(TIME, period=2), sequences),
    (Sequence(TIME, period=2, bootstrap=("obs",)), sequences),
    (Episode(40), episodes),
    (Episode(40, bootstrap=("obs",)), episodes),
]


def episodes_of(rng: random.Random, total: int) -> list[tuple[int, int, bool]]:
    """First row, end and whether it ended, of the episodes that `total` rows hold."""
    found, at = [], 0
    while at < total:
        end = at + rng.randint(1, 30)
        found.append((at, min(end, total), end <= total))
        at = end
    return found


@pytest.mark.parametrize("lanes", [None, 1, 3])
@pytest.mark.parametrize("total", STEPS)
@pytest.mark.parametrize(("view", "made"), VIEWS, ids=lambda value: str(value) if not callable(value) else "")
def test_items_of_several_episodes_are_in_order_of_time(
    store: Any, view: Any, made: Callable[[int, int, int, bool], Places], total: int, lanes: int | None
) -> None:
    rng, count = random.Random(f"{view} {total} {lanes}"), lanes or 1
    parts = [episodes_of(rng, total) for _ in range(count)]
    ends = np.zeros((total, count), bool)
    for lane, each in enumerate(parts):
        ends[[end - 1 for _, end, closed in each if closed], lane] = True
    obs = np.arange(total)[:, None] * count + np.arange(count)  # time × lanes + lane
    priorities = np.random.default_rng(total).permutation(total * count).reshape(total, count) + 1.0
    rows = {"obs": obs, "reward": np.zeros(obs.shape, np.float32), "terminated": ends, "truncated": ends & False}
    shape: Callable[[Any], Any] = (lambda leaf: leaf[:, 0]) if lanes is None else (lambda leaf: leaf)
    table = store.create_table(
        "t", capacity=max(64, total * count), view=view, sampler=Prioritized(1.0), lanes=count, seed=0
    )
    with table.writer(lanes=lanes) as writer:
        items = writer.extend(
            {name: shape(leaf) for name, leaf in rows.items()},
            next={"obs": shape(obs + count)},
            priority=shape(priorities),
        )
        expected = list(itertools.chain(*(made(lane, *part) for lane, each in enumerate(parts) for part in each)))
        assert items.lanes.tolist() == [lane for lane, _, _ in expected]
        begins = [next(begin for begin, end, _ in parts[lane] if begin <= at < end) for lane, at, _ in expected]
        assert items.starts.tolist() == [at - begin for (_, at, _), begin in zip(expected, begins, strict=True)]
        found = table.peek(items.keys)
        assert said(found) == [at * count + lane for lane, at, _ in expected]
        assert found.priorities.tolist() == [priorities[last, lane] for lane, _, last in expected]


def test_lanes_named_out_of_order_are_listed_in_order(store: Any) -> None:
    table = store.create_table("t", capacity=1_000, sampler=Prioritized(1.0))
    named = np.random.default_rng(0).permutation(200)
    with table.writer(lanes=200) as writer:
        for _ in range(2):
            items = writer.append({"n": named}, lane=named, priority=named + 1.0)
            assert items.lanes.tolist() == list(range(200))
            found = table.peek(items.keys)
            assert found.data["n"].tolist() == list(range(200))
            assert found.priorities.tolist() == list(range(1, 201))
