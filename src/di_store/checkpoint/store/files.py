"""Files of a checkpoint: files of rows and objects while they are written, and files of arrays."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO
from typing import Any

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, StoreError, StoreFull, Timeout
from di_store.checkpoint.store import items
from di_store.checkpoint.store.manifest import CHUNKS, ArrayFile, Segment, StoreManifest, damaged, unpack_arrays
from di_store.checkpoint.tree.file_format import PAGE
from di_store.checkpoint.tree.folder import Folder
from di_store.runtime.waits import CALL_SECONDS, Wait

SEGMENT_BYTES = 64 << 20
"""A file of rows or objects has at most so many bytes, unless one record has more."""
LOCK = "checkpoint.lock"
"""Locked by the process that makes a checkpoint."""
READING = "restore.lock"
"""Locked, shared, by processes that read the checkpoint: until then its files stay, even if newer ones are made."""


@contextmanager
def reading(folder: Folder) -> Iterator[None]:
    """In this block the files in the manifest stay. A folder without the lock file is a copy, which nobody changes."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(lock_file(folder.at(READING), "r"))
        except OSError:
            pass
        else:
            wait = Wait(None, CALL_SECONDS, "restore")
            while not try_lock(file, fcntl.LOCK_SH) and wait.left > 0:  # one that was stopped as it cleaned: go on
                wait.sleep(0.01, "another process removes old files there")
        yield


@contextmanager
def unread(folder: Folder) -> Iterator[bool]:
    """Whether no process reads there or begins to."""
    with lock_file(folder.at(READING), "a+") as file:
        yield try_lock(file, fcntl.LOCK_EX)


@contextmanager
def locked(folder: Folder, timeout: float | None) -> Iterator[None]:
    """Hold the folder's lock: one checkpoint at a time is made there."""
    with one_at_a_time(folder, LOCK, timeout, "makes a checkpoint", "raise timeout=, or choose another folder"):
        yield


@contextmanager
def one_at_a_time(folder: Folder, name: str, timeout: float | None, does: str, remedy: str) -> Iterator[None]:
    """Hold a file of the folder locked. `does`: the work of the process with the lock, for error texts."""
    with lock_file(folder.at(name), "a+") as file:
        wait = Wait(None, timeout, "checkpoint")
        while not try_lock(file, fcntl.LOCK_EX):
            if wait.left <= 0:
                why = f"it holds the file {name}; {remedy}"
                raise Timeout(f"another process, or thread, {does} in {folder.path!r}", why)
            wait.sleep(0.05, f"another process, or thread, {does} there")
        yield


@contextmanager
def full_is_told(path: str) -> Iterator[None]:
    """Raise StoreFull instead of the OSError of a filesystem that has no room."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        text = f"the filesystem of {path!r} has no room for the checkpoint: {error.strerror}"
        raise StoreFull(text, remedy="free space there, or choose another folder") from error


_lock_files: set[FileIO] = set()
"""The lock files that this process has open."""


@contextmanager
def lock_file(path: str, mode: str) -> Iterator[int]:
    """An open file for locking. A child forked meanwhile does not share the lock, because the child may live for long.

    `mode`: "r": the file must exist; "a+": it is created if it does not exist.
    """
    file = FileIO(path, mode)
    try:
        _lock_files.add(file)
        yield file.fileno()
    finally:
        _lock_files.discard(file)
        if not file.closed:  # in a child it is
            fcntl.flock(file, fcntl.LOCK_UN)  # of a child too that was forked before it was listed
            file.close()


def _close_lock_files() -> None:
    while _lock_files:
        _lock_files.pop().close()


os.register_at_fork(after_in_child=_close_lock_files)


def try_lock(descriptor: int, how: int) -> bool:
    """Lock the file, `LOCK_SH` or `LOCK_EX`; False: others have locked it. The kernel drops it with the process."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class SegmentFiles:
    """Files of rows or objects, one after the other, by one thread.

    Args:
        folder: folder of the files.
        uuid: uuid of the checkpoint's files.
        segments: list to which each file is added.
        number: gives the next file its number.
    """

    def __init__(self, folder: str, uuid: str, segments: dict[str, Segment], number: Callable[[], int]) -> None:
        self._folder, self._uuid, self._segments, self._number = folder, uuid, segments, number
        self._file: _core.ChunkFile | None = None
        self._name = ""
        self._bytes = self._records = 0
        self._coming = self._share = 0

    def expect(self, size: int, share: int) -> None:
        """Announce records of `size` bytes.

        A file begun for these records has room for all of them, or at least for `share`.

        A file gets its blocks when it is begun, so room for more records than are written would be wasted.
        """
        self._coming, self._share = size, share

    def add(self, add: Callable[[_core.ChunkFile], int | None], size: int) -> tuple[str, int]:
        """Add a record of `size` bytes by calling `add`. Returns its file's name and its page there."""
        page = None if self._file is None else add(self._file)
        if page is None:
            self.end()
            number = self._number()
            self._name = f"segment-{number:08x}"
            most = max(size, min(SEGMENT_BYTES, max(self._coming, self._share)))
            self._bytes = -(-most // PAGE) * PAGE + _core.ChunkFile.OWN_BYTES
            self._file = _core.ChunkFile(self._folder, bytes.fromhex(self._uuid), number, self._bytes)
            page = add(self._file)
            if page is None:
                raise StoreError(f"a new file of {self._bytes} bytes has no room for a record of {size}")
        self._records += 1
        self._coming -= size
        return self._name, page

    def end(self) -> None:
        """Wait until all of the file is on disk."""
        if self._file is not None:
            self._file.end()
            self._segments[self._name] = Segment(self._name, self._uuid, self._bytes, self._records)
            self._file, self._records = None, 0


def read_state(folder: Folder, state: ArrayFile, dtypes: dict[str, Any]) -> dict[str, Array]:
    """The arrays of a file."""
    path = folder.at(state.file)
    try:
        with open(path, "rb") as file:
            there = os.fstat(file.fileno()).st_size == state.bytes  # first: it says how much memory is taken
            text = file.read() if there else b""
    except FileNotFoundError:
        raise CorruptData(f"{path!r} is missing", remedy="restore another checkpoint") from None
    return unpack_arrays(path, state, text, dtypes)


def read_chunks(folder: Folder, manifest: StoreManifest) -> dict[str, Array]:
    """The chunks of a checkpoint, as `CHUNKS`."""
    chunks = read_state(folder, manifest.chunks, CHUNKS)
    if len({len(array) for array in chunks.values()}) != 1:
        raise damaged(folder.at(manifest.chunks.file), "has columns of different lengths")
    return chunks


def read_items(folder: Folder, states: list[ArrayFile]) -> dict[str, Array]:
    """The image of a table's items."""
    image: dict[str, Array] = {}
    for state in states:
        try:
            if state is states[0]:
                image = items.image_of(read_state(folder, state, items.WHOLE))
            else:
                image = items.applied(image, read_state(folder, state, items.CHANGES))
        except (ValueError, IndexError):
            raise CorruptData(
                f"{folder.at(state.file)!r} and the files beside it belong to different checkpoints"
            ) from None
    return image
