"""The scene of the soak: a store, the processes in it, what befalls them, and what must hold all the time."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crash.board import Board, rows
from crash.zygote import KILLED, Crew, Hand

import di_store
from soak import context as words
from soak.context import Terms
from soak.stamps import PLACES, VAULT, Press, all_refs, object_id, schema, some_size

LEVEL = 64 << 10
"""Bytes by which the store may be off its share after it was levelled."""
LARGEST_TABLE = 1.5
"""Of its first capacity, the most that the administrator gives a table."""
CALL_ITEMS = 160
"""Items that one call of a streamer can add: 40 rows of four lanes."""
LOOSE = 1_000
"""Draws given back at once, and inserts counted between the reads of two counters."""


@dataclass
class Member:
    """One process at a time of the cast.

    Attributes:
        role: what it does.
        mortal: whether chance may kill it; a successor takes its place.
    """

    role: str
    mortal: bool
    hand: Hand
    row: int
    alive: int = 0
    worked: int = 0
    alive_at: float = 0.0
    worked_at: float = 0.0
    wake_at: float = 0.0


@dataclass
class Plan:
    """Who is on the scene and what befalls them.

    Attributes:
        steady: roles of processes that live from beginning to end (they may be stopped).
        mortal: roles of those that are killed now and then.
        every: mean seconds between two strokes of chance.
        plant: a fault that the first process shall make; "" for none.
        bound: seconds a process may take for one turn, and anything that is waited for; it may be kept waiting for
            twice as long. Far more than anybody needs, on a busy machine too.
    """

    steady: tuple[str, ...]
    mortal: tuple[str, ...]
    every: float
    plant: str = ""
    bound: float = 120.0


class Scene:
    """One store and its processes.

    Args:
        crew: where they come from.
        name: of the store.
        path: of a file for the board; not there yet.
    """

    def __init__(self, crew: Crew, name: str, path: str, terms: Terms, plan: Plan, seed: int) -> None:
        self.crew, self.terms, self.plan = crew, terms, plan
        self.rng = random.Random(seed)
        self.strokes = Counter[str]()
        self.units = Counter[str]()
        self.store: Any = di_store.open(name, memory=terms.memory, mode="x")
        self.baseline = self.store.stats()
        self.board = Board(path, create=True)
        self.board.put(0, words.TARGET, terms.memory)
        self.began = time.monotonic()
        self._make_tables()
        self._serial = 100
        self.level()
        self._rows = 0
        self._order = 0
        self._stroke_at = 0.0
        self.members: dict[str, Member] = {}
        for number, role in enumerate(plan.steady):
            self.members[f"{role} {number}"] = self._start(role, mortal=False)
        for number, role in enumerate(plan.mortal, len(plan.steady)):
            self.members[f"{role} {number}"] = self._start(role, mortal=True)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.began

    def _make_tables(self) -> None:
        make, capacity = self.store.create_table, self.terms.capacity
        transitions = di_store.Transition(n_step=3, gamma=1.0)
        prioritized = di_store.Prioritized(alpha=0.6, beta=0.4)
        limiter = di_store.SamplesPerInsert(4.0, 200, 0.5)
        columns = list(rows(1))
        room = {"replay": capacity, "windows": 1_000, "notes": 1_000}
        shared = {"schema": schema(), "lanes": 16}
        most = {name: int(LARGEST_TABLE * number) for name, number in room.items()}
        make(
            "replay",
            capacity=most["replay"],
            view=transitions,
            sampler=prioritized,
            limiter=limiter,
            columns=columns,
            **shared,
        )
        windows = di_store.Sequence(4, period=2)
        make("windows", capacity=most["windows"], view=windows, columns=columns, **shared)
        make("notes", capacity=most["notes"], **shared)
        make("queue", capacity=2_000, schema=rows(1), limiter=di_store.Queue(64), lanes=8)
        for name, number in room.items():
            self.store.table(name).resize(number)  # what slots take is as much as it will ever be
        press = Press(1 << 20)
        for number in range(16):
            name = object_id(VAULT, 0, number, 100 << number % 14)
            self.store.put(press.value(name), id=name)

    def level(self) -> None:
        """Bring what is in use to the share that the churners keep it at, by deleting objects and putting others."""
        goal = int(words.SHARE * self.terms.memory)
        press = Press(self.terms.largest)
        refs = [ref for ref in all_refs(self.store) if int(ref.id[:2], 16) < PLACES]
        self.rng.shuffle(refs)
        while refs and words.in_use(self.store) > goal:
            self.store.delete(refs.pop())
        # Tables that were emptied a moment ago keep the room that is set aside for them: objects may get less.
        arena = self.store._backend.session.arena
        while (room := min(goal - words.in_use(self.store), arena.available(0, self.plan.bound))) > LEVEL:
            self._serial += 1
            size = min(some_size(self.rng, self.terms.largest), room - LEVEL // 2)
            name = object_id(self.rng.randrange(PLACES), 0, self._serial, size)
            self.store.put(press.value(name), id=name)

    # -- processes --------------------------------------------------------------------------------------------------

    def _start(self, role: str, mortal: bool) -> Member:
        self._rows += 1
        plant = self.plan.plant if self._rows == 1 else ""
        seed = self.rng.randrange(1 << 30)
        args = (role, self.store.name, self.board.path, self._rows, self.terms, seed, plant)
        hand = self.crew.start("soak.roles:run", *args)
        hand.what = role
        now = time.monotonic()
        return Member(role, mortal, hand, self._rows, alive_at=now, worked_at=now)

    def _sum_up(self, member: Member) -> None:
        """Add what an ended process has done."""
        self.units[member.role] += self.board.get(member.row, words.UNITS)

    def done(self) -> Counter[str]:
        """Rows, examples and objects by role, all processes that ever were."""
        total = Counter(self.units)
        for member in self.members.values():
            total[member.role] += self.board.get(member.row, words.UNITS)
        return total

    def steady(self) -> dict[str, int]:
        """Pids of the processes that live all the time, this one included."""
        found = {name: member.hand.pid for name, member in self.members.items() if not member.mortal}
        return {"test": os.getpid(), **found}

    # -- what befalls them ------------------------------------------------------------------------------------------

    def chance(self) -> None:
        """Kill or stop somebody, if it is time; wake who was stopped; replace who was killed."""
        now = time.monotonic()
        for member in self.members.values():
            if member.wake_at and now >= member.wake_at:
                self._wake(member)
        self.replace()
        if now < self._stroke_at:
            return
        self._stroke_at = now + self.rng.expovariate(1 / self.plan.every)
        kind, mortals = self.rng.random(), [member for member in self.members.values() if member.mortal]
        if kind < 0.35:
            self._stop(self.rng.choice(list(self.members.values())))
        elif mortals:
            victims = mortals if kind > 0.97 else self.rng.sample(mortals, 3 if kind > 0.85 else 1)
            for member in victims:
                member.hand.signal(signal.SIGKILL)
                self.strokes["kills"] += 1

    def replace(self) -> None:
        """Somebody else for everybody who was killed; any other end is a failure."""
        for name, member in self.members.items():
            status = member.hand.status
            killed = status == KILLED and member.mortal
            assert status is None or killed, f"{name} ended with {status}:\n{member.hand.printed()}"
            if killed:
                self._sum_up(member)
                self.members[name] = self._start(member.role, mortal=True)

    def _stop(self, member: Member) -> None:
        if not member.wake_at:
            member.hand.signal(signal.SIGSTOP)
            member.wake_at = time.monotonic() + self.rng.uniform(0.01, 1.5)
            self.strokes["stops"] += 1

    def _wake(self, member: Member) -> None:
        member.hand.signal(signal.SIGCONT)
        member.wake_at = 0.0
        member.alive_at = member.worked_at = time.monotonic()

    # -- what must hold ---------------------------------------------------------------------------------------------

    def watch(self) -> dict[str, Any]:
        """One look while everybody runs: nobody failed, nobody is stuck, the numbers agree. The store's `stats`."""
        now = time.monotonic()
        self.replace()
        bound = self.plan.bound
        for name, member in self.members.items():
            alive, worked = self.board.get(member.row, words.ALIVE), self.board.get(member.row, words.WORKED)
            if alive != member.alive:
                member.alive, member.alive_at = alive, now
            if worked != member.worked:
                member.worked, member.worked_at = worked, now
            if not member.wake_at:
                stuck = now - member.alive_at > bound or now - member.worked_at > 2 * bound
                assert not stuck, self._evidence(f"{name} does not get on")
        stats: dict[str, Any] = self.store.stats()
        assert stats["live"] + stats["pinned"] + stats["pending"] + stats["free"] == stats["memory"], stats
        for name in ("replay", "queue"):
            check_limiter(stats["tables"][name], LOOSE)
        return stats

    def _evidence(self, what: str) -> str:
        """Everything that tells why it does not go on; every process writes down where it is."""
        for each in self.members.values():
            each.hand.signal(signal.SIGUSR1)
        self.crew.pump(0.5)
        stats = self.store.stats()
        tables = stats.pop("tables")
        limiters = {name: (found["size"], found["held"], found["limiter"]) for name, found in tables.items()}
        return f"{what}\n{stats}\n{limiters}\n{self.crew.describe()}"

    # -- everybody stands still -------------------------------------------------------------------------------------

    def assemble(self) -> None:
        """Wake everybody, bring the store back to its first size, and let all stand still holding nothing."""
        self.board.put(0, words.HOLD, 1)
        self.board.put(0, words.TARGET, self.terms.memory)
        for member in self.members.values():
            self._wake(member)
        self.until(self._resized, "the store to have its first size")
        self.until(self._full, "the store to be as full as it shall be")
        self._order += 1
        self.board.put(0, words.ORDER, self._order)
        self.until(self._standing, "everybody to stand still")
        self.until(self._resized, "the store to have its first size")

    def _full(self) -> bool:
        # The administrator may have been in the middle of a change.
        return self._resized() and words.in_use(self.store) >= (words.SHARE - 0.05) * self.terms.memory

    def _resized(self) -> bool:
        self.replace()
        self.board.put(0, words.TARGET, self.terms.memory)
        if self.store.stats()["memory"] == self.terms.memory:
            return True
        try:
            self.store.resize(memory=self.terms.memory)
        except (di_store.CapacityError, di_store.Timeout):
            return False
        return True

    def _standing(self) -> bool:
        self.replace()  # a successor stands, too
        return all(self.board.get(member.row, words.PAUSED) == self._order for member in self.members.values())

    def go_on(self) -> None:
        """The roll call is over."""
        self.board.put(0, words.ORDER, 0)
        self.board.put(0, words.HOLD, 0)
        now = time.monotonic()
        for member in self.members.values():
            member.alive_at = member.worked_at = now

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for it; fail after a bound that is far more than it takes."""
        self.until_none(lambda: "" if condition() else what)

    def until_none(self, wanting: Callable[[], str]) -> None:
        """Wait until it names nothing any more that is wanting."""
        end = time.monotonic() + self.plan.bound
        while what := wanting():
            assert time.monotonic() < end, self._evidence(f"waited {self.plan.bound:.0f} s for {what}")
            self.crew.pump(0.01)

    def stop(self) -> None:
        """Everybody ends, by themselves."""
        for member in self.members.values():
            self._wake(member)
        self.board.put(0, words.ORDER, words.STOP)
        for name, member in self.members.items():
            status = member.hand.join(self.plan.bound)
            assert status == 0 or (status == KILLED and member.mortal), f"{name}: {status}\n{member.hand.printed()}"
            self._sum_up(member)
        self.members.clear()


def check_limiter(table: dict[str, Any], loose: float) -> None:
    """The limiter's error lies in its band, but for one call's items and draws given back."""
    limiter, least = table["limiter"], table["limiter"]["min_size"]
    ratio = limiter["ratio"]
    error = limiter["inserts"] * ratio - limiter["samples"]
    assert error <= max(limiter["max_diff"], least * ratio) + ratio * CALL_ITEMS + loose * max(1.0, ratio), limiter
    if limiter["samples"]:
        assert error >= limiter["min_diff"] - loose * max(1.0, ratio), limiter
