"""`Store.checkpoint`."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from di_store import _core
from di_store.base.config import function
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, LayoutMismatch, RowsLost, StoreError, StoreFull, TableNotFound
from di_store.checkpoint.helpers import THREADS, with_helpers
from di_store.checkpoint.store import items
from di_store.checkpoint.store.files import (
    LOCK,
    SegmentFiles,
    full_is_told,
    locked,
    read_chunks,
    read_items,
    unread,
)
from di_store.checkpoint.store.manifest import (
    CHUNKS,
    FILE,
    NOWHERE,
    ArrayFile,
    Segment,
    StoreManifest,
    TableState,
    WeightsState,
    pack_arrays,
)
from di_store.checkpoint.store.renewal import by_kind, renewed
from di_store.checkpoint.tree.file_format import STORE_FORMAT
from di_store.checkpoint.tree.folder import MANIFEST, Folder
from di_store.policy.settings import without_identity
from di_store.replay.lost import drop_lost, without_lost
from di_store.runtime.waits import CALL_SECONDS, lock_seconds

_BATCH_BYTES = 8 << 20
"""Bytes of objects that are written together, and of rows that are released together once they are written."""
_UUID = slice(16, 32)
"""The bytes of a segment that name its folder, or its checkpoint (docs/segment_format.md)."""

Progress = Callable[[int, int], None]
"""Called with the bytes of rows and objects that are written, and of all that will be."""


def checkpoint(
    arena: _core.Arena,
    path: str | os.PathLike[str],
    timeout: float | None,
    progress: Progress | None = None,
) -> None:
    """`Store.checkpoint`."""
    function("progress", progress)
    folder = Folder(path)
    folder.refuse_others(STORE_FORMAT, re.compile(re.escape(LOCK)))
    _refuse_names(folder)
    with full_is_told(folder.path):
        folder.make()
    write_locked(arena, folder, timeout, progress, lambda: None)


def _refuse_names(folder: Folder) -> None:
    """StoreError if a folder without a checkpoint has files with our names: the next checkpoint would remove them."""
    try:
        there = _ours(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    if there and not any(os.path.lexists(folder.at(name)) for name in (MANIFEST, LOCK)):
        text = f"{folder.path!r} holds a file {there[0]} that no checkpoint wrote, and no {MANIFEST}"
        raise StoreError(text, remedy="choose another folder, preferably a new one next to it")


def write_locked(
    arena: _core.Arena,
    folder: Folder,
    timeout: float | None,
    progress: Progress | None,
    names: Callable[[], list[str] | None],
) -> None:
    """Wait for a folder's lock, then make the next checkpoint there.

    `names` gives the names of its tables (None: all). It is called under the lock: an earlier list could lack a table
    that another process has made and written meanwhile.
    """
    seconds = lock_seconds(timeout)
    with locked(folder, timeout):
        write(arena, folder, seconds, progress, names())


def write(
    arena: _core.Arena, folder: Folder, seconds: float, progress: Progress | None, names: list[str] | None
) -> None:
    """Make the next checkpoint in a folder that is locked."""
    with full_is_told(folder.path), _cleaned(folder):
        before = _before(folder, arena)
        _remove_unnamed(folder)
        made = without_lost(arena, _files, arena, folder, before, seconds, progress, names)
        folder.write(MANIFEST, made.pack())
        _remove_unnamed(folder)


def _files(
    arena: _core.Arena,
    folder: Folder,
    before: StoreManifest | None,
    seconds: float,
    progress: Progress | None,
    names: list[str] | None,
) -> StoreManifest:
    """Write all but the manifest. RowsLost: a file of the disk tier is gone."""
    if arena.tiered:
        drop_lost(arena, marked=True)
        _write_to_disk(arena, names, seconds)  # ahead: so that the snapshot holds little in memory
    snapshot = _core.Snapshot(arena, names, seconds)
    try:
        return _Checkpoint(arena, folder, snapshot, before, progress, seconds).write()
    finally:
        snapshot.close(CALL_SECONDS)


@contextmanager
def _cleaned(folder: Folder) -> Iterator[None]:
    """If it fails, its files are removed, so that a full filesystem has room again."""
    try:
        yield
    except BaseException:  # also Ctrl-C
        with suppress(OSError, StoreError):
            _remove_unnamed(folder)
        raise


def _before(folder: Folder, arena: _core.Arena) -> StoreManifest | None:
    """The checkpoint that this one adds to; None: there is none, or it is of another store."""
    found = readable(folder)
    return found if found is not None and found.store == arena.stats()["uuid"] else None


def readable(folder: Folder) -> StoreManifest | None:
    """The folder's checkpoint; None if there is none that this version can read."""
    text = folder.small(MANIFEST)
    try:
        return None if text is None else StoreManifest.unpack(folder.at(MANIFEST), text)
    except (CorruptData, LayoutMismatch):
        return None


