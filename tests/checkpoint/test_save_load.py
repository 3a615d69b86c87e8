"""`di_store.save` and `di_store.load`: what comes back, what `into=` fills and refuses, how ranks come together."""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import di_store
from di_store.checkpoint.tree import loading, ranks
from di_store.checkpoint.tree.file_format import RankFile
from di_store.checkpoint.tree.folder import Folder
from di_store.runtime.waits import Wait

Pair = collections.namedtuple("Pair", "left right")


@dataclass
class Part:
    weight: Any
    step: int = 0


def a_tree(seed: int = 0) -> dict[str, Any]:
    """Leaves of all kinds, and more than a piece of 4 MiB."""
    rng = np.random.default_rng(seed)
    return {
        "large": rng.integers(0, 255, (3, 2_000_000), np.uint8),
        "float": [rng.normal(size=(7, 3)).astype("f4"), np.float64(0.5), np.array(3)],
        "named": Pair(torch.arange(12).view(3, 4), torch.randn(5, dtype=torch.bfloat16)),
        "part": Part(np.asfortranarray(rng.normal(size=(4, 5))), 7),
        "gaps": rng.integers(0, 9, (8, 8))[::2, ::3],
        "strided": torch.arange(20.0).view(4, 5).t(),
        "bf16": np.ones(3, ml_dtypes.bfloat16),
        "records": np.zeros(4, [("a", "<i4"), ("b", "<f8", (2,))]),
        "empty": (np.empty((0, 4)), torch.empty(0, 2)),
        "text": ["x" * 5_000, "é", b"y" * 3_000, bytearray(2_000), None, True, 2**70, 1.5],
        "pickled": {"set": {1, 2}, "objects": np.array([{"a": 1}, None], object)},
        3: np.arange(4),
    }


