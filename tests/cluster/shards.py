"""What the tests of tables in parts share: tables, and the laws by which they are drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

import di_store
from di_store.cluster.shards.shard import Shard
from di_store.cluster.store import ClusterStore
from di_store.replay.keys import with_shard

SURE = 1e-6
"""Least P of a test's observation: smaller ones mean that the law does not hold."""
SCHEMA = {"n": di_store.Spec((), "int64"), "terminated": di_store.Spec((), "bool")}
ROWS: dict[str, Any] = {"capacity": 9000, "schema": SCHEMA, "lanes": 16}


def table_of(shard: Shard) -> di_store.Table:
    """The shard's own table."""
    return di_store.Table(shard.table(60))


def filled(store: ClusterStore, name: str, sizes: list[int], priorities: Any = None, **options: Any) -> Any:
    """A table whose shards hold so many items, with the numbers 0, 1, … in the column `n`. Returns it and its keys."""
    table = store.create_table(name, shards="learners", **{**ROWS, **options})
    keys, first = [], 0
    for shard, size in zip(table._backend.parts.shards, sizes, strict=True):
        rows = {"n": np.arange(first, first + size), "terminated": np.zeros(size, np.bool_)}
        mine = None if priorities is None else np.asarray(priorities)[first : first + size]
        keys.append(with_shard(table_of(shard).extend(rows, priority=mine), shard.number))
        first += size
    return table, np.concatenate(keys)


def numbers(batch: Any) -> np.ndarray[Any, Any]:
    return np.array(batch.data["n"])


def chi_square(drawn: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """P of what was drawn under the expected probabilities; what has none must not appear."""
    counts = np.bincount(drawn, minlength=len(expected))
    assert (counts[expected == 0] == 0).all(), "drew what has no chance"
    possible = expected > 0
    return float(stats.chisquare(counts[possible], expected[possible] * counts.sum()).pvalue)


def step(numbers: Any, ends: Any = False) -> dict[str, Any]:
    """A row for each of several lanes."""
    given = np.asarray(numbers, np.int64)
    return {"n": given, "terminated": np.broadcast_to(np.asarray(ends, np.bool_), given.shape).copy()}
