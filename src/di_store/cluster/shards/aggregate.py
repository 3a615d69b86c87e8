"""Statistics of a table in parts: the sum over its shards."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from di_store.cluster.shards.parts import Parts
from di_store.policy.limiters import UNBOUNDED
from di_store.replay.stats import LeasedStats, LimiterStats, ShardedStats, ShardStats, TableStats

_SUMS = (
    "mass",
    "size",
    "waiting",
    "gathered",
    "groups_dropped",
    "groups_short",
    "late_answers",
    "held",
    "slots",
    "writers",
    "inserts",
    "samples",
    "removed",
    "updates",
    "stale_updates",
    "stale_dropped",
    "evicted_for_room",
    "episodes_cut",
    "steps_left_out",
    "bytes_stored",
    "bytes_logical",
    "used_bytes",
    "open_bytes",
    "held_bytes",
    "reserve_bytes",
    "reserve_wanted",
    "reserve_open",
)
_LIMITS = ("capacity", "max_bytes")  # sums, or None
_LARGEST = ("max_priority", "newest_version", "epoch", "item_bytes", "chunk_block", "chunk_head")


def aggregate(parts: Parts, said: list[TableStats | None]) -> ShardedStats:
    """The table's statistics.

    Raises:
        NodeUnavailable, TableNotFound: no shard answers.
    """
    there = [each for each in said if each is not None]
    if not there:
        raise parts.answers.why()
    found: dict[str, Any] = dict(there[0])
    for name in _SUMS:
        found[name] = sum(value or 0 for value in _all(there, name))
    for name in _LIMITS:
        found[name] = None if None in (values := _all(there, name)) else sum(values)
    for name in _LARGEST:
        found[name] = max(_all(there, name))
    found["least_mass"] = min((value for value in _all(there, "least_mass") if value), default=None)
    found["leased"] = _leased([each["leased"] for each in there])
    found["seconds_since_insert"] = min(_all(there, "seconds_since_insert"))
    found["users"] = []  # slots of several stores
    found["finished"] = all(_all(there, "finished"))
    found["live"] = all(_all(there, "live"))
    ages = [(each["sample_age"], each["samples"]) for each in there if each["sample_age"] is not None]
    drawn = sum(samples for _, samples in ages)
    found["sample_age"] = sum(age * samples for age, samples in ages) / drawn if drawn else None
    found["sampler"] = repr(parts.settings.sampler)
    found["limiter"] = _limiter([each["limiter"] for each in there])
    found["shards"] = [
        ShardStats(node=shard.uuid, stats=each, error="" if each is not None else str(parts.answers.why_of(shard)))
        for shard, each in zip(parts.shards, said, strict=True)
    ]
    return cast(ShardedStats, found)


def _all(there: list[TableStats], name: str) -> list[Any]:
    return [cast(dict[str, Any], each)[name] for each in there]


def _leased(each: list[LeasedStats]) -> LeasedStats:
    ages = [one["oldest_seconds"] for one in each if one["oldest_seconds"] is not None]
    holders = Counter[str]()  # nodes may have processes with the same pid
    for one in each:
        holders.update(one["holders"])
    return LeasedStats(
        items=sum(one["items"] for one in each), oldest_seconds=max(ages, default=None), holders=dict(holders)
    )


def _limiter(each: list[LimiterStats]) -> LimiterStats:
    """The wait of all shards together: calls wait if those of one shard do."""
    inserts, samples = sum(one["inserts"] for one in each), sum(one["samples"] for one in each)
    insert_reason = next((one["insert_reason"] for one in each if one["insert_reason"]), "")
    sample_reason = next((one["sample_reason"] for one in each if one["sample_reason"]), "")
    return {
        **each[0],
        "state": "inserts wait" if insert_reason else "samples wait" if sample_reason else "flowing",
        "reason": insert_reason or sample_reason,
        "insert_reason": insert_reason,
        "sample_reason": sample_reason,
        "inserts": inserts,
        "samples": samples,
        "min_size": sum(one["min_size"] for one in each),
        "min_diff": max(sum(one["min_diff"] for one in each), -UNBOUNDED),
        "max_diff": min(sum(one["max_diff"] for one in each), UNBOUNDED),
    }
