"""Draws up to a sum of sizes: `sample(n, budget=)`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from leasing import LONG, leased

import di_store
from di_store import Fifo, Group, Once, Prioritized, Queue, Spec, Step
from replay.test_laws import RAGGED
from replay.test_lease_rules import SAMPLERS, shown


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB", seed=1) as opened:
        yield opened
        assert opened.check() == []


def ragged(store: di_store.Store, sizes: Any, **options: Any) -> di_store.Table:
    """A table of items with so many tokens each."""
    table = store.create_table("t", **{"capacity": 400, "schema": RAGGED, "sampler": Fifo(), **options})
    table.extend({"n": np.arange(len(sizes)), "tokens": [np.arange(size, dtype=np.int32) for size in sizes]})
    return table


def fitting(sizes: Any, n: int, most: int) -> int:
    """How many of the first n items have at most this sum."""
    return int(np.searchsorted(np.cumsum(sizes[:n]), most, side="right"))


@given(
    sizes=st.lists(st.integers(0, 64), min_size=1, max_size=120),
    most=st.integers(64, 1_500),
    lease=st.sampled_from([None, LONG]),
    queue=st.booleans(),
)
def test_a_batch_is_the_longest_row_of_items_that_fit(sizes: list[int], most: int, lease: Any, queue: bool) -> None:
    """What was drawn above the budget was never drawn: it comes next, whole, and every item comes once."""
    with di_store.open(memory="32MiB") as store:
        table = ragged(store, sizes, limiter=Queue(200)) if queue else ragged(store, sizes, sampler=Once(1, False))
        table.finish()
        seen = 0
        while seen < len(sizes):
            expected = fitting(sizes[seen:], 100, most)
            batch = table.sample(100, budget=("tokens", most), lease=lease)
            assert batch.data["n"].tolist() == list(range(seen, seen + len(batch)))
            full = sum(sizes[seen : seen + len(batch)]) >= most
            assert len(batch) == expected or (full and sizes[seen + len(batch)] == 0)
            assert [len(each) for each in batch.data["tokens"]] == sizes[seen : seen + len(batch)]
            seen += len(batch)
            assert table.stats()["samples"] == seen
            assert leased(table) == (len(batch) if lease else 0)
            assert lease is None or table.ack(batch) == len(batch)
        with pytest.raises(di_store.EndOfData):
            table.sample(1, budget=("tokens", most))
        assert store.check() == []


@pytest.mark.parametrize(
    ("sampler", "replace"),
    [
        (sampler, replace)
        for sampler in (*SAMPLERS, Prioritized(0.6, stratified=True))
        for replace in (True, False)
        if replace or not isinstance(sampler, Once)
    ],
    ids=repr,
)
def test_every_sampler_keeps_to_a_budget(store: di_store.Store, sampler: Any, replace: bool) -> None:
    sizes = np.random.default_rng(3).integers(1, 64, 300)
    table = ragged(store, sizes, sampler=sampler)
    before = 0
    for most in (64, 200, 1_000):
        batch = table.sample(150, budget=("tokens", most), replace=replace)
        assert batch.data["tokens"].lengths.sum() <= most
        assert len(batch) == 150 or batch.data["tokens"].lengths.sum() > most - 64
        assert replace or len(np.unique(batch.keys)) == len(batch)
        assert table.stats()["samples"] - before == len(batch)
        assert table.peek(table.keys()).times_sampled.sum() == before + len(batch)
        before += len(batch)


def test_draws_up_to_a_budget_follow_the_samplers_law(store: di_store.Store) -> None:
    """Stratified draws too, which need the number of a batch: with a budget each falls anywhere."""
    table = ragged(store, np.ones(8, int), sampler=Prioritized(1.0, stratified=True))
    table.update_priorities(table.keys(), np.arange(1.0, 9.0))
    counts = np.zeros(8)
    for _ in range(300):
        counts += np.bincount(table.sample(100, budget=("tokens", 20)).data["n"], minlength=8)
    expected = counts.sum() * np.arange(1, 9) / 36
    assert ((counts - expected) ** 2 / expected).sum() < 24.3  # the 0.1 % point of chi-squared with 7 degrees


@pytest.mark.parametrize(
    ("view", "column"), [(Step(), "tokens"), (Step(), "weight"), (Group(3, by="n"), "tokens")], ids=repr
)
def test_sizes_are_those_of_split(store: di_store.Store, view: Any, column: str) -> None:
    """All answers of a group together; or a number of each example."""
    grouped = isinstance(view, Group)
    schema = {**RAGGED, "weight": Spec((), "i4")}
    table = store.create_table("t", capacity=400, schema=schema, sampler=Once(None, False), view=view)
    sizes = np.random.default_rng(4).integers(1, 9, 60)
    numbers = np.arange(60) // 3 if grouped else np.arange(60)
    table.extend({"n": numbers, "tokens": [np.zeros(s, np.int32) for s in sizes], "weight": sizes.astype("i4")})
    batch = table.sample(20, budget=(column, 50))
    assert len(batch) == fitting(sizes.reshape(20, 3).sum(1) if grouped else sizes, 20, 50)
    if grouped:
        with pytest.raises(ValueError, match="name a ragged column"):
            table.sample(20, budget=("n", 50))


@pytest.mark.parametrize(
    ("weights", "said"),
    [([1, -3, 1], "item .* has a size of -3, below 0"), ([1, np.nan, 1], "budget='weight': name a ragged column")],
    ids=str,
)
def test_what_is_no_size_is_refused(store: di_store.Store, weights: list[float], said: str) -> None:
    table = store.create_table("t", capacity=9, limiter=Queue(9))
    table.extend({"weight": np.array(weights)})
    with pytest.raises(ValueError, match=said):
        table.sample(3, budget=("weight", 9), timeout=0)
    assert table.stats()["samples"] == 0


def test_a_budget_may_be_far_above_all_sizes(store: di_store.Store) -> None:
    table = store.create_table("t", capacity=200, limiter=Queue(200))
    table.extend({"weight": np.full(100, 1e-320)})
    assert len(table.sample(100, budget=("weight", 2**31 - 1))) == 100


def test_an_item_above_the_budget_is_named_and_stays(store: di_store.Store) -> None:
    table = ragged(store, [5, 30, 2], limiter=Queue(9))
    assert table.sample(9, budget=("tokens", 10)).data["n"].tolist() == [0]
    for _ in range(2):
        with pytest.raises(di_store.CapacityError, match="has 30 of 'tokens', more than the budget of 10") as caught:
            table.sample(9, budget=("tokens", 10), timeout=60)
        assert caught.value.keys.tolist() == table.keys()[:1].tolist()
        assert table.stats()["samples"] == 1
    table.delete(caught.value.keys)
    assert table.sample(9, budget=("tokens", 10), min_n=1, timeout=0).data["n"].tolist() == [2]


def test_a_budget_that_is_not_used_up_waits_for_more(store: di_store.Store) -> None:
    table = ragged(store, [5, 3], limiter=Queue(9))
    before = shown(table)
    with pytest.raises(di_store.Timeout, match="2 of 9 drawn"):
        table.sample(9, budget=("tokens", 10), timeout=0.05)
    assert shown(table) == before
    table.extend({"n": [2, 3], "tokens": [np.zeros(2, np.int32)] * 2})
    assert table.sample(9, budget=("tokens", 10), timeout=60).data["n"].tolist() == [0, 1, 2]
    assert table.sample(9, budget=("tokens", 2), timeout=60).data["n"].tolist() == [3]


def test_tasks_draw_by_a_law_too(store: di_store.Store) -> None:
    table = ragged(store, [5, 3], limiter=Queue(9))

    async def draw() -> None:
        waiting = asyncio.create_task(table.aio.sample(9, budget=("tokens", 10), timeout=60))
        await asyncio.sleep(0)
        await table.aio.extend({"n": [2, 3], "tokens": [np.zeros(2, np.int32)] * 2})
        assert (await waiting).data["n"].tolist() == [0, 1, 2]
        key = table.keys()
        assert (await table.aio.sample(keys=key)).data["n"].tolist() == [3]
        with pytest.raises(di_store.ObjectNotFound):
            await table.aio.sample(keys=key)

    asyncio.run(draw())
