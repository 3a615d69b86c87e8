"""How a call waits for the agent: when it gives up, and which error it raises.

A deadline limits the wait for the result of a call. The agent itself reports that the time is over, and has
`GRACE_SECONDS` to do so. Two things extend this limit: bytes of an incomplete message, and an agent that reports that
it is working. A complete message, which another step of the call may follow, does not extend it. Nor does an agent that
reports after the deadline that the call still waits: such an agent was stopped, and has begun late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from di_store.base.errors import NodeUnavailable, Timeout
from di_store.protocol.connection import Connection, Disconnected
from di_store.runtime.waits import LOG_SECONDS, check_timeout, logger

GRACE_SECONDS = 0.8
"""By how much a call outlasts its deadline while nothing comes: the agent's own answer, which says why, comes first.
A call is promised to end within a second: the rest is for a machine whose processors are busy."""
LEAST_SECONDS = 0.15
"""What a step of a call has at least, where the steps before it took all the time, and the grace."""
LOST_SECONDS = 60.0
"""How long a call without a timeout tries to reach an agent that does not answer."""
SILENT_SECONDS = 10.0
"""An agent from which nothing came for so long, in the middle of a call, is named as silent."""
_REACH_SECONDS = 0.1
"""What an attempt to connect has at least: a node in the same rack needs less."""

T = TypeVar("T")


class Silent(Disconnected):
    """A process is there, but silent: it is stopped, or its machine is."""


class Deadline:
    """When a call ends: its own time, and the grace for the answer. The steps of one call share it.

    A call to several agents makes one deadline, and gives each agent a step of it (`steps`): the grace is divided among
    them.

    Attributes:
        timeout: seconds; None: no limit.
        grace: seconds that the call may last longer.
        tries: seconds of the call in which a broken or missing connection is retried in any case.
        began: when the call began.
        since: when this step began.
        heard: when bytes last came or went in this step.
        flowed: when bytes of an incomplete message last came, or the agent last worked on the call; minus infinity:
            never.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.grace = self.tries = GRACE_SECONDS
        self.began = self.since = self.heard = time.monotonic()
        self.flowed = float("-inf")

    @classmethod
    def of(cls, timeout: float | Deadline | None) -> Deadline:
        """A deadline that begins now; a deadline is returned unchanged."""
        return timeout if isinstance(timeout, Deadline) else cls(timeout)

    @classmethod
    def given(cls, timeout: Any) -> Deadline:
        """The deadline of a call with this ``timeout=``; for a step of a longer call, the deadline made for it.

        Raises:
            As `check_timeout`.
        """
        return timeout if isinstance(timeout, Deadline) else cls(check_timeout(timeout))

    @classmethod
    def patient(cls, seconds: float) -> Deadline:
        """The deadline of a call that only waits for the agent's answer, for that long."""
        found = cls(0)
        found.grace = found.tries = seconds
        return found

    def step(self, steps: int, *, after: float = 0.0, least: float = 0.0) -> Deadline:
        """The deadline of the next of several steps that follow each other.

        It has all the time that is left, and its share of the grace that is left. So the call ends with this deadline
        even if none of the steps is answered.

        Args:
            steps: number of steps still to come, including this one.
            after: seconds of the grace that are kept for the work after these steps.
            least: seconds that this step has in any case.
        """
        found = Deadline(self.timeout)
        found.began = self.began
        if self.timeout is not None:
            over = self.began + self.timeout
            spent = max(found.since - over, 0.0)
            found.grace = spent + max((self.grace - after - spent) / steps, least)
            found.tries = found.since - found.began + GRACE_SECONDS
        return found

    def another(self) -> Deadline:
        """The deadline of one more step, after which an unknown number may follow: it has all that is left."""
        return self.step(1, least=LEAST_SECONDS)

    def steps(self, each: Sequence[T]) -> Iterator[tuple[T, Deadline]]:
        """All of these, with the deadline of each step, which is made when the previous step has ended."""
        for at, one in enumerate(each):
            yield one, self.step(len(each) - at)

    def sooner(self, seconds: float) -> Deadline:
        """A deadline that begins now, has at most that many seconds, and ends no later than this one with its grace."""
        left, rest = self.left, self.rest()
        found = Deadline(seconds if left is None else min(seconds, left))
        if rest is not None and found.timeout is not None:
            found.grace = min(found.grace, max(rest - found.timeout, 0.0))
        return found

    def count(self, seconds: float) -> None:
        """Note how long the call had already waited, if it began just now."""
        self.began = min(self.began, time.monotonic() - seconds)

    def go_on_from(self, before: Deadline) -> None:
        """Note that the call began with a step that was not answered, and whose deadline this was."""
        self.began, self.heard = min(self.began, before.began), before.heard

    @property
    def left(self) -> float | None:
        """Seconds that are left; None: no limit."""
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
        """When the call must end if nothing flows until then; infinity: never."""
        if self.timeout is None:
            return float("inf")
        end = self.began + self.timeout
        return max(end, self.flowed) + self.grace

    def rest(self) -> float | None:
        """Seconds until the call's time and the grace have passed, whatever flows; None: no limit."""
        return None if self.timeout is None else max(0.0, self.timeout + self.grace - self.passed)

    def late(self) -> bool:
        """Whether time and grace have passed."""
        return self.rest() == 0

    @property
    def silence(self) -> float:
        """Seconds since bytes last came or went in this step."""
        return time.monotonic() - max(self.since, self.heard)

    def is_hopeless(self, lost: float, pause: float = 0.0) -> bool:
        """Whether a call without a connection for `lost` seconds ends now, or would end in `pause` seconds.

        The grace is for answers, and no answer is on its way. But a short call still uses it to retry: the agent may be
        starting.
        """
        if self.timeout is None:
            return lost > LOST_SECONDS
        return self.passed + pause >= min(max(self.timeout, self.tries), self.timeout + self.grace)

    def reach(self, most: float) -> float:
        """Seconds that an attempt to reach the agent may take now, at most `most`."""
        rest = self.rest()
        return most if rest is None else min(most, max(rest, _REACH_SECONDS))


class CallWait:
    """One call that waits for an agent.

    Attributes:
        deadline: deadline of the call.
        what: name of the call, for its error.
        reason: why it waits, as the agent reports.
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
        connection.ticking, connection.look_at = self.tick, self.deadline.end
        self._connection = connection

    def sent(self) -> None:
        """Note that a message went to the agent."""
        self.deadline.heard = time.monotonic()

    def heard(self) -> None:
        """Note that a message came from the agent. A message that comes after the end has flowed until now."""
        deadline, self._lost_since = self.deadline, None
        deadline.heard = time.monotonic()
        if self._flows or deadline.late():
            deadline.flowed = deadline.heard
        self._flows = False

    def works(self) -> None:
        """Note that the agent works on the call, which may take any time."""
        self.deadline.flowed, self._flows = time.monotonic(), True

    def waits_for(self, reason: str) -> None:
        """Note that the call waits at the agent. It began later there than here if the agent was stopped before.

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
        """The connection broke, or there is none: wait a little before the next attempt.

        Raises:
            NodeUnavailable, Timeout: the deadline is over.
        """
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        self._connection, self._flows = None, False
        self.reason = str(error)
        if self.deadline.is_hopeless(now - self._lost_since, self._pause):
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
