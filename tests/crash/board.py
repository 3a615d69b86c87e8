"""What children tell without a call: counters in a shared file that a kill can't take back, and rows that prove whole.

A child stores a counter after what it counts was acknowledged, so at most one call is unaccounted for when it dies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

PROGRESS, ACKED, DELETED, STOP, ITEMS, WINDOWS, PUBLISHED, CLOSED = range(8)
"""Words of a row: loops done; objects or numbers acknowledged; objects whose delete has begun (all below); asked to
stop; items acknowledged in tables `replay` and `windows`; last version published; writers closed, whose last
items nobody acknowledged."""
WORDS = 8
ROWS = 4096
WIDTH = 64
"""Bytes of a stamped row."""


class Board:
    """Rows of counters, one per child ever started on a field."""

    def __init__(self, path: str, *, create: bool = False) -> None:
        self.path = path
        self.words = np.memmap(path, np.uint64, "w+" if create else "r+", shape=(ROWS, WORDS))

    def get(self, row: int, word: int) -> int:
        """A counter."""
        return int(self.words[row, word])

    def put(self, row: int, word: int, value: int) -> None:
        """Store a counter: one aligned word."""
        self.words[row, word] = value


class Log:
    """Numbers that one consumer received; the count is stored last."""

    def __init__(self, path: str, *, create: bool = False, capacity: int = 1 << 20) -> None:
        self._words = np.memmap(path, np.int64, "w+" if create else "r+", shape=(capacity + 1,))

    def add(self, numbers: Any) -> None:
        """Append."""
        numbers = np.asarray(numbers, np.int64).ravel()
        count = int(self._words[0])
        self._words[1 + count : 1 + count + len(numbers)] = numbers
        self._words[0] = count + len(numbers)

    def all(self) -> Any:
        """int64, in the order received."""
        return np.array(self._words[1 : 1 + int(self._words[0])])


def stamp(numbers: Any, width: int = WIDTH) -> Any:
    """`[…, width]` uint8, every byte of which depends on the number."""
    base = np.asarray(numbers).astype(np.uint64)[..., None] * np.uint64(0x9E3779B97F4A7C15)
    return (
        (base >> np.uint64(13)) + np.arange(width, dtype=np.uint64) * ((base >> np.uint64(40)) | np.uint64(1))
    ).astype(np.uint8)


def vector(numbers: Any) -> Any:
    """`[…, 3]` float32 that only this number has."""
    numbers = np.asarray(numbers)
    return np.stack([numbers % 8191, numbers // 8191 % 8191, numbers % 127], axis=-1).astype(np.float32)


def reward(numbers: Any) -> Any:
    """float32, small whole numbers: sums are exact."""
    return (np.asarray(numbers) % 13).astype(np.float32)


def rows(numbers: Any, terminated: Any = False, truncated: Any = False) -> dict[str, Any]:
    """Steps with these numbers."""
    numbers = np.asarray(numbers, np.int64)
    return {
        "n": numbers,
        "obs": stamp(numbers),
        "vec": vector(numbers),
        "reward": reward(numbers),
        "terminated": np.broadcast_to(np.asarray(terminated), numbers.shape).copy(),
        "truncated": np.broadcast_to(np.asarray(truncated), numbers.shape).copy(),
    }


def check_transitions(data: Any) -> None:
    """Every column of every item is what its number says, up to its `steps`."""
    numbers, steps = np.asarray(data["n"]), np.asarray(data["steps"])
    assert ((steps >= 1) & (steps <= 3)).all(), steps
    assert (data["obs"] == stamp(numbers)).all(), "torn obs"
    assert (data["next_obs"] == stamp(numbers + steps)).all(), "torn next_obs"
    assert (data["vec"] == vector(numbers)).all(), "torn vec"
    total = sum(np.where(i < steps, reward(numbers + i), 0) for i in range(3))
    assert (data["reward"] == total).all(), "torn reward"
    assert (np.asarray(data["discount"]) == np.where(data["terminated"], 0, 1)).all(), "torn discount"


def check_windows(data: Any) -> None:
    """Numbers run on by one inside the mask, everything else is zero."""
    mask = np.asarray(data["mask"]).astype(bool)
    numbers = np.asarray(data["n"])
    assert mask[:, 0].all()
    expected = numbers[:, :1] + np.arange(numbers.shape[1])
    assert (np.where(mask, numbers, 0) == np.where(mask, expected, 0)).all(), "torn numbers"
    assert (data["obs"] == np.where(mask[..., None], stamp(expected), 0)).all(), "torn obs"
    assert (data["reward"] == np.where(mask, reward(expected), 0)).all(), "torn reward"


def object_id(row: int, number: int) -> str:
    """The id of object `number` of the child with that row."""
    return f"{row:08x}{number:032x}"


def object_value(row: int, number: int) -> Any:
    """Some size from 40 bytes to 2 MB, some shape; everything in it follows from row and number."""
    seed = (row << 20) + number
    size = (40, 300, 2_000, 9_000, 70_000, 200, 30, 2_000_000 if number % 40 == 7 else 4_000)[number % 8]
    array = stamp(seed, size)
    return array if number % 3 else {"a": array, "n": [number, str(number)], "b": vector(seed)}


def check_object(value: Any, row: int, number: int) -> None:
    """It is the value that was put."""
    expected = object_value(row, number)
    if isinstance(expected, dict):
        assert value["n"] == expected["n"]
        assert (value["b"] == expected["b"]).all()
        value, expected = value["a"], expected["a"]
    assert value.shape == expected.shape
    assert (value == expected).all(), f"torn object {row}/{number}"
