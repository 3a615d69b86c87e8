"""One run of a load on this machine: its store, its tables, its processes, its phases, and its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

import di_store
from di_store.workloads.content import objects
from di_store.workloads.crew import Crew, Outcome, Phase
from di_store.workloads.duties import SHARED_OBJECT, Draw, Get, Publish, Write
from di_store.workloads.load import Bar, Condition, Load

PERCENTILES = (50.0, 99.0, 99.9)
RATE_SHARE = 0.99
"""From this share on a rate counts as held, because steps due in the last moment of a phase may begin after it."""

PHASE_SHARE, LEAST_SECONDS = 1 / 6, 0.05
"""Warming up, and each phase at full speed, take this share of the measured time, but at least so many seconds."""

LEAST_PERIODS, LEAST_CALLS = 2, 3
"""These phases have room for so many steps of every learner (the first maps the table) and so many measured calls."""

MIXTURE_DRAWS = 100_000
LOOKS = 3


@dataclass
class LoadResult:
    """The results of one load.

    Attributes:
        figures: figures by name; the README of `bench/` explains them.
        rates: elements per second by label: requested (None: as many as possible), reached, bytes per second.
        milliseconds: duration of one call by label: calls, p50, p99, p99.9.
        most: elements per second by label, of duties that ran as fast as they could.
        lines: the conditions.
    """

    load: str
    title: str
    scale: float
    seconds: float
    figures: dict[str, float] = field(default_factory=dict)
    rates: dict[str, dict[str, float | None]] = field(default_factory=dict)
    milliseconds: dict[str, dict[str, float]] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    lines: list[Condition] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every line holds."""
        return all(line.ok for line in self.lines)

    @property
    def plain(self) -> dict[str, Any]:
        """The results for JSON; unknown values are null."""
        return {**asdict(self), "ok": self.ok}


def carry(load: Load, *, seconds: float | None, scale: float, say: Callable[[str], None]) -> LoadResult:
    """Carry a load and judge it.

    Args:
        load: the load.
        seconds: measured seconds; None: the load's own. Before them, warming up takes about a sixth of this time. After
            them, each phase at full speed takes about a sixth.
        scale: share of the items that tables hold.
        say: called with a line of text about the progress.

    Raises:
        CrewError: a process failed. CapacityError: the machine does not have the memory.
    """
    result = LoadResult(load.name, load.title, scale, load.seconds if seconds is None else seconds)
    load = load.scaled(scale)
    with di_store.open(memory=load.memory_bytes) as store:
        load.create_tables(store)
        for _, plan in load.duties:
            if isinstance(plan, Get) and plan.other and not store.contains(SHARED_OBJECT):
                store.put(objects(plan.size, 1)[0], id=SHARED_OBJECT)
        say(f"{load.name}: filling")
        with Crew.started(load, store) as crew:
            for table in load.tables:
                if table.limited_late:
                    store.table(table.name).configure(limiter=table.limiter)
            _Trial(load, store, crew, result, say).run()
    result.lines = [bar.judge(result.figures) for bar in _bars(load)]
    return result


