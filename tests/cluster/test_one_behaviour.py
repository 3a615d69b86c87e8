"""A table in parts, and a store of a cluster, take the arguments that a local one takes, and say as much."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from pains import until

import di_store
from cluster.nodes import Node, cluster_nodes
from cluster.shards import ROWS, SCHEMA, step, table_of
from di_store import cluster
from di_store.client.lane_values import LaneValues
from di_store.cluster.store import ClusterStore
from di_store.replay.keys import plain, with_shard


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    with cluster_nodes(f"b-{uuid.uuid4().hex[:12]}", 2) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_table_is_left(nodes: list[Node], stores: list[ClusterStore]) -> Iterator[None]:
    yield
    with di_store.attach(nodes[0].name) as plain, cluster.attach(nodes[0].name) as last:
        for name in plain.stats()["tables"]:
            last.drop_table(name)


def in_parts(store: ClusterStore, **options: Any) -> di_store.Table:
    """A table with draws over all shards."""
    return store.create_table("t", shards="learners", draw="mass", **{**ROWS, **options})


def placed(table: di_store.Table, number: int, rows: Any) -> np.ndarray[Any, Any]:
    """Insert rows into one shard; their keys."""
    shard = table._backend.parts.shards[number]  # type: ignore[attr-defined]
    return with_shard(table_of(shard).extend(rows), number)


@pytest.mark.parametrize("asked", [1, 2, 5, 6])
def test_draws_wait_for_as_many_items_as_the_limiter_asks_for(stores: list[ClusterStore], asked: int) -> None:
    """Not for more because the parts of the limit are rounded up."""
    table = in_parts(stores[0], limiter=di_store.MinSize(asked))
    with pytest.raises(di_store.Timeout, match=f"0 of min_size={asked} items; nothing was written yet"):
        table.sample(1, timeout=0.05)
    if asked > 1:
        placed(table, 1, step(np.arange(asked - 1)))
        with pytest.raises(di_store.Timeout, match=f"{asked - 1} of min_size={asked} items"):
            table.sample(1, timeout=0.05)
    placed(table, 1, step(np.arange(1)))
    assert len(table.sample(1, timeout=60)) == 1


def test_after_configure_draws_wait_for_the_new_limit(stores: list[ClusterStore]) -> None:
    table = in_parts(stores[0], limiter=di_store.MinSize(1))
    placed(table, 0, step(np.arange(8)))
    assert len(table.sample(1, timeout=60)) == 1
    table.configure(limiter=di_store.MinSize(10))
    with pytest.raises(di_store.Timeout, match="8 of min_size=10 items"):
        stores[1].table("t").sample(1, timeout=0.05)


def test_a_finished_table_with_too_few_items_gives_none(stores: list[ClusterStore]) -> None:
    table = in_parts(stores[0], limiter=di_store.MinSize(9))
    placed(table, 1, step(np.arange(5)))
    table.finish()
    with pytest.raises(di_store.EndOfData, match="finished and gives no more: 5 of min_size=9 items"):
        table.sample(1, timeout=60)


def test_priorities_of_zero_are_the_reason_that_is_told(stores: list[ClusterStore]) -> None:
    """Though the other shard is empty."""
    table = in_parts(stores[0], sampler=di_store.Prioritized(0.5))
    keys = placed(table, 1, step(np.arange(3)))
    table.update_priorities(keys, np.zeros(3))
    answers = table._backend.parts.answers  # type: ignore[attr-defined]
    for fresh in (True, False):
        if fresh:  # else the shard is drawn from, by its mass of before, and says so itself
            answers.forget()
        else:
            table.update_priorities(keys, np.ones(3))
            answers.newest(0.0)
            table_of(table._backend.parts.shards[1]).update_priorities(plain(keys), np.zeros(3))  # type: ignore[attr-defined]
        with pytest.raises(di_store.Timeout) as caught:
            table.sample(1, timeout=0.05)
        assert "priorities are 0" in caught.value.reason
        assert str(caught.value).count("timed out") == 1


def test_values_are_looked_at_without_columns(stores: list[ClusterStore]) -> None:
    table = stores[0].create_table(
        "t", shards="learners", draw="mass", capacity=10, view=di_store.Opaque(), schema=None, lanes=2
    )
    keys = np.concatenate([placed(table, number, [{"a": number}]) for number in (0, 1)])
    assert table.peek(keys).data == [{"a": 0}, {"a": 1}]
    assert table.peek(keys, columns=()).data == []


def test_no_keys_say_which_columns_there_are(stores: list[ClusterStore]) -> None:
    """Also if nothing was written to the first shard, and if rows have any length."""
    table = in_parts(stores[0], schema=None)
    assert table.peek([]).data == {}
    placed(table, 1, {"n": np.arange(2), "x": np.zeros(2, np.float32)})
    assert sorted(table.peek([]).data) == ["n", "x"]
    stores[0].drop_table("t")
    ragged = in_parts(stores[0], schema={"r": di_store.Spec((None,), "int64", max=9)})
    assert ragged.peek([]).data["r"].lead == (0,)


def test_late_values_have_the_forms_of_one_table(stores: list[ClusterStore]) -> None:
    late = {**SCHEMA, "reward": di_store.Spec((), "float32", late=True)}
    table = in_parts(stores[0], schema=late)
    keys = np.concatenate([placed(table, number, step(np.arange(2))) for number in (0, 1)])
    assert table.update(keys[:1], {"reward": 3.0}) == 1
    assert table.update(keys, {"reward": [np.float32(4), 5, 6, 7]}) == 4
    assert table.peek(keys).data["reward"].tolist() == [4, 5, 6, 7]
    for wrong in (8.0, np.zeros(5, np.float32), [1.0] * 3):
        with pytest.raises(di_store.SchemaMismatch, match="'reward'"):
            table.update(keys, {"reward": wrong})
    with pytest.raises(di_store.SchemaMismatch, match="'rewards'"):
        table.update(keys[:0], {"rewards": np.zeros(0, np.float32)})
    with pytest.raises(ValueError, match="values is an empty dict"):
        table.update(keys, {})
    assert table.peek(keys).data["reward"].tolist() == [4, 5, 6, 7]


ENTRIES = np.array([{"n": 0}, None, {"n": 2}, None], object)
"""Gymnasium's ``final_obs`` of four lanes, of which two have ended."""


