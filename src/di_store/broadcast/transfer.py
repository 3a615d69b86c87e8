"""Chooses the node from which a member of a chain gets the bytes of a version, without threads, sockets or a clock.

A chain is a list of nodes, the publisher first. A member pulls from the node before it, at the rate at which that node
gets the bytes itself. Times are seconds of any clock that never goes back; the caller passes them in.

A member leaves a source that is dead, is silent, has nothing more, or falls far behind its own source. It then asks the
next node before it that has more; when all have been asked, the round begins again. So a member that can reach any node
with the version gets the version, whatever other nodes do. Two members never wait for each other for ever: a member
takes a source after it in the chain only if that source has more bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

PIECE_BYTES = 256 << 10
"""Bytes that are passed on at a time. Each member of the chain delays the whole by the time of one piece."""
SILENT_SECONDS = 1.0
"""A source that sends nothing at all for this time counts as dead or stopped. A source that itself waits says so."""
STUCK_SECONDS = 2.0
"""If a source lives, but has had nothing new for this time, another node may have more."""
BEHIND_BYTES = 64 * PIECE_BYTES
"""A source is slow if it has fallen so far behind its own source since this node began to pull from it. The node then
pulls from an earlier node."""
SLOW_SECONDS = 5.0
REFUSED_SECONDS = 0.5
TRIAL_AFTER_SECONDS, TRIAL_SECONDS, TRIAL_AGAIN_SECONDS = 5.0, 1.0, 30.0
"""A long transfer tries for a second whether the next source is more than twice as fast. The first member's source
needs this: it has all bytes from the start, so it never falls behind, however slow it is."""
WORTH_SECONDS = 10.0
"""Another source is tried only if the rest of the transfer would take longer than this."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 2.0


class Left(enum.Enum):
    """Why a source was left."""

    LOST = "lost"  # it cannot be reached, or its connection broke
    SILENT = "silent"  # it says nothing
    STUCK = "stuck"  # it has nothing more than this node
    BEHIND = "behind"  # it is slow
    REFUSED = "refused"  # it has as many children as it may have
    WRONG = "wrong"  # what came is not the version
    TRIAL = "trial"  # another one may be faster, or was not


@dataclass
class _Source:
    """One node that may have the bytes.

    Attributes:
        before: whether the node comes before this one in the chain, so that it never waits for this one.
        again: time at which it may be asked again.
        pause: seconds without a request after the next failure.
        slow_until: until this time the node is asked only if no other node serves.
    """

    address: str
    before: bool
    again: float = 0.0
    pause: float = _FIRST_PAUSE_SECONDS
    slow_until: float = 0.0


