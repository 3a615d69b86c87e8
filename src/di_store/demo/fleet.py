"""The actor processes, as the learner manages them: start, read reports, detect deaths, stop."""

from __future__ import annotations

import multiprocessing
import signal
import time
from dataclasses import dataclass
from enum import Enum
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from di_store.demo.actor import ActorFailure, Report, actor_main
from di_store.demo.config import DemoConfig
from di_store.demo.envs import EnvShape

GOODBYE_SECONDS = 15.0  # a busy machine takes seconds to end a process that has loaded torch


class ActorState(Enum):
    """The state of an actor process, as far as the learner knows it."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"  # because it was told to
    DEAD = "dead"  # without being told to


@dataclass
class FleetMember:
    """One actor process and its newest report."""

    index: int
    process: BaseProcess
    control: Connection
    state: ActorState = ActorState.STARTING
    report: Report | None = None
    reported: float = 0.0  # time.monotonic() when that report came
    cause: str = ""  # why it died

    @property
    def name(self) -> str:
        """The process's name in messages."""
        return f"actor {self.index} (pid {self.process.pid})"


class Fleet:
    """All actors of a run. If one dies, that is reported once and the others continue."""

    def __init__(self, config: DemoConfig, shape: EnvShape, store_name: str) -> None:
        # Not fork: torch and the emulator have threads. A forked child lacks these threads and would hang.
        context = multiprocessing.get_context("spawn")
        self.members: list[FleetMember] = []
        # Starting this helper process of multiprocessing unblocks SIGINT, so start it before SIGINT is blocked.
        resource_tracker.ensure_running()
        # Ctrl-C sends SIGINT to every process of the terminal. It is blocked here, and so in the spawned children,
        # until they ignore it (`actor_main`).
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for index in range(config.actors):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=actor_main,
                    args=(config, index, shape, store_name, theirs),
                    name=f"actor-{index}",
                    daemon=True,
                )
                process.start()
                theirs.close()
                self.members.append(FleetMember(index, process, ours))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    @property
    def alive(self) -> list[FleetMember]:
        """The actors that are not known to be dead."""
        return [member for member in self.members if member.state is not ActorState.DEAD]

    @property
    def steps(self) -> int:
        """Steps reported by all actors, dead ones included."""
        return sum(member.report.steps for member in self.members if member.report)

    @property
    def ready(self) -> bool:
        """Whether every living actor has attached to the store."""
        return all(member.report for member in self.alive)

    def listen(self, timeout_seconds: float = 0.0) -> tuple[list[float], list[str]]:
        """Read the actors' reports; waits up to `timeout_seconds` for one.

        Returns:
            The returns of ended episodes, and one line of text for every actor that died.
        """
        returns: list[float] = []
        lines: list[str] = []
        by_connection = {id(member.control): member for member in self.alive}
        for ready in wait([member.control for member in self.alive], timeout_seconds):
            member = by_connection[id(ready)]
            if not self._read(member, returns):
                death = self._note_death(member)
                left = f"going on with {len(self.alive)} of {len(self.members)}" if self.alive else "none is left"
                lines.append(f"{death}; {left}")
        return returns, lines

    def stop(self) -> tuple[list[float], list[str]]:
        """End every actor: tell it to stop, and kill it if it does not. Afterwards none of them runs.

        Returns:
            The last returns of episodes, and one line of text for every actor that died or had to be killed.
        """
        asked = [member for member in self.alive if member.report is not None]
        for member in self.alive:
            if member not in asked:  # still importing torch: it would react late, and has written nothing
                member.process.terminate()
        for member in asked:
            try:
                member.control.send("stop")
            except OSError:
                pass  # already gone
        deadline = time.monotonic() + GOODBYE_SECONDS
        for member in self.members:
            member.process.join(max(0.1, deadline - time.monotonic()))
        late = [member for member in asked if member.process.is_alive()]
        for insist in (BaseProcess.terminate, BaseProcess.kill):
            for member in self.members:
                insist(member.process)
                member.process.join(GOODBYE_SECONDS)
        returns: list[float] = []
        lines = [f"{member.name} did not stop when asked and was killed" for member in late]
        for member in self.members:
            self._read(member, returns)  # its last report: `steps` is complete from here on
            member.control.close()
            if member in asked and member not in late and member.process.exitcode != 0:
                lines.append(self._note_death(member))
            elif member.state is not ActorState.DEAD:
                member.state = ActorState.ENDED
        return returns, lines

    def _read(self, member: FleetMember, returns: list[float]) -> bool:
        """Read all messages sent so far, and add ended episodes to `returns`; False: the other end is closed."""
        try:
            while member.control.poll(0):
                word = member.control.recv()
                if isinstance(word, Report):
                    member.state, member.report, member.reported = ActorState.RUNNING, word, time.monotonic()
                    returns += word.returns
                elif isinstance(word, ActorFailure):
                    member.cause = word.text
        except (EOFError, OSError):
            return False
        return True

    def _note_death(self, member: FleetMember) -> str:
        member.state = ActorState.DEAD
        member.process.join(GOODBYE_SECONDS)
        code = member.process.exitcode
        if code is not None and code < 0:
            member.cause = f"killed by {signal.Signals(-code).name}"
        member.cause = member.cause or f"exit status {code}"
        return f"{member.name} died: {member.cause}"
