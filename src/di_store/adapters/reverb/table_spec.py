"""The settings of a server's tables, and their description in the store, which all clients read.

Anybody who can write to the store can make the description, even on another machine. Reading the description runs no
code that it names: it holds names, numbers, and the structure of signatures.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

import di_store
from di_store.adapters.reverb import item_selectors, nest
from di_store.adapters.reverb.item_selectors import Fifo, Heap, Lifo, Prioritized, Selector, Uniform
from di_store.adapters.reverb.rate_limiters import RateLimiter
from di_store.adapters.reverb.reverb_types import TensorSpec
from di_store.base import dtypes

OBJECTS = np.dtype(object)
_SELECTORS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Fifo, Lifo, Uniform, Heap, Prioritized)}
_Leaf = tuple[Any, tuple[int | None, ...], str | None]
"""Type (None: Python objects), shape and name of a leaf of a signature."""


@dataclass(frozen=True)
class TableSpec:
    """The settings of a table.

    Attributes:
        signature: nested structure of `TensorSpec`, or None.
        given: the signature that the program gave; only in its own process.
    """

    name: str
    sampler: Selector
    remover: Selector
    max_size: int
    max_times_sampled: int
    rate_limiter: RateLimiter
    signature: Any
    given: Any = None

    @property
    def queue(self) -> type | None:
        """Di-store's limiter if the table is a queue or stack; None for other tables."""
        limiter = self.rate_limiter
        numbers = limiter.samples_per_insert, limiter.min_size_to_sample, limiter.min_diff, limiter.max_diff
        if numbers != (1.0, 1, 0.0, float(self.max_size)) or self.max_times_sampled != 1:
            return None
        for kind, found in ((item_selectors.Fifo, di_store.Queue), (item_selectors.Lifo, di_store.Stack)):
            if isinstance(self.sampler, kind) and isinstance(self.remover, kind):
                return found
        return None

    @property
    def columns(self) -> list[TensorSpec] | None:
        """The columns of an item; None: there is no signature."""
        return None if self.signature is None else nest.flatten(self.signature)

    @property
    def item_bytes(self) -> int | None:
        """Bytes of an item, if all items have the same size."""
        columns = self.columns
        if columns is None or not all(each.fixed and each.dtype != OBJECTS for each in columns):
            return None
        return sum(each.dtype.itemsize * math.prod(size or 0 for size in each.shape) + 8 for each in columns)


def described(specs: dict[str, TableSpec]) -> dict[str, dict[str, Any]]:
    """The description of tables."""
    return {
        name: {
            "sampler": _selector(spec.sampler),
            "remover": _selector(spec.remover),
            "max_size": spec.max_size,
            "max_times_sampled": spec.max_times_sampled,
            "limiter": [
                spec.rate_limiter.samples_per_insert,
                spec.rate_limiter.min_size_to_sample,
                spec.rate_limiter.min_diff,
                spec.rate_limiter.max_diff,
            ],
            "signature": None if spec.signature is None else nest.map_structure(_leaf, spec.signature),
        }
        for name, spec in specs.items()
    }


def specs_of(description: Any) -> dict[str, TableSpec]:
    """The tables that `described` described.

    Raises:
        di_store.CorruptData: there is no such description.
    """
    try:
        return {str(name): _spec(str(name), **each) for name, each in description.items()}
    except (AttributeError, KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
        raise di_store.CorruptData(f"the description of the server's tables is damaged: {error}") from None


def _spec(
    name: str, sampler: Any, remover: Any, max_size: int, max_times_sampled: int, limiter: list[float], signature: Any
) -> TableSpec:
    ratio, least, low, high = limiter
    return TableSpec(
        name,
        _selected(*sampler),
        _selected(*remover),
        int(max_size),
        int(max_times_sampled),
        RateLimiter(ratio, int(least), low, high),
        None if signature is None else nest.map_structure(_told, signature),
    )


def _selector(selector: Selector) -> list[Any]:
    return [type(selector).__name__, *dataclasses.astuple(selector)]


def _selected(name: str, *numbers: float) -> Selector:
    found: Selector = _SELECTORS[name](*numbers)
    return found


def _leaf(spec: TensorSpec) -> bytes:
    """A leaf of a signature as bytes, which are no structure."""
    plain = None if spec.dtype == OBJECTS else dtypes.describe(spec.dtype)
    return msgspec.msgpack.encode((plain, spec.shape, spec.name))


def _told(leaf: bytes) -> TensorSpec:
    plain, shape, name = msgspec.msgpack.decode(leaf, type=_Leaf)
    return TensorSpec(shape, OBJECTS if plain is None else dtypes.parse(plain), name)
