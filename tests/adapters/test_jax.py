"""`di_store.adapters.jax`: an array of JAX never changes, and is no copy where it needs none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_pages import run_programs

import di_store

jax = pytest.importorskip("jax", reason="runs with make adapters ADAPTER=jax")
as_jax = pytest.importorskip("di_store.adapters.jax").as_jax

N = 64


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB", seed=1) as found:
        yield found


@pytest.fixture
def table(store: di_store.Store) -> di_store.Table:
    types = {"obs": ((11,), "f4"), "act": ((), "i4"), "image": ((4, 5), "u1"), "flag": ((), "?"), "half": ((3,), "f2")}
    schema = {name: di_store.Spec(*each) for name, each in types.items()}
    found = store.create_table("t", capacity=500, schema={"in": schema, "big": di_store.Spec((), "i8")})
    rng = np.random.default_rng(3)
    rows = {name: rng.integers(0, 2, (500, *each.shape)).astype(each.dtype) for name, each in schema.items()}
    rows["obs"] = rng.random((500, 11)).astype("f4")
    found.extend({"in": rows, "big": np.arange(500)})
    return found


def test_a_batch_is_a_pytree(table: di_store.Table) -> None:
    """Also where data are new at each call: a function is compiled once."""
    traced = []

    @jax.jit
    def step(batch: Any, factor: Any) -> Any:
        traced.append(batch.keys)
        return (batch.data["in"]["obs"] * factor).sum(axis=1) * batch.weights, batch

    for _ in range(3):
        batch = as_jax(table.sample(N))
        found, back = step(batch, 2.0)
        np.testing.assert_allclose(found, 2 * np.asarray(batch.data["in"]["obs"]).sum(axis=1), rtol=1e-5)
        assert np.array_equal(back.data["big"], batch.data["big"])
        assert back.keys is None
    assert traced == [None]
    grads = jax.grad(lambda batch: (batch.weights * batch.data["x"]).sum(), allow_int=True)(
        as_jax(batch_of(table, np.arange(4, dtype=np.float32)))
    )
    assert grads.data["x"].tolist() == [1.0] * 4
    ragged = di_store.Ragged(np.arange(3.0), np.array([0, 1, 3]), (2,))
    doubled = jax.tree_util.tree_map(lambda leaf: leaf * 2, ragged)
    assert (doubled.values.tolist(), doubled.lead) == ([0.0, 2.0, 4.0], (2,))


def batch_of(table: di_store.Table, values: Any) -> di_store.Batch:
    found = table.sample(len(values))
    found.data = {"x": values}
    return found


def address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.unsafe_buffer_pointer())


def test_values_and_types_are_kept_and_memory_is_shared(table: di_store.Table) -> None:
    batch = table.sample(N)
    found = as_jax(batch)
    for name, array in found.data["in"].items():
        assert isinstance(array, jax.Array)
        assert array.dtype == batch.data["in"][name].dtype
        assert address(array) == address(batch.data["in"][name])
        np.testing.assert_array_equal(np.asarray(array), batch.data["in"][name])
    np.testing.assert_array_equal(np.asarray(found.data["big"]), batch.data["big"])
    np.testing.assert_array_equal(np.asarray(found.weights), batch.weights)
    assert isinstance(found.weights, jax.Array)
    assert found.keys is batch.keys
    assert type(found) is di_store.Batch
    table.update_priorities(found.keys, np.ones(N))


def test_a_held_array_never_changes(table: di_store.Table) -> None:
    """The buffer is used again when the array is gone, and not before."""
    found = as_jax(table.sample(N)).data["in"]["obs"]
    place, values = address(found), np.array(found)
    others = [address(table.sample(N).data["in"]["obs"]) for _ in range(100)]
    assert place not in others
    np.testing.assert_array_equal(np.asarray(found), values)
    del found
    assert place in [address(table.sample(N).data["in"]["obs"]) for _ in range(100)]


def test_a_computation_that_runs_keeps_its_input(table: di_store.Table) -> None:
    @jax.jit
    def slow(values: Any) -> Any:
        return jax.lax.fori_loop(0, 2_000, lambda i, sum_: sum_ + values, values * 0)

    slow(np.zeros((N, 11), np.float32)).block_until_ready()
    for _ in range(5):
        batch = table.sample(N)
        wanted = batch.data["in"]["obs"].copy()
        result = slow(as_jax(batch).data["in"]["obs"])
        del batch
        for _ in range(20):
            table.sample(N)
        np.testing.assert_allclose(np.asarray(result), wanted * 2_000, rtol=1e-3)


def test_jax_arrays_are_read_only(table: di_store.Table) -> None:
    batch = table.sample(N)
    found = as_jax(batch)
    values = np.array(found.data["in"]["obs"])
    with pytest.raises(ValueError, match="read-only"):
        batch.data["in"]["obs"][0] = 1
    for out in (batch, found):
        with pytest.raises(ValueError, match="writable"):
            table.sample(N, out=out)
    np.testing.assert_array_equal(np.asarray(found.data["in"]["obs"]), values)
    again = as_jax(batch)
    np.testing.assert_array_equal(np.asarray(again.data["in"]["obs"]), values)


def test_a_batch_over_part_of_another_is_copied(store: di_store.Store) -> None:
    """Its arrays are views of arrays that stay writable."""
    queue = store.create_table("q", capacity=20, limiter=di_store.Queue(20), schema={"obs": di_store.Spec((16,), "f4")})
    queue.extend({"obs": np.ones((10, 16), "f4")})
    whole = queue.sample(10)
    queue.extend({"obs": np.full((4, 16), 2, "f4")})
    part = queue.sample(10, min_n=4, linger=0, out=whole)
    assert len(part) == 4
    found = as_jax(part)
    queue.extend({"obs": np.full((10, 16), 3, "f4")})
    queue.sample(10, out=whole)
    np.testing.assert_array_equal(np.asarray(found.data["obs"]), np.full((4, 16), 2))


def test_batches_of_other_sources_convert_too(store: di_store.Store, table: di_store.Table) -> None:
    place = jax.devices("cpu")[0]
    peeked = as_jax(table.peek(table.keys()[:5]), device=place)
    np.testing.assert_array_equal(np.asarray(peeked.data["big"]), np.arange(5))
    with table.loader(N, prefetch=2) as loader:
        kept = [as_jax(next(loader)) for _ in range(8)]
    for batch in kept:
        wanted = table.peek(batch.keys).data["in"]["obs"]
        np.testing.assert_array_equal(np.asarray(batch.data["in"]["obs"]), wanted)
    ragged = store.create_table("r", capacity=9, schema={"x": di_store.Spec((None, 3), "f4", max=6)})
    for length in (2, 6, 1):
        ragged.insert({"x": np.full((length, 3), length, "f4")})
    found = as_jax(ragged.peek(ragged.keys())).data["x"]
    assert isinstance(found.values, jax.Array)
    assert found.lengths.tolist() == [2, 6, 1]
    assert found[1].shape == (6, 3)
    opaque = store.create_table("o", capacity=9, view=di_store.Opaque())
    opaque.insert(("a", np.arange(3)))
    assert as_jax(opaque.sample(1)).data[0][0] == "a"


def test_bad_input_is_refused(table: di_store.Table) -> None:
    with pytest.raises(TypeError, match="takes a batch"):
        as_jax(table.sample(3).data)
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="torch tensors"):
        as_jax(table.sample(3).to(torch.device("cpu")))


def test_a_restored_table_gives_the_same_arrays(store: di_store.Store, table: di_store.Table, tmp_path: Any) -> None:
    """A restored table gives the same arrays as the one it was saved from."""
    store.checkpoint(tmp_path / "checkpoint")
    with di_store.restore(tmp_path / "checkpoint", memory="64MiB") as again:
        keys = table.keys()
        expected, found = as_jax(table.peek(keys)), as_jax(again.table(table.name).peek(keys))
        mine, theirs = jax.tree_util.tree_flatten(found), jax.tree_util.tree_flatten(expected)
        assert mine[1] == theirs[1]
        for one, other in zip(mine[0], theirs[0], strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_programs_of_the_page_run(tmp_path: Path) -> None:
    run_programs("jax", tmp_path)
