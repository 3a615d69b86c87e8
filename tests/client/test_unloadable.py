"""A pickle among the values of an `Opaque` table costs a reader who does not trust it this one item."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from cluster.nodes import Node, node

import di_store
from di_store.base.errors import AccessDenied

WAYS = ["sample", "loader", "mixture", "loader of a mixture"]


@pytest.fixture(scope="module")
def served() -> Iterator[Node]:
    with node(f"unloadable-{os.getpid()}") as made:
        yield made


def drawn(store: Any, table: Any, way: str) -> Iterator[Any]:
    """Batches of two, and errors, until nothing is left."""
    source: Any = store.mix({table.name: 1}) if "mixture" in way else table
    if "loader" in way:
        with source.loader(2, timeout=60) as loader:
            while True:
                try:
                    yield next(loader)
                except StopIteration:
                    return
                except AccessDenied as error:
                    yield error
    while True:
        try:
            yield source.sample(2, timeout=60)
        except di_store.EndOfData:
            return
        except AccessDenied as error:
            yield error


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options", [{"limiter": di_store.Queue(9)}, {"sampler": di_store.Once(shuffle=False)}], ids=["queue", "once"]
)
@pytest.mark.parametrize("reader", ["far", "near"])
def test_one_pickle_costs_one_item(
    far: di_store.Store, near: di_store.Store, options: Any, reader: str, way: str
) -> None:
    """Written by a client elsewhere, for a reader there and a reader on the store's machine."""
    name = f"values {uuid.uuid4()}"
    table = far.create_table(name, capacity=9, view=di_store.Opaque(), **options)
    bad = 0
    for number in range(9):
        key = table.insert(Decimal(1) if number == 3 else {"n": number})
        bad = int(key[0]) if number == 3 else bad
    table.finish()
    store = far if reader == "far" else near
    seen, errors = [], []
    for found in drawn(store, store.table(name), way):
        if isinstance(found, AccessDenied):
            errors.append(found)
        else:
            seen += [value["n"] for value in found.data]
    assert sorted(seen) == [0, 1, 2, 4, 5, 6, 7, 8]
    assert [list(error.keys) for error in errors] == [[bad]]
    assert "table" in str(errors[0])
    far.drop_table(name)


def test_a_remote_mixture_names_the_table(far: di_store.Store) -> None:
    for name in ("one", "two"):
        table = far.create_table(name, capacity=9, view=di_store.Opaque(), limiter=di_store.Queue(9))
        bad = table.insert(Decimal(1) if name == "two" else 0)
        table.extend(list(range(8)))
    with pytest.raises(AccessDenied, match="table number 1 of the mixture") as told:
        far.mix({"one": 1, "two": 1}, seed=0).sample(6, timeout=60)
    assert list(told.value.keys) == list(bad)
    assert [len(far.table(name)) for name in ("one", "two")] == [9, 8]
    for name in ("one", "two"):
        far.drop_table(name)
