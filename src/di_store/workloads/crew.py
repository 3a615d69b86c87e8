"""The processes of a load: started fresh, told one phase after the other, all on one schedule of absolute time.

A paced duty has fixed times at which its steps are due. A late step does not move those that follow, so a store that
cannot keep up shows as steps that were due and did not begin before the phase ended.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any

import numpy as np

import di_store
from di_store.workloads.content import Array
from di_store.workloads.duties import Calls, Duty, Over, Place
from di_store.workloads.load import Load, Role

LEAD_SECONDS = 0.1
"""From announcing a phase to its beginning: every process is waiting for it by then."""

GRACE_SECONDS = 1.0
"""After the end of a phase, calls that still wait are interrupted in this interval."""

BURST, BURST_NANOSECONDS = 64, 100_000
"""Steps between two looks at the clock, where a process does one thing as fast as it can; so long a call ends them."""

LATE_SECONDS = 300.0
"""After the end of a phase, or for filling: a process that has not answered by then has failed."""


@dataclass(frozen=True)
class Phase:
    """Some seconds in which every duty has its rate.

    Attributes:
        rates: elements a second by label, all processes together; None: as many as it can; absent: nothing.
        check: whether readers check what arrives, and CPU time is taken.
    """

    seconds: float
    rates: Mapping[str, float | None]
    check: bool


@dataclass
class Tally:
    """What one duty did in a phase, in one process or in all of them.

    Attributes:
        rate: asked for; None: as many as it can.
        due, done: elements; a paced step counts as done if it began before the end of the phase.
        elements_per_second: done, over the time it took; where it is paced, the share done of the rate asked for.
    """

    rate: float | None
    due: float = 0.0
    done: int = 0
    elements_per_second: float = 0.0
    bytes_per_second: float = 0.0

    def add(self, other: Tally) -> None:
        """Another process of the same role."""
        for name in ("due", "done", "elements_per_second", "bytes_per_second"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class Outcome:
    """What a phase brought.

    Attributes:
        tallies: by label.
        spent: nanoseconds of every call, by label.
        call_cpu, other_cpu: CPU seconds inside store calls, and of the processes' other threads (chores, loaders).
    """

    tallies: dict[str, Tally] = field(default_factory=dict)
    spent: dict[str, Array] = field(default_factory=dict)
    call_cpu: float = 0.0
    other_cpu: float = 0.0

    def add(self, other: Outcome) -> None:
        """Another process."""
        for label, tally in other.tallies.items():
            if label in self.tallies:
                self.tallies[label].add(tally)
            else:
                self.tallies[label] = tally
        for label, spent in other.spent.items():
            self.spent[label] = np.concatenate([self.spent.get(label, spent[:0]), spent])
        self.call_cpu += other.call_cpu
        self.other_cpu += other.other_cpu


# --- in the processes -------------------------------------------------------------------------------------------------


class Clockwork:
    """The duties of one process, each at its pace."""

    def __init__(self, duties: dict[str, Duty], share: tuple[int, int]) -> None:
        self._duties = duties
        self._share = share
        self._calls = Calls()
        signal.signal(signal.SIGALRM, self._alarm)

    def run(self, phase: Phase, start: float) -> Outcome:
        """One phase, from `start` of the monotonic clock."""
        calls, end = self._calls, start + phase.seconds
        paces = {
            label: _Pace(duty, phase.rates[label], start, phase.seconds, self._share)
            for label, duty in self._duties.items()
            if label in phase.rates
        }
        alone = len(paces) == 1 and all(pace.rate is None for pace in paces.values())
        time.sleep(max(0.0, start - time.monotonic()))
        calls.clear(with_cpu=phase.check)
        others = _other_cpu()
        signal.setitimer(signal.ITIMER_REAL, max(end - time.monotonic(), 0.0) + GRACE_SECONDS, GRACE_SECONDS)
        try:
            while paces:
                now = time.monotonic()
                pace = min(paces.values(), key=lambda pace: (pace.next_due(now), pace.steps))
                due = pace.next_due(now)
                if due >= end or now >= end:
                    break
                if due > now:
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
            {label: pace.tally(now) for label, pace in paces.items()},
            {label: np.array(spent, np.int64) for label, spent in calls.spent.items()},
            calls.cpu / 1e9,
            (_other_cpu() - others) / 1e9,
        )

    def _alarm(self, number: int, frame: FrameType | None) -> None:
        if self._calls.waiting:
            raise Over


class _Pace:
    """When the steps of one duty are due."""

    def __init__(self, duty: Duty, rate: float | None, start: float, seconds: float, share: tuple[int, int]) -> None:
        number, processes = share
        self.rate = rate
        self.steps = self._done = 0
        self._duty, self._start = duty, start
        self._own_rate = (rate or 0.0) / processes
        self._period = duty.elements / self._own_rate if rate else 0.0
        # The processes of a role take turns; in a phase shorter than a period each has a step all the same.
        self._first = min(self._period, seconds) * (number / processes + duty.follows)
        self._due = max(1, int(np.ceil((seconds - self._first) / self._period))) if rate else 0
        duty.bytes = 0

    def next_due(self, now: float) -> float:
        """When the next step is due."""
        return now if self.rate is None else self._start + self._first + self.steps * self._period

    def step(self, calls: Calls, check: bool) -> None:
        """One step, even if it is late."""
        self.steps += 1
        self._done += self._duty.step(calls, check)

    def tally(self, now: float) -> Tally:
        """What was done until `now`."""
        due = self._due * self._duty.elements
        reached = self._done / max(now - self._start, 1e-9) if self.rate is None else self._own_rate * self._done / due
        return Tally(self.rate, due, self._done, reached, reached * self._duty.bytes / max(self._done, 1))


def _other_cpu() -> int:
    """CPU nanoseconds of this process's threads but this one."""
    return time.process_time_ns() - time.thread_time_ns()


