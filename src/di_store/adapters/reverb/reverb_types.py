"""Types that clients see: `TableInfo` and `TensorSpec` of a table, `ReplaySample` of an item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from di_store.adapters.reverb import nest
from di_store.adapters.reverb.item_selectors import Fifo, Heap, Lifo, Prioritized, Selector, Uniform


@dataclass(frozen=True)
class TensorSpec:
    """Shape and type of one column of an item.

    Attributes:
        shape: None stands for any length.
        dtype: type of numpy.
        name: only for people.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    name: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", to_shape(self.shape))
        object.__setattr__(self, "dtype", to_dtype(self.dtype))

    def matches(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        """Whether an array of this shape and type fits the column."""
        if dtype != self.dtype or len(shape) != len(self.shape):
            return False
        return all(wanted is None or size == wanted for size, wanted in zip(shape, self.shape, strict=True))

    @property
    def fixed(self) -> bool:
        """Whether all lengths are known."""
        return None not in self.shape


def to_dtype(dtype: Any) -> np.dtype[Any]:
    """A numpy type from a type of numpy or TensorFlow."""
    found: np.dtype[Any] = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    return found if found.kind not in "SU" else np.dtype(object)


def to_shape(shape: Any) -> tuple[int | None, ...]:
    """A tuple from a tuple, a list or TensorFlow's TensorShape."""
    as_list = getattr(shape, "as_list", None)
    return tuple(None if size is None else int(size) for size in (as_list() if as_list else shape))


def to_spec(spec: Any) -> TensorSpec:
    """A `TensorSpec` from anything with `shape` and `dtype`.

    Raises:
        ValueError: the value lacks one of them.
    """
    if not hasattr(spec, "shape") or not hasattr(spec, "dtype"):
        raise ValueError(f"Unsupported signature spec: {spec}")
    return TensorSpec(spec.shape, spec.dtype, getattr(spec, "name", None))


def to_signature(signature: Any) -> Any:
    """A nested structure of `TensorSpec`; None: there is none."""
    return None if signature is None else nest.map_structure(to_spec, signature)


class SelectorOptions:
    """A selector in the form of Reverb's proto: the attribute of its kind is set, all others are False."""

    def __init__(self, selector: Selector) -> None:
        self.selector = selector
        self.fifo = isinstance(selector, Fifo)
        self.lifo = isinstance(selector, Lifo)
        self.uniform = isinstance(selector, Uniform)
        self.heap = selector if isinstance(selector, Heap) else False
        self.prioritized = selector if isinstance(selector, Prioritized) else False

    def HasField(self, name: str) -> bool:
        """Whether the selector is of this kind."""
        return getattr(self, name) is not False

    def __repr__(self) -> str:
        return f"SelectorOptions({self.selector!r})"


@dataclass(frozen=True)
class CallStats:
    """Number of operations that were completed."""

    completed: int


@dataclass(frozen=True)
class RateLimiterInfo:
    """The numbers of a rate limiter, and its counts."""

    samples_per_insert: float
    min_size_to_sample: int
    min_diff: float
    max_diff: float
    insert_stats: CallStats
    sample_stats: CallStats


@dataclass(frozen=True)
class TableInfo:
    """Settings and counts of a table.

    Attributes:
        sampler_options, remover_options: the selectors.
        signature: nested structure of `TensorSpec`, or the signature that the table was made with.
        current_size: number of items.
        unique: counts the items that were drawn; called when `num_unique_samples` is read.
    """

    name: str
    sampler_options: SelectorOptions
    remover_options: SelectorOptions
    max_size: int
    max_times_sampled: int
    rate_limiter_info: RateLimiterInfo
    signature: Any
    current_size: int
    unique: Callable[[], int] = field(repr=False, compare=False)

    @property
    def num_unique_samples(self) -> int:
        """How many of the items in the table were drawn at least once. Each read looks at all items."""
        return self.unique()

    @property
    def num_episodes(self) -> int:
        """Always 0: episodes are not counted."""
        return 0

    @property
    def num_deleted_episodes(self) -> int:
        """Always 0: episodes are not counted."""
        return 0


class SampleInfo(NamedTuple):
    """How an item was drawn: Python numbers from `Client.sample`, numpy numbers or arrays from a dataset.

    Attributes:
        key: key of the item, for `Client.mutate_priorities`.
        probability: probability with which the item was drawn.
        table_size: items in the table at that time.
        priority: priority of the item at that time.
        times_sampled: number of draws of the item, including this one.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any

    @classmethod
    def zeros(cls) -> SampleInfo:
        """All fields zero."""
        return cls(0, 0.0, 0, 0.0, 0)


class ReplaySample(NamedTuple):
    """One item, or a batch of items.

    Attributes:
        info: how the item was drawn.
        data: its columns: nested if the reader knows the structure, else a list.
    """

    info: SampleInfo
    data: Any
