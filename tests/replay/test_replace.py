"""`replace=False`: no item twice in a batch; draws follow the law of successive draws, whichever way they are made."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pains import Program

import di_store

PRIORITIES = np.array([0.05, 0.2, 0.4, 1.0, 3.0, 8.0])
BATCHES = 6_000
SIGMAS = 5.0


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="256MiB", seed=3) as made:
        yield made


def filled(store: Any, sampler: Any, priorities: Any = PRIORITIES, name: str = "t", **options: Any) -> Any:
    n = len(priorities)
    table = store.create_table(name, capacity=n, schema={"x": 0}, sampler=sampler, seed=5, **options)
    table.extend({"x": np.arange(n)}, priority=priorities)
    return table


def successive(weights: Any, n: int) -> dict[tuple[int, ...], float]:
    """Probability of every ordered choice of n items: each draw from those left, in proportion to its weight."""
    found = {}
    for order in itertools.permutations(range(len(weights)), n):
        left, probability = float(np.sum(weights)), 1.0
        for item in order:
            probability *= weights[item] / left
            left -= weights[item]
        found[order] = probability
    return found


def assert_law(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> None:
    """Pearson's chi-squared over choices expected at least five times; rarer ones count together."""
    total = counts.total()
    assert counts.keys() <= law.keys()
    common = {order for order, probability in law.items() if probability * total >= 5}
    seen = np.array([counts[order] for order in common] + [sum(n for o, n in counts.items() if o not in common)])
    wanted = np.array([law[o] for o in common] + [sum(p for o, p in law.items() if o not in common)]) * total
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    chi = float(((seen - wanted) ** 2 / wanted).sum())
    freedom = len(wanted) - 1
    assert (chi - freedom) / np.sqrt(2 * freedom) < SIGMAS


