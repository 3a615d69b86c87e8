"""Batches from several tables."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def two(store: Any, **options: Any) -> tuple[Any, Any]:
    """Tables of rows whose `from` says the table."""
    tables = []
    for number, name in enumerate(("agent", "demo")):
        table = store.create_table(name, capacity=100, seed=number, **options)
        table.extend({"from": np.full(50, number), "obs": {"x": np.full((50, 300), number, np.float32)}})
        tables.append(table)
    return tables[0], tables[1]


def test_source_names_the_table_of_each_example(store: Any) -> None:
    two(store)
    batch = store.mix({"agent": 3, "demo": 1}, seed=0).sample(200)
    assert batch.source.dtype == np.int32
    assert (batch.data["from"] == batch.source).all()
    assert (batch.data["obs"]["x"] == batch.source[:, None]).all()
    assert 20 < batch.source.sum() < 90
    assert len(batch.keys) == len(batch.weights) == len(batch.priorities) == 200
    assert batch.table_size == 100


def test_the_same_seed_picks_the_same_tables(store: Any) -> None:
    two(store)
    counts = [[store.mix({"agent": 1, "demo": 1}, seed=4).sample(64).source.sum()] for _ in range(2)]
    assert counts[0] == counts[1]


def test_priority_updates_reach_their_table(store: Any) -> None:
    agent, demo = two(store, sampler=di_store.Prioritized(1.0))
    mixture = store.mix({"agent": 1, "demo": 1}, seed=0)
    batch = mixture.sample(64)
    assert mixture.update_priorities(batch.keys, np.where(batch.source == 1, 7.0, 3.0)) <= 64
    assert set(agent.peek(agent.keys()).priorities.tolist()) == {1.0, 3.0}
    assert set(demo.peek(demo.keys()).priorities.tolist()) == {1.0, 7.0}
    for wrong in (float("nan"), -1.0):
        with pytest.raises(ValueError, match="priorities"):
            mixture.update_priorities(batch.keys, np.full(64, wrong))


def test_a_mixture_has_loaders_and_columns(store: Any) -> None:
    two(store)
    with store.mix({"agent": 1, "demo": 1}).loader(32, columns="from", beta=0.5) as loader:
        for _ in range(10):
            batch = next(loader)
            assert list(batch.data) == ["from"]
            assert (batch.data["from"] == batch.source).all()


def test_a_failed_draw_gives_back_in_all_tables(store: Any) -> None:
    agent, _ = two(store)
    store.create_table("late", capacity=10)
    with pytest.raises(di_store.Timeout):
        store.mix({"agent": 1, "late": 1}).sample(64, timeout=0.02)
    assert agent.stats()["samples"] == 0


def test_tables_with_different_columns_are_refused(store: Any) -> None:
    two(store)
    store.create_table("other", capacity=10).insert({"from": 1})
    with pytest.raises(ValueError, match=r"'agent' and 'other' give different columns: obs/x; .*columns="):
        store.mix({"agent": 1, "other": 0}, seed=0)
    mixture = store.mix({"agent": 1, "other": 1}, columns="from")
    for shared in (mixture, pickle.loads(pickle.dumps(mixture))):
        assert list(shared.sample(64).data) == ["from"]
        with shared.loader(8) as loader:
            assert list(next(loader).data) == ["from"]
        with pytest.raises(ValueError, match="obs"):
            shared.sample(1, columns=("obs", "from"))
        with pytest.raises(ValueError, match="obs"):
            shared.loader(1, columns=("obs", "from"))


def test_columns_declared_later_are_checked_before_the_next_batch(store: Any) -> None:
    """Whatever tables the batch would be from."""
    two(store)
    late = store.create_table("late", capacity=10)
    mixture = store.mix({"late": 0, "agent": 1, "demo": 1})
    mixture.sample(4)
    late.insert({"other": 1})
    with pytest.raises(ValueError, match="'agent' and 'late' give different columns"):
        mixture.sample(4)


def columns_of(data: Any) -> Any:
    """Names in their order."""
    return [(name, columns_of(value)) for name, value in data.items()] if isinstance(data, dict) else None


def in_two_orders(store: Any) -> None:
    """Tables of the same columns, declared in another order: fixed, nested and ragged ones."""
    parts = {
        "r": di_store.Spec((None,), "i4", max=4),
        "n": di_store.Spec((), "i8"),
        "o": {"a": di_store.Spec((2,), "f4"), "b": di_store.Spec((None,), "u1", max=3)},
    }
    for name, order in (("a", "rno"), ("b", "onr")):
        schema = {each: parts[each] for each in order}
        if name == "b":
            schema["o"] = dict(reversed(schema["o"].items()))
        table = store.create_table(name, capacity=10, schema=schema, lanes=1)
        table.insert({"r": [1, 2], "n": 3, "o": {"a": np.ones(2, np.float32), "b": np.zeros(1, np.uint8)}})


def test_columns_are_in_the_order_of_the_first_table(store: Any) -> None:
    in_two_orders(store)
    mixture = store.mix({"a": 1, "b": 1}, seed=0)
    wanted = columns_of(store.table("a").sample(1).data)
    with mixture.loader(1) as loader:
        batches = [mixture.sample(1) for _ in range(20)] + [next(loader) for _ in range(20)]
    assert {int(batch.source[0]) for batch in batches} == {0, 1}
    assert all(columns_of(batch.data) == wanted for batch in batches)
    assert columns_of(mixture.sample(20).data) == wanted
    assert columns_of(store.mix({"b": 1, "a": 1}).sample(20).data) == columns_of(store.table("b").sample(1).data)


def test_opaque_tables_can_be_mixed(store: Any) -> None:
    for number, name in enumerate(("a", "b")):
        store.create_table(name, capacity=10, view=di_store.Opaque()).extend([{"from": number}, {"from": number}])
    store.create_table("rows", capacity=10).insert({"x": 1})
    mixture = store.mix({"a": 1, "b": 1}, seed=0)
    batch = mixture.sample(20)
    assert [value["from"] for value in batch.data] == batch.source.tolist()
    with mixture.loader(20) as loader:
        batch = next(loader)
        assert [value["from"] for value in batch.data] == batch.source.tolist()
    with pytest.raises(ValueError, match="different columns"):
        store.mix({"a": 1, "rows": 1})


def test_a_mixture_pickles_by_name(store: Any) -> None:
    two(store)
    mixture = pickle.loads(pickle.dumps(store.mix({"agent": 1, "demo": 3}, seed=1)))
    assert mixture.weights == {"agent": 1.0, "demo": 3.0}
    assert len(mixture) == 100
    assert len(mixture.sample(5)) == 5


def test_bad_shares_are_refused(store: Any) -> None:
    two(store)
    for wrong in ({}, {"agent": 0}, {"agent": -1}, {"agent": float("nan")}, {"agent": "x"}, ["agent"]):
        with pytest.raises((ValueError, TypeError)):
            store.mix(wrong)
    with pytest.raises(di_store.TableNotFound):
        store.mix({"nobody": 1})


def test_a_mixture_of_mixtures_is_flat(store: Any) -> None:
    """Its tables get their part of its share, and each has one place, whatever ways lead to it."""
    agent, _ = two(store)
    store.create_table("third", capacity=10).extend(
        {"from": np.full(5, 2), "obs": {"x": np.ones((5, 300), np.float32)}}
    )
    inner = store.mix({"agent": 1, "demo": 3})
    mixture = store.mix({inner: 8, "third": 1, "agent": 2}, seed=3)
    assert mixture.weights == {"agent": 4.0, "demo": 6.0, "third": 1.0}
    batch = pickle.loads(pickle.dumps(mixture)).sample(100)
    assert (batch.data["from"] == batch.source).all()
    assert (batch.keys >> np.uint64(56) == batch.source).all()
    assert mixture.update_priorities(batch.keys, np.ones(100)) == 100
    assert agent.update_priorities(batch.keys[batch.source > 0], np.ones((batch.source > 0).sum())) == 0
    with di_store.open(memory="16MiB") as other, pytest.raises(ValueError, match="another store"):
        other.mix({inner: 1})


def test_a_mixture_has_at_most_256_tables(store: Any) -> None:
    """As many as the key's highest byte tells apart: the last of them gets its keys back."""
    names = [f"t{number}" for number in range(256)]
    with pytest.raises(ValueError, match="257 tables: at most 256"):
        store.mix(dict.fromkeys([*names, "one more"], 1))
    tables = {name: store.create_table(name, capacity=1, lanes=1, sampler=di_store.Prioritized(1.0)) for name in names}
    for name in ("t0", "t255"):
        tables[name].insert({"x": np.float32(1)})
    mixture = store.mix({name: float(name in ("t0", "t255")) for name in names}, seed=0)
    batch = mixture.sample(16)
    assert set(batch.source) == {0, 255}
    assert mixture.update_priorities(batch.keys, 2.0 + batch.source) == 16
    assert tables["t255"].peek(tables["t255"].keys()).priorities == [257.0]


