"""A table whose draws may be leased, in plain Python.

Readings beside those of the package: a leased item is drawn by nobody else and is not among `keys()`; it counts for
`min_size`, unless this is its last draw. A `Pace` that replaces another one keeps the draws ahead of its version. Items
that are given back come before all others, the oldest first, but not in a copy of the table. An epoch that misses one
of them runs again. What is deleted while it is leased counts as drawn. A limiter that was set meanwhile does not count
a draw that is given back.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from .limiters import Counts, Limiter, Pace
from .selectors import CANDIDATES


@dataclass(eq=False)
class Leasable:
    """An item.

    `epoch`: the one that it is to be drawn in next; `counted`: the limiter knows of its leased draw; `faint`: it had
    priority 0, so a draw may have passed over it, and it no longer comes before others.
    """

    number: int
    priority: float
    epoch: int
    uses: int = 0
    leased: bool = False
    counted: bool = False
    faint: bool = False


@dataclass
class LeaseTable:
    """`sampler` is a name, also "Queue" or "Once in order"; `epochs` are those of `Once`, None: no last one."""

    sampler: str
    limiter: Limiter
    uses: int = 0
    epochs: int | None = None
    items: dict[int, Leasable] = field(default_factory=dict)
    first: set[int] = field(default_factory=set)
    counts: Counts = field(default_factory=Counts)
    samples: int = 0
    epoch: int = 0

    def free(self) -> list[Leasable]:
        """Items that nobody leases, oldest first."""
        return [self.items[number] for number in sorted(self.items) if not self.items[number].leased]

    def counted(self) -> Counts:
        """What the limiter looks at."""
        self.counts.size = sum(not item.leased or item.uses != self.uses for item in self.items.values())
        return self.counts

    def insert(self, number: int, priority: float, epoch: int) -> None:
        """An item that joins this epoch."""
        self.items[number] = Leasable(number, priority, epoch, faint=priority == 0)
        self.counts.inserts += 1

    def drawable(self) -> list[Leasable]:
        """What the next draw may be; opens an epoch if it has to."""
        if not self.limiter.may_sample(self.counted()):
            return []
        free = self._due()
        back = [item for item in free if item.number in self.first and self._has_chance(item)]
        sure = [item for item in back if not item.faint or self.sampler != "Prioritized"]
        if sure:
            return [item for item in back if item.number <= sure[0].number]
        if self.sampler == "Once in order":
            return [min(free, key=lambda item: (item.epoch, item.number))] if free else []
        chosen = {"Queue": CANDIDATES["Fifo"], "Once": list}.get(self.sampler) or CANDIDATES[self.sampler]
        return chosen(free) if free else []

    def draw(self, numbers: list[int], lease: bool) -> bool:
        """Repeat draws that the store made; whether all of them were possible."""
        for number in numbers:
            if number not in [item.number for item in self.drawable()]:
                return False
            self._take(self.items[number], lease)
        return True

    def chosen(self, numbers: list[int], least: int, lease: bool) -> list[int] | str:
        """What a draw of these items gives that may not wait: places in `numbers`, or why there are none."""
        other, drawn, missing = copy.deepcopy(self), [], 0
        for place, number in enumerate(numbers):
            if not other.limiter.may_sample(other.counted()):
                missing += sum(later not in self.items for later in numbers[place:])
                break
            if number in [item.number for item in other._due()]:
                other._take(other.items[number], lease)
                drawn.append(place)
            else:
                missing += 1
        if missing > len(numbers) - least:
            return "unavailable"
        return drawn if len(drawn) >= least else "waits"

    def draw_chosen(self, numbers: list[int], lease: bool) -> None:
        """Draw items that `chosen` allows."""
        for number in numbers:
            self._due()
            self._take(self.items[number], lease)

    def must_draw(self, n: int, lease: bool) -> bool:
        """Whether n draws are possible with the worst luck, which is to draw what is soon used up."""
        other = copy.deepcopy(self)
        for _ in range(n):
            if not (found := other.drawable()):
                return False
            other._take(max(found, key=lambda item: item.uses), lease)
        return True

    def acknowledge(self, *numbers: int, counts: bool = True) -> None:
        """The leased draws of these items are delivered; not `counts`: they give their room back."""
        for number in numbers:
            self.items[number].leased = False
            self.counts.samples -= self.items[number].counted and not counts
            self._use_up(number)

    def give_back(self, *numbers: int) -> None:
        """The leased draws of these items have never happened."""
        for item in (self.items[number] for number in numbers):
            item.leased = False
            item.uses -= 1
            item.epoch -= 1
            self.epoch = min(self.epoch, item.epoch)
            self.samples -= 1
            self.counts.samples -= item.counted
        self.first.update(numbers)

    def prioritize(self, number: int, priority: float) -> None:
        """Change a priority."""
        item = self.items[number]
        item.priority, item.faint = priority, item.faint or priority == 0

    def delete(self, number: int) -> None:
        """No such item any more."""
        del self.items[number]
        self.first.discard(number)

    def configure(self, limiter: Limiter) -> None:
        """A limiter that counts anew."""
        if isinstance(self.limiter, Pace):
            self.counts.samples -= self.counts.versions * self.limiter.batch
            self.limiter, self.counts.versions = limiter, 0
            return
        self.limiter = limiter
        self.counts = limiter.anew(self.counted().size)
        for item in self.items.values():
            item.counted = False

    def copied(self) -> None:
        """Go on as a copy of the table: nothing is leased."""
        self.give_back(*(item.number for item in self.items.values() if item.leased))
        self.first.clear()

    def _due(self) -> list[Leasable]:
        """Of the items that nobody leases, those that the running epoch misses; all without epochs."""
        free = self.free()
        if not self.sampler.startswith("Once"):
            return free
        while not (due := [item for item in free if item.epoch <= self.epoch]):
            if not free or (self.epochs is not None and self.epoch + 1 >= self.epochs):
                break
            self.epoch += 1
        return due

    def _has_chance(self, item: Leasable) -> bool:
        return self.sampler != "Prioritized" or item.priority > 0

    def _take(self, item: Leasable, lease: bool) -> None:
        item.uses += 1
        item.epoch += 1
        self.samples += 1
        self.counts.samples += 1
        self.first.discard(item.number)
        item.leased = item.counted = lease
        if not lease:
            self._use_up(item.number)

    def _use_up(self, number: int) -> None:
        if self.uses and self.items[number].uses == self.uses:
            del self.items[number]
