"""Store and model side by side: writers in this process and in children, over one table or two that share a stream."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import di_store

from .child import ChildDriver, LocalDriver, Numbers
from .limiters import Limiter, MinSize, Queue, SamplesPerInsert
from .setting import Setting
from .side import PASSES_SECONDS, WAITS_SECONDS, Side
from .world import Counter, World, nested, stacked
from .writer import Entry, ModelWriter, Plan

FAULTS = ("table.insert_before_state", "table.insert_item", "undo.between", "undo.before_commit", "undo.after_commit")
"""Points in the middle of an insert, where the lock's next owner has to take it back or to keep it."""


@dataclass(eq=False)
class Pen:
    """One open writer: the model's, the store's and the environments it writes about."""

    model: ModelWriter
    driver: LocalDriver | ChildDriver
    worlds: list[World]
    number: int


@dataclass
class Harness:
    """Drives one store; every method is one operation of a test. `side` is the table that a test is about."""

    setting: Setting
    rng: random.Random
    pens: list[Pen] = field(default_factory=list)
    counter: Counter = field(default_factory=Counter)
    operations: int = 0
    pens_opened: int = 0

    def __post_init__(self) -> None:
        self.store = di_store.open(memory="48MiB", seed=self.rng.randrange(1 << 30))
        self.sides = [
            Side(setting.create(self.store, name), setting.model(name), self.rng)
            for name, setting in self.setting.tables().items()
        ]
        self.side = self.sides[0]

    @property
    def _names(self) -> list[str]:
        """The tables' names."""
        return [side.model.name for side in self.sides]

    # -- writers ------------------------------------------------------------------------------------------------

    def open_writer(self, start: str | None = None) -> Pen:
        """A writer in this process, or in a child started with `start`."""
        if start is None:
            driver: LocalDriver | ChildDriver = LocalDriver(self.store, self._names, self.setting.lanes)
        else:
            driver = ChildDriver(self.store.name, self._names, self.setting.lanes, start)
        count = self.setting.lanes or 1
        worlds = [World(self.counter, self.setting.columns) for _ in range(count)]
        model = ModelWriter([side.model for side in self.sides], count, late=self.setting.columns.unbounded)
        pen = Pen(model, driver, worlds, self.pens_opened)
        self.pens.append(pen)
        self.pens_opened += 1
        return pen

    def end_writer(self, pen: Pen, how: str) -> None:
        """End by "close", by "kill" between two calls or "kill within" one; only a child's writer can be killed."""
        if how != "close" and isinstance(pen.driver, ChildDriver):
            self._kill(pen, pen.driver, within=how == "kill within")
        elif self._passes(pen, pen.model.plan_close(), "close"):
            pen.driver.stop()
            self.pens.remove(pen)

    def append(self, pen: Pen, lanes: list[int], *, with_next: bool, end_chance: float, priority: bool) -> None:
        """One append in some lanes."""
        proposed, entries = self._propose(pen, lanes, end_chance)
        if not with_next:
            entries = {lane: Entry(entry.row) for lane, entry in entries.items()}
        row, options = self._call(entries, with_next)
        plan = pen.model.plan_append(entries)
        if priority:
            plan, options["priority"] = self._prioritize(plan, lanes)
        if self._too_many(plan, several=False):
            self._refused(pen, "append", nested(row), **options)
        elif self._passes(pen, plan, "append", nested(row), **options):
            for lane, entry in proposed.items():
                pen.worlds[lane].take(entry)

    def extend(self, pen: Pen, steps: int, *, with_next: bool, end_chance: float) -> None:
        """Several steps of all lanes in one pass."""
        lanes, taken = list(range(len(pen.worlds))), []
        before = [dict(world.obs) for world in pen.worlds]
        for _ in range(steps):
            proposed, entries = self._propose(pen, lanes, end_chance, omit=False)
            taken.append(entries if with_next else {lane: Entry(entry.row) for lane, entry in entries.items()})
            for lane, entry in proposed.items():
                pen.worlds[lane].take(entry)
        rows = nested(stacked([self._join([entry.row for entry in entries.values()]) for entries in taken]))
        options: dict[str, Any] = {}
        if with_next:
            following = [self._join([entry.next for entry in entries.values()]) for entries in taken]
            options["next"] = nested(stacked(following))
        plan = pen.model.plan_extend(taken)
        if self._too_many(plan):
            passed = self._refused(pen, "extend", rows, **options)
        else:
            passed = self._passes(pen, plan, "extend", rows, **options)
        if not passed:
            for world, obs in zip(pen.worlds, before, strict=True):
                world.obs = obs

    def end_episode(self, pen: Pen, lanes: list[int], *, with_final: bool, discard: bool) -> None:
        """`end_episode` in some lanes, with or without their final observations, in those that have an open one."""
        open_lanes = [lane for lane in lanes if pen.model.lanes[lane].episode.rows]
        lanes = [lane for lane in open_lanes if not pen.model.lanes[lane].episode.settled]
        if not lanes:
            return
        finals = {lane: dict(self._final(pen, lane)) if with_final else None for lane in lanes}
        plan = pen.model.plan_end(finals, discard)
        options: dict[str, Any] = {"discard": discard}
        if with_final:
            options["final"] = nested(self._join(list(finals.values())))
        if self.setting.lanes is not None:
            options["lane"] = np.array(lanes)
        if self._passes(pen, plan, "end_episode", **options):
            for lane in lanes:
                pen.worlds[lane].reset()

    # -- the table ----------------------------------------------------------------------------------------------

    def sample(self, n: int) -> None:
        """Draw from every table."""
        self.operations += 1
        for side in self.sides:
            side.sample(n)

    def peek(self) -> None:
        """Look at everything."""
        self.operations += 1
        for side in self.sides:
            side.peek()

    def insert(self, priority: float | None) -> None:
        """A row without a stream."""
        self.operations += 1
        self.side.insert(World(self.counter, self.setting.columns).propose(self.rng, 0.1).row, priority)

    def update_priorities(self, count: int, zero: bool) -> None:
        """New priorities."""
        self.operations += 1
        self.side.update_priorities(count, zero)

    def delete(self, count: int) -> None:
        """Delete some items."""
        self.operations += 1
        self.side.delete(count)

    def resize(self, capacity: int) -> None:
        """A new capacity, unless this limiter needs more."""
        self.operations += 1
        limiter = self.side.model.limiter
        if isinstance(limiter, Queue):
            return
        least = limiter.n if isinstance(limiter, MinSize) else 1
        least = limiter.min_size if isinstance(limiter, SamplesPerInsert) else least
        self.side.resize(max(capacity, least))

    def configure(self, limiter: Limiter | None) -> None:
        """Another limiter, or no items any more."""
        self.operations += 1
        self.side.configure(limiter)

    def publish(self) -> None:
        """New weights: what was written with old ones may have become stale."""
        self.operations += 1
        self.counter.version = self.store.publish("policy", None)
        for side in self.sides:
            side.model.newest = self.counter.version

    def attach_again(self) -> None:
        """A new handle of the same store by its name, then the old one is closed; needs no open local writer."""
        self.operations += 1
        if any(isinstance(pen.driver, LocalDriver) for pen in self.pens):
            return
        attached = di_store.attach(self.store.name, timeout=PASSES_SECONDS)
        self.store.close()
        self.store = attached
        for side in self.sides:
            side.table = attached.table(side.model.name)
            side.sync()

    def close(self) -> None:
        """End all writers and the store."""
        for pen in self.pens:
            if isinstance(pen.driver, ChildDriver) and pen.driver.process.is_alive():
                pen.driver.kill()
        self.store.close()

    # -- inside -------------------------------------------------------------------------------------------------

    def _propose(
        self, pen: Pen, lanes: list[int], end_chance: float, omit: bool = True
    ) -> tuple[dict[int, Entry], dict[int, Entry]]:
        """Next steps of some lanes, in full and as given: known observations may be left out."""
        proposed = {lane: pen.worlds[lane].propose(self.rng, end_chance) for lane in lanes}
        episodes = [pen.model.lanes[lane].episode for lane in lanes]
        known = all(episode.following is not None and not episode.ended for episode in episodes)
        if not (omit and known and self.rng.random() < 0.5):
            return proposed, proposed
        short = {lane: {c: v for c, v in entry.row.items() if c[:4] != "obs/"} for lane, entry in proposed.items()}
        return proposed, {lane: Entry(short[lane], entry.next) for lane, entry in proposed.items()}

    def _call(self, entries: dict[int, Entry], with_next: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """The flat step and the options of an append."""
        options: dict[str, Any] = {}
        if with_next:
            options["next"] = nested(self._join([entry.next for entry in entries.values()]))
        if self.setting.lanes is not None and len(entries) < self.setting.lanes:
            options["lane"] = np.array(list(entries))
        return self._join([entry.row for entry in entries.values()]), options

    def _join(self, rows: list[Any]) -> dict[str, Any]:
        """Rows of lanes as one flat step: leaves as they are, or with a leading axis."""
        return stacked(rows) if self.setting.lanes is not None else dict(rows[0])

    def _final(self, pen: Pen, lane: int) -> dict[str, Any]:
        """The lane's final observation: what the environment showed last (a new one where it already restarted)."""
        episode = pen.model.lanes[lane].episode
        if episode.following is not None:
            return episode.following
        return self.counter.observation() if episode.ended else pen.worlds[lane].obs

    def _prioritize(self, plan: Plan, lanes: list[int]) -> tuple[Plan, Any]:
        """A scalar or per-lane priority for what the plan completes in all tables."""
        values = {lane: self.rng.randrange(1, 500) / 32 for lane in lanes}
        if self.setting.lanes is None or self.rng.random() < 0.5:
            values = dict.fromkeys(lanes, values[lanes[0]])
            given: Any = values[lanes[0]]
        else:
            given = np.array([values[lane] for lane in lanes])
        return plan.prioritized(values), given

    def _too_many(self, plan: Plan, several: bool = True) -> bool:
        """Whether an extend completes more items than a table holds, or an append those of more lanes."""
        for table in [side.model for side in self.sides]:
            drafts = plan.drafts[table.name]
            if several and len(drafts) > table.capacity:
                return True
            lanes = {draft.lane for draft in drafts}
            if not several and len(lanes) > table.capacity and not isinstance(table.limiter, Queue):
                return True
        return False

    def _admitted(self, plan: Plan) -> bool:
        """Whether the limiters of all tables let a plan pass."""
        return all(side.model.admits(len(plan.drafts[side.model.name])) for side in self.sides)

    def _passes(self, pen: Pen, plan: Plan, method: str, *args: Any, **options: Any) -> bool:
        """Do a planned writer call in both; False if it (rightly) had to wait, and then nothing changed."""
        self.operations += 1
        admitted = self._admitted(plan)
        if method != "close":
            options["timeout"] = PASSES_SECONDS if admitted else WAITS_SECONDS
        elif not admitted:
            return False
        try:
            made = pen.driver.call(method, *args, **options)
        except di_store.Timeout:
            assert not admitted, f"{method} waits, though the limiter lets it pass"
            self._sync()
            return False
        assert admitted, f"{method} passed, though the limiter lets nothing pass"
        self._take(pen, plan, made)
        return True

    def _refused(self, pen: Pen, method: str, *args: Any, **options: Any) -> bool:
        """A call with more items than the table holds: ValueError, and nothing changed."""
        self.operations += 1
        with pytest.raises(ValueError, match="capacity"):
            pen.driver.call(method, *args, timeout=PASSES_SECONDS, **options)
        self._sync()
        return False

    def _take(self, pen: Pen, plan: Plan, made: dict[str, Numbers]) -> None:
        pen.model.commit(plan)
        for side in self.sides:
            name = side.model.name
            side.take(pen.number, plan, plan.drafts[name], made.get(name))
        self._sync()

    def _sync(self) -> None:
        for side in self.sides:
            side.sync()

    def _kill(self, pen: Pen, driver: ChildDriver, within: bool) -> None:
        """SIGKILL of a child's writer; what it acknowledged stays, and nothing is torn."""
        plan = pen.model.plan_extend([])
        acknowledged = False
        if within:
            _, entries = self._propose(pen, list(range(len(pen.worlds))), 0.3)
            plan = pen.model.plan_append(entries)
            row, options = self._call(entries, with_next=True)
            timeout = PASSES_SECONDS if self._admitted(plan) else WAITS_SECONDS
            if self._too_many(plan, several=False):
                plan = pen.model.plan_extend([])
            fault = self.rng.choice(("", *(f"{point}:{count}" for point in FAULTS for count in (1, 2, 4))))
            acknowledged = driver.kill_within(fault, "append", nested(row), timeout=timeout, **options)
        else:
            driver.kill()
        self.pens.remove(pen)
        pen.model.commit(plan)
        # `stats` takes no lock: it would count a half-made insert that the next owner of the lock takes back.
        for side in self.sides:
            side.table.keys()
            drafts = plan.drafts[side.model.name]
            inserted = side.table.stats()["inserts"] - side.model.inserts
            assert 0 <= inserted <= len(drafts), f"{inserted} items came from an append that completes {len(drafts)}"
            assert not acknowledged or inserted == len(drafts), "an acknowledged item is lost"
            side.take(pen.number, plan, drafts[:inserted], None)
        self._sync()
