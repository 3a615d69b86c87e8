"""Which shard a lane has, and what a shard has of the limits of its table."""

from __future__ import annotations

from collections import Counter

import numpy as np
from scipy import stats

import di_store
from cluster.shards import SURE
from di_store.cluster.shards.division import divided
from di_store.cluster.shards.routing import chosen, lane_key
from di_store.policy.limiters import Band


def test_lanes_are_spread_and_stay() -> None:
    """Each shard gets its share of lanes; when one goes, only its lanes move, and to all others."""
    rng = np.random.default_rng(0)
    uuids = [rng.bytes(16).hex() for _ in range(5)]
    keys = [lane_key(rng.bytes(8), lane) for lane in range(4000)]
    before = [chosen(key, uuids) for key in keys]
    assert before == [chosen(key, reversed(uuids)) for key in keys]
    counts = Counter(before)
    assert stats.chisquare([counts[each] for each in uuids]).pvalue > SURE
    after = [chosen(key, uuids[1:]) for key in keys]
    assert all(old == new for old, new in zip(before, after, strict=True) if old != uuids[0])
    moved = Counter(new for old, new in zip(before, after, strict=True) if old == uuids[0])
    assert stats.chisquare([moved[each] for each in uuids[1:]]).pvalue > SURE


def test_limits_are_divided_among_shards() -> None:
    assert divided(di_store.MinSize(10), 3) == di_store.MinSize(4)
    assert divided(di_store.SamplesPerInsert(4, 100, 0.1), 2) == di_store.SamplesPerInsert(4, 50, 0.1)
    assert divided(Band(90, 2.0, 30.0, 600.0), 3) == Band(30, 2.0, 10.0, 200.0)
    assert divided(di_store.Queue(7), 3) == di_store.Queue(3)
    assert divided(di_store.Stack(6), 3) == di_store.Stack(2)
