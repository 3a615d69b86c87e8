"""`di_store.load`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, SchemaMismatch, StoreError
from di_store.checkpoint.helpers import THREADS, with_helpers
from di_store.checkpoint.tree import memory
from di_store.checkpoint.tree.file_format import Head, RankFile, TreeManifest, damaged, extents
from di_store.checkpoint.tree.folder import MANIFEST, Folder
from di_store.checkpoint.tree.memory import Target
from di_store.checkpoint.tree.saving import checked_shard
from di_store.objects.codec import ArrayLeaf, build, leaves_of, shown_path, small_spans


def load(path: str | os.PathLike[str], *, into: Any = None, shard: tuple[int, int] | None = None) -> Any:
    """Read a tree that `save` wrote.

    Args:
        path: the folder.
        into: a tree with the same arrays and tensors in the same places, of the same types and shapes. They are filled
            in place, on whatever device they are, and become part of the returned tree. This is the fast way: new
            memory takes time for the first touch of its pages. Containers, numbers and text of `into` are ignored.
        shard: ``(rank, n)``: load the tree that this rank of n saved. None: the tree of the only rank, or a list of the
            trees of all ranks (then `into` is such a list).

    Returns:
        The tree. Arrays are writable and own their memory. Tensors are on the CPU, unless they come from `into`.

    Raises:
        FileNotFoundError: there is no such folder. CorruptData: the folder holds no complete checkpoint; or a file is
        missing, cut short, damaged, or from another save. Every byte is compared with checksums. LayoutMismatch:
        another version of Di-store wrote the checkpoint. SchemaMismatch: `into` differs; nothing was written to it.
        After other errors, `into` may have any content. ValueError: the checkpoint has another number of ranks.
        TypeError: a class in the tree cannot be imported.
    """
    wanted = None if shard is None else checked_shard(shard)
    folder = Folder(path)
    made = _manifest(folder)
    while True:
        try:
            return _read(folder, made, wanted, into)
        except (FileNotFoundError, StoreError) as error:
            newer = _manifest(folder)
            if newer != made:  # another save has replaced it, and removed its files
                made = newer
            elif isinstance(error, FileNotFoundError):
                raise damaged(str(error.filename), "is missing") from None
            else:
                raise


def _manifest(folder: Folder) -> TreeManifest:
    made = folder.manifest()
    if made is not None:
        return made
    os.stat(folder.path)
    raise damaged(folder.path, f"holds no complete checkpoint: there is no {MANIFEST}")


def _read(folder: Folder, made: TreeManifest, shard: tuple[int, int] | None, into: Any) -> Any:
    count = len(made.parts)
    if shard is not None and shard[1] != count:
        raise ValueError(f"shard={shard}: {folder.path!r} was saved by {count} ranks; without shard= all are loaded")
    ranks = range(count) if shard is None else [shard[0]]
    several = shard is None and count > 1
    if several and into is not None and (not isinstance(into, (list, tuple)) or len(into) != count):
        raise SchemaMismatch(
            f"{folder.path!r} holds the trees of {count} ranks",
            remedy="give into= a list with one tree for each rank, or give shard=",
        )
    trees = [_Tree(folder, made.parts[rank], (rank, count)) for rank in ranks]
    if into is not None:
        for tree, given in zip(trees, into if several else [into], strict=True):
            tree.take(given)
    values = [tree.read() for tree in trees]
    return values if several else values[0]


class _Tree:
    """One rank's tree."""

    def __init__(self, folder: Folder, part: RankFile, shard: tuple[int, int]) -> None:
        self._path = folder.at(part.file)
        self._head, crc = Head.read(self._path)
        if crc != part.crc or shard != (self._head.rank, self._head.ranks):
            raise damaged(self._path, "belongs to another checkpoint")
        self._small = self._read_small()
        self._leaves: list[ArrayLeaf] = []
        self._targets: list[Target] | None = None

    def take(self, into: Any) -> None:
        """Read into these arrays. Raises SchemaMismatch."""
        self._leaves = []
        found, given = leaves_of(self._built(self._listed)), leaves_of(into)
        wanted = {path: leaf for path, leaf in found.items() if isinstance(leaf, ArrayLeaf)}  # the others were pickled
        for path in [*wanted, *(path for path in given if path not in found)]:
            name = f"{shown_path(path)!r} of {self._path!r}"
            if path not in given:
                raise _mismatch(f"{name} is not in into=")
            if path not in found:
                raise _mismatch(f"into= has {shown_path(path)!r}, which is not in {self._path!r}")
            if (why := memory.misfit(given[path], wanted[path])) is not None:
                raise _mismatch(f"{name} {why}")
        places = {id(leaf): given[path] for path, leaf in wanted.items()}
        if len(places) != len(self._leaves):
            raise _mismatch(f"{self._path!r} has arrays in places that into= cannot name, such as attributes of a dict")
        self._targets = [Target(places[id(leaf)], leaf) for leaf in self._leaves]

    def read(self) -> Any:
        """The value."""
        if self._targets is None:
            self._leaves = []
            self._built(self._listed)
            self._require_there(leaf.bytes for leaf in self._leaves)
            self._targets = [Target(memory.fresh(leaf), leaf) for leaf in self._leaves]
        targets = self._targets
        places = [(target.address, leaf.offset, leaf.bytes) for target, leaf in zip(targets, self._leaves, strict=True)]
        self._move(places, targets)
        for target in targets:
            target.finish()
        values = iter(targets)
        return self._built(lambda leaf: next(values).value)

    def _listed(self, leaf: ArrayLeaf) -> ArrayLeaf:
        self._leaves.append(leaf)
        return leaf

    def _built(self, leaf: Any) -> Any:
        try:
            return build(self._head.header, leaf, lambda offset, size: self._small[offset, size])
        except CorruptData as error:
            raise damaged(self._path, f"is damaged: {error.message}") from None

    def _read_small(self) -> dict[tuple[int, int], Array]:
        try:
            spans = small_spans(self._head.header)
        except CorruptData as error:
            raise damaged(self._path, f"is damaged: {error.message}") from None
        self._require_there(size for _, size in spans)
        found = {span: np.empty(span[1], np.uint8) for span in spans}
        self._move([(memory.address(at), *span) for span, at in found.items() if span[1]], found)
        return found

    def _require_there(self, sizes: Iterable[int]) -> None:
        """Refuse more bytes than the file has before memory is allocated for them."""
        if sum(sizes) > self._head.payload_bytes:
            raise damaged(self._path, f"lists more than the {self._head.payload_bytes} bytes that it holds")

    def _move(self, places: list[tuple[int, int, int]], owners: Any) -> None:
        head, where = self._head, extents(places)
        sizes = (head.begin, head.payload_bytes, head.piece_bytes)
        file = _core.PieceFile(self._path, *sizes, where, owners, writes=False)

        def read(numbers: Iterator[int]) -> None:
            for number in numbers:
                file.read(number, int(head.crcs[number]))

        wanted = file.wanted().tolist()
        with_helpers(wanted, read, min(THREADS, len(wanted)))


def _mismatch(text: str) -> SchemaMismatch:
    return SchemaMismatch(text, remedy="into= must have the same arrays in the same places as the saved tree")
