"""A table's settings as numbers for the core."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

from di_store._core import MOST_SLOTS, SamplerKind
from di_store.policy.changes import UNCHANGED, Changes
from di_store.policy.limiters import Limiter, Pace, Queue, Stack
from di_store.policy.samplers import Fifo, Lifo, MaxHeap, MinHeap, Once, Prioritized, Uniform
from di_store.policy.settings import Settings
from di_store.policy.views import Group, View, answers_of

_KINDS = {
    Uniform: SamplerKind.UNIFORM,
    Fifo: SamplerKind.FIFO,
    Lifo: SamplerKind.LIFO,
    MinHeap: SamplerKind.MIN_HEAP,
    MaxHeap: SamplerKind.MAX_HEAP,
    Prioritized: SamplerKind.PRIORITIZED,
    Once: SamplerKind.ONCE,
}
UNLIMITED = 2**63
"""Stands for "no limit" where the core keeps a number."""

LimiterNumbers: TypeAlias = "tuple[float, float, float, int, bool, str | None]"
"""Ratio, least and largest difference, min_size, whether it is a queue or stack, and the weights of a `Pace`."""


def table_shape(settings: Settings, name: str, reserve: tuple[int, int, int, int], item_bytes: int) -> dict[str, Any]:
    """The core's description of a new table.

    Before its first step a table without schema= has few slots; the first step adds the others, if they fit.

    Args:
        settings: the table's.
        name: the table's.
        reserve: as `reserve.Reserve`.
        item_bytes: bytes charged for each draw that a process holds.
    """
    sampler = settings.sampler
    prioritized = sampler if isinstance(sampler, Prioritized) else None
    once = sampler if isinstance(sampler, Once) else None
    initial = settings.initial_priority
    return {
        "name": name,
        "config": settings.to_text(settings.made or os.urandom(8).hex()),
        "capacity": UNLIMITED if settings.capacity is None else settings.capacity,
        "slots": slots_for(None if settings.schema is None else settings.capacity, settings.view),
        "item_bytes": item_bytes,
        "max_bytes": UNLIMITED if settings.max_bytes is None else settings.max_bytes,
        "reserve": reserve,
        "expect": settings.expect,
        "seed": settings.seed,
        "sampler": _KINDS[type(sampler)],
        "remover": _KINDS[type(settings.remover)],
        "alpha": 1.0 if prioritized is None else prioritized.alpha,
        "beta": settings.beta,
        "stratified": prioritized is not None and prioritized.stratified,
        "normalize_table": prioritized is not None and prioritized.normalize == "table",
        "epochs": -1 if once is None or once.epochs is None else once.epochs,
        "shuffle": once is None or once.shuffle,
        "max_times_sampled": settings.max_times_sampled,
        "max_staleness": -1 if settings.max_staleness is None else settings.max_staleness,
        "weights": settings.weights,
        "initial_priority": -1.0 if isinstance(initial, str) else initial,
        "limiter": limiter_numbers(settings.limiter),
        "group": settings.view.size if isinstance(settings.view, Group) else 0,
        "unique_groups": isinstance(settings.view, Group) and settings.view.unique,
        "short_groups": isinstance(settings.view, Group) and settings.view.short,
        "group_deadline": _deadline(settings.view),
    }


def _deadline(view: View) -> float:
    """Seconds after which a group that is not complete ends; -1: never."""
    return -1.0 if not isinstance(view, Group) or view.deadline is None else view.deadline


def slots_for(capacity: int | None, view: View) -> int:
    """Initial item slots: more than the items take, so that freed slots are reused late and old keys stay invalid.

    A `Group` takes one slot for each of its answers.
    """
    return 1024 if capacity is None else min(capacity * answers_of(view) + 1024, MOST_SLOTS)


def limiter_numbers(limiter: Limiter) -> LimiterNumbers:
    """The numbers that describe a limiter to the core."""
    bounds = limiter.bounds
    queued, weights = isinstance(limiter, (Queue, Stack)), limiter.weights if isinstance(limiter, Pace) else None
    return bounds.ratio, bounds.min_diff, bounds.max_diff, bounds.min_size, queued, weights


def native_changes(changes: Changes) -> tuple[LimiterNumbers | None, float | None, Any, int | None]:
    """Limiter, alpha, beta and max_staleness in the form of the core's `configure`; ``...`` leaves beta unchanged."""
    staleness = changes.max_staleness
    return (
        None if changes.limiter is None else limiter_numbers(changes.limiter),
        changes.alpha,
        ... if changes.beta is UNCHANGED else changes.beta,
        None if staleness is UNCHANGED else -1 if staleness is None else staleness,
    )
