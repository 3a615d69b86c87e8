"""Small batches are drawn, copied and delivered in one hold of the table's lock: the same draws as the long way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pains import Program

import di_store

CAPACITY = 300
SAMPLERS = [
    di_store.Uniform(),
    di_store.Prioritized(alpha=0.7, beta=0.5),
    di_store.Prioritized(alpha=0.7, beta=0.5, stratified=True),
    di_store.Prioritized(alpha=0.7, beta=0.5, normalize="table"),
]
FIELDS = ("keys", "priorities", "probabilities", "weights", "times_sampled", "versions", "starts")


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="128MiB", seed=3) as made:
        yield made


def filled(store: Any, name: str, width: int = 3, **options: Any) -> Any:
    """Transitions of episodes of seven steps, and some items inserted whole, in rows of another layout."""
    step = {"obs": np.zeros(width, np.float32), "reward": np.float32(0), "terminated": False}
    options = {"capacity": CAPACITY, "limiter": di_store.MinSize(1), **options}
    table = store.create_table(name, view=di_store.Transition(n_step=2, obs=("obs",)), schema=step, seed=5, **options)
    with table.writer() as writer:
        for i in range(2 * CAPACITY):
            ends = i % 7 == 6
            row = {"obs": np.full(width, i, np.float32), "reward": np.float32(i), "terminated": ends}
            writer.append(row, next={"obs": np.full(width, i + 1, np.float32)})
    return table


def insert_whole(table: Any, width: int = 3) -> None:
    """Items whose rows have another layout than the writer's."""
    whole = np.arange(40, dtype=np.float32)
    obs = np.repeat(whole[:, None], width, 1)
    table.extend({"obs": obs, "reward": whole, "terminated": whole > 20, "next_obs": obs + 1, "discount": whole / 40})


def long_way(table: Any, n: int) -> di_store.Batch:
    """`min_n` is not for the short way; it changes nothing where all n are there."""
    return table.sample(n, min_n=n, timeout=60)


def assert_same(one: di_store.Batch, other: di_store.Batch) -> None:
    assert one.table_size == other.table_size
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
    np.testing.assert_array_equal(one.episodes % 2**32, other.episodes % 2**32)  # above: the number of the stream
    assert one.data.keys() == other.data.keys()
    for name, column in one.data.items():
        np.testing.assert_array_equal(column, other.data[name], name)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_the_fast_and_the_general_path_draw_the_same(store: Any, sampler: Any) -> None:
    """Also across their limits: 512 items, 64 KiB; repeats in one batch count their uses one by one."""
    short, long = filled(store, "short", sampler=sampler), filled(store, "long", sampler=sampler)
    for step, n in enumerate((1, 64, 65, 256, 511, 512, 513, 2, 1000)):
        if step == 3:  # from here on both layouts are in the batches, the second one unknown to this process
            insert_whole(short)
            insert_whole(long)
        one, other = short.sample(n, timeout=60) if step % 2 else short.sample(n), long_way(long, n)
        assert_same(one, other)
        if isinstance(sampler, di_store.Prioritized):
            given = np.linspace(0, 2, n)
            short.update_priorities(one.keys, given)
            long.update_priorities(other.keys, given)
    counts = [{name: table.stats()[name] for name in ("samples", "inserts", "size")} for table in (short, long)]
    assert counts[0] == counts[1]
    assert store.check() == []


def test_wide_rows_use_the_general_path(store: Any) -> None:
    short, long = filled(store, "short", width=3000), filled(store, "long", width=3000)
    for n in (1, 2, 3, 64):
        assert_same(short.sample(n), long_way(long, n))


def test_a_blocked_draw_counts_nothing(store: Any) -> None:
    limiter = di_store.SamplesPerInsert(2.0, min_size=4, tolerance=4.0)
    table = store.create_table("t", capacity=100, schema={"x": 0}, limiter=limiter)
    table.extend({"x": np.arange(4)}, timeout=60)
    counted = 0
    with pytest.raises(di_store.Timeout):
        while True:
            table.sample(3, timeout=0)
            counted += 3
            assert table.stats()["samples"] == counted
    assert counted > 0
    assert table.stats()["samples"] == counted


@pytest.mark.parametrize("timeout", [-1, float("nan"), "soon", True])
def test_an_invalid_timeout_is_refused(store: Any, timeout: Any) -> None:
    table = filled(store, "t")
    with pytest.raises((ValueError, TypeError), match="timeout"):
        table.sample(4, timeout=timeout)
    assert table.stats()["samples"] == 0


DIE = """
import sys, di_store
from di_store import _core
store = di_store.attach(sys.argv[1], timeout=60)
table = store.table("t")
table.sample(1)  # the layouts are known afterwards
_core.arm_fault(sys.argv[2])
table.sample(64)
"""


