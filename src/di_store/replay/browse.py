"""Reads a table's columns and items without drawing them, for tools that show a store to people."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from di_store.base.dtypes import Array
from di_store.columns.schema import Schema
from di_store.layout.shape import UNLIMITED
from di_store.policy.views import Episode, Sequence
from di_store.replay.batch import Batch, empty_batch
from di_store.replay.lost import without_lost
from di_store.replay.serving import handle_of
from di_store.replay.table import Table
from di_store.runtime import waits

_AT_ONCE = 64
"""Items whose facts are read in one hold of the table's lock: about 10 microseconds."""
_FIRST_REACH, _MOST_REACH = 8_192, 131_072
"""Items before and after an item among which its episode is looked for."""

_MOST_PLACES = 1 << 18
"""Places for items, of which many may be empty, that are looked at for a sample: some milliseconds."""


class Output(NamedTuple):
    """One column of the table's batches."""

    name: str
    bytes: int  # of one example; 0 if `ragged`
    ragged: bool
    steps: int  # rows of its time axis, with the views `Sequence` and `Episode`; 0: it has none


class ItemFacts(NamedTuple):
    """Facts of n items, without their rows; fields as in `Batch`, one element for each item."""

    keys: Array
    priorities: Array
    times_sampled: Array
    versions: Array
    episodes: Array  # of a `Group`: of its first answer; so are the starts
    starts: Array


def columns_of(table: Table) -> Schema | None:
    """The table's columns; None until they are declared."""
    return handle_of(table).schema


def outputs_of(table: Table) -> list[Output]:
    """The columns of the table's batches; none until they are declared."""
    handle = handle_of(table)
    plan = handle.read_plan()
    if plan is None:
        return []
    timed = isinstance(handle.settings.view, (Sequence, Episode))
    return [
        Output(name, size, number in plan.ragged, output.get("rows", 0) if timed else 0)
        for number, (name, size, output) in enumerate(
            zip(plan.names, plan.output_bytes, plan.native["outputs"], strict=True)
        )
    ]


def oldest(
    table: Table, start: int, n: int, columns: tuple[str, ...] | None, seconds: float = waits.CALL_SECONDS
) -> Batch:
    """Up to `n` items as `Table.peek` shows them, oldest first, after skipping the `start` oldest.

    Each item is found and read in one hold of the table's lock, so it cannot be removed in between.

    Args:
        table: the table.
        start: number of items to skip.
        n: number of items to read.
        columns: outputs to copy; None: all.
        seconds: seconds to wait for the table's lock.
    """
    handle = handle_of(table)
    if handle.read_plan() is None:
        return empty_batch(np.empty(0, np.uint64))
    read, which = handle.reader().peek_oldest, handle.which(columns)
    return handle.batch(without_lost(handle.arena, read, start, n, which, seconds))


def spread_keys(table: Table, n: int, seconds: float) -> Array:
    """Keys of about `n` items that lie evenly over the table, in no order; the same ones while the items stay."""
    native = handle_of(table).native
    now = native.stats()
    places = min(n * now["slots"] // max(now["size"], 1), _MOST_PLACES)
    keys: Array = np.unique(native.keys(0, places, seconds, True))  # a place may be looked at twice
    return evenly(keys, n)


def spread_by_age(table: Table, n: int, seconds: float) -> Array:
    """Keys of at most `n` items, at even distances in their order of insertion, oldest first.

    Other calls may take the table's lock after every 64 items.
    """
    native, parts = handle_of(table).native, []
    size = native.size()
    positions = np.linspace(0, size - 1, min(n, size)).astype(np.int64)
    for first in range(0, len(positions), _AT_ONCE):
        try:
            found = native.at(positions[first : first + _AT_ONCE], seconds)
        except ValueError:  # items have left meanwhile
            found = None
        if found is None:
            return evenly(native.keys(0, UNLIMITED, seconds), n)
        parts.append(found)
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def evenly(keys: Array, n: int) -> Array:
    """At most `n` of the keys, at even distances."""
    found: Array = keys[np.linspace(0, len(keys) - 1, min(n, len(keys))).astype(int)]
    return found


def variable_bytes(table: Table, keys: Array, seconds: float) -> int:
    """Bytes of the ragged columns of these items, and of the values of an `Opaque` table."""
    handle = handle_of(table)
    return 0 if handle.read_plan() is None else handle.reader().measure(keys, seconds).bytes


def facts_of(table: Table, keys: Array) -> ItemFacts:
    """Facts of those of the items that are in the table, in `keys` order.

    Other calls may take the table's lock after every 64 items.
    """
    found = [
        facts_in(table.peek(keys[first : first + _AT_ONCE], columns=())) for first in range(0, len(keys), _AT_ONCE)
    ]
    return ItemFacts(*map(np.concatenate, zip(*(found or [facts_in(empty_batch(keys))]), strict=True)))


def facts_in(batch: Batch) -> ItemFacts:
    """Facts of the live items of a batch of `oldest` or `Table.peek`."""
    live = np.flatnonzero(np.asarray(batch.live))
    found = (getattr(batch, name)[live] for name in ItemFacts._fields)
    return ItemFacts(*(values[:, 0] if values.ndim > 1 else values for values in found))


def episode_keys(table: Table, key: int, seconds: float) -> tuple[Array, bool]:
    """Keys of the items of the episode to which the item `key` belongs, by their starts, and whether these are all.

    Looks among the items that were inserted shortly before and after this item, in growing distance as long as there
    are further items of the episode at the edge. The result is empty if the item is not in the table.
    """
    handle = handle_of(table)
    position = int(table.positions([key], timeout=seconds)[0])
    reach = _FIRST_REACH
    while position >= 0:
        first = max(0, position - reach)
        keys = handle.native.keys(first, position + reach - first, seconds)
        episodes, starts, rows, _ = handle.native.places(keys, seconds)
        mine = np.flatnonzero(keys == key)
        if not len(mine):
            break
        same = np.flatnonzero((episodes == episodes[mine[0]]) & (rows > 0))
        before = first == 0 or same[0] > reach // 2
        after = len(keys) < position + reach - first or same[-1] < len(keys) - reach // 2
        if (before and after) or reach >= _MOST_REACH:
            return keys[same[np.argsort(starts[same], kind="stable")]], before and after
        reach *= 4
    return np.empty(0, np.uint64), True


def ages_of(table: Table, keys: Array, seconds: float) -> Array | None:
    """By item, how many were inserted after it, int64[n]; None if items of the table do not leave in order.

    Other calls may take the table's lock after every 64 items.
    """
    native, parts = handle_of(table).native, []
    for first in range(0, len(keys), _AT_ONCE):
        found = native.positions(keys[first : first + _AT_ONCE], seconds)
        if found is None:
            return None
        parts.append(native.size() - 1 - found[found >= 0])
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
