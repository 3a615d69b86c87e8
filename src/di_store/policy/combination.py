"""The settings of a table taken together: what `Queue` and `Stack` imply, and what cannot work.

`SamplesPerInsert` with a ratio above `max_times_sampled` is let through, as in Reverb: the ratio is never reached, but
used-up items leave, and below `min_size` every insert passes, so one side can always move.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from di_store.base import config
from di_store.base.errors import shown
from di_store.base.sizes import parse_size
from di_store.policy.limiters import Limiter, MinSize, Queue, SamplesPerInsert, Stack, check_limiter
from di_store.policy.samplers import Fifo, Lifo, Once, Remover, Sampler, Uniform, check_remover, check_sampler
from di_store.policy.views import View, check_view

MAX_CAPACITY = 2**28
"""Slots that a key can name."""


MAX_ONCE_USES = 255
"""The most `max_times_sampled` with `Once`."""


class NotGiven(Enum):
    """The type of `NOT_GIVEN`, which tells a default from an argument of the same value."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN = NotGiven.NOT_GIVEN


@dataclass(frozen=True)
class Combination:
    """Settings of one table that work together, with nothing left open.

    Attributes:
        capacity: items; None: as many as `max_bytes` hold.
        max_bytes: bytes; None: as many as `capacity` items need.
        max_times_sampled: draws after which an item goes; 0: no limit.
    """

    sampler: Sampler
    remover: Remover
    limiter: Limiter
    max_times_sampled: int
    capacity: int | None
    max_bytes: int | None
    view: View


def check_combination(
    sampler: Any, remover: Any, limiter: Any, max_times_sampled: Any, capacity: Any, max_bytes: Any, view: Any
) -> Combination:
    """Fill in what was not given, and refuse what cannot work.

    Any of the first four may be `NOT_GIVEN`. The defaults are Uniform(), Fifo(), MinSize(1) and 0; `Queue` and `Stack`
    set the other three.

    Raises:
        TypeError: a setting of the wrong type.
        ValueError: settings that contradict each other, or with which the table would stand still; the text explains
            the mechanism.
    """
    limiter = MinSize(1) if limiter is NOT_GIVEN else check_limiter(limiter)
    if max_times_sampled is not NOT_GIVEN:
        max_times_sampled = config.count("max_times_sampled", max_times_sampled, minimum=0, why="0 stands for no limit")
    sampler = sampler if sampler is NOT_GIVEN else check_sampler(sampler)
    remover = remover if remover is NOT_GIVEN else check_remover(remover)
    if isinstance(limiter, (Queue, Stack)):
        sampler, remover, max_times_sampled = _implied(limiter, sampler, remover, max_times_sampled)
    found = Combination(
        Uniform() if sampler is NOT_GIVEN else sampler,
        Fifo() if remover is NOT_GIVEN else remover,
        limiter,
        0 if max_times_sampled is NOT_GIVEN else max_times_sampled,
        *_room(capacity, max_bytes),
        check_view(view),
    )
    _check_capacity(found)
    _check_once(found)
    return found


def _implied(limiter: Queue | Stack, sampler: Any, remover: Any, times: Any) -> tuple[Sampler, Remover, int]:
    name = type(limiter).__name__
    order: Fifo | Lifo = Fifo() if isinstance(limiter, Queue) else Lifo()
    why = {
        "sampler": f"a {name.lower()} gives its items out {'oldest' if order == Fifo() else 'newest'} first",
        "remover": f"a {name.lower()} never evicts, and keeps its items in one order",
        "max_times_sampled": f"a {name.lower()} gives every item out exactly once",
    }
    wanted: dict[str, Any] = {"sampler": order, "remover": order, "max_times_sampled": 1}
    for option, given in (("sampler", sampler), ("remover", remover), ("max_times_sampled", times)):
        if given is not NOT_GIVEN and given != wanted[option]:
            raise ValueError(
                f"{option}={shown(given)} contradicts limiter={limiter!r}: {why[option]}. "
                f"Leave {option}= out, or use MinSize or SamplesPerInsert"
            )
    return order, order, 1


def _room(capacity: Any, max_bytes: Any) -> tuple[int | None, int | None]:
    if capacity is None and max_bytes is None:
        raise ValueError("capacity=None needs max_bytes=: without either the table could grow past the store's memory")
    if capacity is not None:
        why = "a table holds at least one item"
        capacity = config.count("capacity", capacity, minimum=1, maximum=MAX_CAPACITY, why=why)
    return capacity, None if max_bytes is None else parse_size(max_bytes, option="max_bytes")


def _check_capacity(found: Combination) -> None:
    capacity, limiter = found.capacity, found.limiter
    if capacity is None:
        return
    if isinstance(limiter, (Queue, Stack)):
        if limiter.size > capacity:
            raise ValueError(
                f"limiter={limiter!r} holds more than capacity={capacity}: items would be evicted before they are "
                f"drawn, which it promises not to do; capacity >= {limiter.size} works"
            )
    # mutant: min-size-above-capacity-accepted
    elif limiter.bounds.min_size > capacity:
        raise ValueError(
            f"min_size={limiter.bounds.min_size} > capacity={capacity}: the table evicts its items before it ever "
            f"holds that many, so `sample` would wait forever; lower min_size or raise capacity"
        )


def _check_once(found: Combination) -> None:
    sampler, times = found.sampler, found.max_times_sampled
    if not isinstance(sampler, Once):
        return
    if isinstance(found.limiter, SamplesPerInsert) and sampler.epochs is not None:
        raise ValueError(
            f"sampler={sampler!r} with {found.limiter!r}: when every item has been drawn, or was evicted before, draws "
            f"wait for inserts, while SamplesPerInsert lets no insert pass until more is drawn; use "
            f"limiter=MinSize(n), or Once(epochs=None)"
        )
    if times > MAX_ONCE_USES:
        raise ValueError(
            f"max_times_sampled={times} with {sampler!r}: beside the epoch an item keeps its undelivered draws in "
            f"8 bits, so at most {MAX_ONCE_USES}; leave max_times_sampled= out, and table.delete() what was used enough"
        )
    if times and sampler.epochs is not None and times < sampler.epochs:
        raise ValueError(
            f"max_times_sampled={times} removes items before {sampler!r} has had its epochs: an item is drawn once in "
            f"each; leave max_times_sampled= out"
        )
