"""A call's wait for the agent: its limit, and the error at its end.

A deadline limits the wait for the result of a call. The agent itself reports that the time is over, and has
`GRACE_SECONDS` to do so. Two things extend this limit: bytes of an incomplete message, and an agent that reports that
it is working. A complete message, which another step of the call may follow, does not extend it. Neither does an
agent's report after the deadline that the call still waits: such an agent was stopped and began late.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from di_store.base.errors import NodeUnavailable, Timeout
from di_store.protocol.connection import Connection, Disconnected
from di_store.runtime.deadline import Deadline
from di_store.runtime.waits import LOG_SECONDS, logger

SILENT_SECONDS = 10.0
"""An agent that has sent nothing for this time in the middle of a call is called silent."""


class Silent(Disconnected):
    """The agent's process exists but is silent: the process or its machine is stopped."""


class CallWait:
    """One call that waits for an agent.

    Attributes:
        deadline: deadline of the call.
        what: name of the call, for its error.
        reason: the reason of the wait, from the agent.
    """

    def __init__(
        self, node: str, check_open: Callable[[], None], deadline: Deadline, what: str, stop: Callable[[], None] | None
    ) -> None:
        """Begin.

        Args:
            node: the agent's host and port, for people.
            check_open: raises if the handle that makes the call is closed.
            deadline: deadline of the call.
            what: name of the call, for its error.
            stop: called twice a second; may raise to give the call up.
        """
        self._node = node
        self._check_open = check_open
        self.deadline = deadline
        self.what = what
        self._stop = stop
        self._connection: Connection | None = None
        self._flows = False  # a message is on its way, or what the agent makes it of
        self._lost_since: float | None = None
        self._log_at = deadline.began + LOG_SECONDS
        self._pause = 0.01
        self.reason = ""

    def on(self, connection: Connection) -> None:
        """Wait on this connection from now on."""
        connection.ticking, connection.look_at, connection.until = self.tick, self.deadline.end, self.deadline.last
        self._connection = connection

    def sent(self) -> None:
        """Note that a message went to the agent."""
        self.deadline.heard = time.monotonic()

    def heard(self) -> None:
        """Note that a message came from the agent. A message that arrives after the end was in transit until now."""
        deadline, self._lost_since = self.deadline, None
        deadline.heard = time.monotonic()
        if self._flows or deadline.late():
            deadline.flowed = deadline.heard
        self._flows = False

    def works(self) -> None:
        """Note that the agent works on the call, which may take any time."""
        self.deadline.flowed, self._flows = time.monotonic(), True

    def waits_for(self, reason: str) -> None:
        """Note that the call waits at the agent. If the agent was stopped before, the call began later there than here.

        Raises:
            Timeout: the deadline is over, and the agent is not working on the call.
        """
        self.reason = reason
        if self.deadline.late():
            self._fail()

    def tick(self) -> None:
        """Called twice a second while nothing comes.

        Raises:
            Timeout: the deadline is over. Also any error of `stop`.
        """
        self._check_open()
        if self._stop is not None:
            self._stop()
        now = time.monotonic()
        if self._connection is not None:
            if (moved := self._connection.moved) > self.deadline.heard:
                self.deadline.heard = self.deadline.flowed = moved
                self._flows = True
            if self._connection.is_silent_until(self.deadline.end):
                self._fail()
            self._connection.look_at = self.deadline.end
        elif self.deadline.over():
            self._fail()
        if now >= self._log_at:
            self._log_at += LOG_SECONDS
            logger.warning(
                "%s has waited %.0f s for node %s: %s", self.what, self.deadline.passed, self._node, self._why(now)
            )

    def lost(self, error: Disconnected) -> None:
        """Wait a little before the next attempt to connect.

        Raises:
            NodeUnavailable, Timeout: the deadline is over.
        """
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        self._connection, self._flows = None, False
        self.reason = str(error)
        if self.deadline.is_hopeless(now - self._lost_since, self._pause):
            self.give_up(error)
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, 0.5)
        if self.deadline.over():  # the sleep was longer than it should have been
            self.give_up(error)
        self.tick()

    def give_up(self, error: Disconnected) -> NoReturn:
        """Raise the error of a call whose agent is not reached."""
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
        raise Timeout(f"{self.what} timed out after {round(seconds, 2):g} s", self._why(now), culprit)
