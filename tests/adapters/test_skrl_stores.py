"""di_store.adapters.skrl in a store that is given."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("skrl", reason="runs with make adapters ADAPTER=skrl")

import torch
from given_stores import KINDS, killed_after_a_checkpoint, opened
from skrl.memories.torch import RandomMemory

import di_store
from di_store.adapters.skrl import Memory
from di_store.adapters.torch_types import NUMPY_TYPES

NAMES = ["observations", "rewards", "returns"]


def _declare(memory: RandomMemory, size: int = 3) -> None:
    memory.create_tensor("observations", size=size, dtype=torch.float32)
    memory.create_tensor("rewards", size=1, dtype=torch.float32)
    memory.create_tensor("returns", size=1, dtype=torch.float32)


def _add(memory: RandomMemory, step: int, size: int = 3) -> None:
    """The samples of two environments."""
    numbers = torch.arange(2.0)[:, None] + 2 * step
    memory.add_samples(observations=numbers.expand(2, size).clone(), rewards=-numbers)


def _same(mine: Memory, theirs: RandomMemory) -> None:
    assert (mine.memory_index, mine.env_index, mine.filled) == (theirs.memory_index, theirs.env_index, theirs.filled)
    for ours, other in zip(mine.sample_all(NAMES)[0], theirs.sample_all(NAMES)[0], strict=True):
        torch.testing.assert_close(ours, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", [str(dtype).removeprefix("torch.") for dtype in NUMPY_TYPES])
def test_tensors_of_every_type_that_numpy_has_lie_in_the_table(name: str) -> None:
    dtype = getattr(torch, name)
    with di_store.open(memory="32MiB") as store:
        ours = Memory(memory_size=4, num_envs=2, device="cpu", store=store)
        theirs = RandomMemory(memory_size=4, num_envs=2, device="cpu")
        for memory in (ours, theirs):
            memory.create_tensor("n", size=3, dtype=dtype)
            for step in range(3):
                memory.add_samples(n=torch.full((2, 3), step % 2, dtype=dtype))
        assert str(ours.table.sample(1).data["row"]["n"].dtype) == name
        (given,), (wanted,) = ours.sample_all(["n"])[0], theirs.sample_all(["n"])[0]
        assert given.dtype == wanted.dtype == dtype
        torch.testing.assert_close(given, wanted, rtol=0, atol=0, equal_nan=True)
        again = Memory(memory_size=4, num_envs=2, device="cpu", store=store)
        again.create_tensor("n", size=3, dtype=dtype)
        torch.testing.assert_close(again.sample_all(["n"])[0][0], wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_memory_works_with_every_kind_of_store(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as store:
        ours, theirs = Memory(memory_size=10, num_envs=2, device="cpu", store=store, table="mine"), None
        theirs = RandomMemory(memory_size=10, num_envs=2, device="cpu")
        for memory in (ours, theirs):
            _declare(memory)
            for step in range(13):
                _add(memory, step)
        _same(ours, theirs)
        assert ours.table.name == "mine"
        assert ours.table.stats()["inserts"] == 26
        assert len(ours.store.table("mine")) == 20
        ours.set_tensor_by_name("rewards", torch.ones(10, 2, 1))
        theirs.set_tensor_by_name("rewards", torch.ones(10, 2, 1))
        for memory in (ours, theirs):
            _add(memory, 13)
        _same(ours, theirs)
        ours.reset()
        assert len(ours.table) == 0


def test_a_memory_holds_more_than_ram(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """847 MB in a store of 256 MiB at full scale."""
    rows, memory = count(1_500, 15_000), count(16, 256) << 20
    ours = Memory(memory_size=rows, num_envs=2, device="cpu", store={"memory": memory, "disk": tmp_path / "tier"})
    size = 84 * 84
    _declare(ours, size)
    for step in range(rows):
        _add(ours, step, size)
    assert rows * 2 * size * 4 > 3 * memory
    indexes = torch.arange(0, 2 * rows, 97)
    observations, rewards = ours.sample_by_index(["observations", "rewards"], indexes=indexes)[0]
    assert (observations == indexes[:, None]).all()
    assert (rewards == -indexes[:, None]).all()
    assert ours.store.stats()["committed"] <= memory


def test_other_processes_can_sample_its_table(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        ours = Memory(memory_size=10, num_envs=2, device="cpu", store=store)
        _declare(ours)
        _add(ours, 0)
        with di_store.attach(store.name) as other:
            row = other.table("replay").sample(16).data["row"]
            assert set(row["observations"][:, 0].tolist()) == {0.0, 1.0}


def test_a_killed_run_can_be_resumed(tmp_path: Path) -> None:
    def fill(store: di_store.Store, checkpoint: Callable[[], None]) -> None:
        memory = Memory(memory_size=10, num_envs=2, device="cpu", store=store)
        _declare(memory)
        for step in range(10**9):
            if step == 13:
                checkpoint()
            _add(memory, step)

    path = killed_after_a_checkpoint(fill, tmp_path)
    with di_store.restore(path, memory="64MiB", disk=tmp_path / "tier") as store:
        ours = Memory(memory_size=10, num_envs=2, device="cpu", store=store)
        theirs = RandomMemory(memory_size=10, num_envs=2, device="cpu")
        _declare(ours)
        _declare(theirs)
        for step in range(13):
            _add(theirs, step)
        _same(ours, theirs)
        for step in range(13, 40):
            _add(ours, step)
            _add(theirs, step)
            _same(ours, theirs)
        assert len(ours.table) == 20


def test_a_pickled_memory_refers_to_its_table(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        ours = Memory(memory_size=10, num_envs=2, device="cpu", store=store)
        theirs = RandomMemory(memory_size=10, num_envs=2, device="cpu")
        for memory in (ours, theirs):
            _declare(memory)
            for step in range(4):
                _add(memory, step)
        again = pickle.loads(pickle.dumps(ours))
        _same(again, theirs)
        assert again.table.stats()["inserts"] == 8


def test_removed_rows_raise_an_error(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        ours = Memory(memory_size=10, num_envs=2, device="cpu", store=store)
        _declare(ours)
        _add(ours, 0)
        ours.table.delete(ours.table.keys(n=1))
        with pytest.raises(di_store.StoreError, match="1 of the rows are gone from table 'replay'"):
            ours.sample_all(NAMES)


@pytest.mark.parametrize(
    ("options", "text"),
    [({"memory_size": 20}, "holds 20 items, and memory_size= asks for 40"), ({"store": 7}, "store= is a int")],
)
def test_unsupported_stores_are_refused(options: dict[str, Any], text: str, tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        first = Memory(memory_size=10, num_envs=2, device="cpu", store=store)
        _declare(first)
        _add(first, 0)
        with pytest.raises((ValueError, TypeError), match=text):
            Memory(**{"memory_size": 10, "num_envs": 2, "device": "cpu", "store": store, **options})
        second = Memory(memory_size=10, num_envs=2, device="cpu", store=store)
        with pytest.raises(ValueError, match=r"'observations' is float32\[3\] in the table, not torch.float32\[4\]"):
            _declare(second, 4)


def test_there_is_no_table_before_the_first_samples() -> None:
    memory = Memory(memory_size=10, device="cpu")
    with pytest.raises(RuntimeError, match="first add_samples"):
        _ = memory.table
    with pytest.raises(RuntimeError, match="first add_samples"):
        _ = memory.store
    _declare(memory)
    memory.add_samples(observations=torch.zeros(1, 3), rewards=torch.zeros(1, 1))
    assert memory.store.table(memory.table.name).capacity == 10


@pytest.mark.parametrize("copies", [False, True])
def test_numbers_out_of_range_are_refused_not_wrapped(copies: bool) -> None:
    memory = Memory(memory_size=10, device="cpu", store=None if copies else {"memory": "16MiB"})
    memory.create_tensor("observations", size=2, dtype=torch.uint8)
    with pytest.raises(di_store.SchemaMismatch, match="observations is uint8, and was given the value 300"):
        memory.add_samples(observations=torch.tensor([[1, 300]]))


@pytest.mark.parametrize("given", [torch.full((10, 1, 2), 300), torch.full((10, 1, 2), float("nan"))])
def test_plain_tensors_out_of_range_are_refused_not_wrapped(given: torch.Tensor) -> None:
    memory = Memory(memory_size=10, device="cpu", store={"memory": "16MiB"})
    for name in ("observations", "marks"):
        memory.create_tensor(name, size=2, dtype=torch.uint8)
    memory.add_samples(observations=torch.ones(1, 2, dtype=torch.uint8))  # the table has this column alone
    with pytest.raises(di_store.SchemaMismatch, match="marks is uint8, and was given the value"):
        memory.set_tensor_by_name("marks", given)
    with pytest.raises(di_store.SchemaMismatch, match="marks is uint8, and was given the value"):
        memory.add_samples(observations=torch.ones(1, 2, dtype=torch.uint8), marks=given[0])
    memory.set_tensor_by_name("marks", torch.full((10, 1, 2), 200))
    assert memory.get_tensor_by_name("marks").unique().tolist() == [200]


@pytest.mark.parametrize("given", [None, {"memory": "16MiB"}])
def test_empty_entries_and_names_with_a_slash_come_back(given: Any) -> None:
    memory = Memory(memory_size=10, device="cpu", store=given)
    for name, size in (("walker/pos", 2), ("none", 0)):
        memory.create_tensor(name, size=size, dtype=torch.float32)
    for step in range(14):
        memory.add_samples(**{"walker/pos": torch.full((1, 2), float(step)), "none": torch.zeros(1, 0)})
    position, none = memory.sample(["walker/pos", "none"], batch_size=10)[0]
    assert set(position[:, 1].tolist()) == set(range(4, 14))
    assert none.shape == (10, 0)


def test_a_memory_without_tensors_is_refused() -> None:
    memory = Memory(memory_size=10, device="cpu")
    memory.create_tensor("none", size=0, dtype=torch.float32)
    with pytest.raises(ValueError, match="at least one column that is not empty"):
        memory.add_samples(none=torch.zeros(1, 0))
