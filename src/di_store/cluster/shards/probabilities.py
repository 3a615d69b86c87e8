"""Probabilities of draws from a table in parts, and the importance weights that follow from them.

An item of mass m in shard s, whose masses sum up to M_s, is drawn with P = q_s m / M_s. With draw="local", S learners
draw equally often, so q_s = 1 / S. With draw="mass", q_s is the share of the shard's mass that the learner last heard
of. The shard itself returns m / M_s as of the draw, and q_s is the value that the draw was made with. So P is exact
however old the masses are: old masses change which items are drawn, and the weights correct that.

Importance weights are (N P)^-beta over the largest, computed as (least P / P)^beta, since N cancels out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from di_store.base.dtypes import Array
from di_store.policy.samplers import Prioritized, Sampler, Uniform
from di_store.replay.batch import Batch
from di_store.replay.stats import TableStats


class Probabilities(NamedTuple):
    """How draws are divided among the shards.

    Attributes:
        shares: q_s, float64[shards]; their sum is 1.
        least: the smallest probability of an item in the table, if the shards know it; else 0.
        beta: the sampler's exponent of the weights, as a shard last reported.
        size: number of items in the table.
    """

    shares: Array
    least: float
    beta: float | None
    size: int


def has_probabilities(sampler: Sampler) -> bool:
    """Whether items are drawn at random. Otherwise items are drawn in an order, and have probability 1."""
    return isinstance(sampler, (Uniform, Prioritized))


def may_be_drawn(said: TableStats | None) -> bool:
    """Whether a shard answers, has items to draw, and its limiter allows draws."""
    return said is not None and bool(said["mass"]) and not said["limiter"]["sample_reason"]


def by_mass(said: list[TableStats | None], min_size: int) -> Probabilities | str:
    """Shares in proportion to the masses, for shards that may be drawn; or the reason why none may be drawn now.

    A draw waits until all shards together hold what the limiter asks for, or one shard is full. Lanes are not spread
    evenly, so a full shard would otherwise evict items that were never drawn.

    Args:
        said: the reports of the shards.
        min_size: what the table was made with. Each shard has a part, rounded up: one item need not wait for others
            because there are several shards. After a `configure`, the sum of the parts counts.
    """
    there = [each for each in said if each is not None]
    size = sum(each["size"] for each in there)
    parts = sum(each["limiter"]["min_size"] for each in there)
    wanted = min_size if min_size <= parts < min_size + len(said) else parts
    reasons = [each["limiter"]["sample_reason"] for each in there if each["limiter"]["sample_reason"]]
    full = any(each["capacity"] is not None and each["size"] >= each["capacity"] for each in there)
    if size < wanted and not full:
        unwritten = "" if any(each["inserts"] for each in there) else "; nothing was written yet"
        return f"{size} of min_size={wanted} items{unwritten}"
    masses = np.array([float(each["mass"] or 0) if each is not None and may_be_drawn(each) else 0.0 for each in said])
    total = masses.sum()
    if not total > 0 or not np.isfinite(total):
        drawable = any(each["size"] and not each["limiter"]["sample_reason"] for each in there)
        return "all priorities are 0" if drawable or not reasons else reasons[0]
    return _probabilities(masses / total, said, size)


def by_node(said: list[TableStats | None]) -> Probabilities:
    """Equal shares, independent of the shards' contents."""
    shards = len(said)
    return _probabilities(np.full(shards, 1.0 / shards), said, sum(each["size"] for each in said if each is not None))


def _probabilities(shares: Array, said: list[TableStats | None], size: int) -> Probabilities:
    least = [
        share * each["least_mass"] / each["mass"]
        for share, each in zip(shares, said, strict=True)
        if each is not None and share > 0 and each["mass"] and each["least_mass"]
    ]
    beta = next((each["beta"] for each in said if each is not None), None)
    return Probabilities(shares, min(least, default=0.0), beta, size)


def importance(probabilities: Array, beta: float | None, least: float) -> Array:
    """Importance weights, float32[n].

    Args:
        probabilities: float64[n].
        beta: exponent; None: weights are 1.
        least: the probability that has weight 1; 0: the smallest of `probabilities`.
    """
    weights: Array = np.ones(len(probabilities), np.float32)
    possible = probabilities > 0
    if beta is None or not possible.any():
        return weights
    least = least or float(probabilities[possible].min())
    weights[:] = 0
    weights[possible] = (least / probabilities[possible]) ** beta
    return weights


def weigh(batch: Batch, shares: Array, beta: float | None, least: float) -> None:
    """Set probabilities and weights of examples that one or several shards have drawn.

    Args:
        batch: a batch whose `probabilities` are relative to each example's shard.
        shares: q_s of each example's shard, float64[n] or one number.
        beta: exponent of the weights.
        least: as in `importance`.
    """
    batch.probabilities = batch.probabilities * shares
    batch.weights = importance(batch.probabilities, beta, least)