class Transfer:
    """The state of one transfer into one node. For one thread.

    Attributes:
        size: bytes of the whole version.
        have: bytes that are here and checked, from the beginning.
        fallen: bytes by which this node has fallen behind its source while it was less than half as fast; 0 otherwise.
    """

    def __init__(self, chain: Sequence[str], place: int, size: int, now: float) -> None:
        """Begin.

        Args:
            chain: addresses, the publisher first.
            place: place of this node in the chain; the chain's length if the node is not in it.
            size: bytes of the whole version.
            now: seconds.
        """
        nearest = [_Source(chain[at], before=True) for at in range(min(place, len(chain)) - 1, -1, -1)]
        self._sources = nearest + [_Source(each, before=False) for each in chain[place + 1 :]]
        self._asked: set[str] = set()  # in this round
        self._now: _Source | None = None
        self._begun = False
        self._heard = self._moved = now  # since this source is asked
        self._rose = now
        self._began = now, 0  # when, and with how many bytes, the rate of this source is measured
        self._trial: tuple[_Source, float] | None = None  # the source before, and its bytes a second
        self._next_trial = now
        self._least_gap: tuple[int, int] | None = None
        self.fallen = 0
        self.size = size
        self.have = 0

    @property
    def source(self) -> str | None:
        """The current source; None: there is none."""
        return None if self._now is None else self._now.address

    @property
    def done(self) -> bool:
        """Whether all bytes are here."""
        return self.have >= self.size

    def next_source(self, now: float) -> str | None:
        """The node to pull from, from byte `have` on; None: no node before `wake`."""
        ready = [each for each in self._sources if each.again <= now]
        fresh = [each for each in ready if each.address not in self._asked]
        if not fresh:
            self._asked.clear()
            fresh = ready
        if not fresh:
            return None
        self._now = min(fresh, key=lambda each: each.slow_until > now)  # the nearest of them
        self._asked.add(self._now.address)
        self._begun = False
        self._least_gap, self.fallen = None, 0
        self.reached(now)
        return self._now.address

    def wake(self) -> float | None:
        """The time to ask for a source again; None: there never will be a source."""
        return min((each.again for each in self._sources), default=None)

    def reached(self, now: float) -> None:
        """Note that the source has accepted the connection."""
        self._heard = self._moved = now
        self._began = now, self.have

    def heard(self, have: int, fallen: int, now: float) -> Left | None:
        """Note the source's progress. Returns the reason to leave the source; None: stay.

        Args:
            have: bytes that the source has.
            fallen: the source's `fallen`.
            now: seconds.
        """
        source = self._now
        assert source is not None
        self._heard = now
        if not self._begun:
            self._begun = True
            if have <= self.have and not (source is self._sources[0] and source.before):
                return Left.STUCK
        self._note_gap(have - self.have)
        if have < self.size and fallen > BEHIND_BYTES and source.slow_until <= now:
            return Left.BEHIND
        return self._compared(now) if have > self.have else self.tired(now)

    def _compared(self, now: float) -> Left | None:
        """Whether to begin or to end a trial of another source."""
        source, passed = self._now, now - self._began[0]
        assert source is not None
        rate = (self.have - self._began[1]) / max(passed, 1e-9)
        if self._trial is not None:
            if passed < TRIAL_SECONDS:
                return None
            before, its_rate = self._trial
            if rate <= 2 * its_rate:
                return Left.TRIAL
            self._trial, self._next_trial = None, now + TRIAL_AGAIN_SECONDS
            before.slow_until = now + TRIAL_AGAIN_SECONDS
            return None
        others = any(each.before for each in self._sources[self._sources.index(source) + 1 :])
        if passed < TRIAL_AFTER_SECONDS:
            return None
        if others and now >= self._next_trial and self.size - self.have > rate * WORTH_SECONDS:
            return Left.TRIAL
        self._began = now, self.have  # how fast it is now counts
        return None

    def _note_gap(self, gap: int) -> None:
        """Compute `fallen` from the growth of the gap to the source since the gap was smallest.

        The gap alone does not count: a node that has just lost its source is far behind the next one, and may be as
        fast. A node that is more than half as fast does not count either: nodes that skipped it would share the link of
        its source.
        """
        if self._least_gap is None or gap <= self._least_gap[0]:
            self._least_gap = gap, self.have
        grown, mine = gap - self._least_gap[0], self.have - self._least_gap[1]
        self.fallen = grown if grown > mine else 0

    def got(self, count: int, now: float) -> None:
        """Note that this many more bytes have arrived and were checked."""
        self.have += count
        self._heard = self._moved = self._rose = now
        if self._now is not None:
            self._now.pause = _FIRST_PAUSE_SECONDS

    def tired(self, now: float) -> Left | None:
        """The reason to leave a source that reports nothing new; None: keep waiting."""
        if now - self._heard >= SILENT_SECONDS:
            return Left.SILENT
        return Left.STUCK if now - self._moved >= STUCK_SECONDS else None

    def still(self, now: float) -> float:
        """Seconds since bytes last came, from any source."""
        return now - self._rose

    def left(self, why: Left, now: float) -> None:
        """Note that the source was left."""
        source, self._now = self._now, None
        assert source is not None
        trial, self._trial = self._trial, None
        if trial is not None:  # it is not faster, or cannot be tried
            trial[0].slow_until, self._next_trial = now, now + TRIAL_AGAIN_SECONDS
            self._asked.clear()
        if why is Left.TRIAL:
            if trial is None:
                passed = max(now - self._began[0], 1e-9)
                self._trial = source, (self.have - self._began[1]) / passed
                source.slow_until = now + TRIAL_SECONDS
        elif why is Left.BEHIND:
            source.slow_until = now + SLOW_SECONDS
        elif why is Left.REFUSED:
            source.again = now + REFUSED_SECONDS
        elif why is not Left.STUCK or source is not self._sources[0]:
            source.again = now + source.pause
            source.pause = min(2 * source.pause, _LONGEST_PAUSE_SECONDS)
        if why is Left.WRONG:
            self.have = 0
