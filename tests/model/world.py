"""Environments made of a counter: every observation is unique and tells where it came from.

A `World` is one lane's environment. `propose` says what the next step would be without taking it, so that a
refused append can be repeated; `take` takes it.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .episodes import Row
from .writer import Entry


@dataclass(frozen=True)
class Columns:
    """Which columns the rows have beside obs, action, reward and the flags.

    Attributes:
        discount, state, tokens, version: whether there is such a column.
        unbounded: `tokens` has no `max=`.
        apart: the second table has no `discount`.
    """

    discount: bool = False
    state: bool = False
    tokens: bool = False
    version: bool = False
    unbounded: bool = False
    apart: bool = False


@dataclass
class Counter:
    """Numbers that are never given twice, and the version of the weights that all environments act with."""

    source: itertools.count[int] = field(default_factory=itertools.count)
    version: int = 0

    def observation(self) -> Row:
        """A new observation: a frame that spells the number and a position near it."""
        number = next(self.source)
        frame = np.array([number >> shift & 255 for shift in (24, 16, 8, 0)], dtype=np.uint8).reshape(2, 2)
        return {"obs/frame": frame, "obs/pos": np.array([number, number / 2, -number], dtype=np.float32)}


@dataclass
class World:
    """One environment; it restarts by itself after an end, the program's `reset`."""

    counter: Counter
    columns: Columns
    obs: Row = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """A new episode."""
        self.obs = self.counter.observation()

    def propose(self, rng: random.Random, end_chance: float) -> Entry:
        """The next step, not yet taken."""
        end = rng.choice(["terminated", "truncated", "both"]) if rng.random() < end_chance else ""
        row: Row = {
            **self.obs,
            "action": np.int64(rng.randrange(100)),
            "reward": np.float32(rng.randrange(-8, 9) / 4),
            "terminated": np.bool_(end in ("terminated", "both")),
            "truncated": np.bool_(end in ("truncated", "both")),
        }
        if self.columns.discount:
            row["discount"] = np.float32(rng.choice([1.0, 1.0, 0.5, 0.0]))
        if self.columns.state:
            row["state"] = np.array([rng.random(), rng.random()], dtype=np.float32)
        if self.columns.tokens:
            most = rng.choice((5, 5, 300)) if self.columns.unbounded else 5
            row["tokens"] = tuple(rng.randrange(1000) for _ in range(rng.randrange(most)))
        if self.columns.version:
            row["version"] = np.int64(self.counter.version)
        return Entry(row, self.counter.observation())

    def take(self, entry: Entry) -> None:
        """Take a proposed step."""
        if entry.row["terminated"] or entry.row["truncated"]:
            self.reset()
        else:
            assert entry.next is not None
            self.obs = entry.next


def nested(row: Row) -> dict[str, Any]:
    """A flat row as the nested dict that a program passes."""
    tree: dict[str, Any] = {}
    for path, value in row.items():
        *inner, leaf = path.split("/")
        node = tree
        for name in inner:
            node = node.setdefault(name, {})
        node[leaf] = given(value)
    return tree


def stacked(rows: list[Row]) -> Row:
    """Rows of several lanes (or steps) as one flat row with a leading axis; ragged values as a list."""
    return {path: joined([row[path] for row in rows]) for path in rows[0]}


def joined(values: list[Any]) -> Any:
    """`[len(values), …]`; ragged values (tuples, or lists of them) as a list."""
    return values if isinstance(values[0], (tuple, list)) else np.stack(values)


def given(value: Any) -> Any:
    """A leaf as a program passes it: ragged rows are int32 arrays."""
    if isinstance(value, list):
        return [given(each) for each in value]
    return np.array(value, dtype=np.int32) if isinstance(value, tuple) else value
