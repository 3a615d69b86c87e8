"""What `create_table` was given, checked, and in the form in which the table's config keeps it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from di_store.base import config, tree
from di_store.base.errors import CorruptData, shown
from di_store.columns.schema import Schema
from di_store.policy.combination import Combination
from di_store.policy.limiters import LIMITERS, Limiter, Queue, Stack, limiter_to_plain
from di_store.policy.samplers import (
    Fifo,
    Once,
    Prioritized,
    Remover,
    Sampler,
    remover_from_plain,
    sampler_from_plain,
    sampler_to_plain,
)
from di_store.policy.views import Opaque, View, view_from_plain, view_to_plain

SELECTORS = {"Uniform": 0, "Fifo": 1, "Lifo": 2, "MinHeap": 3, "MaxHeap": 4, "Prioritized": 5, "Once": 6}
MAX_SLOTS = 2**28 - 2
"""What a key can name, as in ``native/base/layout.h``."""
UNLIMITED = 2**63
"""Stands for "no limit" where the core keeps a number."""
_NAME_BYTES = 100


@dataclass(frozen=True)
class Settings:
    """One table's settings, as they were at its creation.

    Attributes:
        schema: the columns that `schema=` declared; None: the first step declares them.
        columns: which of the stream's columns a batch holds; None: all.
        initial_priority: "max", or the priority of items that come without one.
        seed: of the table's draws.
    """

    view: View
    schema: Schema | None
    sampler: Sampler
    remover: Remover
    limiter: Limiter
    max_times_sampled: int
    capacity: int | None
    max_bytes: int | None
    lanes: int
    weights: str | None
    max_staleness: int | None
    initial_priority: float | str
    columns: tuple[str, ...] | None
    seed: int

    @property
    def in_order(self) -> bool:
        """Whether items leave in the order in which they came, so that chunks free whole."""
        return isinstance(self.remover, Fifo) and (not self.max_times_sampled or isinstance(self.sampler, Fifo))

    @property
    def queued(self) -> bool:
        """Whether inserts wait instead of evicting."""
        return isinstance(self.limiter, (Queue, Stack))

    @property
    def opaque(self) -> bool:
        """Whether items are Python values without columns."""
        return isinstance(self.view, Opaque)

    @property
    def beta(self) -> float | None:
        """The sampler's own exponent of the importance weights."""
        return self.sampler.beta if isinstance(self.sampler, Prioritized) else None

    def difference(self, other: Settings) -> str:
        """Which of view, schema, sampler, remover differ, for people; "" when none does."""
        parts = [
            f"{name}={getattr(other, name)!r} is {getattr(self, name)!r} there"
            for name in ("view", "sampler", "remover")
            if getattr(self, name) != getattr(other, name)
        ]
        if self.schema is not None and other.schema is not None and (text := self.schema.difference(other.schema)):
            parts.append(f"schema: {text} (the first is the table's)")
        return "; ".join(parts)

    def to_text(self) -> str:
        """JSON, exact."""
        plain: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["view"] = view_to_plain(self.view)
        plain["sampler"] = sampler_to_plain(self.sampler)
        plain["remover"] = sampler_to_plain(self.remover)
        plain["limiter"] = limiter_to_plain(self.limiter)
        plain["schema"] = None if self.schema is None else self.schema.to_plain()
        return msgspec.json.encode(plain).decode()

    @classmethod
    def from_text(cls, text: str) -> Settings:
        """The settings that `to_text` described; `CorruptData` if it is none."""
        try:
            plain = msgspec.json.decode(text)
            view, schema = view_from_plain(plain["view"]), plain["schema"]
            plain["view"] = view
            plain["sampler"] = sampler_from_plain(plain["sampler"])
            plain["remover"] = remover_from_plain(plain["remover"])
            plain["limiter"] = config.from_plain(plain["limiter"], LIMITERS, "limiter")
            plain["schema"] = None if schema is None else Schema.from_plain(schema)
            plain["columns"] = None if plain["columns"] is None else tuple(plain["columns"])
            return cls(**plain)
        except (msgspec.DecodeError, TypeError, KeyError) as error:
            raise CorruptData(f"the stored settings of a table cannot be read: {error}") from None

    def shape(self, name: str, reserve: tuple[int, int, int], item_bytes: int) -> dict[str, Any]:
        """The core's description of a new table; `reserve` as `lowering.reserve.Reserve`.

        Where a first step is still to come it has few slots: that step brings the others, if they fit.
        """
        sampler = self.sampler
        prioritized = sampler if isinstance(sampler, Prioritized) else None
        once = sampler if isinstance(sampler, Once) else None
        initial = self.initial_priority
        return {
            "name": name,
            "config": self.to_text(),
            "capacity": UNLIMITED if self.capacity is None else self.capacity,
            "slots": slots_for(None if self.schema is None else self.capacity),
            "item_bytes": item_bytes,
            "max_bytes": UNLIMITED if self.max_bytes is None else self.max_bytes,
            "reserve": reserve,
            "seed": self.seed,
            "sampler": SELECTORS[type(sampler).__name__],
            "remover": SELECTORS[type(self.remover).__name__],
            "alpha": 1.0 if prioritized is None else prioritized.alpha,
            "beta": self.beta,
            "stratified": prioritized is not None and prioritized.stratified,
            "normalize_table": prioritized is not None and prioritized.normalize == "table",
            "epochs": -1 if once is None or once.epochs is None else once.epochs,
            "shuffle": once is None or once.shuffle,
            "max_times_sampled": self.max_times_sampled,
            "max_staleness": -1 if self.max_staleness is None else self.max_staleness,
            "weights": self.weights,
            "initial_priority": -1.0 if isinstance(initial, str) else initial,
            "limiter": limiter_numbers(self.limiter),
        }