class _Trial:
    """The phases of one load, and the figures from them."""

    def __init__(
        self, load: Load, store: di_store.Store, crew: Crew, result: LoadResult, say: Callable[[str], None]
    ) -> None:
        self._load, self._store, self._crew = load, store, crew
        self._result, self._say = result, say
        self._tables = [(plan, store.table(plan.name)) for plan in load.tables]
        self._rates = {plan.label: plan.rate for _, plan in load.duties if plan.rate != 0}
        self._draws = [plan for _, plan in load.duties if isinstance(plan, Draw) and plan.rate]

    def run(self) -> None:
        """All phases."""
        load, result = self._load, self._result
        periods = (LEAST_PERIODS * plan.batch / (plan.rate or 1) for plan in self._draws)
        warm = max(LEAST_SECONDS, result.seconds * PHASE_SHARE, *periods)
        if load.paced:
            self._say(f"{load.name}: warming up for {warm:.3g} s")
            self._crew.run(Phase(warm, self._rates, True))
            self._say(f"{load.name}: measuring for {result.seconds:.3g} s")
            self._measure(result.seconds)
        for labels in load.most:
            self._say(f"{load.name}: as fast as it can, {' and '.join(labels)}")
            rates = {**(self._rates if load.paced else {}), **dict.fromkeys(labels)}
            if not load.paced:
                self._crew.run(Phase(warm, rates, False))
            calls = (LEAST_CALLS * result.milliseconds.get(label, {"p50": 0.0})["p50"] / 1e3 for label in labels)
            most = max(LEAST_SECONDS, result.seconds * PHASE_SHARE, *calls) if load.paced else result.seconds
            outcome = self._crew.run(Phase(most, rates, False), self._watch)
            for label in labels:
                result.most[label] = outcome.tallies[label].elements_per_second
                if self._rates[label] is None:
                    self._note(outcome, [label])
        times = headroom(result.most, self._rates)
        if times is not None:
            result.figures["headroom"] = times
        self._audit()

    def _measure(self, seconds: float) -> None:
        figures = self._result.figures
        before = self._counts()
        outcome = self._crew.run(Phase(seconds, self._rates, True), self._watch)
        inserts, samples = self._counts() - before
        for label, tally in outcome.tallies.items():
            if self._rates[label] is not None:
                figures[f"{label} rate"] = tally.done / tally.due
        self._note(outcome, dict.fromkeys([*outcome.tallies, *outcome.spent]))
        figures["store_cores"] = (outcome.call_cpu + outcome.other_cpu) / seconds
        figures["chores_cores"] = outcome.other_cpu / seconds
        asked = wanted = 0.0
        for plan in self._draws:
            asked += plan.rate or 0.0
            if plan.label in outcome.spent:
                period = plan.batch / (plan.rate or 1) * 1e3
                figures[f"{plan.label} p99 of period"] = self._result.milliseconds[plan.label]["p99"] / period
        for _, writer in self._load.duties:
            if isinstance(writer, Write):
                wanted += (writer.rate or 0.0) / self._load.table(writer.tables[0]).view.rows_added
        if inserts and asked and wanted:
            figures["samples_per_insert"] = samples / inserts
            figures["samples_per_insert_error"] = samples / inserts / (asked / wanted) - 1
        self._room()

    def _counts(self) -> Any:
        """Inserts and samples of all tables."""
        stats = [table.stats() for _, table in self._tables]
        return np.array([sum(each[name] for each in stats) for name in ("inserts", "samples")])

    def _note(self, outcome: Outcome, labels: Iterable[str]) -> None:
        """Keep the rates and times of these labels."""
        for label in labels:
            if label in outcome.tallies:
                _, _, reached, moved = outcome.tallies[label]
                asked = self._rates[label]
                self._result.rates[label] = {"asked": asked, "reached": reached, "bytes_per_second": moved}
            if label in outcome.spent:
                spent = outcome.spent[label]
                percentiles = {f"p{q:g}": float(np.percentile(spent, q)) / 1e6 for q in PERCENTILES}
                self._result.milliseconds[label] = {"calls": len(spent), **percentiles}

    def _room(self) -> None:
        """Bytes stored, divided by the bytes that the items would take alone; for full tables, not for queues."""
        stats, figures = self._store.stats(), self._result.figures
        full = [(plan, stats["tables"][plan.name]) for plan in self._load.tables if plan.filled]
        logical = sum(table["size"] * plan.item_bytes for plan, table in full)
        if not logical:
            return
        for plan, table in full:
            figures[f"stored_share of {plan.name}"] = table["used_bytes"] / max(table["size"] * plan.item_bytes, 1)
        in_all = stats["chunk_pages"] + stats["meta"]
        stored = sum(table["used_bytes"] for _, table in full)
        if len(full) > 1:
            stored = min(stored, stats["chunk_pages"])  # tables of one stream share their chunks
        figures["stored_share"], figures["in_all_share"] = stored / logical, in_all / logical
        figures["in_all_bytes_per_element"] = in_all / sum(table["size"] for _, table in full)

    def _watch(self) -> None:
        """Check several times a second whether the limiters' errors are inside their bounds."""
        figures = self._result.figures
        for plan, table in self._tables:
            if plan.limited_late:
                # Stats take no lock, so one count may be newer than another: only an error that stays is one.
                outside = not any(_inside(table) for _ in range(LOOKS))
                for name, more in (("limiter_looks", 1), ("limiter_outside", outside)):
                    figures[name] = figures.get(name, 0.0) + more

    def _audit(self) -> None:
        figures = self._result.figures
        for found in self._crew.audit(max(1_000, round(MIXTURE_DRAWS * self._result.scale))):
            for name, figure in found.items():
                if name == "damaged":
                    figure += figures.get(name, 0.0)
                elif name == "least_pulled":
                    figure = min(figure, figures.get(name, figure))
                figures[name] = figure


def headroom(most: Mapping[str, float], rates: Mapping[str, float | None]) -> float | None:
    """The least multiple of its rate that a duty reached; None if a duty completed no call."""
    times = [reached / rate for label, reached in most.items() if (rate := rates[label])]
    return min(times) if times and all(times) else None


def _inside(table: di_store.Table) -> bool:
    """Whether the error of a table's limiter is within its bounds."""
    limiter = table.stats()["limiter"]
    error = limiter["inserts"] * limiter["ratio"] - limiter["samples"]
    return bool(limiter["min_diff"] <= error <= limiter["max_diff"])


def _bars(load: Load) -> list[Bar]:
    """The conditions: the rates are reached, nothing is damaged, every puller was supplied, and the load's own bars."""
    plans = [plan for _, plan in load.duties]
    bars = [
        Bar(f"{plan.label} rate", ">=", RATE_SHARE, f"{plan.label}: {plan.rate:,g}/s") for plan in plans if plan.rate
    ]
    if load.paced:
        bars.append(Bar("damaged", "<=", 0, "examples or weights damaged"))
    if any(isinstance(plan, Publish) for plan in plans):
        bars.append(Bar("least_pulled", ">=", 1, "versions that every puller got"))
    return [*bars, *load.bars]