@pytest.mark.parametrize(
    "point",
    [
        "table.take_drawn:1",
        pytest.param(
            "table.take_copied:1", marks=pytest.mark.memory_only
        ),  # rows on disk are not copied under the lock
        "table.draw_item:40",
        "undo.before_commit:1",
    ],
)
def test_a_kill_in_the_middle_of_a_draw_undoes_it(store: Any, point: str) -> None:
    """The lock is taken over, and the batch was never drawn."""
    table = filled(store, "t")
    with Program(DIE, store.name, point) as program:
        program.process.communicate(timeout=60)
        assert program.process.returncode == -signal.SIGKILL
    uses = dict.fromkeys(table.keys().tolist(), 0)  # takes the lock, and so rolls back what is half done
    assert table.stats()["samples"] == 1
    batch = table.sample(256, timeout=60)
    for key in batch.keys.tolist():
        uses[key] += 1
    over = [int(count) - uses[key] for key, count in zip(batch.keys.tolist(), batch.times_sampled, strict=True)]
    last = dict(zip(batch.keys.tolist(), over, strict=True))  # of each item, its latest use
    assert sum(last.values()) <= 1, "one item at most was drawn once before"
    assert store.check() == []


@pytest.mark.parametrize(
    "beta", [np.array([0.5]), 10**400, float("inf"), float("nan"), -1.0, True, "0.5"], ids=lambda beta: str(beta)[:8]
)
@pytest.mark.parametrize("options", [{}, {"timeout": 1.0}, {"min_n": 4}], ids=repr)
def test_an_invalid_beta_draws_nothing(store: Any, beta: Any, options: dict[str, Any]) -> None:
    table = filled(store, "t", sampler=di_store.Prioritized(alpha=0.6, beta=0.4))
    with pytest.raises((ValueError, TypeError), match="beta"):
        table.sample(4, beta=beta, **options)
    assert table.stats()["samples"] == 0


@pytest.mark.parametrize("n", [0, -1, 2**31, 2**33, 1.5, True])
def test_an_invalid_n_draws_nothing(store: Any, n: Any) -> None:
    table = filled(store, "t")
    for options in ({}, {"timeout": 1.0}):
        with pytest.raises((ValueError, TypeError), match="n"):
            table.sample(n, **options)
    assert table.stats()["samples"] == 0


def test_long_sums_are_made_outside_the_lock(store: Any) -> None:
    """An n-step sum reads n rows of each item, however little it writes: nobody waits for that."""
    table = store.create_table(
        "t",
        capacity=6_000,
        view=di_store.Transition(n_step=1_000),
        schema={"obs": np.float32(0), "reward": np.float32(0), "terminated": False},
    )
    with table.writer() as writer:
        for i in range(5_000):
            writer.append({"obs": float(i), "reward": 1.0, "terminated": False}, next={"obs": i + 1.0})
    with Program(DIE, store.name, "table.take_drawn:1") as program:
        program.process.communicate(timeout=60)
        assert program.process.returncode == 0, "never in one hold"


def test_closing_during_a_sample_raises(store: Any) -> None:
    """Whatever a thread is in the middle of, it is told so."""
    table = filled(store, "t")
    seen: list[BaseException] = []
    started = threading.Barrier(3)

    def sample(options: dict[str, Any]) -> None:
        started.wait()
        try:
            while True:
                table.sample(4, **options)
        except di_store.StoreError as error:
            seen.append(error)

    threads = [threading.Thread(target=sample, args=(options,)) for options in ({}, {"timeout": 1.0})]
    for thread in threads:
        thread.start()
    started.wait()
    store.close()
    for thread in threads:
        thread.join(60)
    assert [type(error) for error in seen] == [di_store.StoreClosed] * 2


@pytest.mark.parametrize("sampler", SAMPLERS[:2], ids=repr)
@pytest.mark.parametrize("view", [di_store.Step(), di_store.Sequence(length=4, period=2)], ids=["step", "sequence"])
def test_the_fast_and_the_general_path_draw_the_same_ragged_rows(store: Any, sampler: Any, view: Any) -> None:
    """The room for them is guessed from the batch before: also where the next values are far longer, or empty."""
    schema = {"n": di_store.Spec((), "i8"), "tokens": di_store.Spec((None,), "i4", max=400)}
    options = {"capacity": CAPACITY, "limiter": di_store.MinSize(1), "view": view, "schema": schema, "seed": 5}
    tables = [store.create_table(name, sampler=sampler, **options) for name in ("short", "long")]
    rng = np.random.default_rng(1)
    for longest in (1, 6, 400, 2):
        for table in tables:
            lengths = np.random.default_rng(longest).integers(0, longest + 1, 2 * CAPACITY)
            with table.writer() as writer:
                for i, length in enumerate(lengths.tolist()):
                    writer.append({"n": i, "tokens": np.arange(i, i + length, dtype=np.int32)}, timeout=60)
        short, long = tables
        for n in (64, 64, 1, 200, 3, 64, *rng.integers(1, 300, 6).tolist()):
            one, other = short.sample(n), long_way(long, n)
            np.testing.assert_array_equal(one.data["n"], other.data["n"])
            np.testing.assert_array_equal(one.data["tokens"].offsets, other.data["tokens"].offsets)
            np.testing.assert_array_equal(one.data["tokens"].values, other.data["tokens"].values)
            assert one.data["tokens"].lead == other.data["tokens"].lead
            np.testing.assert_array_equal(one.times_sampled, other.times_sampled)
            firsts = one.data["n"].reshape(-1)
            for row, first in zip(one.data["tokens"], firsts.tolist(), strict=True):
                assert len(row) == 0 or row[0] == first
        assert short.stats()["samples"] == long.stats()["samples"]
    assert store.check() == []
