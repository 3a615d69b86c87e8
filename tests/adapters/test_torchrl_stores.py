"""TorchRL's storage in a store that is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torchrl", reason="runs with make adapters ADAPTER=torchrl")

import torch
from adapter_pages import run_programs
from given_stores import KINDS, killed_after_a_checkpoint, opened
from tensordict import TensorDict
from torchrl.data import TensorDictReplayBuffer

import di_store
from di_store.adapters.torchrl import ReplayBuffer, Storage

torch.set_num_threads(1)  # a forked process would wait for threads that only its parent has


def rows(first: int, count: int, size: int = 3) -> TensorDict:
    numbers = torch.arange(first, first + count)
    return TensorDict({"n": numbers, "x": numbers[:, None].expand(count, size).to(torch.float32)}, [count])


@pytest.mark.parametrize("kind", KINDS)
def test_a_storage_works_with_every_kind_of_store(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as store:
        buffer = TensorDictReplayBuffer(storage=Storage(10, store=store, table="mine"), batch_size=4)
        for number in range(13):
            buffer.extend(rows(number, 1))
        assert buffer[:]["n"].tolist() == [10, 11, 12, *range(3, 10)]
        batch = buffer.sample()
        assert torch.equal(batch["x"][:, 0], batch["n"].float())
        assert buffer.storage.table.name == "mine"
        assert len(buffer.storage.store.table("mine")) == 10
        buffer[1] = rows(50, 1)[0]
        assert buffer[:]["n"].tolist() == [10, 50, 12, *range(3, 10)]
        buffer.extend(rows(13, 1))
        assert buffer[:]["n"].tolist() == [10, 50, 12, 13, *range(4, 10)]


def test_a_storage_holds_more_than_memory(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """847 MB in a store of 256 MiB at full scale."""
    held, memory, size = count(2_000, 30_000), count(16, 256) << 20, 84 * 84
    storage = Storage(held, store={"memory": memory, "disk": tmp_path / "tier"})
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=32)
    for first in range(0, held, 50):
        buffer.extend(rows(first, 50, size))
    assert held * size * 4 > 3 * memory
    for _ in range(5):
        batch = buffer.sample()
        assert (batch["x"] == batch["n"][:, None]).all()
    assert storage.store.stats()["committed"] <= memory


def test_a_killed_run_can_be_resumed(tmp_path: Path) -> None:
    sampler = di_store.Prioritized(1.0, beta=0.5)

    def fill(store: di_store.Store, checkpoint: Callable[[], None]) -> None:
        buffer = ReplayBuffer(storage=Storage(10, store=store, sampler=sampler), batch_size=4)
        for number in range(10**9):
            if number == 13:
                every = buffer[:].to_tensordict().set("index", torch.arange(10)).set("td_error", torch.zeros(10))
                every["td_error"][7] = 1.0
                buffer.update_tensordict_priority(every)
                checkpoint()
            buffer.extend(rows(number, 1))

    path = killed_after_a_checkpoint(fill, tmp_path)
    with di_store.restore(path, memory="64MiB", disk=tmp_path / "tier") as store:
        buffer = ReplayBuffer(storage=Storage(10, store=store, sampler=sampler), batch_size=8)
        assert buffer[:]["n"].tolist() == [10, 11, 12, *range(3, 10)]
        assert set(buffer.sample(64)["n"].tolist()) == {7}
        buffer.extend(rows(13, 3))
        assert buffer[:]["n"].tolist() == [*range(10, 16), *range(6, 10)]


def test_unsupported_stores_are_refused(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        Storage(10, store=store).set(range(3), rows(0, 3))
        with pytest.raises(ValueError, match="another max_size= than 20"):
            len(Storage(20, store=store))
        with pytest.raises(TypeError, match="store= is a int"):
            Storage(10, store=7)  # type: ignore[arg-type]


def odd(first: int, count: int) -> TensorDict:
    """Rows with keys that hold a slash, and with entries without elements."""
    numbers = torch.arange(first, first + count)
    nested = TensorDict({"a/b": numbers, "goal": torch.zeros(count, 2, 0)}, [count])
    rows = {"walker/pos": numbers[:, None].expand(count, 2).float(), "none": torch.zeros(count, 0), "nested": nested}
    return TensorDict(rows, [count])


def check_odd(found: TensorDict) -> None:
    assert torch.equal(found["walker/pos"][..., 0], found["nested", "a/b"].float())
    assert (found["none"].shape[-1:], found["nested", "goal"].shape[-2:]) == ((0,), (2, 0))


def test_empty_entries_and_names_with_a_slash_come_back() -> None:
    sampler = di_store.Prioritized(1.0, beta=0.5)
    with di_store.open(memory="64MiB") as store:
        for given in (None, store):
            buffer = ReplayBuffer(storage=Storage(10, store=given, sampler=sampler), batch_size=4)
            for number in range(0, 12, 3):
                buffer.extend(odd(number, 3))
            buffer.add(odd(20, 1)[0])
            lanes = TensorDictReplayBuffer(storage=Storage(12, ndim=2, store=given, table="lanes"), batch_size=4)
            for number in range(0, 12, 6):
                lanes.extend(torch.stack([odd(number, 3), odd(number + 3, 3)]))
            for each in (buffer, lanes):
                check_odd(each.sample())
                check_odd(each[:])
            check_odd(buffer[2])
            assert buffer[:]["nested", "a/b"].tolist() == [10, 11, 20, *range(3, 10)]
        again = Storage(10, store=store, sampler=sampler)
        assert again[:]["nested", "a/b"].tolist() == buffer[:]["nested", "a/b"].tolist()


def test_programs_of_the_page_run(tmp_path: Path) -> None:
    run_programs("torchrl", tmp_path)
