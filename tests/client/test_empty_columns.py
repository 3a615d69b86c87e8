"""Columns without elements and keys with "/" through an agent: the same values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cluster.nodes import Node, node

import di_store


@pytest.fixture(scope="module")
def served() -> Iterator[Node]:
    with node("empty") as made:
        yield made


def step(n: int, lanes: int | None) -> dict[str, Any]:
    lead = () if lanes is None else (lanes,)
    return {
        "walker/pos": np.full((*lead, 2), n, np.float32),
        "obs": {"a/b": np.full(lead, n, np.int64), "a": {"b": np.full(lead, -n, np.int64)}},
        "none": np.zeros((*lead, 3, 0), np.float32),
        "reward": np.full(lead, n, np.float32),
        "terminated": np.full(lead, n % 8 == 7),
        "truncated": np.full(lead, False),
    }


@pytest.mark.parametrize("lanes", [None, 2])
@pytest.mark.parametrize("view", ["step", "transition"])
def test_empty_columns_work_remotely(far: di_store.Store, near: di_store.Store, view: str, lanes: int | None) -> None:
    name = f"{view} {lanes}"
    made: Any = di_store.Step() if view == "step" else di_store.Transition(obs=("obs", "walker/pos"))
    table = far.create_table(name, capacity=1000, view=made)
    with table.writer(lanes=lanes) as writer:
        for n in range(40):
            writer.append(step(n, lanes))
    if view == "step":
        table.insert(step(40, None))
        table.extend(step(41, 3))
    for store in (far, near):
        data = store.table(name).sample(30).data
        assert data["none"].shape == (30, 3, 0)
        assert (data["walker/pos"][:, 0] == data["obs"]["a/b"]).all()
        assert (data["obs"]["a"]["b"] == -data["obs"]["a/b"]).all()
        assert list(store.table(name).sample(2, columns="obs/a/b").data["obs"]) == ["a"]
        with store.table(name).loader(4, device="cpu") as loader:
            assert next(loader).data["none"].shape == (4, 3, 0)
    assert near.table(name).schema == table.schema
    far.drop_table(name)
