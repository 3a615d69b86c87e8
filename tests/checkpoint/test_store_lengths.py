"""Somebody wrote numbers into files of a checkpoint, with right checksums: memory is taken for what is there alone."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from checkpoint.stores import MEMORY
from di_store import _core

PAGE = 4096
GIB = 1 << 30
CHUNK, ZSTD = 1, 1
BODY_BYTES_AT = 8  # of a ChunkTier
TIER_AT = 88  # of a ChunkHeader: where its ChunkTier lies
RESTORE = """
import resource, sys
import numpy as np
import di_store
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
try:
    with di_store.restore(sys.argv[1], memory="64MiB") as store:
        table = store.table("t")
        data = table.peek(table.keys(0, 4000)).data["x"]
        assert (data == np.load(sys.argv[2])).all()
        print(f"rows {len(data)}, peak", end=" ")
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        print(int(status["VmHWM"].split()[0]))  # ru_maxrss may be that of the process that started this one
except di_store.CorruptData as error:
    print(error)
"""


class Segment:
    """A file of a checkpoint, whose records can be changed: see docs/segment_format.md."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.bytes = bytearray(path.read_bytes())
        (self._crc,) = struct.unpack_from("<I", self.bytes, 68)

    def records(self) -> list[int]:
        """Where each record begins."""
        found, at = [], PAGE
        while at < len(self.bytes) and self.bytes[at : at + 4] == b":DRC":
            found.append(at)
            head_bytes, stored = self.field(at, "<I", 44), self.field(at, "<Q", 24)
            at += (-(-(64 + head_bytes) // PAGE) + -(-stored // PAGE)) * PAGE
        return found

    def field(self, at: int, form: str, offset: int) -> Any:
        return struct.unpack_from(form, self.bytes, at + offset)[0]

    def put(self, at: int, form: str, offset: int, value: int) -> None:
        struct.pack_into(form, self.bytes, at + offset, value)

    def seal(self, at: int) -> None:
        """The checksums of a record that was changed."""
        head = self.bytes[at + 64 : at + 64 + self.field(at, "<I", 44)]
        self.put(at, "<I", 52, _core.crc32c(bytes(head), self._crc))
        self.put(at, "<I", 60, _core.crc32c(bytes(self.bytes[at : at + 60]), self._crc))

    def store(self) -> None:
        """Without the footer, which repeats the heads of all records."""
        self.bytes[-PAGE:] = bytes(PAGE)
        self._path.write_bytes(self.bytes)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A checkpoint with packed bodies."""
    with di_store.open(memory=MEMORY, disk=tmp_path / "tier", disk_capacity="256MiB") as store:
        table = store.create_table("t", capacity=4_000, schema={"x": di_store.Spec((1024,), "i8")})
        table.extend({"x": rows()})
        arena = store._backend.session.arena
        while arena.write_to_disk(None, arena.last_uid(60), 60):
            pass
        store.checkpoint(tmp_path / "c")
    return tmp_path / "c"


def claim(folder: Path, size_of: Callable[[int, int], int]) -> int:
    """Let a packed chunk claim to be of as many bytes as `size_of(stored, raw)` says. Returns how many do."""
    segments = [Segment(path) for path in folder.iterdir() if path.name.startswith(("segment-", "disk-"))]
    claimed: dict[int, int] = {}
    for segment in segments:
        for at in segment.records():
            if (segment.field(at, "<B", 4), segment.field(at, "<B", 5)) == (CHUNK, ZSTD) and not claimed:
                size = size_of(segment.field(at, "<Q", 24), segment.field(at, "<Q", 32))
                claimed[segment.field(at, "<Q", 8)] = size
                segment.put(at, "<Q", 32, size)
    for segment in segments:
        for at in segment.records():
            if (size := claimed.get(segment.field(at, "<Q", 8))) and segment.field(at, "<B", 4) == CHUNK:
                segment.put(at, "<Q", 64 + segment.field(at, "<I", 64 + TIER_AT) + BODY_BYTES_AT, size)
                segment.seal(at)
        segment.store()
    return len(claimed)


def rows() -> np.ndarray:
    """A quarter of them cannot be packed."""
    made = np.zeros((4_000, 1024), "i8")
    made[:, :256] = np.random.default_rng(0).integers(-(1 << 63), 1 << 63, (4_000, 256))
    return made


def restored(folder: Path) -> str:
    """What `restore` says in a process that can take 8 GiB."""
    np.save(folder.parent / "rows.npy", rows())
    command = [sys.executable, "-c", RESTORE, str(folder), str(folder.parent / "rows.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.memory_only
def test_chunks_with_impossible_packed_sizes_are_refused(packed: Path) -> None:
    assert claim(packed, lambda stored, raw: 64 * GIB) == 1
    assert "the size of a chunk" in restored(packed)


@pytest.mark.memory_only
def test_chunks_with_wrong_unpacked_sizes_are_refused(packed: Path) -> None:
    """As many as could be packed so: memory that nothing is unpacked to is never touched."""
    assert claim(packed, lambda stored, raw: stored << 15) == 1
    assert restored(packed).startswith("rows 4000, peak ")
    assert int(restored(packed).split()[-1]) < 256 << 10


@pytest.mark.memory_only
def test_chunks_without_footers_are_refused(packed: Path) -> None:
    assert claim(packed, lambda stored, raw: raw) == 1
    assert restored(packed).startswith("rows 4000, ")
