"""Arrays lie in a store in the core's own form, whichever way they came: what a client puts, and copies of nodes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store
from di_store.base.errors import CorruptData
from di_store.client.copying import head_of, make_copy
from di_store.client.store import RemoteStore
from di_store.objects import codec
from di_store.objects.access import Objects
from di_store.objects.blocks import array_head, payload_start

from .nodes import Node, node

PLAIN = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (3, 0, 2), (1, 2, 3, 1, 2), (70_000,), (300, 300)]
ARRAYS = [np.zeros(shape, dtype) for dtype in PLAIN for shape in SHAPES] + [np.arange(12).reshape(3, 4).T]
PACKED: list[Any] = [
    np.zeros(3, ">i4"),
    np.zeros(3, "M8[s]"),
    np.zeros(3, np.longdouble),
    np.zeros(3, "S4"),
    np.zeros(3, [("a", "i4")]),
    np.zeros((1,) * 6),
    {"a": np.zeros(3)},
    [np.zeros(3)],
    7,
    None,
    np.float32(1),
]


@pytest.fixture(scope="module")
def served() -> Iterator[Node]:
    with node(f"t-{os.getpid()}-blocks", "--allow-pickle") as made:
        yield made


def block(store: di_store.Store, ref: di_store.Ref) -> bytes:
    """The whole of an object, as it lies in the store."""
    return Objects(store._backend.session).raw(ref.raw, 10).tobytes()


def test_arrays_put_by_a_client_have_the_local_layout(far: di_store.Store, near: di_store.Store) -> None:
    """Also what is sent in pieces. Whoever reads it gets the same array."""
    for value in ARRAYS:
        sent, put = far.put(value), near.put(value)
        if value.flags.c_contiguous:
            assert block(near, sent) == block(near, put)
        assert block(near, sent)[:4] == b"DSA1"
        for store in (near, far):
            found = store.get(sent)
            assert (found.dtype, found.shape) == (value.dtype, value.shape)
            assert (found == value).all()
            assert not found.flags.writeable
    for value in PACKED:
        assert block(near, far.put(value))[:4] == b"DSP1"


def test_copied_arrays_have_the_layout_of_the_original(far: di_store.Store, near: di_store.Store) -> None:
    assert isinstance(far._backend, RemoteStore)
    session = far._backend.session
    with di_store.open(memory="512MiB") as other:
        for value in [*ARRAYS, *PACKED]:
            ref = near.put(value)
            head, total = head_of(session, ref.raw, 10)
            make_copy(other._backend.session, session, ref.raw, head, total, 10)
            there, here = block(near, ref), block(other, ref)
            start = payload_start(np.frombuffer(there, np.uint8))
            front = b"DSF1" if there[:4] == b"DSP1" else b"DSA1"
            assert here == front + there[4:start] + there[start:]


def test_array_headers_that_do_not_fit_are_refused(near: di_store.Store) -> None:
    """By the core, whoever has made them."""
    arena, encoded = near._backend.session.arena, codec.encode(np.zeros((3, 4), "f4"))
    head = array_head(encoded.header, encoded.payload_bytes)
    assert head is not None
    arena.reserve(head, 48, secrets.token_bytes(20), 0.0)
    changed = bytearray(head)
    changed[5:6] = b"V"
    for wrong, size in ((head, 47), (head, 49), (head, 0), (head + b"\0", 48), (bytes(changed), 48)):
        with pytest.raises(CorruptData):
            arena.reserve(wrong, size, secrets.token_bytes(20), 0.0)


def test_blocks_with_other_headers_stay_packed() -> None:
    """Nothing is raised: the value stays packed, and whoever reads it finds what is wrong."""
    good = codec.encode(np.zeros(3)).header
    for header in (b"", good[:-1], good[:6] + b"?" + good[7:], codec.encode(np.zeros(3, "U2")).header, bytes(100)):
        assert array_head(header, 24) is None
    assert array_head(good, 23) is None
    assert array_head(good, 24) is not None
