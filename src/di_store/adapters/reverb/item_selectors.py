"""Selectors choose items to draw or to remove: `reverb.selectors`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import di_store


@dataclass(frozen=True)
class Fifo:
    """The oldest item."""


@dataclass(frozen=True)
class Lifo:
    """The newest item."""


@dataclass(frozen=True)
class Uniform:
    """All items with equal probability."""


@dataclass(frozen=True)
class Heap:
    """The item of lowest (`min_heap`) or highest priority."""

    min_heap: bool = True


@dataclass(frozen=True)
class Prioritized:
    """An item with probability p^priority_exponent over the sum of all. Items of priority 0 are never drawn."""

    priority_exponent: float


def MinHeap() -> Heap:
    """The item of lowest priority."""
    return Heap(min_heap=True)


def MaxHeap() -> Heap:
    """The item of highest priority."""
    return Heap(min_heap=False)


Selector: TypeAlias = Fifo | Lifo | Uniform | Heap | Prioritized


def sampler(selector: Selector) -> Any:
    """Di-store's sampler for a selector."""
    if isinstance(selector, Prioritized):
        return di_store.Prioritized(selector.priority_exponent)
    if isinstance(selector, Heap):
        return di_store.MinHeap() if selector.min_heap else di_store.MaxHeap()
    return _PLAIN[type(selector)]()


def remover(selector: Selector) -> Any:
    """Di-store's remover for a selector.

    Raises:
        ValueError: there is no such remover.
    """
    if isinstance(selector, Prioritized):
        raise ValueError("remover=Prioritized is not supported: remove with Fifo, Lifo, Uniform, MinHeap or MaxHeap")
    return sampler(selector)


_PLAIN: dict[type, Any] = {Fifo: di_store.Fifo, Lifo: di_store.Lifo, Uniform: di_store.Uniform}
