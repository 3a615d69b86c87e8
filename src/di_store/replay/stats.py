"""Statistics of a table, typed. The lengths of ragged values and the sums of priorities take the table's lock."""

from __future__ import annotations

from typing import Any, TypedDict, cast

from di_store.base.errors import StoreError
from di_store.layout.shape import UNLIMITED
from di_store.policy.limiters import UNBOUNDED, MinSize, Pace, SamplesPerInsert
from di_store.policy.samplers import Prioritized
from di_store.replay.handle import TableHandle
from di_store.replay.ragged_bytes import ragged_bytes

_PATIENCE_SECONDS = 0.02  # to wait for the table's lock


class LimiterStats(TypedDict):
    """A limiter's rule and counts, and the calls that now wait for it."""

    kind: str  # name of the limiter's class, as it is after `configure`
    state: str  # "inserts wait", "samples wait" or "flowing"
    reason: str  # why the next insert or sample would wait, with the counts; "": neither would
    insert_reason: str
    sample_reason: str
    inserts: int  # counted since the limiter was set; of a `Pace`: versions published since
    samples: int
    ratio: float  # samples per insert; of a `Pace`: `batch`
    min_size: int  # samples wait while the table has fewer items
    min_diff: float  # inserts * ratio - samples stays between these
    max_diff: float


class LeasedStats(TypedDict):
    """The leased items of a table."""

    items: int
    oldest_seconds: float | None  # age of the oldest lease; None: there is none, or the table's lock is held
    holders: dict[str, int]  # items by process, as "pid 123", "gone"; empty if the lock is held


class TableStats(TypedDict):
    """A table's settings, counts and bytes. Counts start at 0 when the table is created, and again after `reset`."""

    name: str
    live: bool  # False: the table was dropped
    view: str  # repr of the setting; so are sampler and remover
    sampler: str
    remover: str
    limiter: LimiterStats
    capacity: int | None  # items; None: as many as max_bytes holds
    max_bytes: int | None
    max_times_sampled: int  # 0: no limit
    max_staleness: int  # -1: no limit
    alpha: float  # exponent of priorities
    beta: float | None  # exponent of the importance weights; None: weights are 1
    max_priority: float  # the largest ever given; `reset` keeps it
    newest_version: int  # of the weights; max_staleness counts from it

    size: int  # items that can be drawn
    mass: float | None  # sum of priority**alpha of these; other samplers: their number. None: the lock is held
    least_mass: float | None  # the least of these above 0; None: not known, with Prioritized(normalize="batch")
    waiting: int  # items inserted that can't be drawn yet, as late columns are missing; not in `size` nor in `inserts`.
    # With the view `Group`: groups that are not complete
    gathered: int  # of these: groups that have all answers, and wait for late columns only
    groups_dropped: int  # groups that were removed before they were complete
    groups_short: int  # groups that were not complete at their deadline, and can be drawn (`Group.short`)
    late_answers: int  # to groups that had ended (`Group`): refused with `unique`, else each began a further group
    held: int  # items that were removed, but are still kept because a draw uses them
    leased: LeasedStats  # items held for a batch (`Table.sample(lease=)`): not in `size`, and not drawn meanwhile
    slots: int  # places for items, of which some are empty
    writers: int  # open writers
    users: list[int]  # client slots of the processes that have drawn from it, or have writers, draws or its lock
    finished: bool  # no more inserts will come
    epoch: int  # number of the current epoch of the sampler `Once`
    seconds_since_insert: float
    inserts: int  # items
    samples: int
    sample_age: float | None  # items inserted since the drawn one: a mean over about 10,000 draws; None: none was drawn
    removed: int
    updates: int  # priorities set
    stale_updates: int  # updates of items that were gone
    stale_dropped: int  # items removed as older than max_staleness
    evicted_for_room: int  # items removed before capacity was reached
    episodes_cut: int  # episodes that exceeded the view's max_length
    steps_left_out: int  # steps without an item: their episode was ended, not terminated, without a final observation

    bytes_stored: int  # bytes of the table's chunks
    bytes_logical: int  # bytes of the items if each had its own copy of everything that a batch shows
    item_bytes: int  # estimated bytes of one item; charged for each item in `held`
    used_bytes: int  # the same as bytes_stored
    open_bytes: int  # bytes of chunks that writers still fill
    held_bytes: int  # charged for items that draws still use: held * item_bytes
    chunk_block: int  # least bytes of a chunk; 0: not known yet
    chunk_head: int  # with a disk tier: of these, what stays in memory; 0: not known yet
    reserve_bytes: int  # reserved for the table's chunks; above reserve_wanted while a resize to less evicts items
    reserve_wanted: int  # the reserve that the table asked for
    reserve_open: int  # the part of reserve_wanted that is for open chunks


