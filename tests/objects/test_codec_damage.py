"""Damaged and malicious bytes: `decode` answers each with CorruptData, and reads nothing outside of the payload."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from di_store.base.errors import AccessDenied, CorruptData, LayoutMismatch
from di_store.objects.codec import decode, encode
from di_store.objects.codec.form import MAGIC, VERSION, Tag, pack_header
from objects.test_codec import VALUES, same, stored

GOLDEN = (
    "44496f620caf40f20192cd048c940293a177a162a46c6f6e67939407a33e693292020300930192a1780392990301fe920ab43078343030303030"
    "303030303030303030303030cb3ff8000000000000c0c3a2c3a9c40372617793049309a33c6634c40400000040930bcb0000000000000000cb3f"
    "f0000000000000930c40cd044cc0"
)


def test_encoding_has_the_golden_bytes() -> None:
    """What version 1 wrote stays readable, and is still written so; a change needs another VERSION."""
    value: Any = OrderedDict()
    value["w"] = np.arange(6, dtype=">i2").reshape(2, 3)
    value["b"] = {"x": [1, -2, 2**70, 1.5, None, True, "é", b"raw"], 3: (np.float32(2), 1j)}
    value["long"] = "x" * 1100
    encoded = encode(value)
    assert (VERSION, encoded.header.hex(), encoded.offsets, encoded.sizes) == (1, GOLDEN, [0, 64], [12, 1100])
    payload = np.zeros(1164, np.uint8)
    payload[:12] = list(bytes.fromhex("000000010002000300040005"))
    payload[64:] = ord("x")
    assert same(decode(bytes.fromhex(GOLDEN), payload), value)


def test_another_format_version_is_refused() -> None:
    header = bytearray(encode([1, np.arange(3)]).header)
    assert (header[:4], header[8]) == (MAGIC, VERSION)
    header[8] = VERSION + 1
    with pytest.raises(CorruptData, match="checksum"):
        decode(header, np.zeros(24, np.uint8))
    header[4:8] = zlib.crc32(header[8:]).to_bytes(4, "little")
    with pytest.raises(LayoutMismatch, match=f"format {VERSION + 1}, and this process knows format {VERSION}"):
        decode(header, np.zeros(24, np.uint8))


@given(st.binary() | st.binary().map(lambda tail: MAGIC + tail))
def test_arbitrary_bytes_are_refused_as_a_header(header: bytes) -> None:
    with pytest.raises(CorruptData):
        decode(header, np.zeros(100, np.uint8))


@given(VALUES, st.data())
def test_every_flipped_header_bit_is_detected(value: Any, data: st.DataObject) -> None:
    encoded = encode(value)
    header = bytearray(encoded.header)
    header[data.draw(st.integers(0, len(header) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptData):
        decode(header, stored(encoded))


@given(VALUES, st.data())
def test_a_short_payload_is_detected(value: Any, data: st.DataObject) -> None:
    encoded = encode(value)
    if encoded.payload_bytes:
        payload = stored(encoded)[: data.draw(st.integers(0, encoded.payload_bytes - 1))]
        with pytest.raises(CorruptData, match="bytes of payload"):
            decode(encoded.header, payload)


def test_a_damaged_pickle_is_detected() -> None:
    encoded = encode({"a": {str(i) for i in range(1000)}})
    payload = stored(encoded).copy()
    payload[payload.size // 2] ^= 1
    with pytest.raises(CorruptData, match="does not match its checksum"):
        decode(encoded.header, payload)


NUMBERS = st.sampled_from([0, 1, 2, 63, 64, 99, 100, 101, -1, 2**31, 2**62, 2**63, 2**64 - 1])
LEAVES = st.none() | st.booleans() | NUMBERS | st.integers(-3, 20) | st.floats() | st.text() | st.binary()
DTYPE_NODES = st.recursive(
    st.sampled_from(
        ["<f4", "|u1", "<U3", "|O8", "O", "f4,f4", "<f3", "bfloat16", "|V0", "<M8[ns]", "<M8[zz]", "float32"]
    )
    | LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries(
            {"names": st.lists(st.text(max_size=2), max_size=2), "formats": st.lists(inner, max_size=2)},
            optional={"offsets": st.lists(NUMBERS, max_size=2), "itemsize": NUMBERS},
        )
    ),
    max_leaves=4,
)
SHAPES = st.lists(NUMBERS, max_size=4) | LEAVES
NOT_PICKLES = [int(tag) for tag in Tag if tag is not Tag.PICKLE]


def _tagged(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def of(tag: Tag, *rest: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.tuples(st.just(int(tag)), *rest).map(list)

    many = st.lists(inner, max_size=4)
    spans = st.lists(st.lists(NUMBERS, max_size=3), max_size=2)
    return st.one_of(
        of(Tag.ARRAY, DTYPE_NODES, SHAPES, NUMBERS),
        of(Tag.TENSOR, DTYPE_NODES, SHAPES, NUMBERS),
        of(Tag.SCALAR, DTYPE_NODES, st.binary(max_size=20)),
        of(Tag.DICT, many, many),
        of(Tag.ORDERED, many, many, inner),
        of(Tag.NAMED, st.sampled_from(["test_codec:Point", "builtins:int", "x", "os:sep", ""]), inner),
        of(Tag.DATACLASS, st.sampled_from(["builtins:dict", "math:pi", ":"]), many, many),
        of(Tag.PICKLE, st.lists(NUMBERS, max_size=4), spans),
        of(Tag.TEXT, NUMBERS, NUMBERS),
        of(Tag.TEXT, st.binary()),
        of(Tag.INT, LEAVES),
        of(Tag.COMPLEX, LEAVES, LEAVES),
        of(Tag.BYTEARRAY, LEAVES, NUMBERS),
        st.tuples(st.sampled_from([*NOT_PICKLES, 0, 99, -1, True, "x"]), many).map(lambda pair: [pair[0], *pair[1]]),
        many,
        st.dictionaries(st.text(), inner, max_size=2),
    )


NODES = st.recursive(LEAVES, _tagged, max_leaves=8)


@given(NODES, NUMBERS, st.sampled_from([None, False, True]), st.booleans())
def test_a_nonsense_header_decodes_or_is_corrupt(node: Any, size: int, copy: bool | None, foreign: bool) -> None:
    """Any node either decodes or is `CorruptData`; nothing else, and no read outside of the payload."""
    payload = np.zeros(100, np.uint8)
    try:
        decode(pack_header(size, node), payload, copy, foreign)
    except CorruptData:
        pass
    except AccessDenied:
        if not foreign:
            raise
    except TypeError as error:
        if not any(part in str(error) for part in ("cannot import", "fields here", "no such class")):
            raise


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x92\x00", b"\x91" * 100_000, b"\x92\xc0\xc0", b"\x92\xff\xc0", b"\xa1\xff"],
)
def test_a_header_with_a_foreign_body_is_refused(body: bytes) -> None:
    raw = bytes([VERSION]) + body
    with pytest.raises(CorruptData):
        decode(MAGIC + zlib.crc32(raw).to_bytes(4, "little") + raw, np.zeros(10, np.uint8))


def test_a_payload_of_another_type_is_refused() -> None:
    header = encode([np.arange(3)]).header
    for payload in (np.zeros(24, np.int8), np.zeros((3, 8), np.uint8)):
        with pytest.raises(TypeError, match="payload"):
            decode(header, payload)
