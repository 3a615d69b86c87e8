"""Statistics are what their types say, and the report is made of them."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Iterator
from typing import Any, get_type_hints

import numpy as np
import pytest

import di_store
from di_store import observe


@pytest.fixture
def store() -> Iterator[di_store.Store]:
    with di_store.open(memory="64MiB") as made:
        yield made


def _stay(name: str, ready: Any, end: Any) -> None:
    store = di_store.attach(name, timeout=60)
    ready.set()
    end.wait(120)
    store.close()


def test_statistics_have_the_fields_of_their_types(store: di_store.Store) -> None:
    """Every field is documented, and every documented field is there: of the store, a table, a limiter, a process."""
    table = store.create_table("t", capacity=100, limiter=di_store.SamplesPerInsert(2, 10, 0.5))
    table.extend({"x": np.ones((20, 4), "f4")})
    found = store.stats()
    assert set(found) == set(get_type_hints(observe.StoreStats))
    assert set(found["tables"]["t"]) == set(get_type_hints(observe.TableStats))
    assert set(found["tables"]["t"]["limiter"]) == set(get_type_hints(observe.LimiterStats))
    assert set(found["clients"][0]) == set(get_type_hints(observe.ClientStats))
    assert table.stats().keys() == found["tables"]["t"].keys()


def test_a_report_leaves_out_the_asking_process(store: di_store.Store) -> None:
    """The report has the other processes, all fields of its type, and the bytes of the statistics."""
    context = mp.get_context("spawn")
    ready, end = context.Event(), context.Event()
    other = context.Process(target=_stay, args=(store.name, ready, end))
    other.start()
    try:
        assert ready.wait(120)
        stats = store.stats()
        found = observe.report(stats)
        assert [client["pid"] for client in found["clients"]] == [other.pid]
        assert found["clients"][0]["state"] == "runs"
        assert set(found) | {"pids"} == set(get_type_hints(observe.StoreReport))
        assert found["memory"]["live"] == stats["live"]
    finally:
        end.set()
        other.join()


def test_an_unreadable_store_has_the_fields_that_lists_show() -> None:
    """A store with an error has every field that a listing of stores looks at."""
    found = observe.unreadable("x", "held by another user")
    assert found["error"] == "held by another user"
    assert [*found["tables"], *found["clients"], *found["waiters"]] == []


def test_rates_are_known_from_the_second_report(store: di_store.Store) -> None:
    """None at first; then what was counted, over the time that passed; None again for a table made anew."""
    table = store.create_table("t", capacity=100)
    table.extend({"x": np.ones((20, 4), "f4")})
    rates = observe.Rates()
    first = observe.report(store.stats())
    rates.add([first])
    assert first["tables"][0]["inserts_per_second"] is None
    table.extend({"x": np.ones((30, 4), "f4")})
    second = observe.report(store.stats())
    rates.add([second])
    rate = second["tables"][0]["inserts_per_second"]
    assert rate is not None
    assert rate > 0
    assert second["tables"][0]["samples_per_second"] == 0
    store.drop_table("t")
    store.create_table("t", capacity=100).extend({"x": np.ones((1, 4), "f4")})
    third = observe.report(store.stats())
    rates.add([third])
    assert third["tables"][0]["inserts_per_second"] is None


def test_a_wait_is_explained_with_the_limiters_counts(store: di_store.Store) -> None:
    """Where a limiter holds a caller back, the wait is explained by that limiter."""
    table = store.create_table("t", capacity=100, limiter=di_store.MinSize(10))
    table.extend({"x": np.ones((3, 4), "f4")})
    tables = store.stats()["tables"]
    assert observe.wait_text("items", "t", tables) == tables["t"]["limiter"]["sample_reason"] != ""
    assert observe.wait_text("room", "t", tables) != observe.wait_text("room", None, tables)
    assert observe.wait_text("items", "another", tables) == "items"
