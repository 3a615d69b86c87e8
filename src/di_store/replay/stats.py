"""What is going on in a table, typed; read without locks, but for the lengths of ragged values."""

from __future__ import annotations

from typing import Any, TypedDict, cast

from di_store.lowering.shape import UNLIMITED
from di_store.policy.limiters import UNBOUNDED, MinSize, SamplesPerInsert
from di_store.replay.handle import TableHandle
from di_store.replay.ragged_bytes import ragged_bytes


class LimiterStats(TypedDict):
    """A limiter's rule and counts, and what it holds back at this moment."""

    kind: str  # the limiter's class; `configure` may have changed it
    state: str  # "inserts wait", "samples wait" or "flowing"
    reason: str  # why the next insert or sample would wait, with the counts; empty: neither would
    insert_reason: str
    sample_reason: str
    inserts: int  # counted since the limiter was set
    samples: int
    ratio: float  # samples that each insert allows
    min_size: int  # items below which no sample passes
    min_diff: float  # inserts * ratio - samples stays between these
    max_diff: float


class TableStats(TypedDict):
    """A table's settings, counts and bytes. Counts begin with the table; `reset` leaves them."""

    name: str
    live: bool  # False: the table was dropped
    view: str  # the settings, as their repr
    sampler: str
    remover: str
    limiter: LimiterStats
    capacity: int | None  # items; None: as many as max_bytes holds
    max_bytes: int | None
    max_times_sampled: int  # 0: no limit
    max_staleness: int  # -1: no limit
    alpha: float  # exponent of priorities
    beta: float | None  # exponent of the batch's weights; None: weights are 1
    max_priority: float  # the largest ever given
    newest_version: int  # of the weights that items are compared with

    size: int  # items that can be drawn
    held: int  # items removed while a draw holds them
    slots: int  # places for items
    writers: int  # open writers
    finished: bool  # no more inserts will come
    epoch: int  # of the sampler Once
    seconds_since_insert: float
    inserts: int  # items
    samples: int
    removed: int
    updates: int  # priorities set
    stale_updates: int  # priorities of items that were gone
    stale_dropped: int  # items older than max_staleness
    evicted_for_room: int  # items removed before capacity was reached
    episodes_cut: int  # episodes longer than the view's max_length

    bytes_stored: int  # what the table's chunks take
    bytes_logical: int  # what the items would take if each held its own copy
    item_bytes: int  # estimated bytes of one item: what an item that a draw holds is charged
    used_bytes: int  # of chunks
    open_bytes: int  # of chunks that writers still fill
    held_bytes: int  # charged for the items that draws hold: held * item_bytes
    chunk_block: int  # bytes that a chunk takes at least; 0: not known yet
    reserve_bytes: int  # set aside for the table's chunks; more than wanted while a smaller resize evicts
    reserve_wanted: int  # what it asked for
    reserve_open: int  # of it for open chunks


def table_stats(handle: TableHandle) -> TableStats:
    """Counts, bytes and the limiter's state of one table; cost and accuracy: see `Table.stats`."""
    found: dict[str, Any] = dict(handle.native.stats())
    for limit in ("capacity", "max_bytes"):
        if found[limit] >= UNLIMITED:
            found[limit] = None
    plan = handle.read_plan()
    found["bytes_stored"] = found["used_bytes"]
    found["bytes_logical"] = found["size"] * plan.item_bytes if plan is not None else 0
    if plan is not None and plan.ragged and found["size"]:
        found["bytes_logical"] += ragged_bytes(handle, plan, found["size"])
    found["limiter"] = _limiter_stats(
        handle, found["limiter"], found.pop("insert_blocked"), found.pop("sample_blocked")
    )
    found["view"] = repr(handle.settings.view)
    found["sampler"] = repr(handle.settings.sampler)
    found["remover"] = repr(handle.settings.remover)
    return cast(TableStats, found)


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
    """The class of the limiter in force, which `configure` may have changed."""
    if handle.settings.queued:
        return type(handle.settings.limiter).__name__
    return MinSize.__name__ if numbers["max_diff"] >= UNBOUNDED else SamplesPerInsert.__name__
