"""Blocks as a machine may send them that somebody has broken into: each is a value, or one of a few errors.

A million at full scale. `make blocks` does that with the core under the address sanitizer, which also refuses any
allocation of more than 64 MiB.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from objects.test_raw_blocks import ARRAYS, TREE, packed, read_any

HEADER = 16
"""Where the header begins in a packed block: behind the form, its length, and that of the payload."""
CHECKED = 8
"""Where the bytes begin in a header that its checksum covers."""
VALUES: list[Any] = [
    *ARRAYS,
    TREE,
    None,
    2**80,
    "text" * 40,
    [{"a": (1, 2.5), 3: b"\0" * 90}] * 4,
    {"s": {1, 2}, "n": [[]]},
]
BLOCKS = [packed(value, b"DSF1") for value in VALUES]
ODD = [0, 1, 2, 7, 8, 63, 64, 65, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, -1, -2, -(2**63)]


def changed(raw: bytes, rng: random.Random, begin: int, end: int) -> bytearray:
    """Some of these bytes are others."""
    found = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        found[rng.randrange(begin, end)] = rng.choice((rng.randrange(256), 0, 0x7F, 0x80, 0xFF))
    return found


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """Any byte of it is another one."""
    return bytes(changed(raw, rng, 0, len(raw)))


def signed(raw: bytes, rng: random.Random) -> bytes:
    """The header says something else, and its checksum is right."""
    (size,) = struct.unpack("<I", raw[4:8])
    found = changed(raw, rng, HEADER + CHECKED, HEADER + size)
    if rng.random() < 0.3:  # bytes are missing, or too many
        at = rng.randrange(HEADER + CHECKED, HEADER + size)
        found[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
        size += len(found) - len(raw)
        found[4:8] = struct.pack("<I", size)
    found[HEADER + 4 : HEADER + CHECKED] = struct.pack("<I", zlib.crc32(found[HEADER + CHECKED : HEADER + size]))
    return bytes(found)


def cut(raw: bytes, rng: random.Random) -> bytes:
    """Its end is missing."""
    return raw[: rng.randrange(len(raw))]


def lying(raw: bytes, rng: random.Random) -> bytes:
    """Its lengths are others."""
    sizes = rng.choice(ODD) % 2**32, rng.choice(ODD) % 2**64
    return raw[:4] + struct.pack("<IQ", *sizes) + raw[HEADER:]


def array(raw: bytes, rng: random.Random) -> bytes:
    """An array's block with any shape."""
    head = bytes([rng.randrange(8), rng.choice(b"biufcOx"), rng.choice((0, 1, 4, 8)), 0])
    sizes = [rng.choice(ODD) % 2**64 for _ in range(7)]
    return b"DSA1" + head + struct.pack("<7Q", *sizes) + raw[:200]


def noise(raw: bytes, rng: random.Random) -> bytes:
    """Nothing of it."""
    return rng.choice((b"DSF1", b"DSP1", b"DSA1", b"")) + rng.randbytes(rng.randrange(200))


@pytest.mark.timeout(7200)
def test_arbitrary_blocks_never_crash_the_reader(count: Callable[[int, int], int]) -> None:
    rng = random.Random(5)
    for _ in range(count(4_000, 1_000_000)):
        (change,) = rng.choices((damaged, signed, cut, lying, array, noise), (3, 5, 1, 1, 2, 1))
        read_any(change(rng.choice(BLOCKS), rng), rng.randrange(64), rng.choice((None, False, True)), True)


def test_a_rewritten_header_passes_its_checksum() -> None:
    rng = random.Random(6)
    for _ in range(2_000):
        found = signed(BLOCKS[4], rng)
        (size,) = struct.unpack("<I", found[4:8])
        header = found[HEADER : HEADER + size]
        assert zlib.crc32(header[CHECKED:]) == int.from_bytes(header[4:CHECKED], "little")
