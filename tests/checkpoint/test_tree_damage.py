"""Damaged, foreign and mixed-up files of a checkpoint: a typed error, never another value."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import di_store
from checkpoint.test_save_load import at_once, same
from di_store import _core
from di_store.checkpoint.tree.file_format import MAGIC, Head, RankFile, TreeManifest
from di_store.objects.codec.form import pack_header, unpack_header

TREE = {"a": np.arange(3_000), "text": "x" * 2_000, "set": {1, 2}, "more": [np.ones((3, 5), "f4")] * 3}


def the_file(folder: Path, rank: int = 0) -> Path:
    return next(folder.glob(f"rank-{rank:05d}.*.tree"))


def refused(folder: Path) -> bool:
    """Whether it cannot be loaded; if it can, the value is that which was saved."""
    try:
        loaded = di_store.load(folder)
    except (di_store.CorruptData, di_store.LayoutMismatch):
        return True
    assert same(loaded, TREE)
    return False


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    di_store.save(tmp_path, TREE)
    rng = np.random.default_rng(0)
    for path, whole in ((the_file(tmp_path), 400), (tmp_path / "manifest.json", 10**6)):
        raw = path.read_bytes()
        head = Head.read(str(the_file(tmp_path)))[0]
        used = len(head.pack()) if path.suffix == ".tree" else len(raw)
        places = [*range(min(used, whole)), *rng.integers(0, used, 50)]
        if path.suffix == ".tree":
            places += [*rng.integers(head.begin, head.begin + head.payload_bytes, 50)]
        missed = []
        for place in map(int, places):
            path.write_bytes(raw[:place] + bytes([raw[place] ^ 1 << place % 8]) + raw[place + 1 :])
            if not refused(tmp_path):
                missed.append(place)
        path.write_bytes(raw)
        assert not refused(tmp_path)
        if path.suffix == ".tree":
            assert not missed
        else:
            assert all(raw[place : place + 1].isspace() for place in missed)


@pytest.mark.parametrize("kept", [0, 7, 60, 4_095, 4_096, 20_000, -4_096])
def test_a_truncated_file_is_refused(kept: int, tmp_path: Path) -> None:
    di_store.save(tmp_path, TREE)
    path = the_file(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(di_store.CorruptData, match=re.escape(str(path))):
        di_store.load(tmp_path)


def replaced(node: Any, number: int, by: int) -> Any:
    return [replaced(each, number, by) for each in node] if isinstance(node, list) else by if node == number else node


@pytest.mark.parametrize("number", [2_000, 3_000], ids=["text", "array"])
@pytest.mark.parametrize("large", [1 << 20, 1 << 44, 1 << 60])
def test_sizes_beyond_the_file_are_refused(number: int, large: int, tmp_path: Path) -> None:
    """Somebody wrote these sizes, with right checksums: they are refused before memory is taken for them."""
    di_store.save(tmp_path, TREE)
    path = the_file(tmp_path)
    head = Head.read(str(path))[0]
    _, node = unpack_header(head.header)
    header = pack_header(1 << 63, replaced(node, number, large))
    wrong = Head(header, head.payload_bytes, head.piece_bytes, head.crcs, head.token, head.rank, head.ranks)
    assert wrong.begin == head.begin
    packed = wrong.pack()
    path.write_bytes(packed.ljust(head.begin, b"\0") + path.read_bytes()[head.begin :])
    manifest = msgspec.json.decode((tmp_path / "manifest.json").read_bytes())
    manifest["parts"][0]["crc"] = Head.crc_of(packed)
    del manifest["crc"]
    manifest["crc"] = _core.crc32c(msgspec.json.encode(manifest))
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(di_store.CorruptData, match="lists more than"):
        di_store.load(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    at_once(2, lambda rank: di_store.save(tmp_path, rank, shard=(rank, 2)))
    the_file(tmp_path, 1).unlink()
    with pytest.raises(di_store.CorruptData, match=r"rank-00001.*is missing"):
        di_store.load(tmp_path)
    assert di_store.load(tmp_path, shard=(0, 2)) == 0


def test_a_file_of_another_save_is_refused(tmp_path: Path) -> None:
    """Of another rank, of an older save, of the same tree: each has another head."""
    for name in ("one", "two"):
        at_once(2, lambda rank, name=name: di_store.save(tmp_path / name, rank, shard=(rank, 2)))  # type: ignore[misc]
    for wrong in (the_file(tmp_path / "one", 0), the_file(tmp_path / "two", 1)):
        path = the_file(tmp_path / "one", 1)
        right = path.read_bytes()
        shutil.copy(wrong, path)
        with pytest.raises(di_store.CorruptData, match="another checkpoint"):
            di_store.load(tmp_path / "one")
        path.write_bytes(right)
    assert di_store.load(tmp_path / "one") == [0, 1]


def test_foreign_files_and_other_versions_are_refused(tmp_path: Path) -> None:
    di_store.save(tmp_path, TREE)
    path, manifest = the_file(tmp_path), tmp_path / "manifest.json"
    raw, text = path.read_bytes(), manifest.read_bytes()
    for foreign in (b"PK\3\4" + raw[4:], b"", b"{}"):
        path.write_bytes(foreign)
        with pytest.raises(di_store.CorruptData, match="not a file of a checkpoint"):
            di_store.load(tmp_path)
    path.write_bytes(MAGIC + (2).to_bytes(4, "little") + raw[12:])
    with pytest.raises(di_store.LayoutMismatch, match="version 2"):
        di_store.load(tmp_path)
    path.write_bytes(raw)
    manifest.write_bytes(text.replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(di_store.LayoutMismatch, match="version 2"):
        di_store.load(tmp_path)
    for foreign in (b"", b"[]", b"{}", b"\xff", b'{"format": "safetensors"}'):
        manifest.write_bytes(foreign)
        with pytest.raises(di_store.CorruptData, match=r"not the manifest|not a manifest"):
            di_store.load(tmp_path)
    with pytest.raises(di_store.StoreError, match="Di-store did not write"):
        di_store.save(tmp_path, TREE)
    manifest.write_bytes(b"\0" * 20)
    di_store.save(tmp_path, TREE)  # in the place of a damaged one
    assert not refused(tmp_path)


@pytest.mark.parametrize("name", ["../rank-00000.tree", "/etc/passwd", "manifest.json"])
def test_a_manifest_names_files_of_its_folder_only(name: str, tmp_path: Path) -> None:
    di_store.save(tmp_path, TREE)
    (tmp_path / "manifest.json").write_bytes(TreeManifest("x", [RankFile(name, 1)]).pack())
    with pytest.raises(di_store.CorruptData, match="names files"):
        di_store.load(tmp_path)


def forged(folder: Path, **changes: Any) -> None:
    """Another head in the file, with a checksum that fits, and a manifest that names it."""
    path = the_file(folder)
    raw = path.read_bytes()
    packed = msgspec.structs.replace(Head.read(str(path))[0], **changes).pack()
    path.write_bytes(packed + raw[len(packed) :])
    (folder / "manifest.json").write_bytes(TreeManifest("x", [RankFile(path.name, Head.crc_of(packed))]).pack())


@pytest.mark.parametrize("changes", [{"piece_bytes": 4_095}, {"payload_bytes": 1 << 60}, {"header": b""}, {"ranks": 2}])
def test_headers_with_wrong_sizes_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    di_store.save(tmp_path, TREE)
    forged(tmp_path, **changes)
    with pytest.raises(di_store.CorruptData):
        di_store.load(tmp_path)


def test_a_payload_shorter_than_its_tree_is_refused(tmp_path: Path) -> None:
    di_store.save(tmp_path, TREE)
    forged(tmp_path, payload_bytes=64)
    with pytest.raises(di_store.CorruptData):
        di_store.load(tmp_path)
