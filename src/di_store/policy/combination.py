"""Checks the settings of a table together. Settings that cannot work are refused, and the error explains why.

`SamplesPerInsert` with a ratio above `max_times_sampled` is accepted, as in Reverb. The ratio is never reached. Inserts
and draws never wait for each other for ever: used-up items leave the table, and below `min_size` every insert passes.
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
                f"limiter={limiter!r} holds more items than capacity={capacity}: items would be evicted "
                f"before they are drawn; give capacity >= {limiter.size}"
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
            f"sampler={sampler!r} with {limiter!r}: once every item was drawn or evicted, draws wait for "
            f"inserts, while {type(limiter).__name__} blocks inserts until more is drawn; use "
            "limiter=MinSize(n), or Once(epochs=None)"
        )
    if times > MAX_ONCE_USES:
        raise ValueError(
            f"max_times_sampled={times} with {sampler!r}: at most {MAX_ONCE_USES} is possible, since an "
            "item counts its undelivered draws in 8 bits; leave max_times_sampled= out, and remove used "
            "items with table.delete()"
        )
    if times and sampler.epochs is not None and times < sampler.epochs:
        raise ValueError(
            f"max_times_sampled={times} removes items before {sampler!r} has finished its epochs: an item "
            "is drawn once in each epoch; leave max_times_sampled= out"
        )
