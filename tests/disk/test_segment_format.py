"""docs/segment_format.md against the golden segment, which is read through nothing but the numbers of the page."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "segment_format.md").read_text()
PAGE_BYTES = 4096
SIZES = {"SegmentHeader": 72, "RecordHeader": 64, "SegmentTrailer": 64}


def _segment() -> bytes:
    data = bytearray()
    for line in (ROOT / "tests" / "golden" / "segment_1.txt").read_text().splitlines():
        at, _, digits = line.partition(": ")
        data.extend(bytes(int(at, 16) - len(data)))
        data.extend(bytes.fromhex(digits))
    return bytes(data)


DATA = _segment()


def _crc(data: bytes, before: int = 0) -> int:
    """CRC-32C by its definition."""
    state = ~before & 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return ~state & 0xFFFFFFFF


def _layout(name: str) -> dict[str, tuple[int, int]]:
    """Offset and size of the fields of a struct, from its table."""
    (table,) = re.findall(rf"<!-- layout: {name} -->\n((?:\|.*\n)+)", PAGE)
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` ", table, re.M)
    return {field: (int(offset), int(size)) for offset, size, field in rows}


LAYOUTS = {name: _layout(name) for name in SIZES}


def _read(name: str, at: int) -> dict[str, int]:
    return {
        field: int.from_bytes(DATA[at + offset : at + offset + size], "little")
        for field, (offset, size) in LAYOUTS[name].items()
    }


def _is_sound(name: str, at: int, before: int = 0) -> bool:
    offset, _ = LAYOUTS[name]["crc"]
    return _crc(DATA[at : at + offset], before) == _read(name, at)["crc"]


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES)


def test_the_tables_cover_their_structs() -> None:
    """Each field begins where the one before it ends."""
    for name, size in SIZES.items():
        end = 0
        for field, (offset, length) in LAYOUTS[name].items():
            assert offset == end, f"{name}.{field}"
            end += length
        assert end == size


def test_the_header_is_as_the_page_says() -> None:
    """Magic, identity, size, checksum."""
    header = _read("SegmentHeader", 0)
    assert DATA[:8] == b":DISEG01"
    assert _is_sound("SegmentHeader", 0)
    assert header["uuid"].to_bytes(16, "little") == bytes(range(0xA0, 0xB0))
    names = ("version", "page_bytes", "epoch", "incarnation", "bytes", "number", "writer", "zero")
    assert [header[name] for name in names] == [1, PAGE_BYTES, 3, 9, len(DATA), 42, 7, 0]


def test_records_and_footer_are_as_the_page_says() -> None:
    """The records one by one; the footer repeats them; the trailer finds it."""
    seed = _read("SegmentHeader", 0)["crc"]
    size = SIZES["RecordHeader"]
    page, footer, found = 1, b"", []
    while DATA[page * PAGE_BYTES :][:4] == b":DRC" and _read("RecordHeader", page * PAGE_BYTES)["page"] == page:
        at = page * PAGE_BYTES
        record = _read("RecordHeader", at)
        assert _is_sound("RecordHeader", at, seed)
        assert record["incarnation"] == 9
        head = DATA[at + size : at + size + record["head_bytes"]]
        assert _crc(head, seed) == record["head_crc"]
        body_page = page + _pages(size + len(head))
        body = DATA[body_page * PAGE_BYTES :][: record["stored_bytes"]]
        assert _crc(body) == record["body_crc"]
        found.append((record["kind"], record["codec"], hex(record["uid"]), record["raw_bytes"], len(head), len(body)))
        entry = DATA[at : at + size + len(head)]
        footer += entry + bytes(-len(entry) % 8)
        page = body_page + _pages(len(body))
    assert found == [
        (1, 0, "0x1122334455667788", 4196, 19, 4196),
        (2, 1, "0x99aabbccddeeff01", 123456789, 4090, 50),
    ]
    last = len(DATA) - PAGE_BYTES
    trailer = _read("SegmentTrailer", last)
    assert DATA[last : last + 8] == b":DIEND01"
    assert _is_sound("SegmentTrailer", last, seed)
    assert [trailer[name] for name in ("version", "records", "incarnation", "footer_page")] == [1, 2, 9, page]
    assert DATA[page * PAGE_BYTES :][: trailer["footer_bytes"]] == footer
    assert trailer["footer_crc"] == _crc(footer, seed)
