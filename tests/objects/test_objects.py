"""Objects: put, get, ids, waiting, lifetime."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


VALUES: list[Any] = [
    None,
    True,
    -(2**70),
    2.5,
    "text",
    b"bytes",
    [1, (2, "three")],
    {"a": {"b": np.arange(6).reshape(2, 3)}},
    np.float32(3),
    np.array(["ab", "c"]),
    np.zeros((0, 4), np.int16),
    {1, 2, 3},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:20])
def test_values_come_back_as_they_were_put(store: Any, value: Any) -> None:
    found = store.get(store.put(value))
    assert type(found) is type(value)
    np.testing.assert_equal(found, value)


def test_arrays_are_read_in_place(store: Any) -> None:
    ref = store.put(np.arange(1000))
    one, two = store.get(ref), store.get(ref)
    assert np.shares_memory(one, two)
    with pytest.raises(ValueError, match="read-only"):
        one[0] = 1
    own = store.get(ref, copy=True)
    own[0] = 7
    assert one[0] == 0


def test_refs_convert_to_text_and_back(store: Any) -> None:
    ref = store.put(1)
    assert len(ref.id) == 40
    assert di_store.Ref.parse(str(ref)) == ref == pickle.loads(pickle.dumps(ref)) == copy.copy(ref)
    assert {ref: 1}[di_store.Ref.parse(ref.id)] == 1
    assert ref != store.put(1)
    assert store.get(str(ref)) == 1
    for wrong in (5, None, b"x" * 20):
        with pytest.raises(TypeError):
            store.get(wrong)


def test_an_object_lives_until_it_is_deleted(store: Any) -> None:
    ref = store.put(np.arange(10))
    text = str(ref)
    del ref
    gc.collect()
    assert store.contains(text)
    view = store.get(text)
    assert store.delete([text, text, "00" * 20]) == 1
    assert not store.contains(text)
    assert view.tolist() == list(range(10)), "freed at the last unpin, not before"
    with pytest.raises(di_store.ObjectNotFound):
        store.get(text, timeout=0)


def test_an_object_with_a_ttl_expires(store: Any) -> None:
    ref = store.put(1, ttl=0.01)
    while store.contains(ref):
        store.put(2)
    with pytest.raises(di_store.ObjectNotFound):
        store.get(ref)
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="ttl"):
            store.put(1, ttl=wrong)


def test_get_waits_for_an_id_that_does_not_exist_yet(store: Any) -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(store.get("cd" * 20, timeout=60))) for _ in range(3)]
    for thread in threads:
        thread.start()
    store.put({"x": 5}, id="cd" * 20)
    for thread in threads:
        thread.join(60)
    assert found == [{"x": 5}] * 3
    with pytest.raises(di_store.ObjectNotFound):
        store.get("ef" * 20, timeout=0.02)


def test_several_objects_are_put_and_read_at_once(store: Any) -> None:
    refs = store.put_many([1, "two", np.arange(3)], ids=["11" * 20, "22" * 20, "33" * 20])
    assert [str(ref) for ref in refs] == ["11" * 20, "22" * 20, "33" * 20]
    one, two, three = store.get_many(refs)
    assert (one, two, three.tolist()) == (1, "two", [0, 1, 2])
    with pytest.raises(di_store.ObjectExists):
        store.put_many([1, 2], ids=["44" * 20, "11" * 20])
    assert not store.contains("44" * 20), "all of them or none"
    with pytest.raises(ValueError, match="ids"):
        store.put_many([1], ids=["44" * 20, "55" * 20])
    assert store.delete(refs) == 3


def test_wait_returns_the_objects_that_exist(store: Any) -> None:
    there = [store.put(i) for i in range(3)]
    missing = di_store.Ref.parse("ee" * 20)
    assert store.wait([missing, *there], num_returns=2) == (there[:2], [missing, there[2]])
    assert store.wait([missing, there[0]], num_returns=2, timeout=0.02) == ([there[0]], [missing])
    thread = threading.Thread(target=lambda: store.put(1, id="ee" * 20))
    thread.start()
    assert store.wait([missing], timeout=60) == ([missing], [])
    thread.join()
    for wrong in (0, 5):
        with pytest.raises(ValueError, match="num_returns"):
            store.wait(there, num_returns=wrong)
    with pytest.raises(ValueError, match="twice"):
        store.wait([missing, missing])


def test_keys_are_paged(store: Any) -> None:
    refs = {store.put(i) for i in range(25)}
    seen: list[Any] = []
    after = None
    while page := store.keys(after, 10):
        assert len(page) <= 10
        seen += page
        after = page[-1]
    assert set(seen) == refs
    assert len(seen) == 25
    assert [ref.id for ref in seen] == sorted(ref.id for ref in seen)


@pytest.mark.memory_only
def test_put_waits_for_room(store: Any) -> None:
    refs = [store.put(np.zeros(10 << 20, np.uint8)) for _ in range(5)]
    with pytest.raises(di_store.StoreFull):
        store.put(np.zeros(20 << 20, np.uint8), timeout=0.02)
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(store.put(np.ones(20 << 20, np.uint8), timeout=60)))
    thread.start()
    store.delete(refs[:3])
    thread.join(60)
    assert store.get(made[0]).sum() == 20 << 20


def test_tensors_come_back(store: Any) -> None:
    torch = pytest.importorskip("torch")
    ref = store.put({"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)})
    found = store.get(ref)
    assert found["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["b"].dtype == torch.bfloat16
    found["w"][0, 0] = 9
    assert store.get(ref)["w"][0, 0] == 0, "torch has no read-only tensors, so they are copies"
    in_place = store.get(ref, copy=False)
    assert in_place["w"].data_ptr() == store.get(ref, copy=False)["w"].data_ptr()
