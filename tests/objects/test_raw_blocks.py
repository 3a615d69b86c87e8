"""Blocks of objects as bytes: read pinned, read from any memory, written in place as objects and as weights."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreign_values import arena_of, reserved
from hypothesis import given
from hypothesis import strategies as st
from pains import Program

import di_store
from di_store import ObjectNotFound, StoreError, _core
from di_store.base.errors import AccessDenied, CorruptData, LayoutMismatch
from di_store.objects.codec import encode
from di_store.objects.codec.form import pack_header
from objects.test_codec import VALUES, same
from objects.test_codec_damage import NODES, NUMBERS

ARRAYS = [np.arange(24, dtype=np.int16).reshape(4, 6), np.array(3.0), np.zeros((3, 0)), np.ones(9, "?")]
TREE: dict[str, Any] = {"a": np.arange(5.0), "b": [1, "two", b"x" * 2000, 2**70], "t": torch.arange(6).reshape(2, 3)}


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB") as opened:
        yield opened
        gc.collect()
        assert opened.check() == []


def tiers(folder: Path, **options: Any) -> di_store.Store:
    return di_store.open(**{"memory": "32MiB", "disk": folder, "disk_capacity": "64MiB", **options})


def packed(value: Any, form: bytes = b"DSP1") -> bytes:
    """A packed block of a value."""
    encoded = encode(value)
    size = encoded.payload_bytes
    block = bytearray(_start(encoded.header) + size)
    block[: 16 + len(encoded.header)] = struct.pack("<4sIQ", form, len(encoded.header), size) + encoded.header
    start = _start(encoded.header)
    for buffer, offset, count in zip(encoded.buffers, encoded.offsets, encoded.sizes, strict=True):
        block[start + offset : start + offset + count] = np.frombuffer(buffer, np.uint8).tobytes()
    return bytes(block)


def _start(header: bytes) -> int:
    return -(-(16 + len(header)) // 64) * 64


def placed(raw: bytes, shift: int) -> np.ndarray[Any, Any]:
    """These bytes at an address that is `shift` more than a multiple of 64."""
    room = np.zeros(len(raw) + 128, np.uint8)
    at = -room.ctypes.data % 64 + shift
    room[at : at + len(raw)] = np.frombuffer(raw, np.uint8)
    return room[at : at + len(raw)]


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [*ARRAYS, TREE, {"s": {1, 2}}, None])
def test_a_raw_block_holds_the_value(store: di_store.Store, value: Any) -> None:
    arena, ref = arena_of(store), store.put(value)
    block = arena.raw(ref.raw)
    assert (block.dtype, block.ndim, block.flags.writeable) == (np.uint8, 1, False)
    with pytest.raises(ValueError, match="WRITEABLE"):
        block.flags.writeable = True
    assert same(_core.read_block(block, None), store.get(ref))
    assert same(_core.read_block(block.copy(), None), store.get(ref))
    assert bytes(block[:4]) == (b"DSA1" if isinstance(value, np.ndarray) else b"DSP1")
    if bytes(block[:4]) == b"DSP1" and value is not TREE:
        assert block.tobytes() == packed(value)


def test_a_raw_block_is_pinned(store: di_store.Store) -> None:
    ref = store.put(np.full(1 << 20, 7, np.uint8))
    block = arena_of(store).raw(ref.raw)[64:]
    assert store.delete(ref) == 1
    for _ in range(80):
        store.delete(store.put(np.zeros(1 << 20, np.uint8)))
    assert (block == 7).all()
    assert store.stats()["pending"] >= 1 << 20
    del block
    store.put(1)
    assert store.stats()["pending"] == 0


def test_a_missing_block_raises(store: di_store.Store) -> None:
    arena = arena_of(store)
    with pytest.raises(ObjectNotFound):
        arena.raw(b"x" * 20)
    with pytest.raises(ValueError, match="20 bytes"):
        arena.raw(b"x")
    with pytest.raises(ObjectNotFound, match="no weights named 'w'"):
        arena.raw_weights("w", 1)
    store.publish("w", TREE)
    with pytest.raises(ObjectNotFound):
        arena.raw_weights("w", 2)
    assert same(_core.read_block(arena.raw_weights("w", 1), None), store.latest("w").value)  # type: ignore[union-attr]


def test_blocks_of_objects_on_disk_are_read(tmp_path: Path) -> None:
    """What is not in memory is read into memory of this process, or comes back."""
    with tiers(tmp_path, memory="14MiB") as store:
        refs = [store.put(np.full(1 << 20, number, np.uint8), timeout=60) for number in range(30)]
        assert store.stats()["disk"]["objects"] > 10
        for turn in range(2):
            for number, ref in enumerate(refs):
                found = _core.read_block(arena_of(store).raw(ref.raw), None)
                assert found.shape == (1 << 20,), turn
                assert (found == number).all()


# --- blocks anywhere --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0, 1, 2, 4, 8, 16, 33, 63])
@pytest.mark.parametrize("copy", [None, False, True])
def test_a_block_may_lie_at_any_address(store: di_store.Store, shift: int, copy: bool | None) -> None:
    for value in [*ARRAYS, TREE, {"c": np.ones(3, np.complex128), "t": torch.ones(3, dtype=torch.complex128)}]:
        raw = arena_of(store).raw(store.put(value).raw).tobytes()
        found = _core.read_block(placed(raw, shift), copy)
        assert same(found, value)
        arrays = [found] if isinstance(found, np.ndarray) else [x for x in found.values() if isinstance(x, np.ndarray)]
        assert all(x.flags.aligned and x.flags.writeable == (copy is True) for x in arrays)


def test_views_keep_the_block_alive(store: di_store.Store) -> None:
    block = placed(packed(TREE), 0)
    found = _core.read_block(block, None)
    assert np.shares_memory(found["a"], block)
    assert not np.shares_memory(_core.read_block(block, True)["a"], block)
    assert np.shares_memory(_core.read_block(block, False)["t"].numpy(), block)
    del block
    gc.collect()
    assert found["a"].tolist() == [0, 1, 2, 3, 4]


def test_invalid_blocks_are_refused() -> None:
    good = np.frombuffer(packed(TREE), np.uint8)
    for block in (good.view(np.int8), good[::2], good.reshape(1, -1), good.tobytes()):
        with pytest.raises(TypeError, match="array of uint8"):
            _core.read_block(block, None)  # type: ignore[arg-type]
    for bytes_ in (b"", b"DSP1", b"DSA1" + bytes(59), b"DSP1" + bytes(200), b"DSX1" + bytes(60)):
        with pytest.raises(CorruptData):
            _core.read_block(np.frombuffer(bytes_, np.uint8), None)


@pytest.mark.parametrize("shape", [(0, 2**62), (2**62, 0), (2**33, 2**33), (-1, 0), (0, 2**62, 2**62)])
def test_impossible_array_shapes_are_refused(shape: tuple[int, ...]) -> None:
    sizes = (*shape, *[0] * (5 - len(shape)))
    head = b"DSA1" + bytes([len(shape)]) + b"f" + bytes([8, 0]) + struct.pack("<Q5qQ", 0, *sizes, 0)
    with pytest.raises(CorruptData):
        _core.read_block(np.frombuffer(head, np.uint8), None)


def read_any(raw: bytes, shift: int, copy: bool | None, foreign: bool | None) -> None:
    """Any bytes are a value, or one of these errors."""
    try:
        _core.read_block(placed(raw, shift), copy, foreign)
    except (CorruptData, LayoutMismatch):
        pass
    except AccessDenied:
        assert foreign is not False
    except TypeError as error:
        if not any(part in str(error) for part in ("cannot import", "fields here", "no such class", "no field")):
            raise


COPIES, ORIGINS, SHIFTS = st.sampled_from([None, False, True]), st.sampled_from([None, True]), st.integers(0, 63)
FORMS = st.sampled_from([b"DSP1", b"DSF1", b"DSA1"])


@given(FORMS, st.binary(max_size=200), SHIFTS, COPIES, ORIGINS)
def test_arbitrary_bytes_never_crash_the_reader(
    form: bytes, rest: bytes, shift: int, copy: bool | None, foreign: bool | None
) -> None:
    read_any(form + rest, shift, copy, foreign)


HEADS = st.tuples(
    st.sampled_from([0, 1, 8, 64, 100, 2**63, 2**64 - 1]),
    st.lists(st.sampled_from([-1, 0, 1, 2, 8, 2**31, 2**62, 2**63 - 1]), min_size=5, max_size=5),
)


@given(st.integers(0, 7), st.sampled_from("biufcxO"), st.sampled_from([0, 1, 2, 4, 8, 16]), HEADS, SHIFTS, COPIES)
def test_arbitrary_array_headers_never_crash_the_reader(
    ndim: int, kind: str, size: int, head: Any, shift: int, copy: bool | None
) -> None:
    of, shape = head
    raw = b"DSA1" + bytes([ndim]) + kind.encode() + bytes([size, 0]) + struct.pack("<Q5qQ", of, *shape, 0)
    read_any(raw + bytes(130), shift, copy, None)


@given(NODES, NUMBERS, st.sampled_from([b"DSP1", b"DSF1"]), SHIFTS, COPIES)
def test_arbitrary_nodes_never_crash_the_reader(
    node: Any, size: int, form: bytes, shift: int, copy: bool | None
) -> None:
    """Headers with a sound checksum whose nodes mean nothing. Trusted ones hold no pickle that loads."""
    header = pack_header(min(size, 100), node)
    block = struct.pack("<4sIQ", form, len(header), 100) + header
    read_any(block.ljust(_start(header), b"\0") + bytes(100), shift, copy, None)


@given(VALUES, st.data(), SHIFTS)
def test_damaged_blocks_raise_or_decode(value: Any, data: st.DataObject, shift: int) -> None:
    """Cut anywhere, or with any byte of form and header changed."""
    raw = packed(value, b"DSF1")
    head = 16 + struct.unpack("<I", raw[4:8])[0]
    with pytest.raises(CorruptData):
        _core.read_block(placed(raw[: data.draw(st.integers(0, len(raw) - 1))], shift), None)
    place, bit = data.draw(st.integers(0, head - 1)), 1 << data.draw(st.integers(0, 7))
    read_any(raw[:place] + bytes([raw[place] ^ bit]) + raw[place + 1 :], shift, None, True)


# --- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
def test_weights_can_be_written_in_place(tmp_path: Path, durable: bool) -> None:
    with tiers(tmp_path) as store:
        first = None
        for number in range(1, 6):
            draft = reserved(store, {"w": np.full(100_000, number)}, foreign=False, named=False)
            publish = draft.publish_durable if durable else draft.publish
            assert publish("policy", 2) == number
            first = first or draft
            with pytest.raises(StoreError, match="sealed already"):
                publish("policy", 2)
            for call in (draft.seal, draft.seal_durable):
                with pytest.raises(StoreError, match="sealed already"):
                    call()
        assert store.latest("policy").value["w"][0] == 5  # type: ignore[union-attr]
        assert (store.latest("policy", version=3), store.latest("policy", version=4) is None) == (None, False)
        assert first is not None
        payload = first.payload()
        del first, draft, publish, call
        for _ in range(40):  # the version is gone, its memory is not: the array over it keeps it
            store.delete(store.put(np.zeros(1 << 20, np.uint8)))
        assert (payload[:800_000].view(np.int64) == 1).all()
        assert store.check() == []
        del payload
        assert store.stats()["pinned"] == 0
    with tiers(tmp_path) as store:
        found = store.latest("policy", timeout=0)
        assert (found is not None and int(found.value["w"][0]) == 5) == durable


def test_durable_objects_can_be_written_in_place(tmp_path: Path) -> None:
    with tiers(tmp_path) as store:
        draft = reserved(store, TREE, foreign=False)
        draft.seal_durable()
        assert same(store.get(draft.id.hex()), TREE)
        payload = draft.payload()
        store.delete(draft.id.hex())
        kept = reserved(store, TREE, b"k" * 20, foreign=False)
        kept.seal_durable()
        with pytest.raises(StoreError, match="sealed already"):
            kept.seal()
        assert payload[:40].view(np.float64).tolist() == [0, 1, 2, 3, 4]
        del payload, draft, kept
        assert store.check() == []
    with tiers(tmp_path) as store:
        assert [ref.raw for ref in store.keys(n=10)] == [b"k" * 20]
        assert same(store.get((b"k" * 20).hex()), TREE)


def test_drafts_of_weights_cannot_be_sealed_as_objects(store: di_store.Store) -> None:
    used = store.stats()["objects"]
    draft, named = reserved(store, TREE, named=False), reserved(store, TREE)
    for call in (draft.seal, draft.seal_durable):
        with pytest.raises(StoreError, match="publish it"):
            call()
    for publish in (named.publish, named.publish_durable):
        with pytest.raises(StoreError, match="seal it"):
            publish("w", 1)
    with pytest.raises(StoreError, match="no id"):
        _ = draft.id
    with pytest.raises(ValueError, match="no disk tier"):
        named.seal_durable()
    with pytest.raises(ValueError, match="no disk tier"):
        draft.publish_durable("w", 1)
    for id, ttl in ((b"x" * 20, 0.0), (None, 1.0)):
        with pytest.raises(ValueError, match="no id, and no ttl"):
            arena_of(store).reserve(b"", 1, id, ttl, named=False)
    named.seal()
    assert draft.publish("w", 1) == 1
    del draft, named, call, publish
    reserved(store, TREE, named=False)  # dropped
    store.delete(store.keys(n=9))
    store.publish("w", None, keep=1)
    assert store.stats()["objects"] == used


def test_only_one_of_many_threads_seals_a_draft(store: di_store.Store) -> None:
    for _ in range(20):
        draft, results, gate = reserved(store, TREE, named=False), [], threading.Barrier(4)

        def publish() -> None:
            gate.wait()  # noqa: B023
            try:
                results.append(draft.publish("w", 1))  # noqa: B023
            except StoreError as error:
                results.append(str(error))  # noqa: B023

        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(type(result) is int for result in results) == 1, results


PUBLISH = """
import sys, numpy as np, di_store
from foreign_values import reserved
store = di_store.attach(sys.argv[1], timeout=60)
draft = reserved(store, {"w": np.full(1000, 2)}, named=False)
draft.publish("w", 1)
"""
SEAL = PUBLISH.replace("named=False", "id=b'k' * 20").replace('publish("w", 1)', "seal_durable()")


@pytest.mark.parametrize("fault", ["heap.publish_before_seal", "heap.publish_sealed", "heap.pinned", "heap.published"])
def test_a_killed_publisher_leaves_nothing_pinned(store: di_store.Store, fault: str) -> None:
    """Whatever it got done, the next version is published, and nothing stays pinned."""
    store.publish("w", {"w": np.full(1000, 1)}, keep=1)
    assert ended_at(PUBLISH, fault, store.name)
    found = store.latest("w")
    assert found is not None
    assert found.value["w"][0] == found.version
    del found
    assert store.check(repair=False) == []
    assert store.publish("w", {"w": np.full(1000, 3)}, keep=1) in (2, 3)
    assert store.latest("w").value["w"].tolist() == [3] * 1000  # type: ignore[union-attr]
    assert (store.stats()["objects"], store.stats()["pinned"], store.stats()["pending"]) == (1, 0, 0)


@pytest.mark.parametrize("fault", ["durable.synced", "durable.noted", "heap.sealed", "heap.pinned"])
def test_a_process_killed_while_sealing_durably_leaves_all_or_nothing(tmp_path: Path, fault: str) -> None:
    with tiers(tmp_path) as store:
        assert ended_at(SEAL, fault, store.name)
        there = store.contains((b"k" * 20).hex())
        assert there == (fault in ("heap.sealed", "heap.pinned"))
        assert store.check() == []
        assert (store.stats()["objects"], store.stats()["pinned"]) == (int(there), 0)
        if not there:
            store.put({"w": np.full(1000, 2)}, id=(b"k" * 20).hex(), durability="disk")
    with tiers(tmp_path) as store:
        assert store.get((b"k" * 20).hex())["w"].tolist() == [2] * 1000


def ended_at(program: str, fault: str, name: str) -> bool:
    """Whether the program is killed at a point of the core."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    child = Program(program, name, env={**os.environ, "DI_STORE_FAULT": f"{fault}:1", "PYTHONPATH": path})
    with child:
        _, status = os.waitpid(child.pid, 0)
    return os.WIFSIGNALED(status)


# --- ids --------------------------------------------------------------------------------------------------------------


def put_ids(name: str, answer: Any) -> None:
    with di_store.attach(name) as store:
        answer.put((arena_of(store).home, [store.put(number).raw for number in range(50)]))


def test_ids_begin_with_the_id_of_their_store(store: di_store.Store) -> None:
    """The same in all processes of a store, another in another store; no two ids are equal, also across a fork."""
    home = arena_of(store).home
    ids = [store.put(number).raw for number in range(50)]
    answers: list[Any] = []
    for method in ("fork", "spawn"):
        context = mp.get_context(method)
        queue = context.Queue()
        children = [context.Process(target=put_ids, args=(store.name, queue)) for _ in range(2)]
        for child in children:
            child.start()
        answers += [queue.get(timeout=120) for _ in children]
        for child in children:
            child.join()
    ids += [store.put(number).raw for number in range(50)]
    for theirs, made in answers:
        assert theirs == home
        ids += made
    assert len(home) == 6
    assert all(id[:6] == home for id in ids)
    assert len(set(ids)) == len(ids) == 300
    with di_store.open(memory="32MiB") as other:
        assert arena_of(other).home != home
