"""Keys of steps that are no plain text get an error that names them, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import di_store


class LoudKey:
    """A key that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("its own error")

    def __hash__(self) -> int:
        return 1


@pytest.fixture
def table() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as store:
        yield store.create_table("t", capacity=10, schema={"obs": {"x": di_store.Spec((), "f4")}})


def good() -> dict[str, Any]:
    return {"obs": {"x": 1.0}}


@pytest.mark.parametrize("way", ["step", "next", "final", "insert"])
def test_keys_that_are_not_plain_text_are_named(table: Any, way: str) -> None:
    with table.writer() as writer:
        writer.append(good())

        def call(key: Any) -> Any:
            odd = {key: np.float32(1)}
            if way == "insert":
                return table.insert(odd)
            return writer.append(odd) if way == "step" else writer.append(good(), **{way: odd})

        before = len(table), table.keys().tolist(), table.stats()["inserts"]
        with pytest.raises(di_store.SchemaMismatch, match=r"udc80b"):
            call("a\udc80b")
        with pytest.raises((di_store.SchemaMismatch, TypeError), match="7"):
            call(7)
        with pytest.raises((di_store.SchemaMismatch, TypeError, ZeroDivisionError)):
            call(LoudKey())
        assert (len(table), table.keys().tolist(), table.stats()["inserts"]) == before
        writer.append(good())


@pytest.mark.parametrize("declared", [True, False])
def test_a_name_that_no_columns_argument_can_hold_makes_no_column(declared: bool) -> None:
    """Neither in `schema=` nor in the first step, of which nothing is written."""
    with di_store.open(memory="64MiB") as store:
        one = {"obs": {"a\0b": np.float32(1)}}
        with pytest.raises(ValueError, match=r"column 'obs/a\\x00b' contains a NUL character"):
            if declared:
                store.create_table("t", capacity=10, schema=one)
            else:
                store.create_table("t", capacity=10).insert(one)
        assert [len(store.table(name)) for name in store.stats()["tables"]] == [0] * (not declared)
