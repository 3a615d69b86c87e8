"""A table: items in insertion order, a sampler, a remover, a limiter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from .limiters import Counts, Limiter, MinSize, Queue
from .selectors import Item, Once, candidates
from .views import View

NO_LANE = -1
"""The lane of items that came without a stream."""


@dataclass(frozen=True, eq=False)
class Draft:
    """An item before it is inserted."""

    lane: int
    episode: int
    start: int
    example: dict[str, Any]
    priority: float | None = None
    version: int = -1


@dataclass(frozen=True)
class Drawn:
    """One draw: the item as it was delivered, and the table as it was before the draw."""

    number: int
    priority: float
    times_sampled: int
    table_size: int


Choose = Callable[[list[Item]], Item]


def first(found: list[Item]) -> Item:
    """The oldest candidate."""
    return found[0]


def most_used(found: list[Item]) -> Item:
    """The candidate that is nearest to its use limit: what luck does at its worst."""
    return max(found, key=lambda item: item.times_sampled)


@dataclass
class ModelTable:
    """The model of one table; every method either does all of what it says or nothing."""

    name: str
    view: View
    capacity: int
    sampler: str | Once = "Uniform"
    remover: str = "Fifo"
    limiter: Limiter = field(default_factory=MinSize)
    max_times_sampled: int = 0
    initial_priority: float | str = "max"
    items: list[Item] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    inserts: int = 0
    samples: int = 0
    next_number: int = 0
    largest: float = 1.0
    max_staleness: int | None = None
    lacks: frozenset[str] = frozenset()  # columns of the stream
    newest: int = 0

    def __len__(self) -> int:
        return len(self.items)

    def admits(self, drafts: int) -> bool:
        """Whether a call that completes `drafts` items passes: as a whole, as soon as one item may."""
        return drafts == 0 or self.limiter.may_insert(self._counted())

    def insert(self, drafts: Iterable[Draft], survivors: set[int] | None = None) -> list[Item]:
        """Insert, making room one by one. `survivors` tells which numbers a random remover left alive."""
        made = []
        for draft in drafts:
            if len(self.items) >= self.capacity and not isinstance(self.limiter, Queue):
                self.evict(1, survivors)
            priority = draft.priority
            if priority is None:
                priority = self.largest if self.initial_priority == "max" else float(self.initial_priority)
            else:
                self._given(priority)
            item = Item(
                self.next_number, draft.lane, draft.start, draft.episode, draft.example, priority, version=draft.version
            )
            self.inserts += 1
            self.next_number += 1
            self.counts.inserts += 1
            self.items.append(item)
            made.append(item)
        return made

    def evict(self, count: int, survivors: set[int] | None = None) -> None:
        """Let the remover take `count` items; a random one must have taken items that did not survive."""
        for _ in range(count):
            found = candidates(self.remover, self.items) or list(self.items)
            if len(found) > 1 and survivors is not None:
                found = [item for item in found if item.number not in survivors]
                if not found:
                    raise AssertionError(f"{self.name}: the remover left alive every item it could have taken")
            self.items.remove(found[0])

    def draw(self, n: int, choose: Choose = first) -> list[Drawn] | None:
        """Draw `n` items one by one as the limiter lets it; None (and nothing changed) if that would wait."""
        before = self._state()
        drawn: list[Drawn] = []
        for _ in range(n):
            found = self.drawable()
            if not found:
                self._restore(before)
                return None
            item = choose(found)
            item.times_sampled += 1
            if isinstance(self.sampler, Once):
                item.drawn_in.add(self.sampler.epoch)
            drawn.append(Drawn(item.number, item.priority, item.times_sampled, len(self.items)))
            self.samples += 1
            self.counts.samples += 1
            if item.times_sampled == self.max_times_sampled:
                self.items.remove(item)
        return drawn

    def drawable(self) -> list[Item]:
        """Items that the next draw may return; stale ones it only removes, when it meets them."""
        if not self.limiter.may_sample(self._counted()):
            return []
        return candidates(self.sampler, [item for item in self.items if not self.stale(item)])

    def stale(self, item: Item) -> bool:
        """Whether newer weights than the item's are further ahead than allowed."""
        return self.max_staleness is not None and self.newest - item.version > self.max_staleness

    def drop_stale(self, survivors: set[int]) -> None:
        """Take over which stale items a `sample` has met."""
        self.items = [item for item in self.items if not self.stale(item) or item.number in survivors]

    def draw_these(self, numbers: list[int]) -> list[Drawn]:
        """Repeat draws that the store made; fails if one of them was not possible."""
        wanted = iter(numbers)

        def choose(found: list[Item]) -> Item:
            number = next(wanted)
            for item in found:
                if item.number == number:
                    return item
            raise AssertionError(f"{self.name}: drew item {number}; possible were {[item.number for item in found]}")

        drawn = self.draw(len(numbers), choose)
        if drawn is None:
            raise AssertionError(f"{self.name}: drew {len(numbers)} items where the limiter lets fewer through")
        return drawn

    def may_draw(self, n: int) -> tuple[bool, bool]:
        """Whether `n` draws are possible with (the worst, the best) luck."""
        return self._would_draw(n, most_used), self._would_draw(n, least_used)

    def update(self, priorities: list[tuple[int, float]]) -> int:
        """New priorities by item number; of repeated ones the last counts. Returns how many items were live."""
        live = {item.number: item for item in self.items}
        for number, priority in priorities:
            if number in live:
                live[number].priority = priority
                self._given(priority)
        return len({number for number, _ in priorities} & set(live))

    def delete(self, numbers: Iterable[int]) -> int:
        """Remove items by number; returns how many were live."""
        gone = set(numbers)
        before = len(self.items)
        self.items = [item for item in self.items if item.number not in gone]
        return before - len(self.items)

    def resize(self, capacity: int, survivors: set[int] | None = None) -> None:
        """A new capacity; shrinking evicts by the remover."""
        self.capacity = capacity
        self.evict(max(0, len(self.items) - capacity), survivors)

    def configure(self, limiter: Limiter) -> None:
        """A new limiter counts anew."""
        self.limiter = limiter
        self.counts = limiter.anew(len(self.items))

    def reset(self) -> None:
        """No items, counts anew."""
        self.items = []
        self.inserts = self.samples = 0
        self.counts = self.limiter.anew(0)
        if isinstance(self.sampler, Once):
            self.sampler = replace(self.sampler, epoch=1)

    def _would_draw(self, n: int, choose: Choose) -> bool:
        before = self._state()
        possible = self.draw(n, choose) is not None
        self._restore(before)
        return possible

    def _given(self, priority: float) -> None:
        self.largest = max(self.largest, priority)

    def _counted(self) -> Counts:
        self.counts.size = len(self.items)
        return self.counts

    def _state(self) -> tuple[Any, ...]:
        items = [replace(item, drawn_in=set(item.drawn_in)) for item in self.items]
        sampler = replace(self.sampler) if isinstance(self.sampler, Once) else self.sampler
        return items, sampler, replace(self.counts), self.samples

    def _restore(self, state: tuple[Any, ...]) -> None:
        self.items, self.sampler, self.counts, self.samples = state


def least_used(found: list[Item]) -> Item:
    """The candidate farthest from its use limit: what luck does at its best."""
    return min(found, key=lambda item: item.times_sampled)
