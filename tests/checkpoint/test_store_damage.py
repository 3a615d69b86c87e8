"""Folders that hold no checkpoint of a store, or a damaged one: typed errors."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import di_store
from checkpoint.stores import MEMORY, Options, write
from di_store import (
    CorruptData,
    Fifo,
    LayoutMismatch,
    StoreError,
    StoreFull,
    Transition,
    _core,
)

# -- what is not a checkpoint -------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["memory", "disk"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("checkpoint")
    tier: Options = {"disk": folder / "tier", "disk_capacity": "64MiB"} if request.param == "disk" else {}
    with di_store.open(memory=MEMORY, seed=1, **tier) as store:
        table = store.create_table("t", capacity=400, view=Transition(frame_stack={"obs": 2}))
        write(table, 500)
        store.put([1, 2, 3], id="ab" * 20)
        store.publish("policy", np.ones(3))
        store.checkpoint(folder / "c")
        write(table, 50, 1_000)
        store.checkpoint(folder / "c")
        yield folder / "c"


@pytest.mark.memory_only
def test_damaged_files_raise_or_give_the_written_rows(made: Path, tmp_path: Path) -> None:
    """Every file, cut and with bytes changed: a typed error, or the rows that were written."""
    with di_store.restore(made, memory=MEMORY) as store:
        keys = store.table("t").keys(0, 400)
        expected = store.table("t").peek(keys).data["obs"].copy()
    rng = np.random.default_rng(0)
    refused = 0
    for name in sorted(path.name for path in made.iterdir() if path.stat().st_size):
        size = (made / name).stat().st_size
        for turn in range(8):
            folder = tmp_path / f"{name}-{turn}"
            shutil.copytree(made, folder)
            with open(folder / name, "r+b") as file:
                if turn == 0:
                    file.truncate(size // 2)
                else:
                    file.seek(int(rng.integers(min(size, 3 * 4096) if turn % 2 else size)))
                    file.write(bytes(rng.integers(0, 256, int(rng.integers(1, 64)), np.uint8)))
            try:
                with di_store.restore(folder, memory=MEMORY) as store:
                    assert (store.table("t").peek(keys).data["obs"] == expected).all()
            except (CorruptData, LayoutMismatch):
                refused += 1
            shutil.rmtree(folder)
    assert refused > 10


LOCKS = {"checkpoint.lock", "restore.lock"}


def _with(folder: Path, change: Any) -> None:
    """Change a manifest, with the right checksum."""
    plain = json.loads((folder / "manifest.json").read_text())
    change(plain)
    del plain["crc"]
    plain["crc"] = _core.crc32c(msgspec.json.encode(plain))
    (folder / "manifest.json").write_bytes(msgspec.json.encode(plain))


WRONG: list[tuple[str, Any]] = [
    ("tables.0.counts.finished", -1),
    ("tables.0.counts.inserts", None),
    ("tables.0.limiter.queue", -1),
    ("tables.0.index", 2**32),
    ("tables.0.capacity", 2**40),
    ("tables.0.capacity", 0),
    ("tables.0.beta", -1.0),
    ("tables.0.name", ""),
    ("tables.0.config", "{}"),
    ("tables.0.config", "["),
    ("tables.0.schema", "[1]"),
    ("tables.0.schema", '[{"name":"x"}]'),
    ("tables.0.states", []),
    ("tables.0.states.0.file", ""),
    ("tables.0.states.0.file", "a" * 300),
    ("tables.0.states.0.bytes", 2**62),
    ("segments.0.uuid", "x" * 32),
    ("segments.0.file", "../segment-00000001"),
    ("weights.0.newest", 2**63),
    ("weights.0.versions.0.1", "ab"),
    ("layouts.0", ""),
]


@pytest.mark.parametrize(("at", "value"), WRONG, ids=[f"{at}={value!r:.9}" for at, value in WRONG])
def test_manifests_with_wrong_contents_are_refused(made: Path, tmp_path: Path, at: str, value: Any) -> None:
    """Of a right checksum: somebody wrote them so."""
    shutil.copytree(made, tmp_path / "c")

    def change(plain: Any) -> None:
        *path, last = [int(part) if part.isdigit() else part for part in at.split(".")]
        for part in path:
            plain = plain[part]
        plain[last] = value

    _with(tmp_path / "c", change)
    with pytest.raises(CorruptData):
        di_store.restore(tmp_path / "c", memory=MEMORY)


def _cut(arrays: dict[str, Any]) -> None:
    arrays["free_count"][1] = arrays["free_count"][1][4:]


def _endless(arrays: dict[str, Any]) -> None:
    arrays["free_count"][1] = np.full(len(arrays["free_count"][1]) // 4, 2**28, np.uint32).tobytes()


def _grown(arrays: dict[str, Any]) -> None:
    arrays["sizes"][1] = np.full(3, 2**28, np.uint64).tobytes()


def _short(arrays: dict[str, Any]) -> None:
    arrays["uid"][1] = arrays["uid"][1][8:]


@pytest.mark.parametrize(("state", "wrong"), [(0, _cut), (0, _endless), (1, _cut), (1, _grown), (None, _short)])
def test_wrong_arrays_are_refused_before_memory_is_taken(
    made: Path, tmp_path: Path, state: int | None, wrong: Any
) -> None:
    """Refused before memory is taken for what they say."""
    shutil.copytree(made, tmp_path / "c")

    def change(plain: Any) -> None:
        named = plain["chunks"] if state is None else plain["tables"][0]["states"][state]
        file = tmp_path / "c" / named["file"]
        arrays = msgspec.msgpack.decode(file.read_bytes())
        wrong(arrays)
        text = msgspec.msgpack.encode(arrays)
        file.write_bytes(text)
        named["bytes"], named["crc"] = len(text), _core.crc32c(text)

    _with(tmp_path / "c", change)
    with pytest.raises(CorruptData, match=r"different checkpoints|different lengths"):
        di_store.restore(tmp_path / "c", memory=MEMORY)


def test_missing_files_are_named(made: Path, tmp_path: Path) -> None:
    for name in sorted(path.name for path in made.iterdir() if not path.name.endswith(".lock")):
        folder = tmp_path / name
        shutil.copytree(made, folder)
        (folder / name).unlink()
        with pytest.raises(CorruptData, match=name.partition(".")[0]):
            di_store.restore(folder, memory=MEMORY)


def test_a_folder_without_a_checkpoint_is_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match=r"manifest\.json"):
        di_store.restore(tmp_path)
    di_store.save(tmp_path / "tree", {"a": np.ones(3)})
    with pytest.raises(CorruptData, match=r"di_store\.load"):
        di_store.restore(tmp_path / "tree")
    with di_store.open(memory=MEMORY) as store, pytest.raises(StoreError, match=r"di_store\.save"):
        store.checkpoint(tmp_path / "tree")
    with pytest.raises(CorruptData, match="restore"):
        di_store.load(made)
    shutil.copytree(made, tmp_path / "c")
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    (tmp_path / "c" / "manifest.json").write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(LayoutMismatch, match="version"):
        di_store.restore(tmp_path / "c")


def test_bad_arguments_are_refused(made: Path) -> None:
    with pytest.raises(ValueError, match=r"has tables \['t'\]"):
        di_store.restore(made, tables={"u": {}})
    for tables in ([], {"t": 3}):
        with pytest.raises(TypeError, match="dict of table names"):
            di_store.restore(made, tables=tables)  # type: ignore[arg-type]
    with pytest.raises(CorruptData, match="holds no checkpoint"):
        di_store.restore(made / "manifest.json")
    with pytest.raises(ValueError, match="capacity, limiter, max_bytes, compress"):
        di_store.restore(made, tables={"t": {"sampler": Fifo()}})
    with di_store.restore(made, "restored-twice", memory=MEMORY), pytest.raises(StoreError, match="exists"):
        di_store.restore(made, "restored-twice", memory=MEMORY)


def test_restoring_changes_no_file(made: Path) -> None:
    """Restoring changes nothing in the folder."""
    before = {path.name: hashlib.sha256(path.read_bytes()).digest() for path in made.iterdir()}
    with di_store.restore(made, memory=MEMORY):
        pass
    assert before == {path.name: hashlib.sha256(path.read_bytes()).digest() for path in made.iterdir()}


# -- folders of others --------------------------------------------------------------------------------------------


def test_the_folder_of_a_disk_tier_is_refused(tmp_path: Path) -> None:
    """Its segments have names like those of a checkpoint, and stay."""
    tier = tmp_path / "tier"
    with di_store.open(memory=MEMORY, disk=tier, disk_capacity="64MiB") as store:
        table = store.create_table("t", capacity=400)
        write(table, 400)
        store.checkpoint(tmp_path / "c")
        names = set(tier.iterdir())
        assert any(path.name.startswith("segment-") for path in names)
        with di_store.open(memory=MEMORY) as other:
            for each in (store, other):
                for path in (tier, tier / "durable", f"{tier}/durable/"):
                    with pytest.raises(StoreError, match="disk tier"):
                        each.checkpoint(path)
        assert set(tier.iterdir()) == names
        assert len(table.peek(table.keys(0, 400)).keys) == 400
        assert store.check() == []


def test_foreign_files_are_kept(tmp_path: Path) -> None:
    names = {"items-to-buy", "chunks-a", "segment-1.txt", "disk-usage.log", "segment-0000000g"}
    for name in names:
        (tmp_path / name).touch()
    with di_store.open(memory=MEMORY) as store:
        for _ in range(2):
            store.checkpoint(tmp_path)
    assert names <= {path.name for path in tmp_path.iterdir()}


def no_room(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["os.makedirs", "os.fsync", "shutil.copyfile"])
def test_a_full_filesystem_raises_store_full(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with di_store.open(memory=MEMORY, disk=tmp_path / "tier", disk_capacity="64MiB") as store:
        write(store.create_table("t", capacity=400), 400)
        monkeypatch.setattr("os.link", no_room)  # as on another filesystem: the file is copied
        monkeypatch.setattr(call, no_room)
        with pytest.raises(StoreFull, match="no room for the checkpoint"):
            store.checkpoint(tmp_path / "c")
        monkeypatch.undo()
        store.checkpoint(tmp_path / "c")
        assert store.check() == []


def test_a_full_disk_tier_can_be_checkpointed(tmp_path: Path) -> None:
    """What it has no room for lies in the checkpoint alone."""
    with di_store.open(memory=MEMORY, disk=tmp_path / "tier", disk_capacity="64MiB") as store:
        write(store.create_table("t", capacity=400), 400)
        _core.arm_fault("file.preallocate:1:ENOSPC")
        store.checkpoint(tmp_path / "c")
    with di_store.restore(tmp_path / "c", memory=MEMORY) as again:
        assert len(again.table("t")) == 400


@pytest.mark.parametrize("earlier", [False, True])
def test_a_failed_checkpoint_leaves_no_files(earlier: bool, tmp_path: Path) -> None:
    def fail(_done: int, _total: int) -> None:
        raise KeyError("enough")

    with di_store.open(memory=MEMORY) as store:
        table = store.create_table("t", capacity=4_000)
        write(table, 1_000)
        if earlier:
            store.checkpoint(tmp_path)
            write(table, 1_000, 1_000)
        names = {path.name for path in tmp_path.iterdir()}
        with pytest.raises(KeyError, match="enough"):
            store.checkpoint(tmp_path, progress=fail)
        assert {path.name for path in tmp_path.iterdir()} - LOCKS == names - LOCKS
        assert store.stats()["pinned"] == 0
        if earlier:
            with di_store.restore(tmp_path, memory=MEMORY) as again:
                assert len(again.table("t")) == 1_000
        assert store.check() == []
