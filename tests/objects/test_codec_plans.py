"""Values of an `Opaque` table decoded by plans: the same as by reading each header, whatever stands between them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import di_store
from di_store.base.errors import CorruptData
from di_store.objects import codec
from di_store.objects.codec.form import Tag, pack_header
from di_store.replay.batch import decode_blobs, encode_blob


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="128MiB", seed=1) as made:
        yield made


def same(one: Any, other: Any) -> bool:
    """Equal in type, value, dtype and shape, through containers."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool(one.eq(other).all())
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


ARRAYS = hnp.arrays(
    st.sampled_from([np.dtype(each) for each in ("u1", "<i2", "<f4", "<f8", "?", "<c8", "<U3", "<M8[s]")]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    elements={"allow_nan": False},
)
TENSORS = st.builds(
    lambda dtype, shape: torch.arange(int(np.prod(shape))).reshape(shape).to(dtype),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16]),
    st.sampled_from([(), (3,), (2, 3), (0, 2), (1, 2, 2)]),
)
LEAVES = st.one_of(
    ARRAYS, TENSORS, st.integers(), st.booleans(), st.none(), st.text(max_size=9), st.binary(max_size=9),
    st.floats(allow_nan=False), st.builds(np.float32, st.floats(0, 9, width=32)),
    st.builds(bytearray, st.binary(max_size=3)),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=4) | st.integers(0, 3), inner, max_size=3),
        st.dictionaries(st.text(max_size=4), inner, max_size=2).map(OrderedDict),
    ),
    max_leaves=8,
)


def joined(values: list[Any]) -> tuple[np.ndarray[Any, Any], list[int]]:
    blobs = [np.empty(0, np.uint8) if value is GONE else encode_blob(value) for value in values]
    return np.concatenate([*blobs, np.empty(0, np.uint8)]), np.cumsum([0, *map(len, blobs)]).tolist()


GONE = object()


@settings(max_examples=300, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=12))
def test_cached_plans_equal_plain_decoding(kinds: list[Any], order: list[int]) -> None:
    """Values come again and again, so that their headers are first read, then compiled, then built."""
    values = [kinds[number % len(kinds)] for number in order]
    for _ in range(3):
        found = decode_blobs(*joined(values))
        assert all(map(same, found, values))


def test_equal_headers_with_other_payloads_decode_right(store: Any) -> None:
    table = store.create_table("t", capacity=64, view=di_store.Opaque(), sampler=di_store.Fifo())
    for number in range(64):
        table.insert({"obs": torch.full((3, 2), number), "next": np.full(5, number), "done": False})
    for _ in range(4):
        batch = table.sample(64, replace=False)
        for number, value in enumerate(batch.data):
            assert value["obs"].tolist() == [[number] * 2] * 3
            assert value["next"].tolist() == [number] * 5
            assert value["done"] is False


def test_decoded_values_do_not_share_memory(store: Any) -> None:
    """Tensors belong to the batch: writing to one changes neither the store nor another draw of the item."""
    table = store.create_table("t", capacity=4, view=di_store.Opaque())
    table.insert({"obs": torch.zeros(3), "array": np.zeros(3)})
    for _ in range(5):
        batch = table.sample(3)
        for place, value in enumerate(batch.data):
            value["obs"] += place + 1
            with pytest.raises(ValueError, match="read-only"):
                value["array"][0] = 1
        assert [value["obs"].tolist() for value in batch.data] == [[place + 1.0] * 3 for place in range(3)]
    kept = table.sample(1).data[0]["obs"]
    for _ in range(20):
        for value in table.sample(3).data:
            value["obs"].fill_(9.0)
    assert kept.tolist() == [0.0] * 3, "its memory is not used again while the tensor lives"


def test_evicted_items_decode_to_none() -> None:
    assert decode_blobs(*joined([1, GONE, "a", GONE])) == [1, None, "a", None]


def test_a_truncated_payload_is_refused() -> None:
    """A known header with too little payload is refused as an unknown one is."""
    values, ends = joined([np.arange(100.0)] * 3)
    assert len(decode_blobs(values, ends)) == 3
    short = values[: ends[1]].copy()
    with pytest.raises(CorruptData):
        decode_blobs(short[:-64], [0, len(short) - 64])


def test_long_headers_are_not_cached() -> None:
    plans, buffer = codec.Plans(), codec.Bytes(np.zeros(64, np.uint8))
    value = list(range(3_000))
    header = codec.encode(value).header
    for _ in range(4):
        assert plans.decode(header, buffer, 0, 64) == value
    assert not plans._known
    assert not plans._seen


def test_the_plan_cache_is_bounded() -> None:
    plans, buffer = codec.Plans(), codec.Bytes(np.zeros(64, np.uint8))
    for number in range(5_000):
        header = codec.encode([number, number + 1]).header
        for _ in range(3):
            assert plans.decode(header, buffer, 0, 64) == [number, number + 1]


def test_a_misaligned_tensor_has_no_plan() -> None:
    """A header that no encoder makes: the offset is no multiple of the element's size."""
    raw = np.arange(64, dtype=np.uint8)
    buffer, header = codec.Bytes(raw), pack_header(64, [Tag.TENSOR, "int64", [2], 4])
    plans = codec.Plans()
    for _ in range(4):
        assert plans.decode(header, buffer, 0, 64).numpy().tobytes() == bytes(range(4, 20))