def slots_for(capacity: int | None) -> int:
    """Item slots to begin with: freed ones are reused late, so that old keys stay dead."""
    return 1024 if capacity is None else min(capacity + 1024, MAX_SLOTS)


def limiter_numbers(limiter: Limiter) -> tuple[float, float, float, int, bool]:
    """What the core needs to know of a limiter."""
    bounds = limiter.bounds
    return bounds.ratio, bounds.min_diff, bounds.max_diff, bounds.min_size, isinstance(limiter, (Queue, Stack))


def make_settings(found: Combination, schema: Any, seed: int, rest: dict[str, Any]) -> Settings:
    """Check what `check_combination` does not see.

    Args:
        found: the settings that depend on each other.
        schema: as given to `create_table`.
        seed: of the table.
        rest: lanes, weights, max_staleness, initial_priority, columns, durability as given.

    Raises:
        ValueError, TypeError: as `create_table`.
    """
    check_durability(rest["durability"])
    for option, given in (("schema", schema), ("columns", rest["columns"])):
        if given is not None and isinstance(found.view, Opaque):
            raise ValueError(
                f"{option}= with view=Opaque(): it keeps whole Python values and has no columns; leave {option}= out, "
                "or use view=Step()"
            )
    declared = None
    if schema is not None:
        declared = schema if isinstance(schema, Schema) else Schema.from_tree(space_tree(schema))
    columns = rest["columns"]
    return Settings(
        found.view,
        declared,
        found.sampler,
        found.remover,
        found.limiter,
        found.max_times_sampled,
        found.capacity,
        found.max_bytes,
        config.count("lanes", rest["lanes"], minimum=1, maximum=2**20, why="a table has at least one writer lane"),
        check_weights(rest["weights"]),
        _staleness(rest["max_staleness"], rest["weights"]),
        initial_priority(rest["initial_priority"]),
        None if columns is None else config.names("columns", columns),
        seed,
    )


def space_tree(declared: Any, depth: int = 0) -> Any:
    """Gymnasium's Dict spaces as dicts, as deep as columns may be named; everything else as it is."""
    if depth > tree.MAX_DEPTH + 1:  # `tree.flatten` refuses it
        return declared
    spaces = getattr(declared, "spaces", None)
    if isinstance(spaces, dict):
        declared = spaces
    if isinstance(declared, dict):
        return {key: space_tree(value, depth + 1) for key, value in declared.items()}
    return declared


def check_durability(value: Any) -> None:
    """ValueError for all but "memory"."""
    if not isinstance(value, str) or value != "memory":
        raise ValueError(f"durability={shown(value)} is not available in this version of di-store: leave it out")


def check_table_name(name: Any) -> str:
    """`name` if a table can be called so."""
    if not config.is_name(name, _NAME_BYTES):
        raise ValueError(f"name={shown(name)}: a table's name is 1 to {_NAME_BYTES} bytes of text")
    return name


def check_weights(name: Any) -> str | None:
    """`name` if weights can be called so."""
    if name is None:
        return None
    if not config.is_name(name, _NAME_BYTES):
        raise ValueError(f"weights={shown(name)}: give the name that store.publish() uses, 1 to 100 bytes of text")
    return name


def _staleness(value: Any, weights: Any) -> int | None:
    if value is None:
        return None
    staleness = config.count("max_staleness", value, minimum=0, why="0 keeps only items of the newest version")
    if weights is None:
        raise ValueError(
            'max_staleness counts versions of published weights: name them with weights="policy", '
            "as in store.publish(name, …)"
        )
    return staleness


def initial_priority(value: Any) -> float | str:
    """The value, if it is a finite number that is not negative, or "max"."""
    if isinstance(value, str):
        if value != "max":
            raise ValueError(
                f'initial_priority={shown(value)}: give "max" (the largest given, at least 1.0) or a number'
            )
        return value
    return config.real("initial_priority", value, maximum=math.inf, why="it is a priority")
