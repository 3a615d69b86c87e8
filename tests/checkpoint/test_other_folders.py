"""Each call that takes a path, against each other thing that may lie there: it is refused, and all stays as it was."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from checkpoint.test_tree_kills import child, ended
from di_store import Spec

TIER: dict[str, Any] = {"memory": "16MiB", "disk_capacity": "64MiB"}
TREE = {"x": np.arange(1_000)}


def _filled(store: di_store.Store, durability: str = "memory") -> di_store.Table:
    table = store.create_table("t", capacity=100, lanes=1, durability=durability, schema={"x": Spec((4,), "f4")})
    with table.writer() as writer:
        writer.extend({"x": np.ones((10, 4), np.float32)})
    return table


def _own_manifest(path: Path) -> None:
    path.mkdir()
    (path / "manifest.json").write_text(json.dumps({"format": "theirs", "rows": [1, 2, 3]}))


def _tier(path: Path) -> None:
    """Made by a process that has ended: a thread of the store's may seal a file a moment after it was closed."""

    def make() -> None:
        with di_store.open(disk=path, **TIER) as store:
            _filled(store, "disk")
            store.put(b"kept", durability="disk")

    assert ended(child(make)) == 0


def _damaged_tier(path: Path) -> None:
    """A copy of the files alone: without lock files."""
    _tier(path)
    for lock in path.glob("*.lock"):
        lock.unlink()
    (path / "epoch").write_bytes(b"\0" * 9)


def _store_checkpoint(path: Path) -> None:
    with di_store.open(memory="16MiB") as store:
        _filled(store)
        store.checkpoint(path)


def _export(path: Path) -> None:
    with di_store.open(memory="16MiB") as store:
        _filled(store).export(path)


LIES: dict[str, Callable[[Path], None]] = {
    "a tree": lambda path: di_store.save(path, TREE),
    "the checkpoint of a store": _store_checkpoint,
    "the folder of a disk tier": _tier,
    "the folder of a disk tier with a damaged epoch": _damaged_tier,
    "the durable tables of a disk tier": lambda path: None,  # below: they lie in a folder of the one above
    "a manifest.json of somebody": _own_manifest,
    "a damaged manifest.json": lambda path: (_own_manifest(path), (path / "manifest.json").write_bytes(b"\0" * 9))[0],
    "an export": _export,
    "a file": lambda path: Path(path).write_text("notes"),
    "a link that leads nowhere": lambda path: path.symlink_to("nowhere/at/all"),
    "a pipe": lambda path: os.mkfifo(path),
}


def _save(path: Path, store: di_store.Store) -> None:
    di_store.save(path, TREE)


def _open(path: Path, store: di_store.Store) -> None:
    di_store.open(disk=path, **TIER).close()


def _restore_to(path: Path, store: di_store.Store) -> None:
    source = path.with_name("source")
    store.checkpoint(source)
    di_store.restore(source, disk=path, **TIER).close()


def _restore_beside(path: Path, store: di_store.Store) -> None:
    di_store.restore(path, disk=path, **TIER).close()


CALLS: dict[str, Callable[[Path, di_store.Store], Any]] = {
    "save": _save,
    "checkpoint": lambda path, store: store.checkpoint(path),
    "open": _open,
    "restore to": _restore_to,
    "restore beside": _restore_beside,
    "export": lambda path, store: store.table("t").export(path),
    "load": lambda path, store: di_store.load(path),
    "restore": lambda path, store: di_store.restore(path, memory="16MiB").close(),
    "import": lambda path, store: store.import_table(path, name="u"),
}
WORKS = {  # what a call may do with what lies there
    ("save", "a tree"),
    ("checkpoint", "the checkpoint of a store"),
    ("open", "the folder of a disk tier"),
    ("export", "an export"),
    ("export", "a file"),
    ("export", "a link that leads nowhere"),
    ("load", "a tree"),
    ("restore", "the checkpoint of a store"),
    ("restore", "the durable tables of a disk tier"),
    ("import", "an export"),
}


def _content(path: Path) -> dict[str, str]:
    """What lies at a path, and below it."""
    found = {}
    for at in [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]:
        name = str(at.relative_to(path))
        if at.is_symlink():
            found[name] = f"link to {os.readlink(at)}"
        elif at.is_file():
            found[name] = hashlib.sha256(at.read_bytes()).hexdigest()
        else:
            found[name] = f"{at.lstat().st_mode:o}"
    return found


@pytest.mark.parametrize("lies", LIES)
@pytest.mark.parametrize("call", CALLS)
def test_an_existing_path_is_used_or_refused_unchanged(call: str, lies: str, tmp_path: Path) -> None:
    path = tmp_path / "path"
    LIES[lies](path)
    if lies == "the durable tables of a disk tier":
        _tier(tmp_path / "tier")
        path = tmp_path / "tier" / "durable"
    before = _content(path)
    with di_store.open(memory="16MiB") as store:
        _filled(store)
        if (call, lies) in WORKS:
            CALLS[call](path, store)
            return
        with pytest.raises((di_store.StoreError, OSError, ValueError)) as refused:
            CALLS[call](path, store)
    assert "\n" not in str(refused.value)
    assert _content(path) == before


@pytest.mark.parametrize("manifest", [None, '{"rows": [1, 2, 3]}'])
@pytest.mark.parametrize("name", ["segment-0000002a", "segment-00000001.partial", "disk-00000001-2f"])
def test_foreign_files_with_our_names_are_kept(name: str, manifest: str | None, tmp_path: Path) -> None:
    """A checkpoint removes what earlier ones have left. What lies in a folder that had none is somebody else's."""
    (tmp_path / name).write_text("theirs")
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    before = _content(tmp_path)
    with di_store.open(memory="16MiB") as store:
        _filled(store)
        with pytest.raises(di_store.StoreError, match=r"choose another folder"):
            store.checkpoint(tmp_path)
    assert _content(tmp_path) == before


def test_a_checkpoint_folder_refused_as_disk_still_takes_checkpoints(tmp_path: Path) -> None:
    with di_store.open(memory="16MiB") as store:
        _filled(store)
        store.checkpoint(tmp_path / "c")
        with pytest.raises(di_store.StoreError, match="holds a checkpoint"):
            di_store.open(disk=tmp_path / "c", **TIER)
        store.checkpoint(tmp_path / "c")
    with di_store.restore(tmp_path / "c", memory="16MiB") as again:
        assert len(again.table("t")) == 10


def test_a_tree_can_be_saved_in_a_subfolder_of_a_checkpoint(tmp_path: Path) -> None:
    with di_store.open(memory="16MiB") as store:
        _filled(store)
        store.checkpoint(tmp_path / "c")
        di_store.save(tmp_path / "c" / "learner", TREE)
        store.checkpoint(tmp_path / "c")
    assert (di_store.load(tmp_path / "c" / "learner")["x"] == TREE["x"]).all()
    shutil.rmtree(tmp_path / "c" / "learner")
    with di_store.restore(tmp_path / "c", memory="16MiB") as again:
        assert len(again.table("t")) == 10


@pytest.mark.parametrize("disk", ["", b"", "/", "//", "/../"])
def test_anything_but_a_store_folder_is_refused(disk: Any) -> None:
    with pytest.raises(ValueError, match="disk="):
        di_store.open(disk=disk, **TIER)


@pytest.mark.parametrize("read", [di_store.load, di_store.restore])
def test_a_file_in_place_of_a_checkpoint_is_refused(read: Callable[[str], Any], tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"weights")
    with pytest.raises(di_store.CorruptData, match="holds no"):
        read(str(tmp_path / "model.pt"))
