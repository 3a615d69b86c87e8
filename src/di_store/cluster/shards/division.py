"""The settings of a shard: those of the whole table, divided by the number of shards.

The directory's entry holds the settings of the whole table and the nodes of its shards. Each shard's settings follow
from the entry, so every process makes the same shard.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from di_store.policy.limiters import Band, Limiter, MinSize, Pace, Queue, SamplesPerInsert, Stack
from di_store.policy.samplers import Prioritized, Uniform
from di_store.policy.settings import Settings
from di_store.policy.views import Group

LOCAL, MASS = "local", "mass"
"""Who draws from a shard: the learners of its node, or every learner from all shards by their masses."""
DRAWS = (LOCAL, MASS)


def check_parts(settings: Settings) -> None:
    """Refuse settings that no table in parts can have.

    Raises:
        ValueError: the text explains why.
    """
    if isinstance(settings.view, Group):
        raise ValueError(
            f'view={settings.view!r} with shards="learners": the answers of a group may come from lanes of '
            "different shards, so the group would never be complete; use node= instead of shards="
        )
    divided(settings.limiter, 1)


def check_drawn_by_mass(settings: Settings) -> None:
    """Refuse settings with which draws over all shards could wait for ever, or have no meaning.

    Raises:
        ValueError: the text explains why.
    """
    sampler, limiter = settings.sampler, settings.limiter
    if not isinstance(limiter, MinSize):
        raise ValueError(
            f'limiter={limiter!r} with draw="mass": chance decides how many draws each shard gets, so a '
            "shard could wait for draws while the learner waits for another shard; use MinSize(n), or "
            'draw="local"'
        )
    if not isinstance(sampler, (Uniform, Prioritized)):
        raise ValueError(
            f'sampler={sampler!r} with draw="mass": it draws in an order, and there is none across shards; '
            'use Uniform() or Prioritized(), or draw="local"'
        )
    if settings.max_times_sampled:
        raise ValueError(
            f'max_times_sampled={settings.max_times_sampled} with draw="mass": chance may give a shard more '
            "draws than it has left, and the learner would wait for the rest; leave it out, or use "
            'draw="local"'
        )


def shard_settings(whole: Settings, shards: int, number: int, draw: str) -> Settings:
    """The settings of one shard.

    Args:
        whole: settings of the table.
        shards: number of shards.
        number: number of this shard, from 0.
        draw: "local" or "mass".

    Raises:
        ValueError: a limit cannot be divided by that number.
    """
    sampler = whole.sampler
    if draw == LOCAL and isinstance(sampler, Prioritized):
        # the weights of all learners are divided by the same number, which only the table's least priority gives
        sampler = replace(sampler, normalize="table")
    return msgspec.structs.replace(
        whole,
        capacity=None if whole.capacity is None else part_of(whole.capacity, shards),
        max_bytes=None if whole.max_bytes is None else part_of(whole.max_bytes, shards),
        lanes=part_of(whole.lanes, shards),
        limiter=divided(whole.limiter, shards),
        sampler=sampler,
        seed=(whole.seed + number) % 2**63,
    )


def part_of(count: int, shards: int) -> int:
    """A share of a count, rounded up."""
    return -(-count // shards)


def divided(limiter: Limiter, shards: int) -> Limiter:
    """The limiter of one of this many shards.

    Raises:
        ValueError: it cannot be divided.
    """
    if isinstance(limiter, Pace):
        raise ValueError(
            f'limiter={limiter!r} with shards="learners": each shard would count its own draws, so draws of one would '
            "wait while others have room that nobody uses; use node= instead of shards="
        )
    if isinstance(limiter, MinSize):
        return MinSize(part_of(limiter.n, shards))
    if isinstance(limiter, SamplesPerInsert):  # its band is a share of min_size
        return replace(limiter, min_size=part_of(limiter.min_size, shards))
    if isinstance(limiter, Band):
        least, low, high = part_of(limiter.min_size, shards), limiter.low / shards, limiter.high / shards
        return Band(least, limiter.ratio, low, high)
    assert isinstance(limiter, (Queue, Stack))
    return type(limiter)(part_of(limiter.size, shards))
