"""What the tests of checkpoints of stores share."""

from __future__ import annotations

from typing import Any

import numpy as np

import di_store
from di_store import Fifo, Lifo, MaxHeap, MinHeap, Uniform

MEMORY = "64MiB"
Options = dict[str, Any]


def step(i: int, rng: np.random.Generator, length: int = 50) -> dict[str, Any]:
    row = {"obs": rng.random(20).astype(np.float32), "action": i % 6, "reward": float(i)}
    return row | {"terminated": i % length == length - 1, "truncated": False}


def write(table: Any, count: int, first: int = 0, length: int = 50) -> None:
    rng = np.random.default_rng(first)
    with table.writer() as writer:
        for i in range(first, first + count):
            writer.append(step(i, rng, length))


def same(a: di_store.Batch, b: di_store.Batch) -> None:
    assert (a.keys == b.keys).all()
    assert (np.asarray(a.probabilities) == np.asarray(b.probabilities)).all()
    equal(a.data, b.data)


def equal(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            equal(a[name], b[name])
    elif isinstance(a, di_store.Ragged):
        equal(a.values, b.values)
        equal(a.offsets, b.offsets)
    elif isinstance(a, list):
        assert a == b
    else:
        assert (np.asarray(a) == np.asarray(b)).all()


def same_draws(a: Any, b: Any, times: int = 20, n: int = 25) -> None:
    assert len(a) == len(b)
    for _ in range(times):
        same(a.sample(n), b.sample(n))


def sound(*stores: di_store.Store) -> None:
    for store in stores:
        assert store.check() == []


REMOVERS = (Fifo(), Lifo(), Uniform(), MinHeap(), MaxHeap())
