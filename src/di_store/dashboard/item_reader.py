"""Reads items of one table for pages: a sorted and filtered list, one item, one episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

import di_store
from di_store import Batch, observe
from di_store.base.dtypes import Array
from di_store.base.errors import StoreClosed, StoreError, Timeout
from di_store.base.sizes import format_size
from di_store.base.tree import flatten
from di_store.dashboard.decoders import Decode
from di_store.dashboard.images import Picture, frames_of, picture
from di_store.dashboard.item_values import BRIEF, WHOLE, Curve, Scale, ShownValue, curves_of, shown_value
from di_store.observe import ItemFacts

PAGE = 20
"""Items of a page."""

SAMPLE = 16_384
"""Items whose facts are read to sort and to filter; of larger tables, they lie evenly over the table."""

LOCK_SECONDS = 0.25
"""How long a page waits for a lock that another process holds."""

SORTS = {
    "oldest": "oldest first",
    "newest": "newest first",
    "priority": "highest priority first",
    "low-priority": "lowest priority first",
    "uses": "most drawn first",
    "few-uses": "least drawn first",
}
"""Orders of items: name in the address, and label."""

_EPISODE_ITEMS = 2_048
_CURVE_BYTES = 512  # of one step of a column that is drawn as curves


class Wanted(NamedTuple):
    """Which items a page shows."""

    sort: str = "oldest"
    start: int = 0
    every: bool = False  # sort and filter all items, not a sample
    least_priority: float | None = None
    most_priority: float | None = None
    least_uses: float | None = None
    most_uses: float | None = None

    @property
    def filtered(self) -> bool:
        """Whether some items are left out."""
        return any(each is not None for each in self[3:])


class ListedItem(NamedTuple):
    """One item."""

    key: int
    priority: float
    times_sampled: int
    version: int | None  # None: unknown
    episode: int
    start: int
    values: list[ShownValue]


class Listed(NamedTuple):
    """One page of items."""

    items: list[ListedItem]
    found: int  # items that match, among those that were looked at
    looked_at: int
    size: int  # of the table


class OneItem(NamedTuple):
    """One item with all its values."""

    item: ListedItem
    probability: float
    curves: list[list[Curve]]  # of its columns with a time axis


class OneEpisode(NamedTuple):
    """The items of one episode that are in the table."""

    episode: int
    items: int
    whole: bool  # whether these are all
    curves: list[list[Curve]]
    strips: list[tuple[str, Picture]]


class ItemReader:
    """Reads items of one table."""

    def __init__(self, table: di_store.Table, decoders: Mapping[str, Decode]) -> None:
        self._table = table
        self._named = {output.name: output for output in observe.outputs_of(table)}
        self._decoders = decoders

    # -- a list ----------------------------------------------------------------------------------------------------

    @property
    def columns(self) -> list[str]:
        """Names of the columns of the table's batches."""
        return list(self._named)

    @property
    def has_episodes(self) -> bool:
        """Whether items are parts of episodes."""
        return not isinstance(self._table.view, (di_store.Group, di_store.Opaque))

    def listed(self, wanted: Wanted) -> Listed:
        """One page of items. Only sorting and filtering by age or by nothing else sees each item of a large table."""
        size = len(self._table)
        if not wanted.filtered and wanted.sort in ("oldest", "newest"):
            facts = self._by_age(wanted, size)
            return Listed(self._with_values(facts), size, size, size)
        facts = observe.facts_of(self._table, self._candidates(wanted, size))
        looked_at = len(facts.keys)
        order = _order(facts, wanted)
        chosen = ItemFacts(*(each[order[wanted.start : wanted.start + PAGE]] for each in facts))
        return Listed(self._with_values(chosen), len(order), looked_at, size)

    def _by_age(self, wanted: Wanted, size: int) -> ItemFacts:
        if wanted.sort == "oldest":
            return observe.facts_in(observe.oldest(self._table, wanted.start, PAGE, (), LOCK_SECONDS))
        positions = np.arange(-1 - wanted.start, max(-size, -wanted.start - PAGE) - 1, -1)
        try:
            keys = self._table.at(positions, timeout=LOCK_SECONDS)
        except ValueError:  # items have left meanwhile
            keys = self._table.keys(timeout=LOCK_SECONDS)[::-1][wanted.start : wanted.start + PAGE]
        return observe.facts_of(self._table, keys)

    def _candidates(self, wanted: Wanted, size: int) -> Array:
        """Keys of the items that are sorted, oldest first if age is the order."""
        if size <= SAMPLE or wanted.every:
            return self._table.keys(timeout=LOCK_SECONDS)
        spread = observe.spread_by_age if wanted.sort in ("oldest", "newest") else observe.spread_keys
        return spread(self._table, SAMPLE, LOCK_SECONDS)

    def _with_values(self, facts: ItemFacts) -> list[ListedItem]:
        return [_listed(facts, at, self._values(int(facts.keys[at]), BRIEF)[0]) for at in range(len(facts.keys))]

    # -- one item --------------------------------------------------------------------------------------------------

    def one(self, key: int) -> OneItem | None:
        """One item with all its values; None: it is not in the table."""
        batch = self._table.peek(_one(key), columns=())
        facts = observe.facts_in(batch)
        if not len(facts.keys):
            return None
        values, leaves = self._values(key, WHOLE)
        timed = {
            name: leaf for name, leaf in leaves.items() if self._named[name].steps and isinstance(leaf, np.ndarray)
        }
        curves = [curves_of(name, facts.starts[0] + np.arange(len(leaf)), leaf) for name, leaf in timed.items()]
        return OneItem(_listed(facts, 0, values), float(batch.probabilities[0]), [each for each in curves if each])

    def _values(self, key: int, scale: Scale) -> tuple[list[ShownValue], dict[str, Any]]:
        """The columns of one item, as people read them and as they are."""
        try:
            small, large = self._readable(key, scale)
            batch = self._table.peek(_one(key), columns=tuple(small))
        except (Timeout, StoreClosed):
            raise
        except StoreError as error:  # a value of a class that is not here, damage on disk
            return [ShownValue(self.columns[0], str(error), [], decoded=False)], {}
        leaves = self._example(batch) if np.asarray(batch.live)[0] else {}
        found = {name: ShownValue(name, text, [], decoded=False) for name, text in large.items()}
        for name, value in leaves.items():
            decode = self._decoders.get(f"{self._table.name}.{name}")
            timed = self._named[name].steps and isinstance(value, np.ndarray)
            rows = list(value) if decode and timed else value
            found[name] = shown_value(name, rows if decode else self._text(name, rows), scale, decode)
        return [found[name] for name in self.columns if name in found], leaves

    def _readable(self, key: int, scale: Scale) -> tuple[list[str], dict[str, str]]:
        """Names of the columns that are small enough to be read, and texts in place of the others."""
        small, large = [], {}
        ragged = any(output.ragged for output in self._named.values())
        varying = observe.variable_bytes(self._table, _one(key), LOCK_SECONDS) if ragged else 0
        for name, output in self._named.items():
            size = varying if output.ragged else output.bytes
            if size <= scale.column_bytes:
                small.append(name)
            else:
                what = "with all columns of varying length " if output.ragged else ""
                large[name] = f"{format_size(size)} {what}({'see the item' if scale is BRIEF else 'too large to show'})"
        return small, large

    def _example(self, batch: Batch) -> dict[str, Any]:
        """The columns of a batch of one item; of a time axis the real rows."""
        leaves = {name: _first(leaf) for name, leaf in self._leaves(batch).items()}
        if (mask := leaves.get("mask")) is None:
            return leaves
        for name, value in leaves.items():
            if self._named[name].steps:  # those with a final observation or earlier frames have more rows than the mask
                leaves[name] = value[: int(np.sum(mask)) + len(value) - len(mask)]
        return leaves

    def _text(self, name: str, value: Any) -> Any:
        """The value, as bytes if it is text: that lies in ragged columns of uint8."""
        if not self._named[name].ragged:
            return value
        rows = value if isinstance(value, list) else [value]
        if not all(isinstance(row, np.ndarray) and row.dtype == np.uint8 and row.ndim == 1 for row in rows):
            return value
        texts = [row.tobytes() for row in rows]
        return texts if isinstance(value, list) else texts[0]

    def _leaves(self, batch: Batch) -> dict[str, Any]:
        """The columns of a batch."""
        data: Any = batch.data
        if not data:  # no column was read
            return {}
        return flatten(data) if isinstance(data, dict) else {self.columns[0]: data}

    # -- an episode ------------------------------------------------------------------------------------------------

    def episode(self, key: int) -> OneEpisode | None:
        """The episode of one item; None: the item is not in the table."""
        keys, whole = observe.episode_keys(self._table, key, LOCK_SECONDS)
        every = -(-len(keys) // _EPISODE_ITEMS) or 1
        batch = self._table.peek(keys[::every], columns=tuple(self._numeric()))
        facts, live = observe.facts_in(batch), np.asarray(batch.live)
        if not len(facts.keys):
            return None
        leaves = {name: leaf[live] for name, leaf in self._leaves(batch).items()}
        curves = [curves_of("priority", facts.starts, facts.priorities)]
        for name, leaf in leaves.items():
            if name == "mask":
                continue
            mask = leaves.get("mask") if self._named[name].steps else None
            curves.append(curves_of(name, *_over_steps(facts.starts, leaf, mask)))
        strips = [each for name in self._named if (each := self._strip(name, keys))]
        return OneEpisode(int(facts.episodes[0]), len(keys), whole, [each for each in curves if each], strips)

    def _numeric(self) -> Iterator[str]:
        """Names of the columns that may be drawn as curves."""
        for name, output in self._named.items():
            if name == "mask" or (not output.ragged and output.bytes <= _CURVE_BYTES * max(1, output.steps)):
                yield name

    def _strip(self, name: str, keys: Array) -> tuple[str, Picture] | None:
        """A column of images, at even distances over the episode."""
        output = self._named[name]
        if output.ragged or output.bytes > BRIEF.column_bytes or name.startswith("next_"):
            return None
        some = observe.evenly(keys, WHOLE.frames)
        leaf = self._leaves(self._table.peek(some, columns=(name,)))[name]
        found = picture(leaf, BRIEF.side, WHOLE.frames) if frames_of(leaf[0]) is not None else None
        return found and (name, found)


def _one(key: int) -> Array:
    return np.array([key], np.uint64)


def _first(leaf: Any) -> Any:
    """The first example of a column: an array, a list of rows of varying length, or a value of an `Opaque` table."""
    if isinstance(leaf, di_store.Ragged) and len(leaf.lead) > 1:
        return [leaf[row] for row in range(leaf.lead[1])]
    return leaf[0]


def _listed(facts: ItemFacts, at: int, values: list[ShownValue]) -> ListedItem:
    key, priority, times, version, episode, start = (each[at].item() for each in facts)
    return ListedItem(key, priority, times, None if version < 0 else version, episode, start, values)


def _order(facts: ItemFacts, wanted: Wanted) -> Array:
    """Positions of the items that match, in the order in which they are shown."""
    kept = np.ones(len(facts.keys), np.bool_)
    for least, most, values in (
        (wanted.least_priority, wanted.most_priority, facts.priorities),
        (wanted.least_uses, wanted.most_uses, facts.times_sampled),
    ):
        kept &= values >= (-np.inf if least is None else least)
        kept &= values <= (np.inf if most is None else most)
    found = np.flatnonzero(kept)
    ranked = {"priority": -facts.priorities, "low-priority": facts.priorities}
    ranked |= {"uses": -facts.times_sampled, "few-uses": facts.times_sampled}
    if wanted.sort in ranked:
        return found[np.argsort(ranked[wanted.sort][found], kind="stable")]
    return found[::-1] if wanted.sort == "newest" else found


def _over_steps(starts: Array, leaf: Array, mask: Array | None) -> tuple[Array, Array]:
    """Steps of the episode and a column's values there; rows that several items show come once."""
    if mask is None:
        return starts, leaf
    steps = (starts[:, None] + np.arange(mask.shape[1]))[mask]
    unique, first = np.unique(steps, return_index=True)
    return unique, leaf[:, : mask.shape[1]][mask][first]