WAYS = {
    "one hold": ({}, {}),
    "held draws": ({}, {"min_n": 3}),
    "one by one": ({"max_times_sampled": 2**31 - 1}, {}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("sampler", "weights"),
    [(di_store.Uniform(), np.ones(6)), (di_store.Prioritized(alpha=0.7), PRIORITIES**0.7)],
    ids=["uniform", "prioritized"],
)
def test_draws_without_replacement_follow_their_law(store: Any, sampler: Any, weights: Any, way: str) -> None:
    made, asked = WAYS[way]
    table = filled(store, sampler, **made)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(BATCHES):
        batch = table.sample(3, replace=False, **asked)
        counts[tuple(batch.data["x"].tolist())] += 1
    assert_law(counts, successive(weights, 3))
    np.testing.assert_allclose(batch.probabilities, (weights / weights.sum())[batch.data["x"]])
    assert table.stats()["samples"] == 3 * BATCHES
    assert store.check() == []


@pytest.mark.parametrize("way", WAYS)
def test_draws_without_replacement_follow_their_law_with_skewed_priorities(store: Any, way: str) -> None:
    """Two items have nearly all of the mass: after them, items are taken out of the sampler."""
    weights = np.array([1e9, 1e9, 1.0, 2.0, 3.0, 5.0])
    made, asked = WAYS[way]
    table = filled(store, di_store.Prioritized(alpha=1.0), weights, **made)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(BATCHES // 2):
        batch = table.sample(5, replace=False, **asked)
        counts[tuple(batch.data["x"].tolist())] += 1
    assert_law(counts, successive(weights, 5))
    np.testing.assert_allclose(batch.probabilities, (weights / weights.sum())[batch.data["x"]], rtol=1e-6)
    assert store.check() == []


def test_drawing_all_items_gives_any_order(store: Any) -> None:
    """Far more than one hold draws: the last item of the whole table is as likely any."""
    table = filled(store, di_store.Uniform(), np.ones(300))
    lasts = np.zeros(300)
    for i in range(1_500):
        values = table.sample(299, replace=False, **({"min_n": 299} if i % 2 else {})).data["x"]
        assert len(np.unique(values)) == 299
        lasts[300 * 299 // 2 - int(values.sum())] += 1
    chi = float(((lasts - 5) ** 2 / 5).sum())
    assert (chi - 299) / np.sqrt(2 * 299) < SIGMAS


@pytest.mark.parametrize(
    ("sampler", "first"),
    [
        (di_store.Fifo(), np.arange(700)),
        (di_store.Lifo(), np.arange(999, 299, -1)),
        (di_store.MaxHeap(), None),
        (di_store.MinHeap(), None),
    ],
    ids=["fifo", "lifo", "max", "min"],
)
def test_ordered_samplers_give_the_next_items(store: Any, sampler: Any, first: Any) -> None:
    priorities = np.random.default_rng(1).permutation(1000) + 1.0
    if first is None:
        best = np.argsort(priorities)
        first = (best[::-1] if isinstance(sampler, di_store.MaxHeap) else best)[:700]
    table = filled(store, sampler, priorities)
    for n in (1, 64, 65, 700):
        assert table.sample(n, replace=False).data["x"].tolist() == first[:n].tolist()
    assert set(table.sample(9).data["x"].tolist()) == {int(first[0])}, "with replacement: the same one each time"
    assert store.check() == []


def test_a_fifo_with_a_use_limit_draws_each_item_once_per_batch(store: Any) -> None:
    """Each batch takes one use of each item; those at their limit leave, and later ones come."""
    table = filled(store, di_store.Fifo(), np.ones(10), max_times_sampled=2)
    assert table.sample(4, replace=False).data["x"].tolist() == [0, 1, 2, 3]
    assert table.sample(6, replace=False).data["x"].tolist() == [0, 1, 2, 3, 4, 5]
    assert table.sample(6, replace=False).data["x"].tolist() == [4, 5, 6, 7, 8, 9]
    assert len(table) == 4


def test_more_than_the_table_holds_waits_or_is_refused(store: Any) -> None:
    table = filled(store, di_store.Uniform(), np.ones(100))
    with pytest.raises(ValueError, match="n=101 is above the capacity of 100"):
        table.sample(101, replace=False)
    assert table.delete(table.keys(n=10)) == 10
    with pytest.raises(di_store.Timeout, match="90 of 100 drawn; the batch holds every item that can be drawn"):
        table.sample(100, replace=False, timeout=0.05)
    assert table.stats()["samples"] == 0
    assert len(table.sample(100, replace=False, timeout=0.05, min_n=1)) == 90
    table.finish()
    assert len(np.unique(table.sample(100, replace=False).keys)) == 90


def test_items_of_priority_zero_are_never_drawn(store: Any) -> None:
    table = filled(store, di_store.Prioritized(alpha=1.0), np.array([0.0, 1.0, 0.0, 2.0]))
    with pytest.raises(di_store.Timeout, match="2 of 3 drawn"):
        table.sample(3, replace=False, timeout=0.05)
    assert sorted(table.sample(2, replace=False).data["x"].tolist()) == [1, 3]


def test_after_a_timeout_the_same_call_draws_everything(store: Any) -> None:
    table = filled(store, di_store.Prioritized(alpha=1.0), np.ones(100))
    table.delete(table.keys(n=1))
    for _ in range(3):
        with pytest.raises(di_store.Timeout):
            table.sample(100, replace=False, timeout=0.01)
    assert len(np.unique(table.sample(99, replace=False).keys)) == 99


def test_stratified_batches_without_replacement_hold_distinct_items(store: Any) -> None:
    """One item has half of the mass: many strata fall to it, and are drawn anew."""
    priorities = np.concatenate([[1_000.0], np.ones(1_000)])
    table = filled(store, di_store.Prioritized(alpha=1.0, stratified=True), priorities)
    for n in (10, 500, 1_000):
        assert len(np.unique(table.sample(n, replace=False).keys)) == n


def test_loaders_and_mixtures_draw_without_replacement(store: Any) -> None:
    tables = [filled(store, di_store.Uniform(), np.ones(40), name) for name in ("a", "b")]
    with tables[0].loader(40, replace=False) as loader:
        for _ in range(5):
            assert len(np.unique(next(loader).keys)) == 40
    mixture = store.mix({"a": 1, "b": 1}, seed=1)
    with mixture.loader(30, replace=False) as loader:
        for batch in (mixture.sample(30, replace=False), next(loader)):
            assert len(np.unique(batch.keys)) == 30


@pytest.mark.parametrize("call", ["sample", "loader"])
def test_impossible_uses_of_replace_are_refused(store: Any, call: str) -> None:
    once = filled(store, di_store.Once(epochs=None), np.ones(4), "once")
    other = filled(store, di_store.Uniform(), np.ones(4), "other")
    mixture = store.mix({"once": 1, "other": 1})
    for source in (once, mixture):
        with pytest.raises(ValueError, match="draws every item once an epoch by itself"):
            getattr(source, call)(2, replace=False)
    for source in (other, mixture):
        with pytest.raises(TypeError, match="replace"):
            getattr(source, call)(2, replace="no")
    assert other.stats()["samples"] == 0


DIE = """
import sys, di_store
from di_store import _core
table = di_store.attach(sys.argv[1], timeout=60).table("t")
_core.arm_fault("table.draw_item:40")
table.sample(300, replace=False)
"""


@pytest.mark.parametrize("sampler", [di_store.MaxHeap(), di_store.Prioritized(alpha=1.0)], ids=repr)
def test_a_kill_while_drawing_without_replacement_restores_the_items(store: Any, sampler: Any) -> None:
    priorities = np.concatenate([np.full(5, 1e12), np.ones(995)])
    table = filled(store, sampler, priorities)
    with Program(DIE, store.name) as program:
        program.process.communicate(timeout=60)
        assert program.process.returncode == -signal.SIGKILL
    assert len(np.unique(table.sample(1_000, replace=False, timeout=60).keys)) == 1_000
    assert store.check() == []
