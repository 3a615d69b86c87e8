"""One table: its settings, rates, limiter, and histograms of its items."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import di_store
from di_store.base.dtypes import Array
from di_store.base.errors import StoreError
from di_store.dashboard import charts
from di_store.dashboard.history import RATES, RATIO, Subject
from di_store.dashboard.item_sample import ItemSample, ItemSamples
from di_store.dashboard.layout import asked, page, watch_of
from di_store.dashboard.page_history import drawn
from di_store.observe import LimiterStats, TableReport

BARS = 24
MOST_GROUPS = 50
UNBOUNDED = 1e300
"""A limiter's bound beyond this is none."""


def table(request: Request) -> Response:
    """All about a table but the values of its items."""
    store, name = asked(request, "store"), asked(request, "table")
    watch = watch_of(request)
    report = watch.table(store, name)
    waiters = [each for each in watch.store(store).report["waiters"] if each["table"] == name]
    samples: ItemSamples = request.app.state.samples
    sample, problem = None, ""
    try:
        sample = samples.of(store, name)
    except StoreError as error:
        problem = str(error)
    return page(
        request,
        "table.html",
        title=name,
        store=store,
        table=name,
        found=report,
        waiters=waiters,
        arithmetic=arithmetic(report["limiter"]),
        charts=drawn(watch.history, Subject(store, "table", name), (RATES, RATIO)),
        sampled=0 if sample is None else len(sample.facts.keys),
        histograms=[] if sample is None else _histograms(report, sample),
        problem=problem,
        groups=_groups(request, store, name, report),
    )


class Arithmetic(NamedTuple):
    """A limiter's rule with its numbers."""

    error: float  # inserts * ratio - samples
    least: str
    most: str


def arithmetic(limiter: LimiterStats) -> Arithmetic:
    """What the limiter compares: inserts * ratio - samples, and the bounds of it."""
    error = limiter["inserts"] * limiter["ratio"] - limiter["samples"]
    least, most = limiter["min_diff"], limiter["max_diff"]
    return Arithmetic(
        error,
        "no bound" if least <= -UNBOUNDED else charts.number_text(least),
        "no bound" if most >= UNBOUNDED else charts.number_text(most),
    )


def _histograms(report: TableReport, sample: ItemSample) -> list[Markup]:
    facts = sample.facts
    count = len(facts.keys)
    if not count:
        return []
    known = facts.versions[facts.versions >= 0]
    unknown = f" ({count - len(known):,} of unknown version)" if len(known) < count else ""
    made = [charts.histogram(*binned(facts.times_sampled), "times sampled")]
    if sample.ages is not None:
        made.append(charts.histogram(*binned(sample.ages), "age: items inserted since"))
    if len(known):
        staleness = np.maximum(report["newest_version"] - known, 0)
        made.append(charts.histogram(*binned(staleness), f"staleness: versions behind the newest{unknown}"))
        made.append(charts.histogram(*binned(known), f"versions of the weights{unknown}"))
    if report["sampler"].startswith("Prioritized"):
        made.append(priority_curve(facts.priorities, report["alpha"]))
    return made


def binned(values: Array) -> tuple[list[str], list[int]]:
    """Labels and counts of at most `BARS` bars over whole numbers: one for each number, or for equal ranges of them."""
    low, high = int(values.min()), int(values.max())
    width = math.ceil((high - low + 1) / BARS)
    bars = math.ceil((high - low + 1) / width)
    counts = np.bincount((values.astype(np.int64) - low) // width, minlength=bars).tolist()
    starts = [low + at * width for at in range(bars)]
    if width == 1:
        return [f"{start:,}" for start in starts], counts
    return [f"{start:,} to {start + width - 1:,}" for start in starts], counts


def priority_curve(priorities: Array, alpha: float) -> Markup:
    """The share of the mass (priority**alpha) that the items with the highest priorities have."""
    finite = np.nan_to_num(priorities, nan=0.0, posinf=0.0, neginf=0.0)
    mass = np.sort(np.where(finite > 0, finite, 0.0) ** alpha if alpha else (finite > 0).astype(float))[::-1]
    total = mass.sum()
    if not total:
        return charts.empty("priorities: mass by rank", "all priorities are 0")
    share = np.concatenate([[0.0], np.cumsum(mass) / total])
    ranks = np.linspace(0, 1, len(share))
    at = np.unique(np.linspace(0, len(share) - 1, 200).astype(int))
    tenth = float(np.interp(0.1, ranks, share))
    return charts.curve(
        ranks[at],
        share[at],
        f"priorities: mass by rank; the tenth of the items with the highest has {tenth:.0%}",
        ("highest priority", "lowest"),
    )


def _groups(request: Request, store: str, name: str, report: TableReport) -> list[Any]:
    """The oldest groups that are not complete."""
    if not (report["waiting"] and report["view"].startswith("Group(")):
        return []
    try:
        with watch_of(request).attached(store) as handle:
            opened = handle.table(name)
            return opened.incomplete(timeout=0.05)[:MOST_GROUPS] if isinstance(opened.view, di_store.Group) else []
    except StoreError:
        return []  # the table is gone, or a stopped process holds its lock: the histograms say so


ROUTES = [Route("/table", table)]
