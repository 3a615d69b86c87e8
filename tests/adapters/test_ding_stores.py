"""DI-engine's buffer in a store that is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("ding", reason="needs the extra ding")

import torch

import di_store
from di_store.adapters.ding import Buffer


def test_beyond_memory(tmp_path: Path, count: Callable[[int, int], int]) -> None:
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
        with pytest.raises(di_store.TableExists, match="give table= another name"):
            Buffer(10, store=store).push({"n": torch.tensor(0)})
        second = Buffer(10, store=store, table="second")
        second.load_data(str(tmp_path / "saved"))
        assert [int(item.data["n"]) for item in second.storage] == list(range(3, 13))
        assert second.store is store
