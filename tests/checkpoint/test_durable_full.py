"""What a store of some limits has written opens with these limits, whatever filled them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import Spec, StoreFull, _core

LIMITS: dict[str, Any] = {"memory": "40MiB", "disk_capacity": "160MiB"}
BYTES, OBJECT = 2_000, 300_000


def _rows(store: di_store.Store, names: str, capacity: int, lanes: int, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    for name in names:
        table = store.create_table(
            name, capacity=capacity, lanes=lanes, durability="disk", schema={"x": Spec((BYTES,), "uint8")}
        )
        with table.writer(lanes=lanes) as writer:
            for _ in range(capacity // (100 * lanes)):
                writer.extend({"x": random.integers(0, 255, (100, lanes, BYTES), dtype=np.uint8)})


def _until_full(store: di_store.Store) -> dict[str, int]:
    """Durable objects by id: their first byte."""
    kept: dict[str, int] = {}
    for number in range(1_000):
        try:
            ref = store.put(np.random.default_rng(number).bytes(OBJECT), durability="disk", timeout=1)
        except StoreFull:
            return kept
        kept[ref.id] = number
    raise AssertionError("it was never full")


@pytest.mark.parametrize(("capacity", "lanes"), [(36_000, 1), (28_000, 16)])
def test_a_store_that_objects_filled_opens_again(tmp_path: Path, capacity: int, lanes: int) -> None:
    with di_store.open(disk=tmp_path / "disk", **LIMITS) as store:
        _rows(store, "ab", capacity, lanes)
        kept = _until_full(store)
        lengths = {name: len(store.table(name)) for name in "ab"}
    for _ in range(2):
        with di_store.open(disk=tmp_path / "disk", **LIMITS) as store:
            assert {name: len(store.table(name)) for name in "ab"} == lengths
            # Files are used where they lie: rewritten, they need the room of rows twice.
            assert store.stats()["disk"]["written"] < 24 << 20
            for id, number in kept.items():
                assert store.get(di_store.Ref.parse(id)) == np.random.default_rng(number).bytes(OBJECT)
            batch = store.table("a").sample(64)
            assert batch.data["x"].shape == (64, BYTES)


def test_the_default_capacity_counts_the_folders_own_files_as_free(tmp_path: Path) -> None:
    """A folder on a filesystem of its own would show it exactly; here others may write meanwhile."""
    folder = tmp_path / "disk"
    with di_store.open(memory="40MiB", disk=folder, disk_capacity="400MiB") as store:
        before = _room(folder)
        _rows(store, "ab", 30_000, 1)
        store.sync()
        assert store.stats()["disk"]["files"] > 80 << 20
        assert abs(_room(folder) - before) < 60 << 20
    assert abs(_room(folder) - before) < 60 << 20


def _room(folder: Path) -> int:
    return _core.disk_room(str(folder)) + _others_took(folder)


def _others_took(folder: Path) -> int:
    """Bytes that are not free now, but for those of the folder: what others write meanwhile is taken out."""
    usage = shutil.disk_usage(folder)
    own = sum(
        {
            status.st_ino: status.st_blocks * 512
            for at in folder.rglob("*")
            if at.is_file()
            for status in [os.stat(at)]
        }.values()
    )
    return usage.used - own


def test_durable_objects_respect_the_write_budget(tmp_path: Path) -> None:
    """They wait once the hour's part is used up; weights likewise. Nothing of a refused one is left."""
    limits: dict[str, Any] = {"memory": "64MiB", "disk_capacity": "512MiB"}
    value, put = np.random.default_rng(0).bytes(1 << 20), list[di_store.Ref]()
    with di_store.open(disk=tmp_path / "disk", write_budget="1GB", **limits) as store:
        with pytest.raises(di_store.StoreFull, match="write_budget=1000000000 bytes a day"):
            for _ in range(100):
                put.append(store.put(value, durability="disk", timeout=0))
        assert 10**9 / 24 <= store.stats()["disk"]["written"] <= 10**9 / 24 + (4 << 20)
        with pytest.raises(di_store.StoreFull, match="write_budget="):
            store.publish("policy", value, durability="disk", timeout=0)
        with pytest.raises(di_store.StoreFull, match="write_budget="):
            store.put_many([1, 2], durability="disk", timeout=0)
        store.resize(write_budget="1TB")
        assert store.publish("policy", value, durability="disk") == 1
        store.put_many([value], durability="disk")
        assert len(store.keys(n=1_000)) == len(put) + 1
        assert store.check() == []
