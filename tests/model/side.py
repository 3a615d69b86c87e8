"""One table in the store and in the model: every operation on both, and every answer compared."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import di_store

from .child import Numbers
from .compare import check_drawn, check_example, check_items, holds
from .episodes import Row
from .limiters import Limiter
from .setting import public
from .table import NO_LANE, Draft, ModelTable
from .world import nested
from .writer import Plan

PASSES_SECONDS = 30.0  # for a call that must pass
WAITS_SECONDS = 0.002  # for a call that must wait: long enough to sleep once


@dataclass
class Side:
    """Both sides of one table.

    Attributes:
        keys, numbers: from the model's item number to the store's key, and back; of live and of gone items.
        owners: by item number, the writer it came from.
        episodes: by writer, lane and episode, the number that batches show for it.
    """

    table: Any
    model: ModelTable
    rng: random.Random
    keys: dict[int, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    episodes: dict[tuple[int, int, int], int] = field(default_factory=dict)
    evicted_for_room: int = 0

    def sync(self) -> None:
        """Same items in the same order, same counts."""
        self._make_room()
        assert len(self.table) == len(self.model)
        found = [self.numbers[key] for key in self._live()]
        assert found == [item.number for item in self.model.items]
        stats = self.table.stats()
        assert (stats["inserts"], stats["samples"]) == (self.model.inserts, self.model.samples)

    def sample(self, n: int) -> None:
        """`sample(n)`: what the model allows, or a Timeout that leaves no trace."""
        certain, possible = self.model.may_draw(n)
        try:
            batch = self.table.sample(n, timeout=PASSES_SECONDS if certain else WAITS_SECONDS)
        except (di_store.Timeout, di_store.EndOfData):
            assert not certain, f"sample({n}) waits, though the model draws {n}"
            self.model.drop_stale(self._survivors())
            return self.sync()
        assert possible, f"sample({n}) gave a batch where the model waits"
        numbers = [self.numbers[key] for key in np.asarray(batch.keys).tolist()]
        before = list(self.model.items)
        items = {item.number: item for item in before}
        drawn = self.model.draw_these(numbers)
        self.model.drop_stale(self._survivors())
        check_items(batch, [items[number] for number in numbers], self, counted=False)
        check_drawn(batch, drawn, before, self.model)
        return self.sync()

    def peek(self) -> None:
        """Every item, byte for byte, and a few that are gone."""
        live = list(self.model.items)
        gone = [number for number in self.keys if number not in {item.number for item in live}][-3:]
        wanted = [self.keys[item.number] for item in live] + [self.keys[number] for number in gone]
        batch = self.table.peek(np.array(wanted, dtype=np.uint64))
        assert np.asarray(batch.live).tolist() == [True] * len(live) + [False] * len(gone)
        check_items(batch, live, self)

    def insert(self, row: Row, priority: float | None) -> None:
        """A row without a stream, in a table of single rows."""
        admitted = self.model.admits(1)
        timeout = PASSES_SECONDS if admitted else WAITS_SECONDS
        try:
            made = self.table.insert(nested(row), priority=priority, timeout=timeout)
        except di_store.Timeout:
            assert not admitted, "insert waits, though the limiter lets it pass"
            return self.sync()
        assert admitted, "insert passed, though the limiter lets nothing pass"
        self._make_room()
        self._learn(self.model.next_number, int(np.asarray(made).ravel()[0]))
        draft = Draft(NO_LANE, 0, 0, row, priority, int(row.get("version", -1)))
        self.model.insert([draft], self._survivors())
        return self.sync()

    def update_priorities(self, count: int, zero: bool) -> None:
        """New priorities for live items, for gone ones and for some that are repeated."""
        known = self.rng.choices(list(self.keys), k=count) if self.keys else []
        values = [0.0 if zero and self.rng.random() < 0.3 else self.rng.randrange(1, 1000) / 64 for _ in known]
        keys = np.array([self.keys[number] for number in known], dtype=np.uint64)
        live = self.table.update_priorities(keys, np.array(values))
        expected = self.model.update(list(zip(known, values, strict=True)))
        if len(set(known)) == len(known):
            assert live == expected

    def delete(self, count: int) -> None:
        """Delete some items, live and gone."""
        known = self.rng.sample(list(self.keys), min(count, len(self.keys)))
        self.table.delete(np.array([self.keys[number] for number in known], dtype=np.uint64))
        self.model.delete(known)
        self.sync()

    def resize(self, capacity: int) -> None:
        """A new capacity; a smaller one evicts."""
        self.table.resize(capacity)
        self.model.resize(capacity, self._survivors())
        self.sync()

    def configure(self, limiter: Limiter | None) -> None:
        """Another limiter, while writers are open; or (None) no items any more: either counts anew."""
        if limiter is None:
            self.table.reset()
            self.model.reset()
        else:
            self.table.configure(limiter=public(limiter))
            self.model.configure(limiter)
        self.sync()

    def take(self, pen: int, plan: Plan, drafts: list[Draft], made: Numbers | None) -> None:
        """Take over the items of an admitted plan; `made` is what the call told of them (None: nothing)."""
        expected = {id(draft): self.model.next_number + i for i, draft in enumerate(drafts)}
        self._make_room()
        if made is not None:
            ordered = plan.in_result_order(self.model.name)
            assert made[1:] == ([d.lane for d in ordered], [d.start for d in ordered])
            assert len(set(made[0])) == len(made[0])
            self._check_keys(made[0], ordered, expected)
        else:
            self._recognise([key for key in self._live() if key not in self.numbers], drafts, expected)
        for item, draft in zip(self.model.insert(drafts, self._survivors()), drafts, strict=True):
            self.owners[item.number] = pen
            assert item.number == expected[id(draft)]

    def _make_room(self) -> None:
        """Follow evictions that were not for `capacity` but because short episodes need more rows."""
        evicted = self.table.stats()["evicted_for_room"]
        self.model.evict(evicted - self.evicted_for_room, self._survivors())
        self.evicted_for_room = evicted

    def _check_keys(self, keys: list[int], drafts: list[Draft], expected: dict[int, int]) -> None:
        """Learn the keys that a call returned: each stands for the draft in its place."""
        live = set(self._live())
        here = [(key, draft) for key, draft in zip(keys, drafts, strict=True) if key in live]
        batch = self.table.peek(np.array([key for key, _ in here], dtype=np.uint64))
        for at, (_, draft) in enumerate(here):
            check_example(batch, at, draft.example)
        for key, draft in zip(keys, drafts, strict=True):
            self._learn(expected[id(draft)], key)

    def _recognise(self, keys: list[int], drafts: list[Draft], expected: dict[int, int]) -> None:
        """Learn the keys of new items, which nobody was told, by what they hold."""
        batch = self.table.peek(np.array(keys, dtype=np.uint64))
        left = list(drafts)
        for at, key in enumerate(keys):
            known = next((draft for draft in left if holds(batch, at, draft.example)), None)
            assert known is not None, f"a new item holds none of the {len(left)} examples that the call completes"
            self._learn(expected[id(known)], key)
            left.remove(known)

    def _learn(self, number: int, key: int) -> None:
        assert key not in self.numbers, f"key {key} was given twice"
        self.keys[number], self.numbers[key] = key, number

    def _live(self) -> list[int]:
        keys: list[int] = np.asarray(self.table.keys()).tolist()
        return keys

    def _survivors(self) -> set[int]:
        return {self.numbers[key] for key in self._live() if key in self.numbers}
