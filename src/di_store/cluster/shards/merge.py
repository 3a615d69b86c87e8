"""Combines the results of several shards: batches, and the items that a call completed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from di_store.base.dtypes import Array, import_torch, is_tensor
from di_store.base.errors import SchemaMismatch
from di_store.columns.ragged import Ragged
from di_store.replay.batch import Batch, Items
from di_store.replay.keys import with_shard

Allocate = Callable[[str, Any, Any], Any]
_FIELDS = ("priorities", "probabilities", "weights", "times_sampled", "versions", "episodes", "starts")


class ShardItems(Items):
    """The items that a call completed in several shards, by lane. They are fetched at the first use."""

    __slots__ = ("_found", "parts")

    def __init__(self, parts: Sequence[tuple[int, Items]]) -> None:
        """Set the items, each with the number of its shard. All items of a lane are in one shard."""
        self.parts = parts
        self._found: tuple[Array, Array, Array] | None = None

    def _read(self) -> tuple[Array, Array, Array]:
        if self._found is None:
            keys = [with_shard(items.keys, number) for number, items in self.parts]
            lanes = [items.lanes for _, items in self.parts]
            starts = [items.starts for _, items in self.parts]
            order = self._order(lanes)
            self._found = merged_arrays(keys)[order], merged_arrays(lanes)[order], merged_arrays(starts)[order]
        return self._found

    def _order(self, lanes: list[Array]) -> Array:
        order: Array = np.argsort(merged_arrays(lanes), kind="stable")
        return order

    @property
    def keys(self) -> Array:  # type: ignore[override]
        return self._read()[0]

    @property
    def lanes(self) -> Array:  # type: ignore[override]
        return self._read()[1]

    @property
    def starts(self) -> Array:  # type: ignore[override]
        return self._read()[2]

    @property
    def episodes(self) -> Array:
        """As `Items.episodes`. Each shard numbers its own episodes."""
        found: Array = merged_arrays([items.episodes for _, items in self.parts])
        return found[self._order([items.lanes for _, items in self.parts])]

    def __reduce__(self) -> Any:
        return ShardItems, ([(number, _plain(items)) for number, items in self.parts],)


def _plain(items: Items) -> Items:
    """Items of a remote writer, as known by now."""
    return Items(items.keys, items.lanes, items.starts)


def merged_arrays(parts: list[Array]) -> Array:
    """Several arrays concatenated; the list may be empty."""
    found: Array = np.concatenate(parts) if parts else np.empty(0, np.uint64)
    return found


def merge(parts: Sequence[tuple[int, Batch]], allocate: Allocate | None = None) -> Batch:
    """The batches of several shards, concatenated, with the shard's number in each key.

    Args:
        parts: number of the shard, and its batch; at least one.
        allocate: makes the arrays, as in `Draws.copy`.

    Raises:
        SchemaMismatch: the shards' columns differ.
    """
    batches = [batch for _, batch in parts]
    data = _merge(batches[0].data, [batch.data for batch in batches], "", allocate)
    keys = merged_arrays([with_shard(batch.keys, number) for number, batch in parts])
    fields = [np.concatenate([getattr(batch, name) for batch in batches]) for name in _FIELDS]
    found = Batch(data, keys, *fields, sum(batch.table_size for batch in batches))
    if all(batch.live is not None for batch in batches):
        found.live = np.concatenate([np.asarray(batch.live) for batch in batches])
    return found


def _merge(first: Any, parts: list[Any], path: str, allocate: Allocate | None) -> Any:
    if isinstance(first, dict):
        if any(not isinstance(part, dict) or part.keys() != first.keys() for part in parts):
            raise _differ(path)
        return {
            name: _merge(value, [part[name] for part in parts], f"{path}/{name}" if path else name, allocate)
            for name, value in first.items()
        }
    if isinstance(first, list):
        return [value for part in parts for value in part]
    if isinstance(first, Ragged):
        return _merge_ragged(parts)
    if any(part.dtype != first.dtype or part.shape[1:] != first.shape[1:] for part in parts):
        raise _differ(path)
    if is_tensor(first):
        return import_torch("a batch of several shards").cat(parts)
    shape = (sum(len(part) for part in parts), *first.shape[1:])
    whole = np.empty(shape, first.dtype) if allocate is None else allocate(path, shape, first.dtype)
    at = 0
    for part in parts:
        whole[at : at + len(part)] = part
        at += len(part)
    return whole


def _differ(path: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"the shards of this table have different columns{f' at {path!r}' if path else ''}: their first steps differed",
        remedy="give create_table() a schema=, or columns= here",
    )


def _merge_ragged(parts: list[Ragged]) -> Ragged:
    offsets: list[Array] = [np.zeros(1, np.int64)]
    before = 0
    for part in parts:  # some may have no rows
        offsets.append(np.asarray(part.offsets)[1:] + before)
        before += len(part.values)
    lead = (sum(part.lead[0] for part in parts), *parts[0].lead[1:])
    return Ragged(np.concatenate([part.values for part in parts]), np.concatenate(offsets), lead)


def reordered(batch: Batch, order: Array) -> Batch:
    """The examples of a batch in another order: example i of the result is number ``order[i]`` of the batch."""
    found = Batch.__new__(Batch).become(batch)
    found.data = _taken(batch.data, order)
    for name in (*_FIELDS, "keys"):
        setattr(found, name, getattr(batch, name)[order])
    found.live = None if batch.live is None else batch.live[order]
    return found


def _taken(data: Any, order: Array) -> Any:
    if isinstance(data, dict):
        return {name: _taken(value, order) for name, value in data.items()}
    if isinstance(data, list):  # empty: the batch was asked for without columns
        return [data[at] for at in order] if data else data
    if not isinstance(data, Ragged):
        return data[order]
    rows = int(np.prod(data.lead[1:], dtype=np.int64))
    every = [data[at * rows + row] for at in order.tolist() for row in range(rows)]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(row) for row in every], dtype=np.int64)])
    values = np.concatenate(every) if every else data.values[:0]
    return Ragged(values, offsets, data.lead)
