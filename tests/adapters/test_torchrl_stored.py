"""TorchRL's buffers on a storage that holds rows already: they overwrite the oldest ones, whoever wrote them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrl", reason="runs with make adapters ADAPTER=torchrl")

import torch
from tensordict import TensorDict
from torchrl.data import ReplayBuffer as PlainBuffer
from torchrl.data import (
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)

import di_store
from di_store.adapters.torchrl import ReplayBuffer as DiStoreBuffer
from di_store.adapters.torchrl import Storage

SIZE = 10
Next = Callable[[Any], Any]


def rows(first: int, count: int) -> TensorDict:
    return TensorDict({"n": torch.arange(first, first + count)}, [count])


def numbers(buffer: Any) -> list[int]:
    found: list[int] = buffer[:]["n"].tolist()
    return found


def ring(count: int) -> list[int]:
    """What a ring of `SIZE` holds in its slots after so many rows, each with its number."""
    held = [0] * min(count, SIZE)
    for number in range(count):
        held[number % SIZE] = number
    return held


def same_storage(buffer: Any, folder: Path) -> Any:
    return buffer.storage


def same_name(buffer: Any, folder: Path) -> Any:
    return Storage(SIZE, store=buffer.storage.store)


def restored(buffer: Any, folder: Path) -> Any:
    buffer.storage.store.checkpoint(folder / "saved")
    return Storage(SIZE, store=di_store.restore(folder / "saved", memory="64MiB"))


MORE = [same_storage, same_name, restored]
KINDS = [PlainBuffer, TensorDictReplayBuffer]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("held", [1, 4, 10, 13, 27])
@pytest.mark.parametrize("more", MORE)
def test_another_buffer_continues_after_the_last_row(more: Any, held: int, kind: Any, tmp_path: Path) -> None:
    first = kind(storage=Storage(SIZE))
    first.extend(rows(0, held)) if held <= SIZE else [first.extend(rows(n, 1)) for n in range(held)]
    assert numbers(first) == ring(held)
    second = kind(storage=more(first, tmp_path))
    for count, data in ((held + 1, rows(held, 1)), (held + 5, rows(held + 1, 4))):
        index = second.extend(data)
        assert numbers(second) == ring(count)
        assert second.storage[index]["n"].tolist() == data["n"].tolist()
    second.add(rows(held + 5, 1)[0])
    assert numbers(second) == ring(held + 6)


@pytest.mark.parametrize("kind", KINDS)
def test_buffers_that_write_in_turn_share_one_ring(kind: Any) -> None:
    storage = Storage(SIZE)
    buffers = [kind(storage=storage), kind(storage=Storage(SIZE, store=storage.store)), kind(storage=storage)]
    for number in range(33):
        buffers[number % 3].extend(rows(number, 1))
        assert numbers(buffers[0]) == ring(number + 1)
    assert storage.table.capacity == SIZE  # the rows stayed in turn


@pytest.mark.parametrize("changed", [[6], [7], [2], [6, 7], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]])
def test_changing_a_row_in_place_does_not_make_it_the_newest(changed: list[int], tmp_path: Path) -> None:
    """17 rows: slot 6 holds the newest, slot 7 the oldest one."""
    first = TensorDictReplayBuffer(storage=Storage(SIZE))
    for number in range(17):
        first.extend(rows(number, 1))
    for slot in changed:
        first[slot] = TensorDict({"n": torch.tensor(-slot)})
    held = [-slot if slot in changed else n for slot, n in enumerate(ring(17))]
    assert numbers(first) == held
    for more in (same_storage, same_name, restored):
        assert TensorDictReplayBuffer(storage=more(first, tmp_path)).writer._cursor == 7
    second = TensorDictReplayBuffer(storage=same_name(first, tmp_path))
    for number in range(17, 40):
        (second if number % 2 else first).extend(rows(number, 1))
        held[number % SIZE] = number
        assert numbers(second) == held
        if number == 25:
            second[3] = TensorDict({"n": torch.tensor(-1)})
            held[3] = -1


@pytest.mark.parametrize("more", MORE)
def test_max_value_writer_keeps_the_best_rows_in_a_new_buffer(more: Any, tmp_path: Path) -> None:
    options = {"writer": TensorDictMaxValueWriter(rank_key="n")}
    first = TensorDictReplayBuffer(storage=Storage(SIZE), **options)
    first.extend(rows(100, 6))
    second = TensorDictReplayBuffer(
        storage=more(first, tmp_path), writer=TensorDictMaxValueWriter(rank_key="n", reduction="max")
    )
    second.extend(rows(0, 4))
    assert sorted(numbers(second)) == [0, 1, 2, 3, *range(100, 106)]
    second.extend(rows(50, 2))
    assert sorted(numbers(second)) == [2, 3, 50, 51, *range(100, 106)]


def test_a_user_defined_writer_works() -> None:
    class Mine(RoundRobinWriter):  # type: ignore[misc]
        pass

    storage = Storage(SIZE)
    PlainBuffer(storage=storage).extend(rows(0, 7))
    second = PlainBuffer(storage=storage, writer=Mine())
    second.extend(rows(7, 5))
    assert numbers(second) == ring(12)


def test_several_axes_and_generations_are_resumed() -> None:
    storage = Storage(2 * SIZE, ndim=2)
    first = PlainBuffer(storage=storage)
    first.extend(TensorDict({"n": torch.arange(14).view(7, 2).T}, [2, 7]))
    second = PlainBuffer(storage=storage, writer=TensorDictRoundRobinWriter(track_generations=True))
    second.extend(TensorDict({"n": torch.arange(14, 24).view(5, 2).T}, [2, 5]))
    assert second.storage[:]["n"].flatten().tolist() == [20, 21, 22, 23, *range(4, 20)]


def test_rows_changed_in_place_through_another_storage_are_found() -> None:
    """Also if they are all written again in order, which leaves none of the rows that this storage knows."""
    first = TensorDictReplayBuffer(storage=Storage(SIZE))
    first.extend(rows(0, SIZE))
    second = TensorDictReplayBuffer(storage=Storage(SIZE, store=first.storage.store))
    held = list(range(SIZE))
    for number in range(1_200):
        slot = number * 7 % SIZE  # not as the ring would go on
        held[slot] = -number
        second[slot] = TensorDict({"n": torch.tensor(-number)})
        if number % 100 == 0:
            assert numbers(first) == held
            assert first.storage[torch.tensor([slot])]["n"].item() == -number
    first.extend(rows(50, 2))
    assert numbers(second) == numbers(first) == [50, 51, *held[2:]]


def test_rows_of_others_are_found_behind_own_ones() -> None:
    """The first buffer draws the newest row of another one, and writes behind it; it has not read those before."""
    sampler = di_store.Prioritized(1.0, beta=0.5)
    first = DiStoreBuffer(storage=Storage(SIZE, sampler=sampler), batch_size=1)
    first.extend(rows(0, 5))
    second = DiStoreBuffer(storage=Storage(SIZE, store=first.storage.store, sampler=sampler), batch_size=1)
    second.extend(rows(5, 3))
    second.update_priority(torch.arange(8), torch.tensor([0.0] * 7 + [1.0]))
    assert first.sample()["n"].tolist() == [7]
    first.storage.set(torch.tensor([8]), rows(8, 1).set("index", torch.tensor([8])))
    assert numbers(first) == numbers(second) == list(range(9))


@pytest.mark.parametrize("loose", [False, True])
def test_storages_that_are_written_without_a_writer_share_one_ring(loose: bool) -> None:
    first = Storage(SIZE)
    second = Storage(SIZE, store=first.store)
    first.set(torch.arange(3), rows(0, 3))
    if loose:
        first.set(torch.tensor([1]), rows(1, 1), set_cursor=False)
    held = [0, 1, 2]
    for number in range(3, 40):
        (second if number % 5 < 3 else first).set(torch.tensor([number % SIZE]), rows(number, 1))
        held = [*held, number] if number < SIZE else [number if n == number - SIZE else n for n in held]
        if number % 4 == 0:
            assert first[torch.arange(len(held))]["n"].tolist() == held
            assert second[torch.arange(len(held))]["n"].tolist() == held
    assert (first.table.capacity > SIZE) == loose


def test_state_dicts_and_files_keep_the_ring_position(tmp_path: Path) -> None:
    first = TensorDictReplayBuffer(storage=Storage(SIZE))
    for number in range(13):
        first.extend(rows(number, 1))
    first[1] = TensorDict({"n": torch.tensor(-1)})  # also if a row of it was changed in place
    by_state = TensorDictReplayBuffer(storage=Storage(SIZE))
    by_state.load_state_dict(first.state_dict())
    first.dumps(tmp_path / "files")
    by_files = TensorDictReplayBuffer(storage=Storage(SIZE))
    by_files.loads(tmp_path / "files")
    for buffer in (by_state, by_files):
        held = [n if n != 11 else -1 for n in ring(13)]
        assert numbers(buffer) == held
        for number in range(13, 16):
            buffer.extend(rows(number, 1))
        assert numbers(buffer) == [*held[:3], 13, 14, 15, *held[6:]]