class ShardStats(TypedDict):
    """One shard of a table in parts."""

    node: str  # uuid
    stats: TableStats | None  # None: it does not answer
    error: str  # why not


class ShardedStats(TableStats):
    """Statistics of a table in parts: the sum over its shards, and each shard's."""

    shards: list[ShardStats]


def table_stats(handle: TableHandle, locks: bool = True) -> TableStats:
    """Counts, bytes and the limiter's state of one table; cost and accuracy: see `Table.stats`.

    `locks`: False: take none; the masses are then None, and ragged values are left out of `bytes_logical`.
    """
    found: dict[str, Any] = dict(handle.native.stats())
    del found["latest_epoch"], found["rng_counter"]  # export() alone needs them
    for limit in ("capacity", "max_bytes"):
        if found[limit] >= UNLIMITED:
            found[limit] = None
    if found["sample_age"] < 0:
        found["sample_age"] = None
    plan = handle.read_plan()
    found["users"] = handle.native.concerned()
    found["bytes_stored"] = found["used_bytes"]
    found["bytes_logical"] = found["size"] * plan.item_bytes if plan is not None else 0
    if locks and plan is not None and plan.ragged and found["size"]:
        found["bytes_logical"] += ragged_bytes(handle, plan, found["size"])
    found["leased"] = _leased(handle, found["leased"], locks)
    found["mass"], found["least_mass"] = _masses(handle, found["size"]) if locks else (None, None)
    found["limiter"] = _limiter_stats(
        handle, found["limiter"], found.pop("insert_blocked"), found.pop("sample_blocked")
    )
    found["view"] = repr(handle.settings.view)
    found["sampler"] = repr(handle.settings.sampler)
    found["remover"] = repr(handle.settings.remover)
    return cast(TableStats, found)


def _leased(handle: TableHandle, items: int, locks: bool) -> LeasedStats:
    if items and locks:
        try:
            items, oldest, holders = handle.native.leases(_PATIENCE_SECONDS)
            return LeasedStats(items=items, oldest_seconds=oldest, holders=holders)
        except StoreError:
            pass  # another process holds the lock
    return LeasedStats(items=items, oldest_seconds=None, holders={})


def _masses(handle: TableHandle, size: int) -> tuple[float | None, float | None]:
    """Sum and least of the masses: draws are made in proportion to an item's mass."""
    if not isinstance(handle.settings.sampler, Prioritized):
        return float(size), 1.0 if size else None
    try:
        total, least = handle.native.masses(_PATIENCE_SECONDS)
    except StoreError:
        return None, None
    return total, least or None


def _limiter_stats(handle: TableHandle, numbers: dict[str, Any], insert: str, sample: str) -> LimiterStats:
    return cast(
        LimiterStats,
        {
            **numbers,
            "kind": _limiter_kind(handle, numbers),
            "state": "inserts wait" if insert else "samples wait" if sample else "flowing",
            "reason": insert or sample,
            "insert_reason": insert,
            "sample_reason": sample,
        },
    )


def _limiter_kind(handle: TableHandle, numbers: dict[str, Any]) -> str:
    """Name of the limiter's class, which `configure` may have changed since the table was created."""
    if handle.settings.queued or isinstance(handle.settings.limiter, Pace):
        return type(handle.settings.limiter).__name__
    return MinSize.__name__ if numbers["max_diff"] >= UNBOUNDED else SamplesPerInsert.__name__