@pytest.mark.parametrize(
    ("which", "rows", "final", "expected"),
    [
        ([0, 1, 2, 3], None, ENTRIES, [{"n": 0}, {"n": 2}]),
        ([0, 1, 2, 3], None, ENTRIES.tolist(), [{"n": 0}, {"n": 2}]),
        ([2, 0], None, ENTRIES[[2, 0]], [{"n": 2}, {"n": 0}]),
        ([2, 0], None, ENTRIES, [{"n": 2}, {"n": 0}]),
        ([2, 0, 1], None, tuple(ENTRIES), [{"n": 2}, None]),
        ([0, 1, 2, 3], 2, np.stack([ENTRIES, ENTRIES[::-1]]), [[{"n": 0}, {"n": 2}], [None, None]]),
        ([2, 0, 1], 2, ENTRIES, [[{"n": 2}, None], [{"n": 2}, None]]),
    ],
)
def test_final_observations_are_cut_by_lane(which: list[int], rows: int | None, final: Any, expected: Any) -> None:
    """Entries for the lanes of the call, or for all lanes of the writer."""
    values = LaneValues(np.array(which), 4, rows)
    positions = np.array([0, 2] if len(which) > 2 else [0, 1])
    assert values.final(final, positions, np.ones(len(which), np.bool_)).tolist() == expected


def test_final_observations_that_fit_no_lanes_are_refused() -> None:
    values = LaneValues(np.array([2, 0]), 4, None)
    for wrong in (ENTRIES[:3], [None], ()):
        with pytest.raises(ValueError, match=r"final= has .* one entry for each lane"):
            values.final(wrong, np.array([0]), np.ones(2, np.bool_))
    itself: dict[str, Any] = {}
    itself["n"] = itself
    with pytest.raises(ValueError, match="does a dict hold itself"):
        values.final(itself, np.array([0]), np.array([True, False]))


