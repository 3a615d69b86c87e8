"""How a call waits for the agent: when it gives up, and what it says then.

A deadline ends the wait for what the call asks for. The agent itself says that it is over. What counts behind it is
whether anything comes: the call ends when the agent was silent for `GRACE_SECONDS` behind the deadline, and a batch
whose bytes still flow goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from di_store.base.errors import NodeUnavailable, Timeout
from di_store.runtime.waits import LOG_SECONDS, logger
from di_store.wire.connection import Connection, Disconnected

GRACE_SECONDS = 1.0
"""By how much a call outlasts its deadline while nothing comes: the agent's own answer, which says why, comes first."""
LOST_SECONDS = 60.0
"""How long a call without a timeout tries to reach an agent that does not answer."""
SILENT_SECONDS = 10.0
"""An agent from which nothing came for so long, in the middle of a call, is named as silent."""


class Silent(Disconnected):
    """A process is there, and says nothing: it is stopped, or its machine is."""


class Deadline:
    """When a call ends: its own time, and the grace for the answer. Steps of one call share it.

    Attributes:
        timeout: seconds; None: no limit.
        began: when the call did.
        heard: when bytes came or went last.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.began = self.heard = time.monotonic()

    @classmethod
    def of(cls, timeout: float | Deadline | None) -> Deadline:
        """One that begins now, unless it is one already."""
        return timeout if isinstance(timeout, Deadline) else cls(timeout)

    def count(self, seconds: float) -> None:
        """The call had waited so long before, if it began just now."""
        self.began = min(self.began, time.monotonic() - seconds)

    def go_on_from(self, before: Deadline) -> None:
        """The call began with a step that was not answered, whose deadline this was."""
        self.began, self.heard = min(self.began, before.began), before.heard

    @property
    def left(self) -> float | None:
        """Seconds; None: no limit."""
        return None if self.timeout is None else max(0.0, self.timeout - self.passed)

    @property
    def passed(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - self.began

    def over(self) -> bool:
        """Whether the call must end now, with or without an answer."""
        return time.monotonic() >= self.end

    @property
    def end(self) -> float:
        """When that is, if nothing is heard until then; infinity: never."""
        if self.timeout is None:
            return float("inf")
        end = self.began + self.timeout
        # mutant: bytes-that-flow-are-silence
        return max(end, self.heard) + GRACE_SECONDS

    def late(self) -> bool:
        """Whether the call's time and the grace have passed, whatever was heard."""
        return self.timeout is not None and self.passed >= self.timeout + GRACE_SECONDS

    def reach(self, most: float) -> float:
        """Seconds that an attempt to reach the agent may take now, at most `most`."""
        if self.timeout is None:
            return most
        return min(most, max(self.timeout + GRACE_SECONDS - self.passed, 0.1))


class CallWait:
    """One call that waits for an agent.

    Attributes:
        deadline: of the call.
        what: the call, as its failure names it.
        reason: why it waits, as the agent says.
    """

    def __init__(
        self, node: str, check_open: Callable[[], None], deadline: Deadline, what: str, stop: Callable[[], None] | None
    ) -> None:
        """Begin.

        Args:
            node: of the agent, for people.
            check_open: raises if the handle that makes the call is closed.
            deadline: of the call.
            what: the call, as its failure names it.
            stop: called twice a second; may raise to give the call up.
        """
        self._node = node
        self._check_open = check_open
        self.deadline = deadline
        self.what = what
        self._stop = stop
        self._connection: Connection | None = None
        self._lost_since: float | None = None
        self._log_at = deadline.began + LOG_SECONDS
        self._pause = 0.01
        self.reason = ""

    def on(self, connection: Connection) -> None:
        """The call waits on this connection from now on."""
        connection.ticking = self.tick
        self._connection = connection

    def heard(self) -> None:
        """A message came from the agent."""
        self.deadline.heard = time.monotonic()
        self._lost_since = None

    def waits_for(self, reason: str) -> None:
        """The agent says that the call waits there. It began later than here if the agent was stopped before.

        Raises:
            Timeout: the deadline is over: what is waited for is not under way.
        """
        self.reason = reason
        # mutant: an-agent-that-was-stopped-gives-a-call-its-time-again
        if self.deadline.late():
            self._fail()

    def tick(self) -> None:
        """Called twice a second while nothing comes.

        Raises:
            Timeout: the deadline is over. Whatever `stop` raises.
        """
        self._check_open()
        if self._stop is not None:
            self._stop()
        now = time.monotonic()
        if self._connection is not None:
            self.deadline.heard = max(self.deadline.heard, self._connection.moved)
            if self._connection.is_silent_until(self.deadline.end):
                self._fail()
        elif self.deadline.over():
            self._fail()
        if now >= self._log_at:
            self._log_at += LOG_SECONDS
            logger.warning(
                "%s has waited %.0f s for node %s: %s", self.what, self.deadline.passed, self._node, self._why(now)
            )

    def lost(self, error: Disconnected) -> None:
        """The connection broke, or there is none: wait a little before the next attempt.

        Raises:
            NodeUnavailable, Timeout: the deadline is over.
        """
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        self._connection = None
        self.reason = str(error)
        out_of_time = self.deadline.left is not None and self.deadline.passed + self._pause >= max(
            self.deadline.timeout or 0.0, GRACE_SECONDS
        )
        if out_of_time or (self.deadline.timeout is None and now - self._lost_since > LOST_SECONDS):
            self._give_up(error)
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, 0.5)
        if self.deadline.over():  # the sleep was longer than it should have been
            self._give_up(error)
        self.tick()

    def _give_up(self, error: Disconnected) -> NoReturn:
        if isinstance(error, Silent):
            self._fail()
        raise NodeUnavailable(
            f"{self.what}: node {self._node} does not answer: {error}",
            remedy="`di-store status` on that machine shows whether its agent runs; `di-store serve` starts one",
        )

    def _why(self, now: float) -> str:
        silent = now - self.deadline.heard
        return self.reason or "no answer yet" if silent < SILENT_SECONDS else f"it has been silent for {silent:.0f} s"

    def _fail(self) -> NoReturn:
        now = time.monotonic()
        silent = now - self.deadline.heard
        culprit = f"node {self._node}" + (f", silent for {silent:.0f} s" if silent >= 1.5 else "")
        seconds = self.deadline.timeout or 0.0
        raise Timeout(f"{self.what} did not come through within {round(seconds, 2):g} s", self._why(now), culprit)
