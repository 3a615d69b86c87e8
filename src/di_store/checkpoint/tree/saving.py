"""`di_store.save`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from di_store import _core
from di_store.base import config
from di_store.checkpoint.helpers import THREADS, with_helpers
from di_store.checkpoint.tree import ranks
from di_store.checkpoint.tree.file_format import FORMAT, PIECE_BYTES, Head, RankFile, begin_of, extents
from di_store.checkpoint.tree.folder import FILE, Folder, answer_name, tree_name
from di_store.checkpoint.tree.memory import address
from di_store.objects.codec import Encoded, encode
from di_store.runtime.waits import Wait, check_timeout


def save(
    path: str | os.PathLike[str], tree: Any, *, shard: tuple[int, int] | None = None, timeout: float | None = 600.0
) -> None:
    """Write a tree of arrays and tensors to a folder, all at once: until the end, `load` finds the previous save.

    Several threads write the bytes from the arrays' memory to disk, past the page cache and without the interpreter's
    lock. Nobody may write to the arrays meanwhile. When `save` returns, everything is on disk, and the files of the
    previous save are gone. An interrupted save leaves the previous one readable; the next save removes its files.

    Args:
        path: a folder; created if it does not exist. It must be on a filesystem that all ranks see.
        tree: any value that `Store.put` takes: nested dicts, lists, tuples and dataclasses of numpy arrays, torch
            tensors of any device, numbers, text, bytes; anything else is pickled.
        shard: ``(rank, n)``: n processes or threads save at the same time, each a tree of its own. The trees may differ
            completely. The call returns when all ranks are saved. None: ``(0, 1)``.
        timeout: seconds to wait for the other ranks once this rank's file is written; None: no limit.

    Raises:
        StoreFull: the filesystem has no room; room is set aside before anything is written. Timeout: other ranks did
        not come. StoreError: the folder holds something else, such as the checkpoint of a store or the files of a disk
        tier; nothing was written. AccessDenied, OSError: the folder cannot be written. TypeError: something in the tree
        does not pickle. ValueError: no such rank.

    Cost:
        One copy of the tree through 16 MiB of buffers, at the speed of the disk. All tensors on a GPU and all arrays
        with gaps are first copied to memory.
    """
    rank, count = checked_shard(shard)
    seconds = check_timeout(timeout)
    encoded = encode(tree)
    folder = Folder(path)
    folder.refuse_others(FORMAT, FILE)
    folder.make()
    called = ranks.call(folder, count) if rank == 0 else None
    _clean(folder, rank)
    own = _write(folder, encoded, rank, count)
    wait = Wait(None, seconds, f"save(shard=({rank}, {count}))")
    if called is not None:
        ranks.gather(folder, called, own, wait)
    else:
        ranks.answer(folder, rank, count, own, wait)
    # Each rank removes its own files only: another one may be at its next save by now.
    for gone in {rank} | (folder.ranks() - set(range(count)) if rank == 0 else set()):
        folder.remove_all(gone, {own.file})


def checked_shard(shard: tuple[int, int] | None) -> tuple[int, int]:
    """Rank and number of ranks. Raises TypeError, ValueError."""
    if shard is None:
        return 0, 1
    if not isinstance(shard, (tuple, list)) or len(shard) != 2:
        raise TypeError(f"shard={shard!r}: give (rank, number of ranks)")
    count = config.count("shard", shard[1], minimum=1, maximum=99_999)
    return config.count("shard", shard[0], minimum=0, maximum=count - 1, why="ranks are 0 to n - 1 of n"), count


def _clean(folder: Folder, rank: int) -> None:
    """Remove the files of interrupted saves of this rank, except a file that is to become part of a checkpoint."""
    made, answered = folder.kept(), ranks.kept_answer(folder, rank)
    kept = set() if made is None else {part.file for part in made.parts}
    folder.remove_all(rank, kept | ({answered, answer_name(rank)} if answered is not None else set()))


def _write(folder: Folder, encoded: Encoded, rank: int, count: int) -> RankFile:
    """Write this rank's file."""
    name, token = tree_name(rank), os.urandom(16)
    partial = folder.at(name + ".partial")
    begin = begin_of(len(encoded.header), encoded.payload_bytes, PIECE_BYTES)
    places = [
        (address(buffer), offset, size)
        for buffer, offset, size in zip(encoded.buffers, encoded.offsets, encoded.sizes, strict=True)
    ]
    folder.create(name + ".partial")
    try:
        sizes = (begin, encoded.payload_bytes, PIECE_BYTES)
        file = _core.PieceFile(partial, *sizes, extents(places), encoded.buffers, writes=True)
        crcs = np.zeros(-(-encoded.payload_bytes // PIECE_BYTES), np.uint32)

        def write(numbers: Iterator[int]) -> None:
            for number in numbers:
                crcs[number] = file.write(number)

        with_helpers(range(len(crcs)), write, min(THREADS, len(crcs)))
        head = Head(encoded.header, encoded.payload_bytes, PIECE_BYTES, crcs, token, rank, count)
        file.finish(packed := head.pack())
        folder.publish(name)
    except BaseException:  # also Ctrl-C: no half of a file stays
        folder.remove(name + ".partial")
        raise
    return RankFile(name, Head.crc_of(packed))
