"""Samplers choose the item to draw; removers choose the item to evict when a table is full.

The core does the choosing; these classes only describe it. `Uniform`, `Fifo`, `Lifo`, `MinHeap` and `MaxHeap` serve as
either, `Prioritized` and `Once` as samplers only.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal, TypeAlias

from di_store.base import config
from di_store.base.errors import shown
from di_store.base.frozen import dataclass


@dataclass(frozen=True)
class Uniform:
    """Every item with equal probability 1/N, with replacement."""


@dataclass(frozen=True)
class Fifo:
    """The oldest item: inserted first, chosen first."""


@dataclass(frozen=True)
class Lifo:
    """The newest item: inserted last, chosen first."""


@dataclass(frozen=True)
class MinHeap:
    """The item of lowest priority; among equals, the one inserted first."""


@dataclass(frozen=True)
class MaxHeap:
    """The item of highest priority; among equals, the one inserted first."""


@dataclass(frozen=True)
class Prioritized:
    """Item i with probability P(i) = p_i^alpha / Σ p^alpha, with replacement (Schaul et al. 2016, eq. 1).

    Importance weights are w_i = (N · P(i))^-beta, divided by the largest one (ibid., section 3.4). An item of priority
    0 is never drawn: add an epsilon to the errors. Every other p_i^alpha must lie between 2^-640 and 2^320 (about
    2e-193 and 2e96); within this range, probabilities and weights are right to at least ten digits. Priorities outside
    it raise `ValueError`, and so does an `alpha` that would move existing priorities outside it.

    Attributes:
        alpha: exponent of priorities, >= 0; 0 is uniform over items whose priority is not 0.
        beta: exponent of the weights, >= 0; None: all weights are 1. `sample(beta=)` overrides it, for annealing.
        stratified: make one draw from each of n equal slices of the priority mass, which lowers the variance of a
            batch.
        normalize: divide by the largest weight of the "batch" (the paper), or of the "table" (Baselines, RLlib,
            TorchRL).
    """

    alpha: float
    beta: float | None = None
    stratified: bool = field(default=False, kw_only=True)
    normalize: Literal["batch", "table"] = field(default="batch", kw_only=True)

    def __post_init__(self) -> None:
        alpha = config.real("Prioritized(alpha=)", self.alpha, why="it is the exponent on priorities")
        object.__setattr__(self, "alpha", alpha)
        if self.beta is not None:
            beta = config.real("Prioritized(beta=)", self.beta, why="it is the exponent of the importance weights")
            object.__setattr__(self, "beta", beta)
        object.__setattr__(self, "stratified", config.flag("Prioritized(stratified=)", self.stratified))
        config.choice("Prioritized(normalize=)", self.normalize, ("batch", "table"))


@dataclass(frozen=True)
class Once:
    """Every item once per epoch, without replacement, across all learners of the table.

    Items stay in the table; later inserts join the running epoch. After the last epoch, `sample` raises `EndOfData`
    once the table is finished. A draw that was not delivered, because its process died or timed out, is repeated before
    the next epoch: each item is delivered once in every epoch. With `max_times_sampled` (at most 255) items leave after
    that many epochs.

    Attributes:
        epochs: total number of epochs; None: without end.
        shuffle: random order in each epoch; False: oldest first.
    """

    epochs: int | None = 1
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.epochs is not None:
            epochs = config.count("Once(epochs=)", self.epochs, minimum=1, why="None stands for epochs without end")
            object.__setattr__(self, "epochs", epochs)
        object.__setattr__(self, "shuffle", config.flag("Once(shuffle=)", self.shuffle))


Sampler: TypeAlias = Uniform | Fifo | Lifo | MinHeap | MaxHeap | Prioritized | Once
Remover: TypeAlias = Uniform | Fifo | Lifo | MinHeap | MaxHeap

SAMPLERS: tuple[type[Sampler], ...] = (Uniform, Fifo, Lifo, MinHeap, MaxHeap, Prioritized, Once)
REMOVERS: tuple[type[Remover], ...] = (Uniform, Fifo, Lifo, MinHeap, MaxHeap)


def sampler_to_plain(selector: Sampler | Remover) -> dict[str, Any]:
    """`selector` as plain data."""
    return config.to_plain(selector)


def sampler_from_plain(plain: Any) -> Sampler:
    """The sampler that `sampler_to_plain` described; `CorruptData` if the data describe none."""
    return config.from_plain(plain, SAMPLERS, "sampler")


def remover_from_plain(plain: Any) -> Remover:
    """The remover that `sampler_to_plain` described; `CorruptData` if the data describe none."""
    return config.from_plain(plain, REMOVERS, "remover")


def check_sampler(value: object) -> Sampler:
    """`value` if it is a sampler; otherwise TypeError, which lists the samplers."""
    return config.instance("sampler", value, SAMPLERS)


def check_remover(value: object) -> Remover:
    """`value` if it is a remover.

    Raises:
        ValueError: `Prioritized` or `Once`, which only draw.
        TypeError: not a remover.
    """
    if isinstance(value, (Prioritized, Once)):
        known = ", ".join(cls.__name__ for cls in REMOVERS)
        raise ValueError(
            f"remover={shown(value)}: {type(value).__name__} only draws; evict with one of {known} "
            "(MinHeap evicts the lowest priority first)"
        )
    return config.instance("remover", value, REMOVERS)
