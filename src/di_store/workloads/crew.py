"""The processes of a load. Each starts fresh and gets one phase after the other, on one schedule of absolute time.

A paced duty has fixed times at which its steps are due. A late step does not move the following ones. So if a store
cannot keep up, some due steps have not begun when the phase ends.
"""

from __future__ import annotations

import math
import multiprocessing
import operator
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

import di_store
from di_store.workloads.content import Array
from di_store.workloads.duties import Calls, Duty, Over
from di_store.workloads.load import Load, Role

LEAD_SECONDS = 0.1
"""Time from announcing a phase to its beginning. By then every process waits for it."""

GRACE_SECONDS, ALONE_SECONDS = 1.0, 60.0
"""After the end of a phase, calls that still wait are interrupted in this interval; those of a duty alone, later."""

BURST, BURST_NANOSECONDS = 64, 100_000
"""Steps between two looks at the clock while a process does one thing as fast as it can. A call that takes so many
nanoseconds ends them early."""

LATE_SECONDS = 300.0
"""A process that has not answered so long after the end of a phase, or after it was told to fill, has failed."""


@dataclass(frozen=True)
class Phase:
    """A period of some seconds in which every duty has its rate.

    Attributes:
        rates: elements per second by label, all processes together; None: as many as possible; no entry: none.
        check: whether readers check the received data, and CPU time is measured.
    """

    seconds: float
    rates: Mapping[str, float | None]
    check: bool


class Tally(NamedTuple):
    """The work of one duty in a phase, in one process or in all of them.

    Attributes:
        due, done: elements; a paced step counts as done if it began before the end of the phase.
        elements_per_second: done elements over the time taken; for a paced duty, the requested rate · the share done.
    """

    due: float = 0.0
    done: float = 0.0
    elements_per_second: float = 0.0
    bytes_per_second: float = 0.0


@dataclass
class Outcome:
    """The results of a phase.

    Attributes:
        tallies: by label.
        spent: nanoseconds of every call, by label.
        call_cpu, other_cpu: CPU seconds inside store calls, and of the processes' other threads (chores, loaders).
    """

    tallies: dict[str, Tally] = field(default_factory=dict)
    spent: dict[str, Array] = field(default_factory=dict)
    call_cpu: float = 0.0
    other_cpu: float = 0.0

    def __add__(self, other: Outcome) -> Outcome:
        tallies, spent = dict(self.tallies), dict(self.spent)
        for label, tally in other.tallies.items():
            tallies[label] = Tally(*map(operator.add, tallies.get(label, Tally()), tally))
        for label, times in other.spent.items():
            spent[label] = np.concatenate([spent.get(label, times[:0]), times])
        return Outcome(tallies, spent, self.call_cpu + other.call_cpu, self.other_cpu + other.other_cpu)


# --- in the processes -------------------------------------------------------------------------------------------------


class CrewMember:
    """One process with its duties, each at its own pace."""

    def __init__(self, store: di_store.Store, load: Load, role: Role, number: int) -> None:
        tables = {table.name: table for table in load.tables}
        for duty in role.duties:
            duty.join(store, tables, number, role.processes)
        self._duties = role.duties
        self._share = (number, role.processes)
        self._calls = Calls(with_cpu=False)
        signal.signal(signal.SIGALRM, self._alarm)

    def run(self, phase: Phase, start: float) -> Outcome:
        """One phase, from `start` of the monotonic clock."""
        end = start + phase.seconds
        paces = [_Pace(duty, phase, start, self._share) for duty in self._duties if duty.label in phase.rates]
        alone = len(paces) == 1 and paces[0].rate is None
        time.sleep(max(0.0, start - time.monotonic()))
        calls = self._calls = Calls(with_cpu=phase.check)
        others = _other_cpu()
        left, grace = max(end - time.monotonic(), 0.0), ALONE_SECONDS if alone else GRACE_SECONDS
        signal.setitimer(signal.ITIMER_REAL, left + grace, grace)
        try:
            while paces and ((now := time.monotonic()) < end or (alone and not paces[0].steps)):
                pace = min(paces, key=lambda pace: (pace.next_due(now), pace.steps))
                due = pace.next_due(now)
                if due > now and due >= end:
                    break
                if due > now:  # a sleep of 0 would let go of the GIL at every step
                    time.sleep(due - now)
                for _ in range(BURST if alone else 1):
                    pace.step(calls, phase.check)
                    if calls.last > BURST_NANOSECONDS:
                        break
            now = time.monotonic()
        except Over:
            now = end  # waiting beyond the end is not part of the phase
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return Outcome(
            {pace.duty.label: pace.tally(now) for pace in paces},
            {label: np.array(spent, np.int64) for label, spent in calls.spent.items()},
            calls.cpu / 1e9,
            (_other_cpu() - others) / 1e9,
        )

    def audit(self, draws: int) -> list[dict[str, float]]:
        """The findings of each duty over the whole run."""
        return [duty.audit(draws) for duty in self._duties]

    def close(self) -> None:
        """Release everything."""
        for duty in self._duties:
            duty.close()

    def _alarm(self, number: int, frame: FrameType | None) -> None:
        if self._calls.waiting:
            raise Over


