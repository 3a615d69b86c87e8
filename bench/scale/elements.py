"""The replay element that tables are filled with: 105 bytes in a batch, 61 bytes in the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import di_store

EPISODE_ROWS = 1_000
BATCH = 256
SCHEMA = {
    "obs": di_store.Spec((11,), "f4"),
    "action": di_store.Spec((3,), "f4"),
    "reward": di_store.Spec((), "f4"),
    "terminated": di_store.Spec((), "?"),
}
"""A robot's state and action; `next_obs` comes from the next row. An episode has 1,000 rows."""

TABLE_BYTES, ITEM_BYTES = 16 << 20, 180  # memory of the store for each table and each item: more than it reserves

SAMPLERS = {"prioritized": di_store.Prioritized(alpha=0.6, beta=0.4), "uniform": di_store.Uniform()}


def rows(count: int, seed: int = 0) -> dict[str, Any]:
    """Steps `[count, …]`, of which the last one ends the episode."""
    rng = np.random.default_rng(seed)
    ends = np.zeros(count, bool)
    ends[-1] = True
    return {
        "obs": rng.random((count, 11), np.float32),
        "action": rng.random((count, 3), np.float32),
        "reward": rng.random(count, np.float32),
        "terminated": ends,
    }


def row(seed: int = 0) -> dict[str, Any]:
    """One step in the middle of an episode."""
    return {name: leaf[0] for name, leaf in rows(2, seed).items()}


def store_bytes(capacities: Iterable[int]) -> int:
    return (64 << 20) + sum(TABLE_BYTES + ITEM_BYTES * capacity for capacity in capacities)


def make_table(store: di_store.Store, name: str, capacity: int, sampler: str, lanes: int = 1) -> di_store.Table:
    return store.create_table(
        name, capacity=capacity, view=di_store.Transition(), schema=SCHEMA, sampler=SAMPLERS[sampler], lanes=lanes
    )


def fill(table: di_store.Table, items: int) -> None:
    """Append episodes until the table holds `items`."""
    episode = rows(EPISODE_ROWS)
    with table.writer() as writer:
        while len(table) < items:
            writer.extend(episode)


def touch(table: di_store.Table, priorities: bool, block: int = 100_000) -> None:
    """Read every item once, and set random priorities: later measurements then cause no page faults."""
    rng, keys = np.random.default_rng(1), table.keys()
    for begin in range(0, len(keys), block):
        some = keys[begin : begin + block]
        table.peek(some)
        if priorities:
            table.update_priorities(some, rng.random(len(some)) + 0.1)