def test_ragged_columns_can_be_mixed(store: Any) -> None:
    for number, name in enumerate(("a", "b")):
        table = store.create_table(name, capacity=10, schema={"u": di_store.Spec((None,), "i8", max=5)})
        for length in range(5):
            table.insert({"u": np.full(length, number)})
    batch = store.mix({"a": 1, "b": 1}, seed=0).sample(40)
    for source, row in zip(batch.source, batch.data["u"], strict=True):
        assert (row == source).all()


def test_min_n_linger_and_timeout_apply_to_the_mixture(store: Any) -> None:
    tables = [store.create_table(name, capacity=10, limiter=di_store.Queue(10)) for name in ("a", "b")]
    for table in tables:
        table.extend({"n": np.arange(4)})
    mixture = store.mix({"a": 1, "b": 1}, seed=4)
    assert len(mixture.sample(20, min_n=3, linger=0)) == 8
    tables[0].extend({"n": np.arange(2)})
    with pytest.raises(di_store.Timeout, match="2 of 20 drawn"):
        mixture.sample(20, min_n=3, timeout=0.05)
    assert len(tables[0]) == 2
    batch = mixture.sample(20, min_n=1, timeout=0)
    assert batch.data["n"].tolist() == [0, 1]
    assert batch.source.tolist() == [0, 0]


def test_out_reuses_the_batch_of_a_mixture(store: Any) -> None:
    two(store)
    mixture = store.mix({"agent": 1, "demo": 1}, seed=0)
    batch = mixture.sample(8)
    numbers = batch.data["obs"]["x"]
    for _ in range(3):
        assert mixture.sample(8, out=batch) is batch
        assert (numbers == batch.source[:, None]).all()
    with pytest.raises(ValueError, match="out= holds 8"):
        mixture.sample(9, out=batch)


NO_DESCRIPTORS = """
import os, resource, numpy as np, di_store
store = di_store.open(memory="64MiB")
table = store.create_table("t", capacity=100, schema={"x": di_store.Spec((), "f4")})
table.extend({"x": np.ones(50, "f4")})
table.sample(4)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 4096))
print(len(store.mix({"t": 1}).sample(4)))
"""


@pytest.mark.memory_only
def test_a_mixture_needs_no_file_descriptor() -> None:
    """Nothing is imported late."""
    done = subprocess.run([sys.executable, "-c", NO_DESCRIPTORS], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("4\n", "")
