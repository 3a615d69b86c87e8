"""Batches divided among ranks: each example is in one part, counts are equal, sums of sizes nearly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import di_store
from di_store import Group, Opaque, Queue, Spec
from di_store.replay.splitting import balanced


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=60), st.integers(1, 9))
def test_ranks_get_equal_counts_and_nearly_equal_sums(sizes: list[int], ranks: int) -> None:
    """Each place once; counts differ by at most one; sums by at most the largest size."""
    ranks = min(ranks, len(sizes))
    parts = balanced(np.array(sizes, float), ranks)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(sizes)))
    counts, sums = [len(each) for each in parts], [sum(sizes[place] for place in each) for each in parts]
    assert max(counts) - min(counts) <= 1
    assert max(sums) - min(sums) <= max(sizes)
    assert all((np.diff(each) > 0).all() for each in parts)


def test_long_answers_are_spread() -> None:
    """With lengths as of a language model the largest sum is within 0.1 % of the mean."""
    sizes = np.random.default_rng(5).lognormal(6, 1, 512)
    sums = np.array([sizes[each].sum() for each in balanced(sizes, 8)])
    assert sums.max() <= 1.001 * sums.mean()


def test_sizes_of_one_kind_are_divided_by_largest_differencing() -> None:
    """Swaps alone end five times as far above the mean."""
    sizes = np.random.default_rng(6).integers(1, 8_192, 512).astype(float)
    sums = np.array([sizes[each].sum() for each in balanced(sizes, 64)])
    assert sums.max() <= 1.002 * sums.mean()


def rows(n: int) -> dict[str, Any]:
    return {
        "id": np.arange(n) // 2,
        "n": np.arange(n, dtype=np.float32),
        "obs": {"units": [np.full((place % 5, 2), place, np.int16) for place in range(n)]},
    }


SCHEMA = {"id": Spec((), "i8"), "n": Spec((), "f4"), "obs": {"units": Spec((None, 2), "i2", max=8)}}


@pytest.fixture
def store(store_dir: str) -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB") as made:
        yield made


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("torch", [False, True])
def test_parts_hold_the_rows_of_their_examples(store: di_store.Store, group: bool, torch: bool) -> None:
    """All attributes go with their example, nested and ragged columns too, as arrays and as tensors."""
    view = {"view": Group(2, by="id")} if group else {}
    table = store.create_table("t", capacity=64, schema=SCHEMA, limiter=Queue(64), lanes=24, **view)
    with table.writer(lanes=24) as writer:
        writer.append(rows(24))
    batch = table.sample(12 if group else 24)
    batch = batch.to("cpu") if torch else batch
    parts = batch.split(5, by="obs/units")
    assert sorted(len(each) for each in parts) == ([2, 2, 2, 3, 3] if group else [4, 5, 5, 5, 5])
    assert np.array_equal(np.sort(np.concatenate([each.keys for each in parts])), np.sort(batch.keys))
    for part in parts:
        numbers = np.asarray(part.data["n"]).reshape(-1)
        units = part.data["obs"]["units"]
        assert units.lead == ((len(part), 2) if group else (len(part),))
        assert [np.asarray(each).tolist() for each in units] == [[[n, n]] * (n % 5) for n in numbers.astype(int)]
        where = [batch.keys.tolist().index(key) for key in part.keys.tolist()]
        assert where == sorted(where)
        assert (part.episodes == batch.episodes[where]).all()
        assert part.table_size == batch.table_size
        assert len(part.weights) == len(part.times_sampled) == len(part)


def test_a_number_of_each_example_can_be_its_size(store: di_store.Store) -> None:
    """And batches of one rank are copies of the whole."""
    table = store.create_table("t", capacity=64, schema={"n": Spec((), "i8")})
    table.extend({"n": np.arange(9)})
    batch = table.sample(9)
    sums = [part.data["n"].sum() for part in batch.split(3, by="n")]
    assert max(sums) - min(sums) <= batch.data["n"].max()
    (whole,) = batch.split(1, by="n")
    assert (whole.data["n"] == batch.data["n"]).all()
    assert not np.shares_memory(whole.data["n"], batch.data["n"])


def test_a_split_that_cannot_be_is_refused(store: di_store.Store) -> None:
    """The error names what can be given."""
    table = store.create_table("t", capacity=64, schema={"n": Spec((), "f4"), "x": Spec((3,), "f4")})
    table.extend({"n": np.array([1.0, np.nan], "f4"), "x": np.zeros((2, 3), "f4")})
    batch = table.sample(2, timeout=1)
    for ranks in (0, -1, 3):
        with pytest.raises(ValueError, match="1 to 2 ranks"):
            batch.split(ranks, by="x")
    with pytest.raises(TypeError, match="give a whole number"):
        batch.split(1.5, by="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give the name of a column"):
        batch.split(1, by=range(2))  # type: ignore[arg-type]
    for by in ("x", "y", "n/x", ""):
        with pytest.raises(ValueError, match=r"name a ragged column, .* of \['n', 'x'\]"):
            batch.split(2, by=by)
    values = store.create_table("values", capacity=4, view=Opaque())
    values.insert("a")
    with pytest.raises(ValueError, match="of no columns"):
        values.sample(1).split(1, by="x")
