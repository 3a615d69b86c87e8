"""Limiters, their bounds, and the settings of a table taken together."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import di_store
from di_store.base.errors import CorruptData
from di_store.policy.combination import MAX_CAPACITY
from di_store.policy.limiters import (
    LIMITERS,
    UNBOUNDED,
    Band,
    Bounds,
    Limiter,
    MinSize,
    Pace,
    Queue,
    SamplesPerInsert,
    Stack,
    check_limiter,
    limiter_from_plain,
    limiter_to_plain,
    with_bounds,
)
from di_store.policy.options import TableOptions, check_options
from di_store.policy.samplers import Fifo, Lifo, MaxHeap, Once, Prioritized, Uniform
from di_store.policy.settings import Settings
from di_store.policy.views import Step, Transition


def band(min_size: int, ratio: float, low: float, width: float) -> Band | MinSize:
    """The band, or another limiter where it is refused."""
    try:
        return Band(min_size, ratio, low, low + width)
    except ValueError as error:
        assert "too narrow" in str(error)  # noqa: PT017
        return MinSize(min_size)


ANY_LIMITER = st.one_of(
    st.builds(
        band,
        st.integers(1, 50),
        st.one_of(st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 1.0, 1.5, 2.0, 8.0]), st.floats(0.01, 50)),
        st.one_of(st.integers(-20, 60), st.floats(-20, 60)),
        st.one_of(st.sampled_from([0, 0.5, 1, 1.1, 1.5, 2, 3]), st.floats(0, 60)),
    ),
    st.builds(MinSize, st.integers(1, 50)),
    st.builds(SamplesPerInsert, st.floats(0.01, 50), st.integers(1, 50), st.floats(0, 3)),
    st.builds(Queue, st.integers(1, 50)),
    st.builds(Stack, st.integers(1, 50)),
)
ANY_PACE = st.builds(Pace, st.just("policy"), st.integers(1, 2**31 - 1), st.integers(0, 2**20))


def combine(**options: Any) -> Settings:
    """The settings of a table for which nothing else was chosen."""
    return check_options(cast(TableOptions, {"capacity": 100, **options}), 0)


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limiter", "bounds"),
    [
        (MinSize(5), Bounds(5, 1.0, -UNBOUNDED, UNBOUNDED)),
        (Queue(3), Bounds(1, 1.0, 0.0, 3.0)),
        (Stack(3), Bounds(1, 1.0, 0.0, 3.0)),
        (SamplesPerInsert(8, 1000, 0.1), Bounds(1000, 8.0, 7200.0, 8800.0)),
        (SamplesPerInsert(8, 1, 0), Bounds(1, 8.0, 0.0, 16.0)),
        (SamplesPerInsert(0.5, 10, 0.01), Bounds(10, 0.5, 4.0, 6.0)),
        (Band(7, 2.5, -3, 40), Bounds(7, 2.5, -3.0, 40.0)),
        (Band(7, 1, float("-inf"), float("inf")), Bounds(7, 1.0, -UNBOUNDED, UNBOUNDED)),
        (Band(1, 1, 0, 3), Queue(3).bounds),
    ],
)
def test_bounds_are_computed(limiter: Limiter, bounds: Bounds) -> None:
    assert limiter.bounds == bounds


@given(st.floats(1e-3, 1e3), st.integers(1, 10**6), st.floats(0, 10))
def test_the_band_is_never_narrower_than_one_operation(ratio: float, min_size: int, tolerance: float) -> None:
    bounds = SamplesPerInsert(ratio, min_size, tolerance).bounds
    centre = ratio * min_size
    width = max(centre * tolerance, ratio, 1.0)
    assert (bounds.min_diff, bounds.max_diff) == (centre - width, centre + width)


@pytest.mark.parametrize(
    ("ratio", "low", "high"),
    [(1, 0, 0), (1, 5, 3), (2, 0, 1), (1.5, 0, 1.5), (0.1, 0, 1.1), (4, -2, 0), (1, math.inf, math.inf)],
)
def test_a_band_too_narrow_for_both_sides_is_refused(ratio: float, low: float, high: float) -> None:
    with pytest.raises(ValueError, match=r"too narrow: .* both would wait for each other"):
        Band(3, ratio, low, high)


@pytest.mark.parametrize(("ratio", "low", "high"), [(1, 0, 1), (2, 0, 2), (0.5, 0, 1), (0.1, 0, 1.2), (3, -1, 2)])
def test_a_band_just_wide_enough_is_accepted(ratio: float, low: float, high: float) -> None:
    limiter = Band(3, ratio, low, high)
    for wishes in ([True] * 400, [False] * 400, [True, False] * 200):
        bounds, inserts, draws = limiter.bounds, 0, 0
        for insert_first in wishes:
            able = [bounds.can_insert(inserts, draws, inserts), bounds.can_sample(inserts, draws, inserts)]
            assert any(able)
            insert = able[0] if insert_first else not able[1]
            inserts, draws = inserts + insert, draws + (not insert)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"min_size": 0}, ValueError),
        ({"ratio": 0}, ValueError),
        ({"ratio": math.nan}, ValueError),
        ({"low": math.nan}, ValueError),
        ({"high": "much"}, TypeError),
        ({"low": None}, TypeError),
    ],
)
def test_a_band_has_its_fields(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(fields))):
        Band(**{"min_size": 1, "ratio": 1.0, "low": 0.0, "high": 10.0, **fields})


def test_a_table_keeps_within_its_band() -> None:
    """Draws and inserts pass while the error stays in the band, and a wait names it."""
    with di_store.open(memory="32MiB") as store:
        table = store.create_table("t", capacity=100, schema={"x": 0}, limiter=Band(2, 2.0, -1.0, 9.0))
        for value in range(4):
            table.insert({"x": value})
        with pytest.raises(di_store.Timeout, match="4 inserts for 0 samples"):
            table.insert({"x": 4}, timeout=0)
        assert len(table.sample(9)) == 9
        with pytest.raises(di_store.Timeout, match="9 samples for 4 inserts"):
            table.sample(1, timeout=0)
        table.configure(limiter=Band(2, 1.0, -math.inf, math.inf))
        table.sample(500)


@given(ANY_LIMITER, st.lists(st.booleans(), max_size=400))
def test_one_side_can_always_move(limiter: Limiter, wishes: list[bool]) -> None:
    """Whatever the two sides wish, never do both wait; and the error stays in its band."""
    bounds = limiter.bounds
    once = isinstance(limiter, (Queue, Stack))
    inserts = draws = size = 0
    for insert_first in wishes:
        able = [bounds.can_insert(inserts, draws, size), bounds.can_sample(inserts, draws, size)]
        assert any(able), (inserts, draws, size)
        insert = able[0] if insert_first else not able[1]
        inserts, draws = inserts + insert, draws + (not insert)
        size += insert - (once and not insert)
        if size >= bounds.min_size:
            assert inserts * bounds.ratio - draws <= max(bounds.max_diff, bounds.min_size * bounds.ratio) + 1e-6


@given(ANY_LIMITER, st.integers(1, 4), st.integers(0, 50), st.lists(st.booleans(), max_size=400))
def test_one_side_can_always_move_with_a_use_limit(
    limiter: Limiter, times: int, spare: int, wishes: list[bool]
) -> None:
    """The same when items leave after `times` draws and the oldest are evicted, whatever the ratio."""
    bounds, inserts, draws = limiter.bounds, 0, 0
    capacity = getattr(limiter, "size", bounds.min_size) + spare
    items: list[int] = []
    for insert_first in wishes:
        able = [bounds.can_insert(inserts, draws, len(items)), bounds.can_sample(inserts, draws, len(items))]
        assert any(able), (inserts, draws, items)
        if (insert_first and able[0]) or not able[1]:
            inserts, items = inserts + 1, [*items, 0][-capacity:]
        else:
            draws += 1
            items[-1] += 1
            items = [uses for uses in items if uses < (1 if isinstance(limiter, (Queue, Stack)) else times)]


@given(st.integers(1, 20), st.lists(st.booleans(), max_size=200))
def test_a_queue_holds_no_more_than_its_size(size: int, wishes: list[bool]) -> None:
    bounds = Queue(size).bounds
    inside = inserts = draws = 0
    for insert in wishes:
        assert bounds.can_insert(inserts, draws, inside) == (inside < size)
        assert bounds.can_sample(inserts, draws, inside) == (inside > 0)
        if insert and inside < size:
            inserts, inside = inserts + 1, inside + 1
        elif not insert and inside:
            draws, inside = draws + 1, inside - 1


TRACES = json.loads((Path(__file__).parents[1] / "golden" / "reverb_limiter_traces.json").read_text())


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: f"{trace['limiter']}-{trace['max_times_sampled']}")
def test_decisions_match_reverb(trace: dict[str, Any]) -> None:
    """Operation by operation, as the real Reverb 0.14 let them pass or not."""
    limiter = limiter_from_plain(trace["limiter"])
    bounds, inserts, draws = limiter.bounds, 0, 0
    items: list[int] = []
    for number, (operation, allowed) in enumerate(trace["ops"]):
        if operation == "insert":
            assert bounds.can_insert(inserts, draws, len(items)) == allowed, number
            if allowed:
                inserts, items = inserts + 1, [*items, 0][-trace["capacity"] :]
        elif operation == "sample":
            assert bounds.can_sample(inserts, draws, len(items)) == allowed, number
            if allowed:
                draws += 1
                place = 0 if trace["sampler"] == "fifo" else -1
                items[place] += 1
                if items[place] == trace["max_times_sampled"]:
                    del items[place]
        else:
            items.pop()


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "args", "named"),
    [
        (MinSize, (0,), "MinSize"),
        (MinSize, (-3,), "MinSize"),
        (MinSize, (2**31,), "MinSize"),
        (Queue, (0,), "Queue"),
        (Stack, (0,), "Stack"),
        (SamplesPerInsert, (0, 1, 0), "ratio"),
        (SamplesPerInsert, (-1, 1, 0), "ratio"),
        (SamplesPerInsert, (float("nan"), 1, 0), "ratio"),
        (SamplesPerInsert, (float("inf"), 1, 0), "ratio"),
        (SamplesPerInsert, (1, 0, 0), "min_size"),
        (SamplesPerInsert, (1, 1, -0.1), "tolerance"),
        (SamplesPerInsert, (1, 1, float("nan")), "tolerance"),
    ],
)
def test_bad_values_are_named(cls: Any, args: tuple[Any, ...], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        cls(*args)


@pytest.mark.parametrize(
    ("cls", "args"), [(MinSize, ("3",)), (MinSize, (True,)), (Queue, (1.5,)), (SamplesPerInsert, ("8", 1, 0))]
)
def test_bad_types_are_named(cls: Any, args: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=cls.__name__):
        cls(*args)


@given(ANY_PACE, ANY_PACE)
def test_the_numbers_of_a_pace_make_it_again(pace: Pace, other: Pace) -> None:
    assert with_bounds(other, pace.bounds) == pace


@given(ANY_LIMITER | ANY_PACE)
def test_limiters_convert_to_plain_data_and_back(limiter: Limiter) -> None:
    assert limiter_from_plain(limiter_to_plain(limiter)) == limiter
    assert check_limiter(limiter) is limiter
    assert isinstance(limiter, LIMITERS)


@pytest.mark.parametrize("plain", [None, {}, {"kind": "Queue"}, {"kind": "Queue", "size": 0}, {"kind": "str"}, [1]])
def test_foreign_plain_data_is_corrupt(plain: Any) -> None:
    with pytest.raises(CorruptData, match="limiter"):
        limiter_from_plain(plain)


# --- combinations -----------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_contract() -> None:
    found = combine()
    assert (found.sampler, found.remover, found.limiter) == (Uniform(), Fifo(), MinSize(1))
    assert (found.max_times_sampled, found.capacity, found.max_bytes, found.view) == (0, 100, None, Step())
    assert combine(max_bytes="1MiB", capacity=None).max_bytes == 2**20


@pytest.mark.parametrize(("limiter", "order"), [(Queue(10), Fifo()), (Stack(10), Lifo())])
def test_queue_and_stack_fill_in_missing_options(limiter: Limiter, order: Any) -> None:
    found = combine(limiter=limiter)
    assert (found.sampler, found.remover, found.max_times_sampled) == (order, order, 1)
    assert combine(limiter=limiter, sampler=order, remover=order, max_times_sampled=1) == found


@pytest.mark.parametrize(
    "setting",
    [
        {"sampler": Uniform()},
        {"sampler": Prioritized(0.6)},
        {"sampler": Once()},
        {"remover": MaxHeap()},
        {"max_times_sampled": 0},
        {"max_times_sampled": 2},
    ],
    ids=repr,
)
@pytest.mark.parametrize("limiter", [Queue(10), Stack(10)])
def test_queue_and_stack_refuse_contradictions(limiter: Limiter, setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(setting))}=.* contradicts limiter={type(limiter).__name__}"):
        combine(limiter=limiter, **setting)
    with pytest.raises(ValueError, match="contradicts"):
        combine(limiter=limiter, sampler=Lifo() if isinstance(limiter, Queue) else Fifo())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"limiter": MinSize(101)}, "min_size=101 > capacity=100"),
        ({"limiter": SamplesPerInsert(1, 101, 0)}, "min_size=101 > capacity=100"),
        ({"limiter": Queue(101)}, "capacity >= 101"),
        ({"limiter": Stack(101)}, "capacity >= 101"),
        ({"limiter": SamplesPerInsert(1, 10, 1), "sampler": Once()}, "use limiter=MinSize"),
        ({"sampler": Once(3), "max_times_sampled": 2}, "leave max_times_sampled= out"),
        ({"capacity": None}, "needs max_bytes="),
        ({"capacity": 0}, "capacity=0"),
        ({"capacity": -5}, "capacity=-5"),
        ({"capacity": MAX_CAPACITY + 1}, "capacity="),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"max_bytes": "25%"}, "max_bytes='25%'"),
        ({"max_times_sampled": -1}, "max_times_sampled=-1"),
        ({"remover": Prioritized(1)}, "only draws"),
        ({"remover": Once()}, "only draws"),
    ],
    ids=repr,
)
def test_impossible_combinations_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        combine(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"limiter": MinSize(100)},
        {"limiter": Queue(100)},
        {"limiter": SamplesPerInsert(3, 10, 1), "max_times_sampled": 2},
        {"sampler": Once(None), "max_times_sampled": 2},
        {"limiter": SamplesPerInsert(1, 10, 1), "sampler": Once(epochs=None)},
        {"limiter": MinSize(1000), "capacity": None, "max_bytes": "1GiB"},
        {"sampler": Once(2), "max_times_sampled": 2},
        {"view": Transition(n_step=3), "sampler": Prioritized(0.6), "remover": Lifo()},
    ],
    ids=repr,
)
def test_possible_combinations_are_accepted(settings: dict[str, Any]) -> None:
    combine(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"sampler": Uniform},
        {"sampler": None},
        {"remover": "fifo"},
        {"limiter": 5},
        {"view": Step},
        {"view": None},
        {"capacity": "100"},
        {"capacity": 1e6},
        {"capacity": True},
        {"max_times_sampled": None},
        {"max_bytes": True},
    ],
    ids=repr,
)
def test_wrong_types_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(settings))):
        combine(**settings)


@pytest.mark.parametrize("limiter", [MinSize(1), Queue(2), Stack(2)], ids=str)
def test_an_extend_beyond_capacity_is_refused(limiter: Limiter) -> None:
    """More than a table holds is refused, by a queue that could be lifted as well; nothing is written."""
    with di_store.open(memory="64MiB") as store:
        table = store.create_table("t", capacity=5, limiter=limiter)
        with pytest.raises(ValueError, match="capacity=5"):
            table.extend({"n": np.arange(6)})
        with table.writer() as writer, pytest.raises(ValueError, match="capacity=5"):
            writer.extend({"n": np.arange(6)})
        assert len(table) == 0
        assert len(table.extend({"n": np.arange(5)}, timeout=0)) == 5