def _ours(folder: Folder) -> list[str]:
    return [name for name in os.listdir(folder.path) if FILE.fullmatch(name.removesuffix(".partial"))]


def _remove_unnamed(folder: Folder) -> None:
    """Remove files that the manifest does not name: files of interrupted and of earlier checkpoints."""
    found = readable(folder)
    if found is None and folder.small(MANIFEST) is not None:
        return  # of another version, perhaps
    names = set() if found is None else found.files()
    with unread(folder) as free:
        for name in _ours(folder) if free else ():
            if name not in names:
                folder.remove(name)


def _next_number(folder: Folder) -> int:
    """Number of the next file of rows: above the numbers of all existing files."""
    numbers = [int(name[8:], 16) for name in _ours(folder) if re.fullmatch(r"segment-[0-9a-f]{8}", name)]
    return max(numbers, default=0) + 1


def _write_to_disk(arena: _core.Arena, names: list[str] | None, seconds: float) -> None:
    """Write disk copies of bodies that have none, for all current chunks of these tables, while the disk has room."""
    last = arena.last_uid(seconds)
    with suppress(StoreFull):  # the drive is full: the checkpoint has files of its own for the rest
        while arena.write_to_disk(names, last, seconds):
            pass


class _Checkpoint:
    """One checkpoint that is being made."""

    def __init__(
        self,
        arena: _core.Arena,
        folder: Folder,
        snapshot: _core.Snapshot,
        before: StoreManifest | None,
        progress: Progress | None,
        seconds: float,
    ) -> None:
        self._arena, self._folder, self._snapshot, self._before = arena, folder, snapshot, before
        self._progress = progress
        self._seconds = seconds
        self._uuid = os.urandom(16).hex() if before is None else before.uuid
        self._number = 1 if before is None else before.number + 1
        self._next = max(_next_number(folder), 1 if before is None else before.next_segment)
        self._segments: dict[str, Segment] = {}
        self._done = self._bytes = 0
        self._lock = threading.Lock()  # of what the writing threads share

    def write(self) -> StoreManifest:
        """Write all files but the manifest."""
        snapshot = self._snapshot
        tables = [self._table(image) for image in snapshot.tables()]
        chunks, layouts = self._chunks([table.name for table in tables])
        objects = self._objects()
        used = {*chunks["segment"], *chunks["body_segment"], *(file for file, _ in objects)}
        segments = [segment for segment in self._segments.values() if segment.file in used]
        numbers = {segment.file: number for number, segment in enumerate(segments)}
        for name in ("segment", "body_segment"):
            chunks[name] = np.array([NOWHERE if not file else numbers[file] for file in chunks[name]], np.uint32)
        state = self._state("chunks", {name: np.asarray(chunks[name], dtype) for name, dtype in CHUNKS.items()})
        self._folder.sync()
        return StoreManifest(
            number=self._number,
            made=time.time(),
            store=self._arena.stats()["uuid"],
            name=self._arena.name,
            seed=self._arena.seed,
            uuid=self._uuid,
            next_segment=self._next,
            next_stream=snapshot.next_stream,
            next_uid=snapshot.next_uid,
            tables=tables,
            weights=[
                WeightsState(name, newest, oldest, [(version, id.hex()) for version, id in versions])
                for name, newest, oldest, versions in snapshot.weights()
            ],
            segments=segments,
            chunks=state,
            objects=[(numbers[file], page) for file, page in objects],
            layouts=layouts,
        )

    # -- items --------------------------------------------------------------------------------------------------

    def _state(self, kind: str, arrays: dict[str, Array]) -> ArrayFile:
        """Write a file of arrays."""
        text = pack_arrays(arrays)
        name = f"{kind}-{self._number:08x}-{os.urandom(4).hex()}"
        with open(self._folder.at(name), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return ArrayFile(name, len(text), _core.crc32c(text))

    def _table(self, image: dict[str, Any]) -> TableState:
        """Write the items of a table: only the changes, if they are less than half of the files' bytes."""
        states = self._states_before(image)
        arrays = items.whole(image)
        if states:
            found = items.changes(image, read_items(self._folder, states))
            size = sum(array.nbytes for array in found.values())
            if size + sum(state.bytes for state in states[1:]) <= states[0].bytes // 2:
                arrays = found
            else:
                states = []
        plain = {name: value for name, value in image.items() if name in TableState.__struct_fields__}
        plain["config"] = without_identity(plain["config"])
        states = [*states, self._state("items", arrays)]
        return TableState(**plain, item_bytes=self._item_bytes(image["name"]), states=states)

    def _item_bytes(self, name: str) -> int:
        native = self._arena.table(name)
        try:
            return 0 if native is None else min(int(native.stats()["item_bytes"]), 2**32 - 1)
        except TableNotFound:  # dropped since the instant
            return 0

    def _states_before(self, image: dict[str, Any]) -> list[ArrayFile]:
        key = (image["name"], image["index"], image["generation"])
        for table in () if self._before is None else self._before.tables:
            if (table.name, table.index, table.generation) == key:
                return table.states
        return []

    # -- rows ---------------------------------------------------------------------------------------------------

    def _chunks(self, names: list[str]) -> tuple[dict[str, Any], list[bytes]]:
        """Write heads and bodies of chunks that the previous checkpoint lacks. `CHUNKS`, with names of files."""
        snapshot = self._snapshot
        if self._arena.tiered:
            _write_to_disk(self._arena, names, self._seconds)
            snapshot.find_copies(self._seconds)
        chunks: dict[str, Any] = snapshot.chunks()
        count = len(chunks["uid"])
        late = np.flatnonzero(chunks["late"]).astype(np.uint32)
        chunks["head_crc"] = np.zeros(count, np.uint32)
        chunks["head_crc"][late] = snapshot.head_crcs(late)
        for name, empty in (("segment", ""), ("page", 0), ("body_segment", ""), ("body_page", 0)):
            chunks[name] = [empty] * count
        fresh = self._take_over(chunks)
        self._link(chunks, fresh)
        self._write_chunks(chunks, fresh)
        indexes = np.unique(chunks["layout"])
        layouts = [snapshot.layout(int(index)) for index in indexes]
        chunks["layout"] = np.searchsorted(indexes, chunks["layout"])
        return chunks, layouts

    def _take_over(self, chunks: dict[str, Any]) -> list[int]:
        """Find chunks in the files of the previous checkpoint. Returns the numbers of the others, oldest first."""
        before = self._before
        order: list[int] = np.argsort(chunks["uid"], kind="stable").tolist()
        if before is None or self._snapshot.next_uid - before.next_uid >= 2**31:
            return order
        old = read_chunks(self._folder, before)
        known = {uid: at for at, uid in enumerate(old["uid"].tolist())}
        names = [segment.file for segment in before.segments]
        same: dict[int, int] = {}
        for number, uid in enumerate(chunks["uid"].tolist()):
            at = known.get(uid)
            if at is None or not chunks["closed"][number]:
                continue
            if all(old[name][at] == chunks[name][number] for name in ("rows", "closed", "head_crc")):
                same[number] = at
        again = renewed(before.segments, old["segment"][list(same.values())])
        for number, at in list(same.items()):
            segment, body = int(old["segment"][at]), int(old["body_segment"][at])
            # Of a chunk that is written again only the head is, if there is still a sound copy of its body on disk.
            if body != NOWHERE and (segment not in again or chunks["stored"][number]):
                chunks["body_segment"][number], chunks["body_page"][number] = names[body], int(old["body_page"][at])
                self._segments[names[body]] = before.segments[body]
            if segment in again:
                del same[number]
                continue
            chunks["segment"][number], chunks["page"][number] = names[segment], int(old["page"][at])
            self._segments[names[segment]] = before.segments[segment]
        return [number for number in order if number not in same]

    def _link(self, chunks: dict[str, Any], fresh: list[int]) -> None:
        """Give the checkpoint the disk tier's files in which bodies lie. Then release chunks that are not fresh."""
        before = [number for number, name in enumerate(chunks["body_segment"]) if name.startswith("disk-")]
        files: dict[int, str] = {}

        def link(number: int) -> None:
            file = int(chunks["file"][number])
            if file not in files:
                files[file] = self._linked(file)
            chunks["body_segment"][number] = files[file]
            chunks["body_page"][number] = int(chunks["stored_page"][number])

        for number in fresh:
            if chunks["stored"][number] and not chunks["body_segment"][number]:
                link(number)
        for number in before:
            file = int(chunks["file"][number])
            same_file = chunks["body_segment"][number].startswith(f"disk-{file:08x}-")
            moved = not same_file or chunks["body_page"][number] != chunks["stored_page"][number]
            # Of a file out of which bodies were copied little is needed. A newer copy has all that an older one has.
            if chunks["stored"][number] and (moved or file in files):
                link(number)
        done = np.ones(len(chunks["uid"]), bool)
        done[fresh] = False
        self._release(np.flatnonzero(done).tolist())

    def _linked(self, number: int) -> str:
        """The name that a file of the disk tier has in the checkpoint from now on. RowsLost: the file is gone."""
        path = os.path.join(self._arena.disk, f"segment-{number:08x}")
        try:
            return self._link_file(number, path)
        except FileNotFoundError:
            if os.path.exists(path):
                raise
            self._arena.note_lost_file(number, f"the file {path} is gone")
            raise RowsLost(f"the file {path} is gone") from None

    def _link_file(self, number: int, path: str) -> str:
        name = f"disk-{number:08x}-{os.stat(path).st_ino:x}"
        to = self._folder.at(name)
        if not (os.path.exists(to) and os.path.samefile(path, to)):
            try:
                os.link(path, to)
            except OSError:  # another filesystem, one without hard links, or a copied folder
                # The store goes on with the file: a copy of it is never taken for another one.
                name = f"disk-{number:08x}-{os.urandom(12).hex()}"
                to = self._folder.at(name)
                shutil.copyfile(path, to + ".partial")
                os.replace(to + ".partial", to)
        with open(to, "rb", buffering=0) as file:
            os.fdatasync(file.fileno())
            uuid = file.read(_UUID.stop)[_UUID]  # not always this store's own: of one from which it was restored
        self._segments[name] = Segment(name, uuid.hex(), 0, 0)
        return name

    def _write_chunks(self, chunks: dict[str, Any], fresh: list[int]) -> None:
        """Write heads, and bodies that are not linked, in several threads; releases each written chunk."""
        snapshot = self._snapshot
        size_of = {n: _core.ChunkFile.bytes_of_chunk(snapshot, n, not chunks["body_segment"][n]) for n in fresh}
        self._bytes, self._done = sum(size_of.values()) + sum(snapshot.objects().tolist()), 0
        for kind in by_kind(chunks, fresh):
            self._write_kind(chunks, kind, [size_of[number] for number in kind])

    def _write_kind(self, chunks: dict[str, Any], kind: list[int], sizes: list[int]) -> None:
        """Write chunks to files of their own."""

        def write(file: SegmentFiles, part: slice) -> None:
            for number, size in zip(kind[part], sizes[part], strict=True):
                body = not chunks["body_segment"][number]
                add = partial(_core.ChunkFile.add_chunk, snapshot=self._snapshot, number=number, body=body)
                chunks["segment"][number], chunks["page"][number] = file.add(add, size)
            self._release(kind[part])

        self._write_parts(sizes, write)

    def _write_parts(self, sizes: list[int], write: Callable[[SegmentFiles, slice], None]) -> None:
        """Call `write` for consecutive parts of things with these sizes, from `THREADS` threads with a file each."""
        parts, left = list(_parts(sizes)), sum(sizes)
        threads = min(THREADS, len(parts))

        def work(some: Iterator[slice]) -> None:
            nonlocal left
            file = SegmentFiles(self._folder.path, self._uuid, self._segments, self._number_file)
            try:
                for part in some:
                    size = sum(sizes[part])
                    with self._lock:
                        file.expect(size, left // threads)
                        left -= size
                    write(file, part)
                    self._note_written(size)
            finally:
                file.end()

        if threads:
            with_helpers(parts, work, threads)

    def _note_written(self, more: int) -> None:
        with self._lock:
            self._done += more
            if self._progress is not None:
                self._progress(self._done, self._bytes)

    def _number_file(self) -> int:
        with self._lock:
            self._next += 1
            return self._next - 1

    def _release(self, numbers: list[int]) -> None:
        if numbers:
            self._snapshot.release(np.array(numbers, np.uint32), self._seconds)

    # -- objects ------------------------------------------------------------------------------------------------

    def _objects(self) -> list[tuple[str, int]]:
        """Write all objects, those of weights too. Returns file and page of each record."""
        snapshot = self._snapshot
        records: list[tuple[str, int]] = []

        def write(file: SegmentFiles, part: slice) -> None:
            first, count = part.start, part.stop - part.start
            size = _core.ChunkFile.bytes_of_objects(snapshot, first, count)
            add = partial(_core.ChunkFile.add_objects, snapshot=snapshot, first=first, count=count)
            records.append(file.add(add, size))

        self._write_parts(snapshot.objects().tolist(), write)
        return records


def _parts(sizes: list[int]) -> Iterator[slice]:
    """Neighbours to write together: `_BATCH_BYTES` in all, or a single one."""
    begin = taken = 0
    for at, size in enumerate(sizes):
        if at > begin and taken + size > _BATCH_BYTES:
            yield slice(begin, at)
            begin, taken = at, 0
        taken += size
    if begin < len(sizes):
        yield slice(begin, len(sizes))
