"""docs/shm_format.md and docs/object_format.md against the compiler, a live store, and golden bytes.

The walk reads a store's memory file through nothing but the numbers of the page.
"""

from __future__ import annotations

import importlib.util
import os
import re
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from foreign_values import put_foreign

import di_store

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
ARRAY_ID, PACKED_ID = "a5" * 20, "5a" * 20
SEALED, DATA, CHUNK = 2, 0, 1


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shm_layout", ROOT / "tools" / "shm_layout.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["shm_layout"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


TOOL = _tool()
PAGE = (ROOT / "docs" / "shm_format.md").read_text()


def test_numbers_are_the_compilers() -> None:
    """Offsets, sizes and constants of the page, and the golden file of this layout version."""
    assert not (faults := TOOL.faults_of(PAGE)), "\n".join(faults)


def test_a_stale_page_is_found() -> None:
    """A moved field, a missing field and another constant are each noticed."""
    moved = re.sub(r"\| 8 \| 8 \| `number` ", "| 16 | 8 | `number` ", PAGE)
    missing = re.sub(r"\n\| \d+ \| 8 \| `version` [^\n]*", "", PAGE)
    constant = re.sub(r"\| `kLayoutVersion` \| \d+ \|", "| `kLayoutVersion` | 999 |", PAGE)
    for stale in (moved, missing, constant):
        assert stale != PAGE
        assert TOOL.faults_of(stale)


class Memory:
    """A store's memory file, read through the page."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.fields: dict[str, tuple[int, int]] = {}
        self.constants: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        for table in TOOL.tables(PAGE):
            for row in table.rows:
                if not table.struct:
                    self.constants[TOOL.field_of(row.cells[0])] = int(row.cells[1].replace(",", ""), 0)
                    continue
                offset, size = int(row.cells[0]), int(row.cells[1])
                self.fields[f"{table.struct}.{TOOL.field_of(row.cells[2])}"] = offset, size
                self.sizes[table.struct] = offset + size

    def raw(self, at: int, size: int) -> bytes:
        found = os.pread(self.fd, size, at)
        assert len(found) == size
        return found

    def number(self, field: str, base: int) -> int:
        offset, size = self.fields[field]
        return int.from_bytes(self.raw(base + offset, size), "little")

    def text(self, field: str, base: int) -> str:
        offset, size = self.fields[field]
        return self.raw(base + offset, size).split(b"\0")[0].decode()

    def descriptors(self) -> dict[int, int]:
        """Offset of every descriptor in use, by number."""
        heap = self.number("ArenaHeader.heap", 0)
        offset, size = self.fields["HeapHeader.segments"]
        first = self.constants["kFirstDescriptorSegment"]
        found, number = {}, 0
        for segment in range(size // 8):
            (base,) = struct.unpack("<Q", self.raw(heap + offset + 8 * segment, 8))
            for place in range(first << segment if base else 0):
                at = base + place * self.sizes["Descriptor"]
                if self.number("Descriptor.word", at) >> 56:
                    found[number + place] = at
            number += first << segment
        return found

    def block(self, descriptor: int) -> bytes:
        return self.raw(self.number("Descriptor.offset", descriptor), self.number("Descriptor.bytes", descriptor))

    def objects(self) -> dict[str, bytes]:
        """Blocks of sealed data objects by id."""
        found = {}
        for at in self.descriptors().values():
            word = self.number("Descriptor.word", at)
            if (word >> 56, word >> 48 & 0xFF) == (SEALED, DATA) and self.number("Descriptor.flags", at) & 1:
                offset, size = self.fields["Descriptor.name"][0], self.fields["NameLink.id"][1]
                found[self.raw(at + offset, size).hex()] = self.block(at)
        return found


def _memory(store: di_store.Store) -> Memory:
    return Memory(store._backend.session.arena.fd_number)


@pytest.fixture
def store() -> Any:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def test_header_and_parts_are_as_documented(store: di_store.Store) -> None:
    """Magic, version, name and budget; the parts follow each other in the order of the page."""
    memory = _memory(store)
    assert memory.number("ArenaHeader.magic", 0) == memory.constants["kMagic"]
    assert memory.number("ArenaHeader.layout_version", 0) == memory.constants["kLayoutVersion"]
    assert memory.text("ArenaHeader.name", 0) == store.name
    names = ("clients", "heap", "weights", "layouts", "tables", "slices", "bitmaps", "data")
    parts = [memory.number(f"ArenaHeader.{name}", 0) for name in names]
    assert parts == sorted(parts)
    assert parts[0] == 4096
    assert parts[-1] % memory.constants["kSliceBytes"] == 0
    size = memory.number("ArenaHeader.range_bytes", 0)
    assert memory.number("ArenaHeader.slice_count", 0) * memory.constants["kSliceBytes"] == size
    assert parts[-1] + size == os.fstat(memory.fd).st_size
    assert parts[1] - parts[0] == memory.constants["kMaxClients"] * memory.sizes["ClientSlot"]
    assert memory.number("HeapHeader.budget", parts[1]) == 64 << 20
    slot = parts[0] + store._backend.session.arena.slot * memory.sizes["ClientSlot"]
    assert memory.number("ClientSlot.pid", slot) == os.getpid()


def test_objects_are_the_golden_bytes(store: di_store.Store) -> None:
    """One object of each form, byte for byte, found by its id in the descriptors."""
    array = np.arange(-3, 3, dtype=np.int16).reshape(2, 3)
    value = {"a": np.arange(4, dtype=np.float32), "b": [1, "two", None, True, 2.5], "c": (b"\x00\xff", 2**70)}
    store.put(array, id=ARRAY_ID)
    store.put(value, id=PACKED_ID)
    blocks = _memory(store).objects()
    assert blocks.keys() == {ARRAY_ID, PACKED_ID}
    for name, block in (("object_array", blocks[ARRAY_ID]), ("object_packed", blocks[PACKED_ID])):
        wanted = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())
        assert _written(block) == wanted, f"{name}: a changed form needs another version of it"


def test_the_bytes_of_a_foreign_object_differ_only_in_their_mark(store: di_store.Store) -> None:
    value = {"a": np.arange(4, dtype=np.float32), "b": [1, "two", None, True, 2.5], "c": (b"\x00\xff", 2**70)}
    put_foreign(store, value, id=PACKED_ID)
    wanted = bytes.fromhex((GOLDEN / "object_packed.hex").read_text())
    assert _written(_memory(store).objects()[PACKED_ID]) == b"DSF1" + wanted[4:]


def _written(block: bytes) -> bytes:
    """The block with its gaps, which mean nothing, set to 0."""
    if block[:4] not in (b"DSP1", b"DSF1"):
        return block
    header = int.from_bytes(block[4:8], "little")
    start = -(-(16 + header) // 64) * 64
    return block[: 16 + header] + bytes(start - 16 - header) + block[start:]


def test_object_formats_are_as_documented(store: di_store.Store) -> None:
    """Fields of both forms at the offsets of docs/object_format.md."""
    store.put(np.ones((2, 5), np.complex64), id=ARRAY_ID)
    store.put({"frames": np.full((3, 7), 9, np.uint8), "text": "x" * 2000}, id=PACKED_ID)
    blocks = _memory(store).objects()
    block = blocks[ARRAY_ID]
    assert block[:8] == b"DSA1" + bytes([2]) + b"c" + bytes([8, 0])
    assert struct.unpack("<Q5q", block[8:56]) == (80, 2, 5, 0, 0, 0)
    assert np.array_equal(np.frombuffer(block[64:], np.complex64), np.ones(10, np.complex64))
    block = blocks[PACKED_ID]
    form, size, payload = struct.unpack("<4sIQ", block[:16])
    header = block[16 : 16 + size]
    assert (form, header[:4], header[8]) == (b"DSP1", b"DIob", 1)
    total, node = msgspec.msgpack.decode(header[9:])
    assert total == payload
    start = -(-(16 + size) // 64) * 64
    dict_tag, keys, (frames, text) = node
    assert (dict_tag, keys) == (1, ["frames", "text"])
    assert frames[:3] == [7, "|u1", [3, 7]]
    assert block[start + frames[3] : start + frames[3] + 21] == bytes([9]) * 21
    assert text[0] == 12
    assert block[start + text[1] : start + text[1] + text[2]] == b"x" * 2000


@pytest.mark.memory_only
def test_chunks_and_items_are_as_documented(store: di_store.Store) -> None:
    """Rows of a stream, their marks, wide and small columns, and the items over them."""
    table = store.create_table("t", capacity=100, view=di_store.Step())
    rows = 70
    writer = table.writer()
    for row in range(rows):
        step = {"wide": np.full(600, row, np.uint8), "small": np.int64(row), "terminated": row == 9}
        writer.append(step)
    memory = _memory(store)
    header = memory.number("ArenaHeader.tables", 0)
    assert memory.text("TableHeader.name", header) == "t"
    found = memory.descriptors()
    chunks = {number: at for number, at in found.items() if memory.number("Descriptor.word", at) >> 48 & 255 == CHUNK}
    offset, _ = memory.fields["TableHeader.segment_block"]
    descriptor = int.from_bytes(memory.raw(header + offset, 4), "little") - 1
    items = memory.number("Descriptor.offset", found[descriptor])
    for row in range(rows):
        item = items + row * memory.sizes["Item"]
        assert memory.number("Item.state", item) & 15 == 1
        assert memory.number("Item.number", item) == row + 1
        place, span = memory.number("Item.place", item), memory.number("Item.span", item)
        assert span >> 32 & 0xFFFFF == 1
        _check_row(memory, memory.block(chunks[place >> 32]), place & 0xFFFFFFFF, row)
    writer.close()


def _check_row(memory: Memory, chunk: bytes, at: int, row: int) -> None:
    def number(field: str, base: int = 0) -> int:
        offset, size = memory.fields[field]
        return int.from_bytes(chunk[base + offset : base + offset + size], "little")

    layout = _layout(memory, number("ChunkHeader.layout"))
    assert at < number("ChunkHeader.published") <= number("ChunkHeader.row_capacity")
    mark = number("ChunkHeader.marks_offset") + at // 64 * memory.sizes["RowMark"]
    assert number("RowMark.first", mark) >> at % 64 & 1 == (row in (0, 10))
    record = number("ChunkHeader.records_offset") + at * layout["record_bytes"]
    for name, place, row_bytes, offset, index, before in layout["columns"]:
        if place == 1:
            base = number("ChunkHeader.columns_offset") + number("ChunkHeader.row_capacity") * before + 64 * index
            start = -(-base // 64) * 64 + at * row_bytes
        else:
            start = record + offset
        wanted = {"wide": bytes([row]) * 600, "small": row.to_bytes(8, "little"), "terminated": bytes([row == 9])}
        assert chunk[start : start + row_bytes] == wanted[name]


def _layout(memory: Memory, index: int) -> dict[str, Any]:
    layouts = memory.number("ArenaHeader.layouts", 0)
    descriptor = struct.unpack("<I", memory.raw(layouts + 4 * index, 4))[0] - 1
    block = memory.block(memory.descriptors()[descriptor])
    offset, size = memory.fields["LayoutHeader.column"]
    count, record = struct.unpack("<II", block[:8])
    text = block[memory.sizes["LayoutHeader"] + count * size :]
    columns = []
    for i in range(count):
        *numbers, name_bytes = struct.unpack("<IIIIQQ", block[offset + i * size : offset + (i + 1) * size])
        columns.append((text[:name_bytes].decode(), *numbers))
        text = text[name_bytes:]
    assert len(msgspec.json.decode(text)) == count
    return {"record_bytes": record, "columns": columns}