class _Pace:
    """The due times of one duty's steps in a phase, and their number so far."""

    def __init__(self, duty: Duty, phase: Phase, start: float, share: tuple[int, int]) -> None:
        number, processes = share
        self.duty, self.rate, self.steps = duty, phase.rates[duty.label], 0
        self._done = self._bytes = 0
        self._start = start
        self._own_rate = (self.rate or 0.0) / processes
        self._period = duty.elements / self._own_rate if self.rate else 0.0
        # The processes of a role take turns; in a phase shorter than a period each has a step all the same.
        self._first = min(self._period, phase.seconds) * (number / processes + duty.follows)
        self._due = max(1, math.ceil((phase.seconds - self._first) / self._period)) if self.rate else 0

    def next_due(self, now: float) -> float:
        """When the next step is due."""
        return now if self.rate is None else self._start + self._first + self.steps * self._period

    def step(self, calls: Calls, check: bool) -> None:
        """One step, even if it is late."""
        self.steps += 1
        done, moved = self.duty.step(calls, check)
        self._done += done
        self._bytes += moved

    def tally(self, now: float) -> Tally:
        """The work done until `now`."""
        due = self._due * self.duty.elements
        reached = self._done / max(now - self._start, 1e-9) if self.rate is None else self._own_rate * self._done / due
        return Tally(due, self._done, reached, reached * self._bytes / max(self._done, 1))


def _other_cpu() -> int:
    """CPU nanoseconds of this process's threads but this one."""
    return time.process_time_ns() - time.thread_time_ns()


def _work(pipe: Connection, *arguments: Any) -> None:
    """The main function of one process: executes orders, and answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the process that started this one
    member = CrewMember(*arguments)
    pipe.send(None)
    while (order := pipe.recv()) is not None:
        method, *options = order
        pipe.send(getattr(member, method)(*options))
    member.close()


# --- from outside -----------------------------------------------------------------------------------------------------


class CrewError(RuntimeError):
    """A process of a load failed; the process has printed the reason."""


class Crew:
    """The processes of one load. Once started, the processes have filled the tables and wait for the first phase."""

    def __init__(self) -> None:
        self._members: dict[Connection, SpawnProcess] = {}

    @classmethod
    @contextmanager
    def started(cls, load: Load, store: di_store.Store) -> Iterator[Crew]:
        """All processes of a load, until the block ends."""
        crew = cls()
        # Starting this helper of multiprocessing unblocks Ctrl-C as a side effect, so it comes first.
        resource_tracker.ensure_running()
        try:
            for role in load.roles:
                for number in range(role.processes):
                    crew._start(f"{role.name} {number}", store, load, role, number)
            crew._answers(LATE_SECONDS)
            yield crew
            crew._tell(None)
            for process in crew._members.values():
                process.join(10.0)
        finally:
            for pipe, process in crew._members.items():
                process.kill()
                process.join(10.0)
                pipe.close()

    def run(self, phase: Phase, watch: Callable[[], None] | None = None) -> Outcome:
        """One phase; `watch` is called about 20 times a second meanwhile."""
        self._tell(("run", phase, time.monotonic() + LEAD_SECONDS))
        return sum(self._answers(phase.seconds + LATE_SECONDS, watch), Outcome())

    def audit(self, draws: int) -> list[dict[str, float]]:
        """The findings of every duty over the whole run."""
        self._tell(("audit", draws))
        return [figures for answer in self._answers(LATE_SECONDS) for figures in answer]

    def _start(self, name: str, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, *arguments), name=name, daemon=True)
        process.start()
        there.close()
        self._members[here] = process

    def _tell(self, order: Any) -> None:
        for pipe in self._members:
            with suppress(OSError):  # it died, as its missing answer will tell
                pipe.send(order)

    def _answers(self, seconds: float, watch: Callable[[], None] | None = None) -> list[Any]:
        """One answer of every process.

        Raises:
            CrewError: a process failed, died, or is late.
        """
        found: dict[Connection, Any] = {}
        deadline = time.monotonic() + seconds
        while missing := [pipe for pipe in self._members if pipe not in found]:
            for pipe in set(missing).intersection(wait(missing, 0.05)):
                try:
                    found[pipe] = pipe.recv()
                except (EOFError, ConnectionError):
                    process = self._members[pipe]
                    process.join(1.0)
                    raise CrewError(f"{process.name} died with exit status {process.exitcode}") from None
            if watch is not None:
                watch()
            if time.monotonic() > deadline:
                raise CrewError(f"{self._members[missing[0]].name}: no answer for {seconds:.0f} s")
        return [found[pipe] for pipe in self._members]
