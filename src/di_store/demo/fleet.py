"""The actor processes, seen from the learner: start, listen, notice deaths, stop."""

from __future__ import annotations

import multiprocessing
import signal
import time
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from di_store.demo.actor import Failure, Report, actor_main
from di_store.demo.config import DemoConfig
from di_store.demo.envs import EnvShape

GOODBYE_SECONDS = 15.0  # a busy machine takes seconds to end a process that has loaded torch


@dataclass
class Member:
    """One actor process and what it last said."""

    index: int
    process: BaseProcess
    control: Connection
    report: Report | None = None
    failure: str | None = None
    gone: bool = False


class Fleet:
    """All actors of a run. A dead one is reported once; the others go on."""

    def __init__(self, config: DemoConfig, shape: EnvShape, store_name: str) -> None:
        # Not fork: torch and the emulator own threads, and a forked copy of those hangs.
        context = multiprocessing.get_context("spawn")
        self.members: list[Member] = []
        # Starting this helper of multiprocessing unblocks Ctrl-C as a side effect, so it comes first.
        resource_tracker.ensure_running()
        # Ctrl-C reaches the whole terminal group. A blocked signal stays blocked across spawn, so that it cannot
        # hit a child before that child has learnt to ignore it.
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
                self.members.append(Member(index, process, ours))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    @property
    def alive(self) -> list[Member]:
        """The actors that are not known to be dead."""
        return [member for member in self.members if not member.gone]

    @property
    def steps(self) -> int:
        """Steps appended by all actors, dead ones included."""
        return sum(member.report.steps for member in self.members if member.report)

    @property
    def ready(self) -> bool:
        """Whether every living actor has attached to the store."""
        return all(member.report for member in self.alive)

    def listen(self, timeout_seconds: float = 0.0) -> tuple[list[float], list[str]]:
        """Take in what the actors said: returns of ended episodes, and one line for every actor that died."""
        returns: list[float] = []
        lines: list[str] = []
        by_connection = {id(member.control): member for member in self.alive}
        for ready in wait([member.control for member in self.alive], timeout_seconds):
            member = by_connection[id(ready)]
            if not self._read(member, returns):
                lines.append(self._bury(member))
        return returns, lines

    def stop(self) -> list[str]:
        """End every actor: ask, then insist. Leaves no process behind; one line for every actor that did not listen."""
        asked = [member for member in self.alive if member.report is not None]
        for member in self.alive:
            if member not in asked:  # still importing torch: it would not listen for seconds, and holds nothing
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
        for member in self.members:
            member.control.close()
        return [
            f"actor {member.index} (pid {member.process.pid}) did not end when told and was killed" for member in late
        ]

    def _read(self, member: Member, returns: list[float]) -> bool:
        """Read all that is there; False when the other end is closed."""
        try:
            while member.control.poll(0):
                word = member.control.recv()
                if isinstance(word, Report):
                    member.report = word
                    returns += word.returns
                elif isinstance(word, Failure):
                    member.failure = word.text
        except (EOFError, OSError):
            return False
        return True

    def _bury(self, member: Member) -> str:
        member.gone = True
        member.process.join(GOODBYE_SECONDS)
        code = member.process.exitcode
        cause = member.failure or f"exit status {code}"
        if code is not None and code < 0:
            cause = f"killed by {signal.Signals(-code).name}"
        left = f"{len(self.alive)} of {len(self.members)}"
        return f"actor {member.index} (pid {member.process.pid}) is gone: {cause}; going on with {left}"
