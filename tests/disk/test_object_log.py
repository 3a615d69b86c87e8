"""docs/object_log.md against what a store writes, which is read through nothing but the numbers of the page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import di_store
from di_store._core import crc32c

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "object_log.md").read_text()
UNIT = 64


def layout(name: str) -> dict[str, tuple[int, int]]:
    """Offset and size of the fields of a struct, from its table."""
    (table,) = re.findall(rf"<!-- layout: {name} -->\n((?:\|.*\n)+)", PAGE)
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` ", table, re.M)
    assert rows
    at = 0
    for offset, size, _ in rows:  # no gap
        assert int(offset) == at
        at += int(size)
    return {field: (int(offset), int(size)) for offset, size, field in rows}


def read(name: str, data: bytes) -> dict[str, int]:
    return {field: int.from_bytes(data[at : at + size], "little") for field, (at, size) in layout(name).items()}


def records(path: Path, uuid: bytes) -> list[tuple[dict[str, int], bytes, bytes]]:
    """Fields, extra and bytes of each record, which are sound."""
    data, found, at = path.read_bytes(), [], UNIT
    number = int(path.name.removeprefix("objects-"), 16).to_bytes(4, "little")
    while at < len(data) and data[at : at + 4] == b"NDOB":
        record = read("LogRecord", data[at : at + UNIT])
        assert crc32c(uuid + number + at.to_bytes(8, "little") + data[at : at + 56]) == record["crc"]
        middle, end = at + UNIT + record["extra_bytes"], at + UNIT + record["extra_bytes"] + record["bytes"]
        assert crc32c(data[at + UNIT : end]) == record["body_crc"]
        found.append((record, data[at + UNIT : middle], data[middle:end]))
        at = -(-end // UNIT) * UNIT
    assert not any(data[at:])
    return found


def test_a_log_has_the_documented_format(tmp_path: Path) -> None:
    id, array = "5a" * 20, np.arange(7, dtype=np.int16)
    with di_store.open(memory="16MiB", disk=tmp_path, disk_capacity="64MiB") as store:
        store.put(array, id=id, durability="disk")
        store.delete(store.put(b"deleted", durability="disk"))
        store.put(1, ttl=3_600, durability="disk")
        store.publish("policy", array, keep=2, durability="disk")
        store.publish("policy", array, keep=2, durability="disk")
    uuid = bytes.fromhex((tmp_path / "epoch").read_text().split()[2])
    (path,) = tmp_path.glob("objects-*")
    header = read("LogHeader", path.read_bytes()[:UNIT])
    assert header["magic"].to_bytes(8, "little") == b":DIOLG01"
    assert (header["version"], header["uuid"].to_bytes(16, "little"), header["epoch"]) == (1, uuid, 1)
    assert header["number"] == int(path.name.removeprefix("objects-"), 16)
    assert crc32c(path.read_bytes()[:60]) == header["crc"]
    found = records(path, uuid)
    assert [record["number"] for record, _, _ in found] == [1, 2, 3, 4, 5]
    assert [record["kind"] for record, _, _ in found] == [1, 1, 1, 2, 2]
    assert [record["mark"] for record, _, _ in found] == [0, 0xFFFFFFFF, 0, 0, 0]
    assert [record["expires_ns"] != 0 for record, _, _ in found] == [False, False, True, False, False]
    assert found[0][0]["id"].to_bytes(20, "little").hex() == id
    assert found[0][2][:4] == b"DSA1"
    assert found[0][2][UNIT:] == array.tobytes()
    for (_, extra, body), version in zip(found[3:], (1, 2), strict=True):
        weights = read("WeightsExtra", extra[:16])
        assert (weights["version"], weights["oldest"], extra[16:]) == (version, 1, b"policy")
        assert body == found[0][2]
