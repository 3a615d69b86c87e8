"""Objects and rows that prove whole: every byte follows from the object's id, or from the row's number.

An id says who put the object, its number and its size, so that whoever lists ids can check what is there and add it
up. The first two digits are chance: `store.keys(start=…)` from a place taken by lot finds objects of everybody.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from crash.board import reward, rows, stamp, vector

import di_store

PAGE = 4096
VAULT, KEPT, FLEETING = 0xFF, 0xFE, 0xFD
"""First two digits of objects that nobody deletes: put at the start, and later (there should be none); of objects with
a time to live."""
PLACES = FLEETING
"""First two digits of all others lie below."""
BLOCK = 256
"""Pages compared at once: what a comparison needs for itself stays small."""


# -- objects ----------------------------------------------------------------------------------------------------------


def object_id(place: int, row: int, number: int, size: int) -> str:
    """40 hex digits: place 2, row of the board 6, number 16, payload bytes 16."""
    return f"{place:02x}{row:06x}{number:016x}{size:016x}"


def size_of(ref: Any) -> int:
    """Payload bytes of the object with this id."""
    return int(ref.id[24:], 16)


def all_refs(store: Any) -> list[Any]:
    """Refs of all objects."""
    found: list[Any] = []
    while some := store.keys(start=found[-1] if found else None, n=1000):
        found += some
    return found


def some_size(rng: random.Random, largest: int) -> int:
    """Bytes: 91 % from 256 B to 16 KiB, 9 % from an eighth of the largest to the largest, evenly in their logarithm."""
    low, high = (256, 16 << 10) if rng.random() < 0.91 else (largest >> 3, largest)
    return int(low * (high / low) ** rng.random())


def _base(name: str) -> Any:
    return stamp(int(name[2:24], 16) % (1 << 61), PAGE)


class Press:
    """Makes values in one buffer, touched at the start, so that making them takes no memory."""

    def __init__(self, largest: int) -> None:
        self._buffer = np.zeros(largest + PAGE, np.uint8)
        self._buffer.fill(1)

    def value(self, name: str) -> Any:
        """The object of that id, uint8[size]; some lie in a dict. Good until the next call."""
        size, base = int(name[24:], 16), _base(name)
        pages = -(-size // PAGE)
        body = self._buffer[: pages * PAGE].reshape(pages, PAGE)
        body[:] = base
        body.view(np.uint64)[:, 0] += np.arange(pages, dtype=np.uint64)
        array = self._buffer[:size]
        return {"id": name, "body": array} if int(name[8:24], 16) % 3 == 0 else array


def check_object(value: Any, name: str) -> None:
    """It is the value that was put under this id."""
    if isinstance(value, dict):
        assert value["id"] == name, f"object {name} holds {value['id']}"
        value = value["body"]
    size, base = int(name[24:], 16), _base(name)
    assert value.shape == (size,), f"object {name} has shape {value.shape}"
    pages = size // PAGE
    body = value[: pages * PAGE].reshape(pages, PAGE)
    for first in range(0, pages, BLOCK):
        some = body[first : first + BLOCK]
        assert (some[:, 8:] == base[8:]).all(), f"torn object {name}"
        heads = np.ascontiguousarray(some[:, :8]).view(np.uint64)[:, 0]
        expected = base[:8].view(np.uint64)[0] + np.arange(first, first + len(some), dtype=np.uint64)
        assert (heads == expected).all(), f"torn object {name}"
    tail = base.copy()
    tail.view(np.uint64)[0] += np.uint64(pages)
    assert (value[pages * PAGE :] == tail[: size - pages * PAGE]).all(), f"torn object {name}"


# -- rows -------------------------------------------------------------------------------------------------------------

TEXT_MAX = 24
"""Longest ragged row."""


def schema() -> dict[str, Any]:
    """Columns of the stream: those of the crash tests and a ragged one."""
    return rows(1) | {"text": di_store.Spec((None,), "i4", max=TEXT_MAX)}


def text(number: int) -> Any:
    """int32, 0 to 24 of them."""
    return ((number % 100_003) * 7 + np.arange(number * 5 % (TEXT_MAX + 1))).astype(np.int32)


def steps(numbers: Any, terminated: Any = False, truncated: Any = False) -> dict[str, Any]:
    """Rows with these numbers, `[lanes]` or `[T, lanes]`."""
    listed = np.asarray(numbers).tolist()
    texts = [[text(n) for n in each] for each in listed] if np.ndim(numbers) == 2 else [text(n) for n in listed]
    return rows(numbers, terminated, truncated) | {"text": texts}


def check_notes(data: Any) -> None:
    """Single rows, with their ragged column."""
    numbers = np.asarray(data["n"])
    assert (data["obs"] == stamp(numbers)).all(), "torn obs"
    assert (data["vec"] == vector(numbers)).all(), "torn vec"
    assert (data["reward"] == reward(numbers)).all(), "torn reward"
    for number, found in zip(numbers.tolist(), data["text"], strict=True):
        expected = text(number)
        assert len(found) == len(expected), f"torn text of row {number}: {len(found)}, not {len(expected)} long"
        assert (np.asarray(found) == expected).all(), f"torn text of row {number}"
