"""One load carried on this machine: its store, its tables, its processes, its phases, and what came of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

import di_store
from di_store.workloads.content import objects
from di_store.workloads.crew import Crew, Outcome, Phase
from di_store.workloads.duties import SHARED_OBJECT, Draw, Get, Publish
from di_store.workloads.load import Bar, Load

PERCENTILES = (50.0, 99.0, 99.9)
RATE_SHARE = 0.99
"""A rate counts as held from here: steps due in the last moment of a phase may begin after it."""

WARM_SHARE, MOST_SHARE, LEAST_SECONDS = 1 / 6, 1 / 6, 0.05
MIXTURE_DRAWS = 100_000
LOOK_SECONDS, LOOKS = 0.05, 3


@dataclass(frozen=True)
class Line:
    """One thing that had to hold, and whether it did."""

    text: str
    figure: float
    relation: str
    value: float
    ok: bool


@dataclass
class LoadResult:
    """What one load came to.

    Attributes:
        figures: by name; README of `bench/` explains them.
        rates: elements a second by label: asked for (None: as many as it can), reached, bytes a second.
        milliseconds: of one call by label: calls, p50, p99, p99.9.
        most: elements a second by label where it ran as fast as it could.
        lines: what had to hold.
    """

    load: str
    title: str
    scale: float
    seconds: float
    figures: dict[str, float] = field(default_factory=dict)
    rates: dict[str, dict[str, float | None]] = field(default_factory=dict)
    milliseconds: dict[str, dict[str, float]] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every line holds."""
        return all(line.ok for line in self.lines)

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON takes it; what is not known is null."""
        found = {**asdict(self), "ok": self.ok}
        for line in found["lines"]:
            line["figure"] = None if math.isnan(line["figure"]) else line["figure"]
        return found


def carry(load: Load, *, seconds: float | None, scale: float, say: Callable[[str], None]) -> LoadResult:
    """Carry a load and judge it.

    Args:
        load: which.
        seconds: measured; None: the load's own. Warming up takes a sixth of that before, and each phase as fast as it
            can a sixth after.
        scale: share of the items that tables hold.
        say: is told what goes on.

    Raises:
        CrewError: a process failed. CapacityError: the machine has not the memory.
    """
    result = LoadResult(load.name, load.title, scale, load.seconds if seconds is None else seconds)
    load = load.scaled(scale)
    with di_store.open(memory=load.memory_bytes) as store:
        for table in load.tables:
            table.create(store, lanes=load.lanes(table.name))
        for _, plan in load.duties:
            if isinstance(plan, Get) and plan.other and not store.contains(SHARED_OBJECT):
                store.put(objects(plan.size, 1)[0], id=SHARED_OBJECT)
        say(f"{load.name}: filling")
        with Crew(load, store) as crew:
            for table in load.tables:
                if table.limited_late:
                    store.table(table.name).configure(limiter=table.limiter)
            _Trial(load, store, crew, result, say).run()
    result.lines = [_line(bar, result.figures) for bar in _bars(load)]
    return result


class _Trial:
    """The phases of one load, and the figures from them."""

    def __init__(
        self, load: Load, store: di_store.Store, crew: Crew, result: LoadResult, say: Callable[[str], None]
    ) -> None:
        self._load, self._store, self._crew = load, store, crew
        self._result, self._say = result, say
        self._tables = {plan.name: store.table(plan.name) for plan in load.tables}
        self._rates = {plan.label: plan.rate for _, plan in load.duties if plan.rate != 0}
        self._looked = 0.0

    def run(self) -> None:
        """All phases."""
        load, seconds = self._load, self._result.seconds
        warm, most = (max(LEAST_SECONDS, seconds * share) for share in (WARM_SHARE, MOST_SHARE))
        if load.paced:
            self._say(f"{load.name}: warming up for {warm:.3g} s")
            self._crew.run(Phase(warm, self._rates, True))
            self._say(f"{load.name}: measuring for {seconds:.3g} s")
            self._measure(seconds)
        for labels in load.most:
            self._say(f"{load.name}: as fast as it can, {' and '.join(labels)}")
            rates = {**(self._rates if load.paced else {}), **dict.fromkeys(labels)}
            if not load.paced:
                self._crew.run(Phase(warm, rates, False))
            outcome = self._crew.run(Phase(most if load.paced else seconds, rates, False), self._watch)
            self._headroom(outcome, labels)
        self._audit()

    def _measure(self, seconds: float) -> None:
        figures = self._result.figures
        before = {name: table.stats() for name, table in self._tables.items()}
        outcome = self._crew.run(Phase(seconds, self._rates, True), self._watch)
        after = {name: table.stats() for name, table in self._tables.items()}
        for label, tally in outcome.tallies.items():
            if tally.rate is not None:
                figures[f"{label} rate"] = tally.done / tally.due
        self._note(outcome, list(outcome.tallies), list(outcome.spent))
        figures["store_cores"] = (outcome.call_cpu + outcome.other_cpu) / seconds
        figures["chores_cores"] = outcome.other_cpu / seconds
        for _, plan in self._load.duties:
            spent = self._result.milliseconds.get(plan.label)
            if isinstance(plan, Draw) and plan.rate is not None and spent is not None:
                figures[f"{plan.label} p99 of period"] = spent["p99"] / (plan.batch / plan.rate * 1e3)
        self._room()
        self._per_insert(before, after)

    def _headroom(self, outcome: Outcome, labels: tuple[str, ...]) -> None:
        """What was reached as fast as it could, over the paced rate."""
        figures = self._result.figures
        for label in labels:
            reached = self._result.most[label] = outcome.tallies[label].elements_per_second
            asked = self._rates[label]
            if asked is None:
                self._note(outcome, [label], [label])
            else:
                figures["headroom"] = min(reached / asked, figures.get("headroom", math.inf))

    def _note(self, outcome: Outcome, rates: list[str], times: list[str]) -> None:
        """Keep the rates and times of these labels."""
        for label in rates:
            tally = outcome.tallies[label]
            reached, moved = tally.elements_per_second, tally.bytes_per_second
            self._result.rates[label] = {"asked": tally.rate, "reached": reached, "bytes_per_second": moved}
        for label in times:
            spent = outcome.spent.get(label)
            if spent is not None:
                percentiles = {f"p{q:g}": float(np.percentile(spent, q)) / 1e6 for q in PERCENTILES}
                self._result.milliseconds[label] = {"calls": len(spent), **percentiles}

    def _room(self) -> None:
        """Bytes stored, over what the items would take by themselves; of tables that are full, not of queues."""
        stats, figures = self._store.stats(), self._result.figures
        logical = stored = items = 0
        full = [plan for plan in self._load.tables if plan.filled]
        for plan in full:
            table = stats["tables"][plan.name]
            flat = table["size"] * plan.item_bytes
            items += table["size"]
            logical += flat
            stored += table["used_bytes"]
            figures[f"items of {plan.name}"] = table["size"]
            if flat:
                figures[f"stored_share of {plan.name}"] = table["used_bytes"] / flat
        if len(full) > 1:
            stored = min(stored, stats["chunk_pages"])  # tables of one stream share their chunks
        if items:
            for name, taken in (("stored", stored), ("in_all", stats["chunk_pages"] + stats["meta"])):
                figures[f"{name}_share"] = taken / logical
                figures[f"{name}_bytes_per_element"] = taken / items

    def _per_insert(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """How far samples per insert were from what the rates say, as a share of it."""
        inserts, samples = (sum(after[name][of] - before[name][of] for name in after) for of in ("inserts", "samples"))
        asked = sum(plan.rate or 0.0 for _, plan in self._load.duties if isinstance(plan, Draw))
        wanted = self._load.inserts_per_second
        if inserts and asked and wanted:
            self._result.figures["samples_per_insert"] = samples / inserts
            self._result.figures["samples_per_insert_error"] = samples / inserts / (asked / wanted) - 1

    def _watch(self) -> None:
        """Whether the limiters' errors are inside their bounds, some times a second."""
        now, figures = time.monotonic(), self._result.figures
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        for plan in self._load.tables:
            if plan.limited_late:
                # Stats take no lock, so one count may be newer than another: only an error that stays is one.
                outside = not any(_inside(self._tables[plan.name]) for _ in range(LOOKS))
                for name, more in (("limiter_looks", 1), ("limiter_outside", outside)):
                    figures[name] = figures.get(name, 0.0) + more

    def _audit(self) -> None:
        figures = self._result.figures
        draws = max(1_000, round(MIXTURE_DRAWS * self._result.scale))
        for found in self._crew.audit(draws):
            for name, figure in found.items():
                if name == "damaged":
                    figure += figures.get(name, 0.0)
                elif name == "least_pulled":
                    figure = min(figure, figures.get(name, figure))
                figures[name] = figure


def _inside(table: di_store.Table) -> bool:
    """Whether the error of a table's limiter is within its bounds."""
    limiter = table.stats()["limiter"]
    error = limiter["inserts"] * limiter["ratio"] - limiter["samples"]
    return bool(limiter["min_diff"] <= error <= limiter["max_diff"])


def _bars(load: Load) -> list[Bar]:
    """What must hold: the rates, nothing damaged, every puller supplied, and what the load says."""
    plans = [plan for _, plan in load.duties]
    bars = [
        Bar(f"{plan.label} rate", ">=", RATE_SHARE, f"{plan.label}: {plan.rate:,g}/s") for plan in plans if plan.rate
    ]
    if load.paced:
        bars.append(Bar("damaged", "<=", 0, "examples or weights damaged"))
    if any(isinstance(plan, Publish) for plan in plans):
        bars.append(Bar("least_pulled", ">=", 1, "versions that every puller got"))
    return [*bars, *load.bars]


def _line(bar: Bar, figures: Mapping[str, float]) -> Line:
    figure = figures.get(bar.figure, math.nan)
    return Line(bar.text, figure, bar.relation, bar.value, bar.holds(figure))
