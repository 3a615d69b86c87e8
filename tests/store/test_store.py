"""Opening, attaching, listing, closing and resizing stores, and what their handles do."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import di_store


def holds(name: str) -> bool:
    """Whether some process has a store of that name."""
    return name in {info.name for info in di_store.list_stores()}


def test_a_store_without_a_name_gets_one_of_its_own() -> None:
    with di_store.open(memory="32MiB") as one, di_store.open(memory="32MiB") as two:
        assert one.name != two.name
        assert {one.name, two.name} <= {info.name for info in di_store.list_stores()}


def test_opening_a_name_twice_gives_one_store(store_name: Callable[[], str]) -> None:
    name = store_name()
    with di_store.open(name, memory="32MiB") as one, di_store.open(name, memory="64MiB") as two:
        ref = one.put({"x": np.arange(3)})
        np.testing.assert_array_equal(two.get(ref)["x"], np.arange(3))
        assert two.stats()["memory"] == 32 << 20, "a store that is there keeps its memory"
        with pytest.raises(di_store.StoreError):
            di_store.open(name, mode="x", memory="32MiB")


def test_listed_stores_tell_their_holders_and_bytes() -> None:
    with di_store.open(memory="32MiB") as store:
        store.put(np.zeros(1 << 20, np.uint8))
        (info,) = [each for each in di_store.list_stores() if each.name == store.name]
        assert info.pids == (os.getpid(),)
        assert info.bytes >= 1 << 20


def test_a_store_ends_with_its_last_handle() -> None:
    store = di_store.open(memory="32MiB")
    table = store.create_table("t", capacity=10)
    writer = table.writer()
    writer.append({"x": 1.0})
    table.sample(1)
    loader = table.loader(1)
    next(loader)
    name = store.name
    other = di_store.attach(name)
    store.close()
    gc.collect()
    assert holds(name), "another handle of this process still has it"
    other.close()
    gc.collect()
    assert not holds(name), "closed tables, writers and loaders hold nothing"
    with pytest.raises(di_store.StoreClosed):
        table.sample(1)
    with pytest.raises(di_store.StoreClosed):
        next(loader)


def test_an_array_outlives_the_handle() -> None:
    store = di_store.open(memory="32MiB")
    name = store.name
    view = store.get(store.put(np.arange(100_000)))
    store.close()
    gc.collect()
    assert holds(name)
    assert view.sum() == sum(range(100_000))
    del view
    gc.collect()
    assert not holds(name)


def serve(name: str, pipe: Any) -> None:
    with di_store.open(name, memory="32MiB") as store:
        store.put("here", id="ab" * 20)
        pipe.send("ready")
        pipe.recv()


def test_attach_waits_for_a_store(store_name: Callable[[], str]) -> None:
    name = store_name()
    ours, theirs = mp.Pipe()
    found: list[Any] = []

    def attach() -> None:
        with di_store.attach(name, timeout=60) as store:
            found.append(store.get("ab" * 20, timeout=60))

    thread = threading.Thread(target=attach)
    thread.start()
    process = mp.get_context("spawn").Process(target=serve, args=(name, theirs))
    process.start()
    thread.join(120)
    assert found == ["here"]
    assert ours.recv() == "ready"
    ours.send("end")
    process.join(60)
    assert not holds(name), "gone with its last process"


def test_a_reading_handle_refuses_to_write() -> None:
    with di_store.open(memory="32MiB") as store:
        table = store.create_table("t", capacity=10)
        key = table.insert({"x": 1.0})
        ref = store.put(5)
        store.publish("policy", {"w": 1})
        with di_store.open(store.name, mode="r") as reading:
            assert reading.get(ref) == 5
            found = reading.latest("policy")
            assert found is not None
            assert found.value == {"w": 1}
            assert reading.table("t").peek(key).data["x"].tolist() == [1.0]
            assert reading.stats()["tables"]["t"]["size"] == 1
            calls: list[Callable[[], Any]] = [
                lambda: reading.put(1),
                lambda: reading.delete(ref),
                lambda: reading.publish("policy", None),
                lambda: reading.create_table("u", capacity=1),
                lambda: reading.drop_table("t"),
                lambda: reading.resize("64MiB"),
                lambda: reading.table("t").insert({"x": 1.0}),
                lambda: reading.table("t").writer(),
                lambda: reading.table("t").sample(1, timeout=1),
                lambda: reading.table("t").loader(1),
            ]
            for call in calls:
                with pytest.raises(di_store.AccessDenied, match="r"):
                    call()


@pytest.mark.memory_only
def test_resize_gives_and_takes_room() -> None:
    with di_store.open(memory="16MiB") as store:
        with pytest.raises((di_store.StoreFull, di_store.CapacityError)):
            store.put(np.zeros(20 << 20, np.uint8), timeout=0)
        store.resize("64MiB")
        ref = store.put(np.zeros(20 << 20, np.uint8))
        assert store.stats()["memory"] == 64 << 20
        with pytest.raises(di_store.CapacityError):
            store.resize("8MiB")
        store.delete(ref)
        store.resize("16MiB")
        assert store.stats()["memory"] == 16 << 20


def test_a_sound_store_has_no_findings() -> None:
    with di_store.open(memory="32MiB") as store:
        table = store.create_table("t", capacity=10, sampler=di_store.Prioritized(1.0))
        table.extend({"x": np.arange(10)})
        table.update_priorities(table.keys(), np.arange(10) + 1.0)
        store.put(np.arange(10))
        assert store.check() == []
        assert store.check(repair=True) == []
        assert len(table.sample(3).keys) == 3


def test_exist_ok_and_store_table_find_existing_tables() -> None:
    with di_store.open(memory="64MiB") as store:
        made = store.create_table("t", capacity=10, view=di_store.Transition(n_step=3))
        again = store.create_table("t", capacity=99, view=di_store.Transition(n_step=3), exist_ok=True)
        assert again.name == made.name == "t"
        for options, word in (
            ({"view": di_store.Step()}, "view"),
            ({"sampler": di_store.Lifo()}, "sampler"),
            ({"remover": di_store.Lifo()}, "remover"),
        ):
            settings: dict[str, Any] = {"view": di_store.Transition(n_step=3), **options}
            with pytest.raises(di_store.TableExists, match=word):
                store.create_table("t", capacity=10, exist_ok=True, **settings)
        store.drop_table("t")
        with pytest.raises(di_store.TableNotFound):
            len(made)
        with pytest.raises(di_store.TableNotFound):
            store.table("t")
        assert len(store.create_table("t", capacity=5)) == 0


def test_table_waits_for_its_maker() -> None:
    with di_store.open(memory="32MiB") as store:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(store.table("late", timeout=60)))
        thread.start()
        store.create_table("late", capacity=1)
        thread.join(60)
        assert found[0].name == "late"


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
def test_timeouts_are_seconds(timeout: Any) -> None:
    with di_store.open(memory="32MiB") as store, pytest.raises((ValueError, TypeError), match="timeout"):
        store.table("t", timeout=timeout)
