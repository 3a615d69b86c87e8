"""`store.reserve`: objects that are written in place."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from pains import until

import di_store
from di_store import Spec, _core

TREE = {
    "a": Spec((3, 4), "f4"),
    "deep": {"b": Spec((), "i8"), "empty": np.empty((0, 2))},
}


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB") as opened:
        yield opened
        assert opened.check() == []


def test_drafts_are_written_and_read_in_place(store: di_store.Store) -> None:
    draft = store.reserve(TREE)
    assert not store.contains(draft.id)
    with pytest.raises(di_store.ObjectNotFound, match="still being written"):
        store.get(draft.id)
    draft.value["a"][:] = np.arange(12).reshape(3, 4)
    draft.value["deep"]["b"][...] = 7
    ref = draft.seal()
    got = store.get(ref)
    assert got["a"].tolist() == np.arange(12.0).reshape(3, 4).tolist()
    assert got["a"].dtype == np.float32
    assert int(got["deep"]["b"]) == 7
    assert got["deep"]["empty"].shape == (0, 2)
    assert draft.seal() == ref
    assert draft.id == ref.id
    other = np.shares_memory(got["a"], draft.value["a"])  # another mapping of the same pages
    assert not other


@pytest.mark.parametrize("dtype", ["f8", "u1", "?", "c16", "M8[s]", "U5"])
def test_a_single_array_of_any_type_can_be_reserved(store: di_store.Store, dtype: str) -> None:
    like = np.zeros((5, 2), dtype)
    with store.reserve(like) as draft:
        draft.value[1] = like[1] = np.array(["1", "0"]).astype(dtype)
    assert (store.get(draft.seal()) == like).all()


def test_torch_specs_can_be_reserved(store: di_store.Store) -> None:
    with store.reserve({"x": torch.empty(4, dtype=torch.float16)}) as draft:
        torch.from_numpy(draft.value["x"]).copy_(torch.arange(4))
    assert store.get(draft.id)["x"].tolist() == [0, 1, 2, 3]


def test_a_nested_tensor_cannot_be_reserved(store: di_store.Store) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"give di_store\.Spec"):
        store.reserve({"x": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])})


def test_writing_after_seal_is_refused(store: di_store.Store) -> None:
    draft = store.reserve({"x": Spec((4,), "i8")})
    array = draft.value["x"]
    draft.value["x"][:] = 1
    ref = draft.seal()
    for target in (array, draft.value["x"]):
        with pytest.raises(ValueError, match="read-only"):
            target[0] = 2
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    assert store.get(ref)["x"].tolist() == [1] * 4


def test_the_bytes_live_as_long_as_arrays_over_them(store: di_store.Store) -> None:
    """A deleted or discarded object is not reused for another one while its arrays can still be read or written."""
    draft = store.reserve({"x": Spec((1 << 20,), "u1")})
    array = draft.value["x"]
    array[:] = 3
    ref = draft.seal()
    assert store.delete(ref) == 1
    assert store.stats()["pending"] >= 1 << 20
    others = [store.put(np.full(1 << 20, 9, np.uint8)) for _ in range(8)]
    assert (array == 3).all()
    del draft, array
    until(lambda: store.stats()["pending"] == 0 or store.delete(store.put(0)) == 0, "the object to be freed")
    dropped = store.reserve(Spec((1 << 20,), "u1"))
    kept = dropped.value
    dropped.discard()
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 1
    with pytest.raises(di_store.StoreError, match="discarded"):
        dropped.seal()
    assert dropped.value is None
    del kept, dropped
    store.delete(others)
    store.put(0)
    assert store.stats()["live_objects_bytes"] < 1 << 20


def test_an_exception_in_the_with_block_discards_the_draft(store: di_store.Store) -> None:
    name = "ab" * 20
    with pytest.raises(KeyError), store.reserve(Spec((4,), "f4"), id=name) as draft:
        raise KeyError
    del draft
    until(lambda: not store.contains(name), "")
    with store.reserve(Spec((4,), "f4"), id=name) as again:
        again.value[:] = 5
    assert store.get(name).tolist() == [5] * 4
    with pytest.raises(di_store.ObjectExists):
        store.reserve(Spec((4,), "f4"), id=name, timeout=0)


def test_room_ttl_and_bad_input_are_checked(store: di_store.Store) -> None:
    with store.reserve(Spec((4,), "f4"), ttl=0.05) as draft:
        pass
    until(lambda: not store.contains(draft.id), "the object to expire")
    with pytest.raises(di_store.CapacityError, match="reserve"):
        store.reserve(Spec((1 << 40,), "u1"))
    held = store.reserve(Spec((40 << 20,), "u1"))
    with pytest.raises(di_store.StoreFull):
        store.reserve(Spec((40 << 20,), "u1"), timeout=0)
    del held
    store.reserve(Spec((40 << 20,), "u1"), timeout=10).discard()
    for wrong in (Spec((None,), "f4"), 3, {"x": object()}, {"x": np.array([object()])}, {}):
        with pytest.raises((ValueError, TypeError)):
            store.reserve(wrong)
    with pytest.raises(ValueError, match="40 hex"):
        store.reserve(Spec((1,), "f4"), id="x")


def test_a_closed_store_refuses_to_reserve() -> None:
    store = di_store.open(memory="16MiB")
    other = di_store.attach(store.name)
    draft = store.reserve(Spec((2,), "f4"))
    store.close()
    with pytest.raises(di_store.StoreClosed):
        store.reserve(Spec((2,), "f4"))
    draft.value[:] = 1  # what was reserved can still be written and sealed, as arrays of a closed store can be read
    assert other.get(draft.seal()).tolist() == [1, 1]
    other.close()


def _die(store: di_store.Store, point: str | None, ready: mp.synchronize.Event) -> None:
    draft = store.reserve({"x": Spec((1 << 20,), "u1")}, id="cd" * 20)
    draft.value["x"][:] = 6
    if point:
        _core.arm_fault(f"{point}:1")
        draft.seal()
    ready.set()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("point", [None, "put.before_seal", "heap.sealed"])
def test_a_dead_writers_draft_is_discarded(store: di_store.Store, point: str | None) -> None:
    context = mp.get_context("fork")
    party = context.Process(target=_die, args=(store, point, context.Event()))
    party.start()
    party.join(60)
    assert party.exitcode == -signal.SIGKILL
    if point == "heap.sealed":
        assert (store.get("cd" * 20)["x"] == 6).all()
        assert store.delete("cd" * 20) == 1
    with store.reserve(Spec((3,), "f4"), id="cd" * 20, timeout=30) as draft:  # the id is free again
        draft.value[:] = 1
    assert store.stats()["live_objects_bytes"] < 1 << 20


def test_a_forked_child_cannot_seal(store: di_store.Store) -> None:
    draft = store.reserve(Spec((3,), "f4"))

    def seal() -> None:
        with pytest.raises(di_store.StoreError, match="parent"):
            draft.seal()

    party = mp.get_context("fork").Process(target=seal)
    party.start()
    party.join(60)
    assert party.exitcode == 0
    draft.value[:] = 2
    assert store.get(draft.seal()).tolist() == [2, 2, 2]
