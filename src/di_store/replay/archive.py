"""The file of an exported table: a zip of arrays in NumPy's format and a JSON text, see docs/table_format.md.

The file is written under another name, `<path>.part`, and renamed when it is complete and on disk. A kill leaves the
previous file unchanged.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO, Any

import msgspec
import numpy as np

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, LayoutMismatch, StoreError
from di_store.columns.schema import Schema

FORMAT = "di-store table"
VERSION = 1
MANIFEST = "table.json"
ITEM_FACTS: tuple[tuple[str, str], ...] = (
    ("key", "<u8"),
    ("row", "<i8"),
    ("rows", "<u4"),
    ("back", "<u4"),
    ("flags", "<u4"),
    ("times_sampled", "<u4"),
    ("version", "<i8"),
    ("priority", "<f8"),
    ("epochs", "<u8"),
)
"""Arrays ``items/<name>.npy`` and their types; each has one entry for each item."""
KINDS = ("rows", "whole")
"""Folders of rows: those of streams, and those of transitions that were inserted whole."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_PIECE = 8 << 20
_DATE = (1980, 1, 1, 0, 0, 0)


class ArchiveCounts(msgspec.Struct, forbid_unknown_fields=True):
    """Counts of a table, besides its items.

    Attributes:
        epoch: with `Once`, the epoch being drawn, from 0.
        latest_epoch: with `Once`, the last epoch begun.
        rng_counter: number of random numbers drawn.
        max_priority: the largest priority ever given, at least 1.
    """

    epoch: int
    latest_epoch: int
    rng_counter: int
    max_priority: float


class ArchiveManifest(msgspec.Struct, forbid_unknown_fields=True):
    """The text `table.json`.

    Attributes:
        name: name of the table.
        settings: as in `policy.settings.Settings.to_text`, with later changes.
        alpha: present exponent of the priorities; None: the sampler has none.
        beta: present exponent of the importance weights; None: weights are 1.
        columns: the table's columns; None: not declared yet.
        items: number of items.
        waiting: how many of these items (the last ones) wait for late columns.
        skipped: items that left the table while it was exported.
        rows: for each part, the number of rows of streams.
        whole: for each part, the number of transitions that were inserted whole.
    """

    format: str
    version: int
    name: str
    settings: dict[str, Any]
    alpha: float | None
    beta: float | None
    columns: list[dict[str, Any]] | None
    counts: ArchiveCounts
    items: int
    waiting: int
    skipped: int
    rows: list[int]
    whole: list[int]


def members(schema: Schema) -> dict[str, str]:
    """Name in the file of each column: its own, or its number if its name could not be a file's name."""
    return {name: name if _PLAIN.fullmatch(name) else f"column {number}" for number, name in enumerate(schema.names)}


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of an array in C order, in NumPy's format 1.0, or 2.0 if it is long."""
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    text = repr(described).encode("latin1") + b"\n"
    version, length = (1, 2) if len(text) < 60_000 else (2, 4)
    text = text[:-1] + b" " * (-(8 + length + len(text)) % 64) + b"\n"
    return b"\x93NUMPY" + bytes((version, 0)) + len(text).to_bytes(length, "little") + text


class ArchiveWriter:
    """Writes the file. A context manager: without an exception, the complete file is at `path` afterwards.

    Raises:
        StoreError: another process or thread is exporting to that path, or the path names a directory or device.
            OSError: of the file system.
    """

    def __init__(self, path: str) -> None:
        self._path, self._part = path, path + ".part"
        if not path or (os.path.exists(path) and not os.path.isfile(path)):  # a rename would replace a device
            raise StoreError(f"{path!r} is not the path of a file", remedy="export to another path")
        self._file = _lock_part(self._part)
        self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_STORED)
        self.bytes = 0

    def array(self, name: str, array: Array) -> None:
        """Add `<name>.npy`."""
        array = np.ascontiguousarray(array)
        data = memoryview(array.reshape(-1).view(np.uint8).data) if array.nbytes else memoryview(b"")
        self._member(name + ".npy", _header(array.dtype, array.shape), data)

    def manifest(self, manifest: ArchiveManifest) -> None:
        """Add `table.json`."""
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        self._member(MANIFEST, b"", memoryview(text))

    def _member(self, name: str, header: bytes, data: memoryview) -> None:
        info = zipfile.ZipInfo(name, _DATE)
        info.file_size = len(header) + data.nbytes
        with self._zip.open(info, "w", force_zip64=info.file_size >= 1 << 31) as member:
            member.write(header)
            for at in range(0, data.nbytes, _PIECE):
                member.write(data[at : at + _PIECE])

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if error is None:
                try:
                    self._zip.close()
                    self._file.flush()
                    os.fsync(self._file.fileno())
                    self.bytes = self._file.tell()
                    os.replace(self._part, self._path)
                except BaseException:  # also Ctrl-C: no half of a file stays
                    self._give_up()
                    raise
                _core.sync_folder(os.path.dirname(os.path.abspath(self._path)))
                return
            self._give_up()

    def _give_up(self) -> None:
        self._zip.fp = None  # else its destructor would write the directory
        with suppress(FileNotFoundError):  # Ctrl-C came after the rename
            os.unlink(self._part)


