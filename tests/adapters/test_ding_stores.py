"""DI-engine's buffer in a store that is given."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("ding", reason="runs with make adapters ADAPTER=ding")

import torch
from adapter_pages import run_programs
from given_stores import KINDS, killed_and_unpickled, opened

import di_store
from di_store.adapters.ding import Buffer


def test_a_buffer_holds_more_than_memory(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    items, memory, size = count(4_000, 30_000), count(40, 256) << 20, 84 * 84
    buffer = Buffer(items, store={"memory": memory, "disk": tmp_path / "tier"}, table="mine")
    with pytest.raises(RuntimeError, match="first push"):
        _ = buffer.table
    for number in range(items):
        buffer.push({"obs": torch.full((size,), float(number)), "n": torch.tensor(number)})
    assert items * size * 4 > 2 * memory
    assert buffer.table.name == "mine"
    assert buffer.store.stats()["committed"] <= memory
    for item in buffer.sample(64):
        assert (item.data["obs"] == item.data["n"]).all()


def test_a_table_with_items_is_refused_and_a_file_is_loaded(tmp_path: Path) -> None:
    with di_store.open(memory="64MiB") as store:
        first = Buffer(10, store=store)
        for number in range(13):
            first.push({"n": torch.tensor(number)})
        first.save_data(str(tmp_path / "saved"))
        with pytest.raises(di_store.TableExists, match="load the buffer's pickle"):
            Buffer(10, store=store).push({"n": torch.tensor(0)})
        second = Buffer(10, store=store, table="second")
        second.load_data(str(tmp_path / "saved"))
        assert [int(item.data["n"]) for item in second.storage] == list(range(3, 13))
        assert second.store is store


def _push(buffer: Buffer, begin: int, end: int) -> None:
    """Items of two forms, and of none."""
    for number in range(begin, end):
        data = [{"n": torch.tensor(number)}, {"n": number, "m": [1.5]}, {"n": number, "text": "a"}][number % 3]
        buffer.push(data, {"env": number % 2})


def _numbers(buffer: Buffer) -> list[int]:
    return [int(item.data["n"]) for item in buffer.storage]


@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_works_with_every_kind_of_store(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as store:
        buffer = Buffer(10, store=store, table="mine")
        _push(buffer, 0, 25)
        assert _numbers(buffer) == list(range(15, 25))
        buffer.delete([buffer.storage[0].index])
        assert buffer.update(buffer.storage[1].index, data={"n": 99})
        assert _numbers(buffer) == [16, 99, *range(18, 25)]
        assert {int(item.data["n"]) for item in buffer.sample(9)} == {16, 99, *range(18, 25)}
        assert buffer.table.name == "mine"
        buffer.clear()
        assert len(buffer.table) == 0


def test_a_killed_run_can_be_resumed(tmp_path: Path) -> None:
    with killed_and_unpickled(lambda store: Buffer(10, store=store), _push, 25, tmp_path) as buffer:
        assert _numbers(buffer) == list(range(15, 25))
        assert [item.meta["env"] for item in buffer.storage] == [number % 2 for number in range(15, 25)]
        assert len(buffer.sample(4, groupby="env", replace=True)[0]) > 0
        _push(buffer, 25, 28)
        assert _numbers(buffer) == list(range(18, 28))


def test_an_old_pickle_is_reconciled_with_the_table(tmp_path: Path) -> None:
    with di_store.open(memory="64MiB") as store:
        buffer = Buffer(10, store=store)
        for number in range(8):
            buffer.push({"n": torch.tensor(number)}, {"env": 0})
        data = pickle.dumps(buffer)
        assert len(data) < 5_000
        for number in range(8, 15):
            buffer.push({"n": torch.tensor(number)}, {"env": 0})
        again = pickle.loads(data)
        assert _numbers(again) == _numbers(buffer)
        assert [item.meta for item in again.storage] == [{"env": 0}] * 3 + [{}] * 7
        again.push({"n": torch.tensor(15)})
        assert _numbers(again) == list(range(6, 16))


@pytest.mark.parametrize("keep", [0, 100])
def test_empty_entries_and_names_with_a_slash_come_back(keep: int) -> None:
    with di_store.open(memory="64MiB") as store:
        for number, given in enumerate((None, store)):
            buffer = Buffer(10, keep=keep, store=given, table=f"data-of-{number}")
            for step in range(14):
                buffer.push({"walker/pos": torch.full((2,), step), "none": torch.zeros(0), "goal": torch.zeros(2, 0)})
            for place, item in enumerate(buffer.storage):
                assert item.data["walker/pos"].tolist() == [place + 4] * 2
                assert (item.data["none"].shape, item.data["goal"].shape) == ((0,), (2, 0))


def test_programs_of_the_page_run(tmp_path: Path) -> None:
    run_programs("ding", tmp_path)
