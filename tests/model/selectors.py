"""Selectors: which of the live items is drawn or removed next.

A deterministic selector answers with the one candidate; a random one with all that have a chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(eq=False)
class Item:
    """One item. `number` counts inserts of the table; `example` is the item's own copy."""

    number: int
    lane: int
    start: int
    episode: int
    example: dict[str, Any]
    priority: float
    times_sampled: int = 0
    version: int = -1
    drawn_in: set[int] = field(default_factory=set)


def _extreme(items: list[Item], value: Callable[[Item], float]) -> list[Item]:
    best = min(value(item) for item in items)
    return [item for item in items if value(item) == best]


CANDIDATES: dict[str, Callable[[list[Item]], list[Item]]] = {
    "Uniform": lambda items: list(items),
    "Fifo": lambda items: _extreme(items, lambda item: item.number),
    "Lifo": lambda items: _extreme(items, lambda item: -item.number),
    "MinHeap": lambda items: _extreme(items, lambda item: item.priority),
    "MaxHeap": lambda items: _extreme(items, lambda item: -item.priority),
    "Prioritized": lambda items: [item for item in items if item.priority > 0],
}


@dataclass
class Once:
    """Every item once per epoch; `epochs=None` has no last one."""

    epochs: int | None = 1
    shuffle: bool = True
    epoch: int = 1

    def candidates(self, items: list[Item]) -> list[Item]:
        """Items left in this epoch; opens the next one when none are and one more is due."""
        left = [item for item in items if self.epoch not in item.drawn_in]
        if not left and items and (self.epochs is None or self.epoch < self.epochs):
            self.epoch += 1
            left = list(items)
        return left if self.shuffle else left[:1]


def candidates(selector: str | Once, items: Iterable[Item]) -> list[Item]:
    """Items that the next draw may return; empty if it must wait."""
    live = list(items)
    if not live:
        return []
    if isinstance(selector, Once):
        return selector.candidates(live)
    return CANDIDATES[selector](live)


def probabilities(priorities: list[float], alpha: float) -> np.ndarray[Any, Any]:
    """P(i) = p_i^alpha / Σ p^alpha, with priority 0 never drawn (also for alpha 0)."""
    powers = np.array([p**alpha if p > 0 else 0.0 for p in priorities], dtype=np.float64)
    return np.asarray(powers / powers.sum())


def importance(probability: np.ndarray[Any, Any], size: int, beta: float) -> np.ndarray[Any, Any]:
    """(N·P)^−beta over its largest in the batch (`normalize="batch"`)."""
    weights = (size * probability) ** -beta
    return np.asarray(weights / weights.max())
