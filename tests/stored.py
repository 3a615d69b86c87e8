"""Reads and overwrites fields of a store's memory file, by the offsets of the golden file of the layout."""

from __future__ import annotations

import os
from pathlib import Path

(GOLDEN,) = (Path(__file__).resolve().parent / "golden").glob("shm_layout_*.txt")
SIZES = {name: int(value) for name, value in (line.rsplit(maxsplit=1) for line in GOLDEN.read_text().splitlines())}
"""Offset of each field as "Struct.field", bytes of each struct as "Struct"."""


class Memory:
    """The memory file that `path` opens, such as /proc/PID/fd/N of a process that has the store open."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def number(self, at: int, size: int) -> int:
        """The unsigned integer of `size` bytes at an offset of the file."""
        return int.from_bytes(os.pread(self._file.fileno(), size, at), "little")

    def write(self, at: int, size: int, value: int) -> None:
        """Overwrite it."""
        os.pwrite(self._file.fileno(), value.to_bytes(size, "little"), at)

    def block_of(self, descriptor: int) -> int:
        """Offset of the block of a descriptor in the first segment."""
        heap = self.number(SIZES["ArenaHeader.heap"], 8)
        segment = self.number(heap + SIZES["HeapHeader.segments"], 8)
        return self.number(segment + descriptor * SIZES["Descriptor"] + SIZES["Descriptor.offset"], 8)