def _lock_part(part: str) -> IO[bytes]:
    """The empty file `part`, locked; a file that a killed process left is used again."""
    while True:
        file = open(part, "r+b", opener=_core.create_no_link)  # noqa: SIM115  (a link leads to a file that is not ours)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(part) and os.path.samestat(os.fstat(file.fileno()), os.stat(part)):
                file.truncate()
                return file
        except BlockingIOError:
            file.close()
            text = f"another export is writing {part!r}"
            raise StoreError(text, remedy="wait for it, or export to another path") from None
        except BaseException:  # also Ctrl-C: nobody else knows of this file
            file.close()
            raise
        file.close()  # renamed or removed by its owner between the two calls


_DAMAGE: tuple[type[Exception], ...] = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    msgspec.MsgspecError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    OverflowError,
)


class ArchiveReader:
    """Reads the file, one array at a time. A context manager.

    Raises:
        CorruptData: the file is none of ours, or damaged; every member is compared with its checksum when it is read.
        LayoutMismatch: another version of the format. OSError: an error of the file system.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with self.checked():
            if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe or a device may never end
                raise ValueError("it is not a regular file")
            self._zip = zipfile.ZipFile(path)
        self._bytes = os.path.getsize(path)
        try:
            self.manifest = self._manifest()
        except BaseException:  # also Ctrl-C: nobody else knows of this file
            self._zip.close()
            raise

    def array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Array:
        """The array `<name>.npy`, which has this type and shape."""
        array: Array
        with self.checked():
            kind = np.dtype(dtype)
            header, size = _header(kind, shape), kind.itemsize
            for axis in shape:
                size *= axis
            info = self._info(name + ".npy", len(header) + size)
            array = np.empty(shape, kind)
            data = array.reshape(-1).view(np.uint8) if array.nbytes else np.empty(0, np.uint8)
            with self._zip.open(info) as member:
                if member.read(len(header)) != header:
                    raise ValueError(f"{info.filename} is not a {kind} array of shape {shape}")
                at = 0
                while at < data.nbytes:
                    piece = member.read(min(_PIECE, data.nbytes - at))
                    if not piece:
                        raise EOFError(f"{info.filename} ends early")
                    data[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
                    at += len(piece)
                member.read(1)  # the end, where the checksum is compared
        return array

    def table(self, name: str, dtype: Any, columns: int) -> Array:
        """The array `<name>.npy` of this type, with any number of rows and this many columns."""
        with self.checked():
            kind = np.dtype(dtype)
            size = self._zip.getinfo(name + ".npy").file_size
            # A longer number of rows makes the header longer only in steps of 64 bytes.
            rows = max(0, size - len(_header(kind, (0, columns)))) // (kind.itemsize * columns)
        return self.array(name, kind, (rows, columns))

    def _info(self, name: str, size: int | None) -> zipfile.ZipInfo:
        info = self._zip.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size or info.flag_bits & 1:
            raise ValueError(f"{name} is compressed or encrypted")
        if info.file_size > self._bytes or (size is not None and info.file_size != size):
            raise ValueError(f"{name} has {info.file_size} bytes")
        return info

    def _manifest(self) -> ArchiveManifest:
        with self.checked():
            info = self._info(MANIFEST, None)
            plain = msgspec.json.decode(self._zip.read(info))
            if not isinstance(plain, dict) or plain.get("format") != FORMAT:
                raise ValueError("it is not an exported table")
        if plain.get("version") != VERSION:
            text = f"{self._path!r} has format version {plain.get('version')!r}, this process reads version {VERSION}"
            raise LayoutMismatch(text, remedy="use the version of di-store that wrote it")
        with self.checked():
            manifest = msgspec.convert(plain, ArchiveManifest)
            numbers = [manifest.items, manifest.waiting, *manifest.rows, *manifest.whole]
            counts = manifest.counts
            if not all(0 <= each < 1 << 64 for each in (counts.epoch, counts.latest_epoch, counts.rng_counter)):
                raise ValueError("its counts are below 0 or too large")
            if not 1 <= counts.max_priority < math.inf:
                raise ValueError("its largest priority is below 1")
            if min(numbers) < 0 or max(numbers) > self._bytes or manifest.waiting > manifest.items:
                raise ValueError("it holds fewer bytes than its counts need")
        return manifest

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Turn damage that is found in the block into a `CorruptData` about this file."""
        try:
            yield
        except (CorruptData, LayoutMismatch):
            raise
        except _DAMAGE as error:
            raise self.damaged(str(error) or type(error).__name__) from None
        except OSError as error:
            if error.errno != errno.EINVAL:  # a place before the file's start
                raise
            raise self.damaged(str(error)) from None

    def damaged(self, why: str) -> CorruptData:
        """The error for a damaged file."""
        return CorruptData(
            f"{self._path!r} is not an exported table, or is damaged: {why}", remedy="export the table again"
        )

    def __enter__(self) -> ArchiveReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()
