"""Values built around arrays that lie elsewhere: as `decode` builds them, from the bytes that were announced alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import given

from di_store.base.errors import CorruptData
from di_store.objects.codec import ArrayLeaf, build, decode, encode, leaves_of, small_spans
from di_store.objects.codec.form import pack_header
from objects.test_codec import VALUES, same, stored
from objects.test_codec_damage import NODES, NUMBERS


def built(header: bytes, payload: Any, leaves: list[ArrayLeaf]) -> Any:
    """By `build`, with what `decode` makes of each array alone."""
    small = {(offset, size): payload[offset : offset + size] for offset, size in small_spans(header)}

    def leaf(found: ArrayLeaf) -> Any:
        leaves.append(found)
        raw = payload[found.offset : found.offset + found.bytes].copy() if found.bytes else np.empty(0, np.uint8)
        if not found.tensor:
            return np.ndarray(found.shape, found.dtype, raw if found.bytes else None)
        flat = torch.from_numpy(raw).view(found.dtype) if found.bytes else torch.empty(0, dtype=found.dtype)
        return flat.view(found.shape)

    return build(header, leaf, lambda offset, size: small[offset, size])


@given(VALUES)
def test_build_equals_decode(value: Any) -> None:
    encoded, leaves = encode(value), list[ArrayLeaf]()
    assert same(built(encoded.header, stored(encoded), leaves), decode(encoded.header, stored(encoded), copy=True))
    placed = {(leaf.offset, leaf.bytes) for leaf in leaves if leaf.bytes} | {
        span for span in small_spans(encoded.header) if span[1]
    }
    assert placed == set(zip(encoded.offsets, encoded.sizes, strict=True))


@given(VALUES)
def test_leaves_have_the_same_paths_in_the_value(value: Any) -> None:
    header = encode(value).header
    spans = {span: np.zeros(span[1], np.uint8) for span in small_spans(header)}
    if any(size for _, size in spans):
        return  # a text or a pickle, which zeros are not
    placed = leaves_of(build(header, lambda leaf: leaf, lambda offset, size: spans[offset, size]))
    given_leaves = leaves_of(value)
    for path, leaf in placed.items():
        if isinstance(leaf, ArrayLeaf):
            assert tuple(given_leaves[path].shape) == leaf.shape
            assert leaf.bytes == math.prod(leaf.shape) * leaf.dtype.itemsize


@given(NODES, NUMBERS)
def test_nonsense_headers_are_refused(node: Any, size: int) -> None:
    """As `decode` answers them; no byte is asked for that `small_spans` did not announce."""
    header, payload = pack_header(size, node), np.zeros(100, np.uint8)
    if size > payload.nbytes:
        return
    try:
        built(header, payload, [])
    except CorruptData:
        return
    except TypeError as error:
        if not any(part in str(error) for part in ("cannot import", "fields here")):
            raise
        return
    decode(header, payload, copy=True)
