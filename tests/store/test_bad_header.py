"""A store whose header is of another version, or damaged: attaching ends in a typed error and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pains import Program
from stored import SIZES

import di_store

OFFSETS = {name: value for name, value in SIZES.items() if "ArenaHeader." in name}

HOLD = """
import sys, di_store
with di_store.open(sys.argv[1], memory="16MiB") as store:
    store.put(7, id="ab" * 20)
    print("there", flush=True)
    sys.stdin.readline()
    assert store.check() == []
"""


@pytest.fixture
def holder(store_name: Callable[[], str]) -> Iterator[tuple[str, Program]]:
    name = store_name()
    with Program(HOLD, name) as program:
        assert program.line() == "there"
        yield name, program


def overwrite(pid: int, field: str, change: Callable[[int], int]) -> bytes:
    """Change a number of the header from outside; the bytes as they were."""
    folder = f"/proc/{pid}/fd"
    (path,) = [
        f"{folder}/{fd}" for fd in os.listdir(folder) if os.readlink(f"{folder}/{fd}").startswith("/memfd:di-store:")
    ]
    at, size = OFFSETS[f"ArenaHeader.{field}"], OFFSETS[f"ArenaHeader.{field}.bytes"]
    file = os.open(path, os.O_RDWR)
    try:
        before = os.pread(file, size, at)
        value = change(int.from_bytes(before, "little")) % (1 << 8 * size)
        assert os.pwrite(file, value.to_bytes(size, "little"), at) == size
    finally:
        os.close(file)
    return before


DAMAGE: list[tuple[str, Callable[[int], int], type[Exception]]] = [
    ("magic", lambda value: 0, di_store.CorruptData),
    ("layout_version", lambda value: value + 1, di_store.LayoutMismatch),
    ("header_bytes", lambda value: value + 8, di_store.LayoutMismatch),
    ("name", lambda value: -1, di_store.CorruptData),  # no end
    ("layout_count", lambda value: 1 << 31, di_store.CorruptData),
]
for part in (
    "slice_count",
    "range_bytes",
    "clients",
    "heap",
    "tables",
    "weights",
    "layouts",
    "slices",
    "bitmaps",
    "data",
):
    DAMAGE += [
        (part, lambda value: 0, di_store.CorruptData),
        (part, lambda value: value + 4096, di_store.CorruptData),
        (part, lambda value: value + (1 << 62), di_store.CorruptData),
    ]


def test_damaged_and_foreign_headers_are_refused(holder: tuple[str, Any]) -> None:
    name, program = holder
    for field, change, error in DAMAGE:
        before = overwrite(program.pid, field, change)
        with pytest.raises(error) as caught:
            di_store.attach(name)
        assert type(caught.value) is error, field
        overwrite(program.pid, field, lambda _, before=before: int.from_bytes(before, "little"))  # type: ignore[misc]
    with di_store.attach(name) as store:
        assert store.get(di_store.Ref.parse("ab" * 20)) == 7
    program.say()
    program.finish()
