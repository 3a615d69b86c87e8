"""Files of what is durable, or the whole folder, are removed or renamed while the store is in use: calls say so."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from di_store import Spec, StoreError

TIER: dict[str, Any] = {"memory": "16MiB", "disk_capacity": "64MiB"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "disk"


@pytest.fixture
def store(folder: Path) -> Iterator[di_store.Store]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # its end says so too
        with di_store.open(disk=folder, **TIER) as made:
            yield made


def _removed_log(folder: Path) -> None:
    for log in folder.glob("objects-*"):
        log.unlink()


def _replaced_log(folder: Path) -> None:
    for log in folder.glob("objects-*"):
        data = log.read_bytes()
        log.unlink()
        log.write_bytes(data)


def _removed(folder: Path) -> None:
    shutil.rmtree(folder)


def _renamed(folder: Path) -> None:
    os.rename(folder, folder.with_name("elsewhere"))


@pytest.mark.parametrize("harm", [_removed_log, _replaced_log, _removed, _renamed])
def test_a_durable_put_raises_if_its_log_was_removed(harm: Any, folder: Path, store: di_store.Store) -> None:
    store.put(b"before", durability="disk")
    harm(folder)
    with pytest.raises(StoreError, match="removed"):
        store.put(b"behind", durability="disk")


@pytest.mark.parametrize("harm", [_removed_log, _replaced_log, _removed, _renamed])
def test_a_durable_publish_raises_if_its_log_was_removed(harm: Any, folder: Path, store: di_store.Store) -> None:
    store.publish("policy", {"w": np.ones(100)}, durability="disk")
    harm(folder)
    with pytest.raises(StoreError, match="removed"):
        store.publish("policy", {"w": np.ones(100)}, durability="disk")


@pytest.mark.parametrize("harm", [_removed_log, _removed, _renamed])
def test_sync_raises_if_durable_data_was_removed(harm: Any, folder: Path, store: di_store.Store) -> None:
    store.put(b"before", durability="disk")
    store.sync()
    harm(folder)
    for _ in range(2):
        with pytest.raises(StoreError, match="removed"):
            store.sync()


@pytest.mark.parametrize("harm", [_removed, _renamed])
def test_sync_does_not_recreate_a_removed_folder(harm: Any, folder: Path, store: di_store.Store) -> None:
    table = store.create_table("t", capacity=100, lanes=1, durability="disk", schema={"x": Spec((), "f4")})
    table.insert({"x": 1.0})
    store.sync()
    harm(folder)
    with pytest.raises(StoreError, match="removed or renamed"):
        store.sync()
    assert not folder.exists()


def test_objects_after_a_removed_log_go_to_a_new_log(folder: Path, store: di_store.Store) -> None:
    store.put(b"before", durability="disk")
    _removed_log(folder)
    with pytest.raises(StoreError, match="removed"):
        store.put(b"lost", durability="disk")
    ref = store.put(b"kept", durability="disk")
    store.close()
    with di_store.open(disk=folder, **TIER) as again:
        assert again.get(ref) == b"kept"


def test_a_folder_that_is_put_back_works_again(folder: Path, store: di_store.Store) -> None:
    ref = store.put(b"before", durability="disk")
    os.rename(folder, folder.with_name("elsewhere"))
    with pytest.raises(StoreError):
        store.sync()
    os.rename(folder.with_name("elsewhere"), folder)
    store.sync()
    behind = store.put(b"behind", durability="disk")
    store.close()
    with di_store.open(disk=folder, **TIER) as again:
        assert (again.get(ref), again.get(behind)) == (b"before", b"behind")
