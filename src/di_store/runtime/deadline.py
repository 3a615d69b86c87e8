"""The deadline of a call: one value, from the public call to each step of it, here or on another machine.

A deadline limits the wait for the result of a call. An agent itself reports that the time is over, and has
`GRACE_SECONDS` to do so (`client/waiting`). On one machine nothing outlasts the deadline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic, sleep
from typing import Any, TypeVar

from di_store.runtime.waits import check_timeout

GRACE_SECONDS = 0.8
"""How long a call outlasts its deadline while nothing comes, so that the agent's own answer, which gives the reason,
can come first. A call is promised to end within a second: the rest is for a machine whose processors are busy."""
LEAST_SECONDS = 0.15
"""The least time for a step of a call if the steps before it took all the time, and the grace."""
LOST_SECONDS = 60.0
"""How long a call without a timeout tries to reach an agent that does not answer."""
PAUSE_SECONDS = 0.05
"""Between two looks for what nothing tells of."""
_REACH_SECONDS = 0.1
"""The least time for an attempt to connect: a node in the same rack needs less."""
_NEVER = float("-inf")

T = TypeVar("T")


class Deadline:
    """The end of a call: its own time, and the grace for the answer. The steps of one call share a deadline.

    A call to several agents makes one deadline, and gives each agent a step of it (`steps`). The grace is divided among
    the agents.

    Attributes:
        timeout: seconds; None: no limit.
        grace: seconds that the call may last longer.
        tries: seconds of the call in which a broken or missing connection is retried in any case.
        began: when the call began.
        since: time at which this step began.
        heard: time at which bytes were last received or sent in this step.
        flowed: time at which bytes of an incomplete message last arrived, or the agent last worked on the call; minus
            infinity: never.
        last: time at which the wait for an answer ends, whatever flows; None: `flowed` extends it.
    """

    __slots__ = ("began", "flowed", "grace", "heard", "last", "since", "timeout", "tries")

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.grace = self.tries = GRACE_SECONDS
        self.began = self.since = self.heard = monotonic()
        self.flowed = _NEVER
        self.last: float | None = None

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

    @classmethod
    def brief(cls, seconds: float) -> Deadline:
        """The deadline of a short call that is made again later: it ends then, and at once where nothing answers."""
        found = cls(seconds)
        found.grace, found.tries, found.last = 0.0, _REACH_SECONDS, found.began + seconds
        return found

    def step(self, steps: int, *, after: float = 0.0, least: float = 0.0) -> Deadline:
        """The deadline of the next of several consecutive steps.

        It has all the remaining time, and its share of the remaining grace. So the call ends with this deadline even if
        none of the steps is answered.

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
        """The deadline of a step before an unknown number of steps: it has all the remaining time and grace."""
        return self.step(1, least=LEAST_SECONDS)

    def steps(self, each: Sequence[T]) -> Iterator[tuple[T, Deadline]]:
        """Yields each of these with its step's deadline, which is made when the previous step has ended."""
        for at, one in enumerate(each):
            yield one, self.step(len(each) - at)

    def sooner(self, seconds: float) -> Deadline:
        """A deadline of `seconds` from now, but with no more time than this deadline and its grace have left."""
        left, rest = self.left, self.rest()
        found = Deadline(seconds if left is None else min(seconds, left))
        if rest is not None and found.timeout is not None:
            found.grace = min(found.grace, max(rest - found.timeout, 0.0))
        return found

    def count(self, seconds: float) -> None:
        """For a call that just began here: note the time that it had already waited."""
        self.began = min(self.began, monotonic() - seconds)

    def go_on_from(self, before: Deadline) -> None:
        """Note that the call's first step, with this deadline, was not answered."""
        self.began, self.heard = min(self.began, before.began), before.heard

    @property
    def left(self) -> float | None:
        """Remaining seconds; None: no limit."""
        if not self.timeout:
            return self.timeout
        return max(0.0, self.timeout - (monotonic() - self.began))

    def at_most(self, seconds: float) -> float:
        """So many seconds, or what is left if that is less."""
        left = self.left
        return seconds if left is None else min(seconds, left)

    def pause(self, seconds: float = PAUSE_SECONDS) -> bool:
        """Sleep until the next look, at most until the deadline. False, at once: no time is left for another look."""
        if self.left == 0:
            return False
        sleep(self.at_most(seconds))
        return True

    @property
    def core(self) -> float:
        """The seconds that are left, in the core's form: -1 for no limit."""
        return -1.0 if self.timeout is None else max(0.0, self.timeout - (monotonic() - self.began))

    @property
    def passed(self) -> float:
        """Seconds since the call began."""
        return monotonic() - self.began

    def over(self) -> bool:
        """Whether the call must end now, with or without an answer."""
        return monotonic() >= self.end

    @property
    def end(self) -> float:
        """The time at which the call must end unless bytes arrive before; infinity: never."""
        if self.timeout is None:
            return float("inf")
        end = self.began + self.timeout
        return max(end, self.flowed) + self.grace

    def rest(self) -> float | None:
        """Seconds until the call's time and the grace are over, even if bytes arrive; None: no limit."""
        return None if self.timeout is None else max(0.0, self.timeout + self.grace - self.passed)

    def late(self) -> bool:
        """Whether time and grace have passed."""
        return self.rest() == 0

    @property
    def silence(self) -> float:
        """Seconds since bytes were last received or sent in this step."""
        return monotonic() - max(self.since, self.heard)

    def is_hopeless(self, lost: float, pause: float = 0.0) -> bool:
        """Whether a call without a connection for `lost` seconds ends now, or would end in `pause` seconds.

        The grace is for answers, and without a connection no answer can arrive. But a short call still uses the grace
        to retry, because the agent may be starting.
        """
        if self.timeout is None:
            return lost > LOST_SECONDS
        if self.last is not None:
            return self.passed + pause >= self.tries
        return self.passed + pause >= min(max(self.timeout, self.tries), self.timeout + self.grace)

    def reach(self, most: float) -> float:
        """Seconds that an attempt to reach the agent may take now, at most `most`."""
        rest = self.rest()
        return most if rest is None else min(most, max(rest, _REACH_SECONDS))
