"""Checks the settings of a table together. Settings that cannot work are refused, and the error explains why.

`SamplesPerInsert` with a ratio above `max_times_sampled` is accepted, as in Reverb. The ratio is never reached. But
used-up items leave, and below `min_size` every insert passes, so inserts and draws never wait for each other for ever.
"""

from __future__ import annotations

from di_store.policy.limiters import UNBOUNDED, Queue, Stack
from di_store.policy.samplers import Once
from di_store.policy.settings import Settings
from di_store.policy.views import answers_of

MAX_CAPACITY = 2**28
"""Item slots that a key can address."""
MAX_ONCE_USES = 255
"""The most `max_times_sampled` with `Once`."""


def check_combination(settings: Settings) -> None:
    """Refuse settings with which calls would wait for ever, or an option would have no effect.

    Raises:
        ValueError: the text explains why.
    """
    _check_capacity(settings)
    _check_once(settings)


def _check_capacity(settings: Settings) -> None:
    capacity, limiter = settings.capacity, settings.limiter
    if capacity is None:
        return
    if capacity * answers_of(settings.view) > MAX_CAPACITY:
        raise ValueError(
            f"capacity={capacity} groups with view={settings.view!r}: a table has at most {MAX_CAPACITY} places for "
            f"answers; lower capacity to {MAX_CAPACITY // answers_of(settings.view)}"
        )
    if isinstance(limiter, (Queue, Stack)):
        if limiter.size > capacity:
            raise ValueError(
                f"limiter={limiter!r} holds more than capacity={capacity}: items would be evicted before they are "
                f"drawn, which it promises not to do; capacity >= {limiter.size} works"
            )
    elif limiter.bounds.min_size > capacity:
        raise ValueError(
            f"min_size={limiter.bounds.min_size} > capacity={capacity}: the table evicts its items before it ever "
            f"holds that many, so `sample` would wait forever; lower min_size or raise capacity"
        )


def _check_once(settings: Settings) -> None:
    sampler, times = settings.sampler, settings.max_times_sampled
    if not isinstance(sampler, Once):
        return
    limiter, waits = settings.limiter, settings.limiter.bounds.max_diff < UNBOUNDED
    if waits and not settings.queued and sampler.epochs is not None:
        raise ValueError(
            f"sampler={sampler!r} with {limiter!r}: when every item has been drawn, or was evicted before, "
            f"draws wait for inserts, while {type(limiter).__name__} lets no insert pass until more is drawn; use "
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
