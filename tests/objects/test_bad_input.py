"""Bad input to objects and weights, ids that are taken or free again, and timeouts while a lock is held up."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pains import MIB, Program, until

import di_store

LATE_SECONDS = 20.0

PUT = """
import sys, numpy as np, di_store
store = di_store.attach(sys.argv[1], timeout=60)
store.put(np.zeros(1 << 20, np.uint8), id=sys.argv[2] * 20)
"""


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def ended_at(fault: str, store: Any, byte: str) -> Any:
    """A process that puts an object and is killed or stopped at a point of the core."""
    program = Program(PUT, store.name, byte, env={**os.environ, "DI_STORE_FAULT": fault})
    _, status = os.waitpid(program.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status) if fault.endswith(":stop") else os.WIFSIGNALED(status)
    return program


def until_expired(store: Any, ref: Any) -> None:
    """Wait until its ttl is over."""
    until(lambda: not store.contains(ref), "the object to expire")


def test_an_expired_object_leaves_its_id(store: Any) -> None:
    first = store.put("first", id="ab" * 20, ttl=0.05)
    until_expired(store, first)
    assert store.put("second", id="ab" * 20) == first
    held = store.get(store.put(np.arange(3), id="cd" * 20, ttl=0.05))
    until_expired(store, "cd" * 20)
    store.put("other", id="cd" * 20)
    assert (store.get("ab" * 20), store.get("cd" * 20), held.tolist()) == ("second", "other", [0, 1, 2])
    assert store.check() == []


def test_a_putter_that_died_leaves_its_id(store: Any) -> None:
    with ended_at("put.before_copy:1", store, "ab"):
        assert store.put(1, id="ab" * 20).id == "ab" * 20
    assert store.get("ab" * 20) == 1
    assert store.check() == []


def test_an_unsealed_object_cannot_be_read(store: Any) -> None:
    with ended_at("put.before_copy:1:stop", store, "ab") as program:
        maker = f"still being written by pid {program.pid}, stopped"
        with pytest.raises(di_store.ObjectExists, match=maker):
            store.put(1, id="ab" * 20)
        with pytest.raises(di_store.ObjectNotFound, match=maker):
            store.get("ab" * 20, timeout=0.1)
        assert not store.contains("ab" * 20)
        assert store.delete("ab" * 20) == 0


def test_timeouts_hold_while_a_stopped_process_holds_the_lock(store: Any) -> None:
    """Each call waits as long as it was told, no less and not much longer, and names who holds it up."""
    store.publish("policy", 1)
    ref, seconds = store.put(1), 0.3
    calls: dict[str, Callable[[], Any]] = {
        "put": lambda: store.put(2, timeout=seconds),
        "put id": lambda: store.put(2, id="cd" * 20, timeout=seconds),
        "get": lambda: store.get(ref, timeout=seconds),
        "get_many": lambda: store.get_many([ref], timeout=seconds),
        "wait": lambda: store.wait([ref], timeout=seconds),
        "publish": lambda: store.publish("policy", 2, timeout=seconds),
        "latest": lambda: store.latest("policy", timeout=seconds),
        "create_table": lambda: store.create_table("t", capacity=3, timeout=seconds),
    }
    with ended_at("heap.make_before_state:1:stop", store, "ab") as program:
        for name, call in calls.items():
            began = time.monotonic()
            with pytest.raises(di_store.Timeout) as caught:
                call()
            assert seconds <= time.monotonic() - began < seconds + LATE_SECONDS, name
            assert caught.value.culprit == f"pid {program.pid}, stopped", name
            assert str(caught.value).count(f"pid {program.pid}") == 1, name
    assert store.get(ref) == 1
    found = store.latest("policy")
    assert (found.version, found.value) == (1, 1)
    assert store.check() == []


def test_an_object_that_can_never_fit_is_refused(store: Any) -> None:
    for size in (65 * MIB, 64 * MIB - 4096):  # the second leaves no room for the store's own pages
        with pytest.raises(di_store.CapacityError, match=r"memory=.*store\.resize") as caught:
            store.put(np.zeros(size, np.uint8), timeout=None)
        assert "capacity=" not in str(caught.value)
    with pytest.raises(di_store.StoreFull, match=f"{48 * MIB + 64} bytes"):
        store.put_many([np.zeros(48 * MIB, np.uint8) for _ in range(2)], timeout=0)
    assert store.stats()["objects"] == 0


def test_bad_arguments_of_object_calls_are_refused(store: Any) -> None:
    ref = store.put(np.ones(3))
    calls: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: store.get(ref, copy="yes"), TypeError, "copy="),
        (lambda: store.get_many([ref], copy=2), TypeError, "copy="),
        (lambda: store.get(ref, timeout=-1), ValueError, "timeout="),
        (lambda: store.put(1, timeout="1"), TypeError, "timeout="),
        (lambda: store.put(1, timeout=-1), ValueError, "timeout="),
        (lambda: store.put(1, ttl=0), ValueError, "ttl="),
        (lambda: store.put(1, ttl=-1), ValueError, "an object that stays"),
        (lambda: store.put(1, ttl=float("nan")), ValueError, "ttl="),
        (lambda: store.put(1, ttl=True), TypeError, "ttl="),
        (lambda: store.get([ref, ref]), TypeError, "get_many"),
        (lambda: store.get_many(ref), TypeError, "list of refs"),
        (lambda: store.wait(ref), TypeError, "list of refs"),
        (lambda: store.delete(5), TypeError, "list of refs"),
        (lambda: store.put_many({"a": 1}), TypeError, r"put\(\)"),
        (lambda: di_store.Ref("ab" * 20), TypeError, r"Ref\.parse"),  # type: ignore[arg-type]
        (lambda: di_store.Ref(b"short"), TypeError, r"Ref\.parse"),
        (lambda: store.drop_table(3), ValueError, "name="),
    ]
    for call, kind, words in calls:
        with pytest.raises(kind, match=words):
            call()
    assert store.get(ref, copy=np.bool_(True)).flags.writeable
    assert store.keys() == [ref]
    for ttl in (float("inf"), 1e30, 1e12):  # longer than any machine runs
        assert store.contains(store.put(1, ttl=ttl))


def test_bad_names_of_weights_are_refused(store: Any) -> None:
    for name in ("", "x" * 101, "a\0b", None, 3):
        with pytest.raises(ValueError, match="name="):
            store.publish(name, 1)
        with pytest.raises(ValueError, match="name="):
            store.latest(name)
    with pytest.raises(ValueError, match="weights="):
        store.create_table("t", capacity=3, weights="a\0b")
    assert store.publish("ü/weights", 1) == 1


def test_a_version_number_without_local_weights_can_be_used(store: Any) -> None:
    """It is there by its number as long as it is kept, like any other."""
    assert [store.publish("policy", value, keep=2) for value in ("one", None, None)] == [1, 2, 3]
    assert store.latest("policy", version=1) is None
    for version in (2, 3):
        found = store.latest("policy", version=version)
        assert (found.version, found.value) == (version, None)
    store.publish("policy", "four")
    assert store.latest("policy", version=3) is None


def test_pickled_read_only_handles_stay_read_only(store: Any) -> None:
    table = store.create_table("t", capacity=3)
    table.insert({"x": 1.0})
    readonly = di_store.open(store.name, mode="r")
    there = pickle.loads(pickle.dumps(readonly.table("t")))
    mixed = pickle.loads(pickle.dumps(readonly.mix({"t": 1})))
    calls: list[Callable[[], Any]] = [
        lambda: there.insert({"x": 2.0}),
        lambda: there.sample(1),
        lambda: mixed.sample(1),
        lambda: pickle.loads(pickle.dumps(readonly)).put(1),
        lambda: store.writer([readonly.table("t")]),
        lambda: readonly.check(repair=True),
    ]
    for call in calls:
        with pytest.raises(di_store.AccessDenied, match='mode="r"'):
            call()
    assert readonly.check() == []
    assert len(there) == 1
    readonly.close()


def test_a_table_made_through_another_handle_has_the_seed_of_the_store(store_name: Callable[[], str]) -> None:
    """The store's seed is the store's: whoever makes the table, the draws are the same."""
    draws = []
    for attached in (False, True):
        name = store_name()
        with di_store.open(name, memory="32MiB", seed=7) as made:
            handle = pickle.loads(pickle.dumps(made)) if attached else made
            table = handle.create_table("t", capacity=100)
            table.extend({"x": np.arange(100)})
            draws.append(table.sample(50).data["x"].tolist())
            handle.close()
    assert draws[0] == draws[1]