def same(a: Any, b: Any) -> bool:
    """Whether two trees are equal, types included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and (a.tolist() if a.dtype == object else a.tobytes()) == (b.tolist() if b.dtype == object else b.tobytes())
        )
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, Part):
        return same(vars(a), vars(b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def at_once(count: int, call: Callable[[int], Any]) -> list[Any]:
    """What `call(rank)` returned, or the error it raised, from a thread each."""
    results: list[Any] = [None] * count

    def run(rank: int) -> None:
        try:
            results[rank] = call(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


@pytest.mark.parametrize(
    "tree", [a_tree(), {}, None, np.arange(3), torch.zeros(2), np.empty((0, 2)), [np.zeros(1 << 22, "u1")] * 2]
)
def test_saved_trees_are_loaded_unchanged(tree: Any, tmp_path: Path) -> None:
    di_store.save(tmp_path / "a" / "b", tree)
    loaded = di_store.load(tmp_path / "a" / "b")
    assert same(loaded, tree)


def test_loaded_arrays_belong_to_the_caller(tmp_path: Path) -> None:
    tree = {"a": np.arange(5_000_000), "t": torch.zeros(1_000), "zero": np.array(1.0)}
    di_store.save(tmp_path, tree)
    one, two = di_store.load(tmp_path), di_store.load(tmp_path)
    for leaf in (one["a"], one["zero"], one["t"]):
        assert isinstance(leaf, torch.Tensor) or leaf.flags.writeable
        leaf[...] = 9
    assert same(two, tree)


def blank(tree: Any) -> Any:
    """The same with other values in its arrays, and other things between them."""
    if isinstance(tree, torch.Tensor):
        return torch.full_like(tree, 99)
    if isinstance(tree, np.ndarray) and tree.dtype != object:
        return np.zeros_like(tree)
    if isinstance(tree, dict):
        return {key: blank(value) for key, value in reversed(tree.items())}
    if isinstance(tree, Part):
        return Part(blank(tree.weight), 0)
    if isinstance(tree, Pair):
        return Pair(*map(blank, tree))
    return type(tree)(map(blank, tree)) if isinstance(tree, (list, tuple)) else "something else"


def test_into_fills_arrays_in_place(tmp_path: Path) -> None:
    tree = a_tree()
    di_store.save(tmp_path, tree)
    into = blank(tree)
    into["gaps"], into["strided"] = np.zeros((8, 9), int)[::2, ::3], torch.zeros(4, 5).t()
    parameter = into["named"] = Pair(into["named"].left, torch.nn.Parameter(into["named"].right))
    loaded = di_store.load(tmp_path, into=into)
    assert loaded["large"] is into["large"]
    assert loaded["gaps"] is into["gaps"]
    assert loaded["named"].right is parameter.right
    assert torch.equal(parameter.right.detach(), tree["named"].right)
    loaded["named"] = tree["named"]
    assert same(loaded, tree)


@pytest.mark.parametrize(
    ("into", "told"),
    [
        ({"a": np.zeros(3)}, "t"),
        ({"a": np.zeros(3), "t": torch.zeros(2), "more": np.zeros(1)}, "'more'"),
        ({"a": np.zeros(4), "t": torch.zeros(2)}, r"'a'.*float64\[3\].*float64\[4\]"),
        ({"a": np.zeros(3, "f4"), "t": torch.zeros(2)}, "float32"),
        ({"a": torch.zeros(3), "t": torch.zeros(2)}, "numpy array in the checkpoint"),
        ({"a": np.zeros(3), "t": np.zeros(2)}, "torch tensor in the checkpoint"),
        ({"a": np.zeros(3), "t": torch.zeros(2, dtype=torch.int32)}, "int32"),
        ({"a": np.broadcast_to(np.zeros(1), 3), "t": torch.zeros(2)}, "read-only"),
        ({"a": np.zeros(3), "t": torch.zeros(2, device="meta")}, "meta"),
        ([np.zeros(3), torch.zeros(2)], "is not in into="),
    ],
)
def test_a_different_into_is_refused_and_unchanged(into: Any, told: str, tmp_path: Path) -> None:
    di_store.save(tmp_path, {"a": np.ones(3), "t": torch.ones(2)})
    with pytest.raises(di_store.SchemaMismatch, match=told):
        di_store.load(tmp_path, into=into)
    leaves = into.values() if isinstance(into, dict) else into
    assert not any(leaf.any() for leaf in leaves if not getattr(leaf, "is_meta", False))


def test_a_save_replaces_the_one_before(tmp_path: Path) -> None:
    for step in range(3):
        di_store.save(tmp_path, {"step": np.full(10, step)})
        assert di_store.load(tmp_path)["step"][0] == step
        assert len(os.listdir(tmp_path)) == 2


def test_foreign_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "rank-x.tree").write_text("mine")
    di_store.save(tmp_path, 1)
    di_store.save(tmp_path, 2)
    assert {"notes.txt", "rank-x.tree"} < set(os.listdir(tmp_path))


def test_ranks_save_together(tmp_path: Path) -> None:
    for step in range(3):

        def save(rank: int, step: int = step) -> None:
            di_store.save(tmp_path, {"r": np.full(rank, step)}, shard=(rank, 3))

        assert at_once(3, save) == [None] * 3
        loaded = di_store.load(tmp_path)
        assert [tree["r"].tolist() for tree in loaded] == [[step] * rank for rank in range(3)]
        assert di_store.load(tmp_path, shard=(2, 3))["r"].tolist() == [step] * 2
        assert sum(name.endswith(".tree") for name in os.listdir(tmp_path)) == 3
    into = [{"r": np.zeros(rank, int)} for rank in range(3)]
    assert di_store.load(tmp_path, into=into)[2]["r"] is into[2]["r"]
    assert into[2]["r"].tolist() == [2, 2]
    di_store.save(tmp_path, "alone")
    assert di_store.load(tmp_path) == "alone"
    assert len(os.listdir(tmp_path)) == 2


def test_loading_needs_the_saved_shards(tmp_path: Path) -> None:
    at_once(2, lambda rank: di_store.save(tmp_path, rank, shard=(rank, 2)))
    with pytest.raises(ValueError, match="saved by 2 ranks"):
        di_store.load(tmp_path, shard=(0, 3))
    with pytest.raises(di_store.SchemaMismatch, match="2 ranks"):
        di_store.load(tmp_path, into=[1])
    for shard, error in (
        ((2, 2), ValueError),
        ((-1, 2), ValueError),
        ((0, 0), ValueError),
        ("01", TypeError),
        (1, TypeError),
    ):
        with pytest.raises(error, match="shard"):
            di_store.save(tmp_path, 1, shard=shard)  # type: ignore[arg-type]
    assert di_store.load(tmp_path) == [0, 1]


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    di_store.save(tmp_path, "before")
    errors = at_once(3, lambda rank: rank == 1 or di_store.save(tmp_path, rank, shard=(rank, 3), timeout=0.5))
    assert isinstance(errors[0], di_store.Timeout)
    assert "rank 1" in errors[0].reason
    assert isinstance(errors[2], di_store.Timeout)
    with pytest.raises(di_store.Timeout, match="rank 0 has not begun"):
        di_store.save(tmp_path / "other", 1, shard=(1, 2), timeout=0)
    assert di_store.load(tmp_path) == "before"


def test_answers_to_an_older_call_do_not_count(tmp_path: Path) -> None:
    folder, own, other = Folder(tmp_path), RankFile("rank-00000.tree", 1), RankFile("rank-00001.tree", 2)

    def answer() -> None:
        with pytest.raises(di_store.Timeout, match="rank 0 still waits"):
            ranks.answer(folder, 1, 2, other, Wait(None, 0, "save"))

    ranks.call(folder, 2)
    answer()
    called = ranks.call(folder, 2)
    with pytest.raises(di_store.Timeout, match="rank 1"):
        ranks.gather(folder, called, own, Wait(None, 0, "save"))
    assert folder.manifest() is None
    answer()
    made = ranks.gather(folder, called, own, Wait(None, 0, "save"))
    assert made.parts == [own, other]
    assert folder.manifest() == made
    assert ranks.answer(folder, 1, 2, other, Wait(None, 0, "save")) == made


def test_a_late_rank_of_an_interrupted_save_is_ignored(tmp_path: Path) -> None:
    """Rank 1 of the first attempt has answered; in the second it comes late."""
    old = at_once(3, lambda rank: rank == 2 or di_store.save(tmp_path, f"old {rank}", shard=(rank, 3), timeout=0.5))
    assert all(isinstance(error, di_store.Timeout) for error in old[:2])
    ready = threading.Event()

    def save(rank: int) -> None:
        if rank == 1:
            assert ready.wait(60)
        elif rank == 2:
            ready.set()
        di_store.save(tmp_path, f"new {rank}", shard=(rank, 3), timeout=60)

    assert at_once(3, save) == [None] * 3
    assert di_store.load(tmp_path) == ["new 0", "new 1", "new 2"]
    assert sum(name.endswith(".tree") for name in os.listdir(tmp_path)) == 3


def test_a_load_during_saves_is_consistent(tmp_path: Path) -> None:
    di_store.save(tmp_path, np.zeros(100_000))
    done = threading.Event()

    def read(rank: int) -> None:
        if rank == 0:
            for step in range(20):
                di_store.save(tmp_path, np.full(100_000, step))
            done.set()
        while not done.is_set():
            loaded = di_store.load(tmp_path)
            assert (loaded == loaded[0]).all()

    assert at_once(2, read) == [None, None]


@pytest.mark.parametrize("times", [1, 2])
def test_a_load_overtaken_by_a_save_is_consistent(times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the manifest named are gone when they are opened, or between two reads of one."""
    di_store.save(tmp_path, "x" * 5_000)
    read, saves = loading.Head.read, [1] * times

    def overtaken(path: str) -> Any:
        if saves and times == 1:
            di_store.save(tmp_path, "y" * saves.pop())
        head = read(path)
        if saves:
            di_store.save(tmp_path, "y" * saves.pop())
        return head

    monkeypatch.setattr(loading.Head, "read", overtaken)
    assert di_store.load(tmp_path) == "y"


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    di_store.save(tmp_path, 1)
    assert {path.stat().st_mode for path in tmp_path.iterdir()} == {(tmp_path / "plain").stat().st_mode}


def test_folders_without_a_checkpoint_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        di_store.load(tmp_path / "none")
    with pytest.raises(di_store.CorruptData, match="no complete checkpoint"):
        di_store.load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(di_store.StoreError, match="not a folder"):
        di_store.save(tmp_path / "file", 1)


def test_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    di_store.save(tmp_path, 1)
    with pytest.raises(TypeError):
        di_store.save(tmp_path, lambda: 1)
    assert di_store.load(tmp_path) == 1
    assert len(os.listdir(tmp_path)) == 2