def test_a_lane_that_needs_a_gradient_is_refused(stores: list[ClusterStore]) -> None:
    torch = pytest.importorskip("torch")
    with in_parts(stores[0]).writer(lanes=2) as writer, pytest.raises(TypeError, match="lane="):
        writer.append(step(np.arange(2)), lane=torch.ones(2, requires_grad=True))


def test_values_have_no_next_or_final(stores: list[ClusterStore]) -> None:
    table = stores[0].create_table("t", shards="learners", capacity=100, view=di_store.Opaque(), lanes=16)
    with table.writer(lanes=16) as writer:
        for options in ({"next": 1}, {"final": 1}):
            with pytest.raises(ValueError, match="Opaque"):
                writer.append(list(range(16)), **options)


@pytest.mark.parametrize("options", [{}, {"shards": "learners"}])
def test_exist_ok_compares_with_declared_columns(stores: list[ClusterStore], options: dict[str, Any]) -> None:
    table = stores[0].create_table("t", capacity=10, **options)
    fits = {"x": di_store.Spec((2,), "f4")}
    with pytest.raises(di_store.TableExists, match="schema"):
        stores[1].create_table("t", capacity=10, schema=fits, exist_ok=True, **options)
    table.insert({"x": np.zeros(2, np.float32)})
    for given in (fits, None):
        again = stores[1].create_table("t", capacity=10, schema=given, exist_ok=True, **options)
        assert len(again) == 1
    other = {"x": di_store.Spec((3,), "f4")}
    with pytest.raises(di_store.TableExists, match="'x'"):
        stores[1].create_table("t", capacity=10, schema=other, exist_ok=True, **options)


def test_all_settings_that_differ_are_named(stores: list[ClusterStore]) -> None:
    in_parts(stores[0])
    with pytest.raises(di_store.TableExists, match=r"draw='local' was given.*; sampler=Lifo"):
        stores[1].create_table("t", shards="learners", sampler=di_store.Lifo(), exist_ok=True, **ROWS)


def test_a_timeout_may_be_centuries(stores: list[ClusterStore]) -> None:
    in_parts(stores[0])
    with pytest.raises(di_store.TableExists):
        in_parts(stores[0], timeout=1e300)
    stores[0].drop_table("t", timeout=1e18)
    in_parts(stores[0], timeout=1e18)


def test_calls_that_ask_other_nodes_are_shown_as_waiting(stores: list[ClusterStore]) -> None:
    """Since when, and for what; and they end with their store's handle."""
    with cluster.attach(stores[0].name) as store:
        table = in_parts(store)
        refs = [di_store.Ref.parse("cd" * 20)]
        calls: dict[str, Callable[[], Any]] = {
            "items": lambda: table.sample(1, timeout=600),
            "object": lambda: store.get("ab" * 20, timeout=600),
            "table": lambda: store.table("none", timeout=600),
            "objects": lambda: store.wait(refs, timeout=600),
        }

        def quiet(call: Callable[[], Any]) -> None:
            with suppress(di_store.StoreError):
                call()

        threads = [threading.Thread(target=quiet, args=(call,), daemon=True) for call in calls.values()]
        for thread in threads:
            thread.start()
        found: list[Any] = []

        def all_old() -> bool:
            found[:] = store.stats()["waiters"]
            return len(found) == len(threads) and all(waiter["seconds"] > 0.3 for waiter in found)

        until(all_old, "every thread to be listed")
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a wait goes on though its handle was closed"
    assert sorted(waiter["kind"] for waiter in found) == ["items", "object", "object", "table"]
    reasons = {waiter["kind"]: waiter["reason"] for waiter in found}
    assert "min_size=1" in reasons["items"]
    assert reasons["table"] == "a table that is not there yet"
