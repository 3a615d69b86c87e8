"""Sizes at the limits of the format: refused by a typed error that names the limit, before anything is written.

The arrays are views of one element, or zeroed memory that nobody touches: no test needs gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store

MOST = 2**32 - 1
MANY = np.broadcast_to(np.uint8(0), (2**32 + 3,))
UNTOUCHED = np.zeros(2**32 + 3, np.uint8)
RAGGED = {"x": di_store.Spec((None,), "u1"), "n": di_store.Spec((), "i8")}


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


@pytest.mark.parametrize("many", [MANY, UNTOUCHED], ids=["to be copied", "as it is"])
def test_ragged_rows_above_the_limit_are_refused(store: Any, many: Any) -> None:
    table = store.create_table("t", capacity=10, max_bytes="8MiB", schema=RAGGED, lanes=2)
    with table.writer() as writer:
        for call in (writer.append, table.insert):
            with pytest.raises(di_store.SchemaMismatch, match=f"'x'.*{MOST}"):
                call({"x": many, "n": 1})
        with pytest.raises(di_store.SchemaMismatch, match=f"'x'.*{MOST}"):
            writer.extend({"x": [many[:1], many], "n": np.arange(2)})
        with pytest.raises(di_store.SchemaMismatch, match=f"'x'.*{MOST}"):
            writer.append({"x": many[:1], "n": 1}, next={"x": many})
    with table.writer(lanes=2) as writer, pytest.raises(di_store.SchemaMismatch, match=f"'x'.*{MOST}"):
        writer.append({"x": [many[:1], many], "n": np.arange(2)})
    assert len(table) == 0


def test_final_observations_above_the_limit_are_refused(store: Any) -> None:
    schema = {"obs": di_store.Spec((None,), "u1"), "reward": 0.0, "truncated": False}
    table = store.create_table("t", capacity=10, max_bytes="8MiB", schema=schema, view=di_store.Transition())
    with table.writer() as writer:
        row = {"obs": MANY[:2], "reward": 0.0, "truncated": True}
        with pytest.raises(di_store.SchemaMismatch, match=f"'obs'.*{MOST}"):
            writer.append(row, final=[MANY])
        assert writer.append(row, final=[MANY[:3]]).starts.tolist() == [0]


@pytest.mark.parametrize("count", [2, 3])
def test_ragged_columns_that_together_exceed_the_limit_are_refused(store: Any, count: int) -> None:
    schema = {f"x{at}": di_store.Spec((None,), "u1") for at in range(count)}
    table = store.create_table("t", capacity=10, max_bytes="8MiB", schema=schema)
    with table.writer() as writer:
        with pytest.raises(di_store.CapacityError, match="4 GiB"):
            writer.append(dict.fromkeys(schema, UNTOUCHED[: 2**31]))
        writer.append(dict.fromkeys(schema, UNTOUCHED[:3]))
    assert len(table) == 1
    bounded = {name: di_store.Spec((None,), "u1", max=2**31 - 1) for name in "abc"}
    with pytest.raises(di_store.CapacityError, match=r"4 GiB.*max="):
        store.create_table("u", capacity=None, max_bytes="8MiB", schema=bounded)


@pytest.mark.parametrize(
    ("spec", "limit"),
    [
        (di_store.Spec((2**31,), "u1"), 2**31 - 1),
        (di_store.Spec((None, 2**31), "u1"), 2**31 - 1),
        (di_store.Spec((2**30, 4), "u1"), MOST),
        (di_store.Spec((None, 2**30), "f4"), MOST),
        (di_store.Spec((None,), "f4", max=2**30), MOST),
    ],
    ids=str,
)
def test_columns_above_the_limit_are_refused_where_they_are_declared(store: Any, spec: Any, limit: int) -> None:
    with pytest.raises(ValueError, match=f"'x'.*{limit}"):
        store.create_table("t", capacity=1, max_bytes="8MiB", schema={"x": spec})
    assert store.create_table("t", capacity=1).stats()["capacity"] == 1


@pytest.mark.parametrize("shape", [(2**31,), (2**30, 4)])
def test_first_rows_above_the_limit_are_refused(store: Any, shape: tuple[int, ...]) -> None:
    table = store.create_table("t", capacity=1, max_bytes="8MiB")
    large = {"x": np.broadcast_to(np.uint8(0), shape)}
    with table.writer() as writer:
        for call in (writer.append, table.insert):
            with pytest.raises(di_store.SchemaMismatch, match=r"'x'.*largest|'x'.*4 GiB"):
                call(large)
        writer.append({"x": np.zeros(2, np.uint8)})
    assert store.table("t").peek(table.keys()).data["x"].tolist() == [[0, 0]]


@pytest.mark.parametrize("declared", [True, False])
def test_more_rows_than_a_call_may_have_are_refused(store: Any, declared: bool) -> None:
    schema = {"x": di_store.Spec((), "u1")} if declared else None
    table = store.create_table("t", capacity=None, max_bytes="8MiB", schema=schema)
    rows = {"x": UNTOUCHED}
    with table.writer() as writer:
        for call in (writer.extend, table.extend):
            with pytest.raises(ValueError, match=f"{2**32 + 3} rows.*{2**31 - 1}"):
                call(rows)
    assert len(table) == 0


def test_values_above_the_limit_are_refused(store: Any) -> None:
    table = store.create_table("t", capacity=10, max_bytes="8MiB", schema=RAGGED)
    windows = store.create_table("w", capacity=10, max_bytes="8MiB", schema=RAGGED, view=di_store.Episode(4))
    with pytest.raises(di_store.SchemaMismatch, match=f"'x'.*{MOST}"):
        windows.insert({"x": [MANY[:1], MANY], "n": np.arange(2)})
    with pytest.raises(di_store.SchemaMismatch, match=f"'x'.*{MOST}"):
        table.extend({"x": [MANY[:1], MANY], "n": np.arange(2)})
    assert (len(table), len(windows)) == (0, 0)