def _work(pipe: Connection, store: di_store.Store, load: Load, role: Role, number: int) -> None:
    """One process, from its start to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the process that started this one
    share = (number, role.processes)
    duties: dict[str, Duty] = {}
    try:
        place = Place(store, {table.name: table for table in load.tables}, tuple(d for _, d in load.duties), *share)
        for duty in role.duties:
            duty.join(place)
            duties[duty.label] = duty
        clockwork = Clockwork(duties, share)
        pipe.send(None)
        while (order := pipe.recv()) is not None:
            if isinstance(order, int):
                pipe.send([duty.audit(order) for duty in duties.values()])
            else:
                pipe.send(clockwork.run(*order))
        for duty in duties.values():
            duty.close()
    except BaseException:
        pipe.send(f"{role.name} {number}:\n{traceback.format_exc()}")


# --- from outside -----------------------------------------------------------------------------------------------------


class CrewError(RuntimeError):
    """A process of a load failed; the text is its own."""


class Crew:
    """The processes of one load. When it is made, they have filled the tables and wait for the first phase."""

    def __init__(self, load: Load, store: di_store.Store) -> None:
        self._members: dict[Connection, SpawnProcess] = {}
        # Starting this helper of multiprocessing unblocks Ctrl-C as a side effect, so it comes first.
        resource_tracker.ensure_running()
        try:
            for role in load.roles:
                for number in range(role.processes):
                    self._start(role.name, store, load, role, number)
            self._answers(LATE_SECONDS)
        except BaseException:
            self._kill()
            raise

    def _start(self, name: str, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, *arguments), name=name, daemon=True)
        process.start()
        there.close()
        self._members[here] = process

    def run(self, phase: Phase, watch: Callable[[], None] | None = None) -> Outcome:
        """One phase; `watch` is called about 20 times a second meanwhile."""
        self._tell((phase, time.monotonic() + LEAD_SECONDS))
        outcome = Outcome()
        for answer in self._answers(phase.seconds + LATE_SECONDS, watch):
            outcome.add(answer)
        return outcome

    def audit(self, draws: int) -> list[dict[str, float]]:
        """What every duty found over the whole run."""
        self._tell(draws)
        return [figures for answer in self._answers(LATE_SECONDS) for figures in answer]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._tell(None)
            for process in self._members.values():
                process.join(10.0)
        self._kill()

    def _tell(self, order: Any) -> None:
        for pipe, process in self._members.items():
            try:
                pipe.send(order)
            except OSError:
                raise CrewError(f"{process.name} died") from None

    def _answers(self, seconds: float, watch: Callable[[], None] | None = None) -> list[Any]:
        """One answer of every process.

        Raises:
            CrewError: one failed, died, or is late.
        """
        found: dict[Any, Any] = {}
        deadline = time.monotonic() + seconds
        while missing := self._members.keys() - found:
            for pipe in missing.intersection(wait(list(missing), 0.05)):
                process = self._members[pipe]
                try:
                    found[pipe] = pipe.recv()
                except EOFError:
                    process.join(1.0)
                    raise CrewError(f"{process.name} died with exit status {process.exitcode}") from None
                if isinstance(found[pipe], str):
                    raise CrewError(found[pipe])
            if watch is not None:
                watch()
            if time.monotonic() > deadline and self._members.keys() - found:
                late = ", ".join(process.name for pipe, process in self._members.items() if pipe not in found)
                raise CrewError(f"{late}: no answer for {seconds:.0f} s")
        return [found[pipe] for pipe in self._members]

    def _kill(self) -> None:
        for pipe, process in self._members.items():
            process.kill()
            process.join(10.0)
            pipe.close()
