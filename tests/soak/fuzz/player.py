"""A process that makes call after call and writes down what is not right; it goes on as long as it can."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import resource
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

import di_store
from soak.fuzz import hazards, surface
from soak.fuzz.journal import Journal
from soak.fuzz.plan import CALLS, Plan, arguments, make_plan
from soak.fuzz.plants import plant as make_plant
from soak.fuzz.verdict import Finding, judge
from soak.fuzz.world import KINDS, MEMORY, World

PRIVATE_BYTES = 3 << 30
"""Memory of its own that a process may take: what asks for more gets an error, and the machine goes on."""
USUAL_SECONDS = 6.0
"""What a call may take that waits for nothing by its arguments; a tenth of its bound."""
REFRESH = 40
"""Calls after which one of the tables is made anew, by lot."""


@dataclass(frozen=True)
class Round:
    """What one process plays.

    Attributes:
        store: name of the store, where the test has its guarded rows.
        folder: for the journal and the findings.
        calls: how many, at most.
        seconds: how long, at most.
        only: plans to make in place of calls by lot, for a replay.
        plant: a fault that shall be noticed.
        usual: seconds that a call may take which waits for nothing by its arguments; it is stuck after ten times that.
    """

    store: str
    folder: str
    seed: int
    hazard: str
    calls: int
    seconds: float
    only: tuple[str, ...] = ()
    plant: str = ""
    usual: float = USUAL_SECONDS

    @property
    def journal(self) -> str:
        """Path of the journal."""
        return os.path.join(self.folder, "journal")

    @property
    def findings(self) -> str:
        """Path of the findings, a line of JSON each."""
        return os.path.join(self.folder, "findings")


class Player:
    """One thread that makes calls."""

    def __init__(self, game: Round, world: World, journal: Journal, slot: int) -> None:
        self._game, self._world, self._journal, self._slot = game, world, journal, slot
        self._rng = random.Random(f"{game.seed}/{game.hazard}/{slot}")
        self._alarm = hazards.Alarm(world, self.report) if slot == 0 else None
        self.stop = threading.Event()
        self.usual = game.usual

    def report(self, found: Finding) -> None:
        """Write it down."""
        with open(self._game.findings, "a") as file:
            file.write(json.dumps(found.as_json()) + "\n")

    def play(self) -> None:
        """All calls of the round."""
        until = time.monotonic() + self._game.seconds
        for text in self._game.only:
            self.make(Plan.parse(text))
        for number in range(0 if self._game.only else self._game.calls):
            if time.monotonic() > until or self.stop.is_set():
                return
            patient = self._slot == 0 and self._game.hazard != "signals"
            oddness = 0.9 if self._game.hazard == "odd" else 0.3
            self.make(make_plan(self._rng, oddness, patient))
            if self._game.hazard == "forks" and self._slot == 0 and self._rng.random() < 0.1:
                self._fork()
            if number % REFRESH == 0:
                with self._world.lock:
                    self._world.forget(self._rng.choice(KINDS))

    def make(self, plan: Plan) -> None:
        """One call, judged."""
        call, text = CALLS[plan.call], plan.text()
        try:
            with self._world.lock:
                on = surface.target(self._world, call, plan.on, random.Random(plan.salt))
                given = arguments(self._world, plan, call)
        except di_store.StoreError:
            return  # the store is full, or a table was dropped by others
        self._journal.begin(self._slot, text, self._deadline(plan, given))
        result = error = None
        try:
            try:
                with self._hazard(plan, text):
                    result = surface.invoke(call, on, given)
            except BaseException as caught:
                error = caught
        except BaseException as caught:  # a handler was late
            error = caught
        self._journal.end(self._slot)
        if error is not None and (found := judge(text, error)):
            self.report(found)
        error = None
        with self._world.lock, suppress(di_store.StoreError):
            self._after(plan, on, result)

    def _deadline(self, plan: Plan, given: dict[str, Any]) -> float:
        timeout = given.get("timeout")
        if plan.endless or type(timeout) not in (int, float) or not 0 <= timeout < self._game.usual:
            return self._game.usual
        return max(float(timeout), 0.1)

    @contextmanager
    def _hazard(self, plan: Plan, text: str) -> Iterator[None]:
        hazard = self._game.hazard
        kinds: dict[str, Any] = {
            "allocations": hazards.failing_allocation,
            "memory": hazards.little_memory,
            "descriptors": hazards.no_descriptors,
        }
        if self._alarm is None:
            beside: Any = nullcontext()
        elif self._game.hazard == "signals":
            beside = self._alarm.striking(self._rng, text)
        else:
            beside = self._alarm.interrupting() if plan.endless else nullcontext()
        with beside:
            if hazard in kinds:
                with kinds[hazard](self._rng):
                    yield
            else:
                yield

    def _after(self, plan: Plan, on: Any, result: Any) -> None:
        """Keep the world in order after a call that has changed it."""
        world, name = self._world, plan.call
        if isinstance(result, di_store.Store) and result is not world.store:
            result.close()
        elif isinstance(result, di_store.Ref):
            world.refs = [*world.refs[-9:], result]
        elif isinstance(result, np.ndarray) and name in ("Table.insert", "Table.extend"):
            world.keys[plan.on] = result[:20]
        else:
            world.hold(result)
        if name in ("Table.finish", "Store.drop_table", "Store.create_table"):
            world.forget(plan.on if plan.on in KINDS else None)
        if name == "Store.resize":
            world.store.resize(memory=MEMORY)
        if plan.call in ("Writer.close", "Writer.__exit__") or (
            plan.call.startswith("Writer.") and self._rng.random() < 0.05
        ):
            world.drop_writer(plan.on)
        if plan.call in ("Loader.close", "Loader.__exit__") or len(world.loaders) > 2:
            with suppress(ValueError):
                world.loaders.remove(on)
            while len(world.loaders) > 2:
                world.loaders.pop(0).close()

    def _fork(self) -> None:
        """A child that makes a few calls with all that it has inherited."""
        slot = 3
        plans = [make_plan(self._rng, 0.3, patient=False) for _ in range(3)]

        def work() -> None:
            child = Player(self._game, self._world, self._journal, slot)
            self._world.lock = threading.RLock()  # a thread of the parent may have had it
            for plan in plans:
                child.make(plan)

        hazards.fork(work)


def run(game: Round) -> int:
    """A child of the zygote."""
    warnings.simplefilter("ignore")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    resource.setrlimit(resource.RLIMIT_DATA, (PRIVATE_BYTES, PRIVATE_BYTES))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hazards.warm_up()
    os.chdir(game.folder)  # where the files of odd paths go
    journal = Journal(game.journal)
    store = di_store.attach(game.store, timeout=60)
    world = World(store, "w", random.Random(game.seed))
    player = Player(game, world, journal, 0)
    if game.plant:
        make_plant(game.plant, store, player.report)
    beside = 2 if game.hazard == "threads" else 1 if game.hazard == "forks" else 0
    others = [Player(game, world, journal, 1 + number) for number in range(0 if game.only else beside)]
    threads = [threading.Thread(target=other.play) for other in others]
    for thread in threads:
        thread.start()
    player.play()
    for other, thread in zip(others, threads, strict=True):
        other.stop.set()
        thread.join()
    del others, threads
    world.let_go()
    if _nothing_left(world, player):
        world.end()
    return 0


def _nothing_left(world: World, player: Player) -> bool:
    """Whether this process has no pin and no draw left, with everything let go; if it has, that is reported."""
    until, pause = time.monotonic() + 5 * player.usual, threading.Event()
    while True:
        gc.collect()
        stats = world.store.stats()
        pinned = [client["pinned"] for client in stats["clients"] if client["pid"] == os.getpid()]
        held = {name: table["held"] for name, table in stats["tables"].items() if table["held"]}
        if not any(pinned) and not held:
            return True
        if time.monotonic() > until:
            left = f"pinned bytes {pinned}, held draws {held} of a process that let go of all"
            player.report(Finding("damage", "at the end", "", left))
            return False
        pause.wait(0.01)
