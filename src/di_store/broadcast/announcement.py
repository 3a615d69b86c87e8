"""Decides which members must still be told of a version. It has no threads and no clock of its own."""

from __future__ import annotations

from collections.abc import Iterable

AGAIN_SECONDS = 0.5
"""Pause before the next attempt after a failure."""
MOST_AT_ONCE = 16
MOST_DOUBTFUL = 8
"""At most so many of them are members whose last attempt failed, so that members that hang leave half of the places to
others."""


class Announcement:
    """The members that have taken the note of one version. For use under a lock.

    Attributes:
        doubtful: members whose last attempt failed.
        reasons: reason of the failure, by member.
    """

    def __init__(self, members: Iterable[str], before: Announcement | None = None) -> None:
        """Begin.

        Args:
            members: members to tell.
            before: announcement of the previous version. Its doubtful members come last in the chain. A member that is
                still being told of the previous version is told of this one afterwards.
        """
        self.doubtful: set[str] = set() if before is None else before.doubtful
        self._under_way: set[str] = set() if before is None else before._under_way
        self._waiting = dict.fromkeys(sorted(members, key=lambda each: each in self.doubtful), 0.0)  # when it is due
        self.doubtful.intersection_update(self._waiting)
        self.reasons: dict[str, str] = {}

    @property
    def missing(self) -> list[str]:
        """Members that have not taken the note, in the order of the chain."""
        return list(self._waiting)

    def due(self, now: float) -> list[str]:
        """Members to tell now. Report each with `took` or `failed`."""
        found = []
        for member, at in self._waiting.items():
            if at > now or member in self._under_way or len(self._under_way) >= MOST_AT_ONCE:
                continue
            if member in self.doubtful and len(self._under_way & self.doubtful) >= MOST_DOUBTFUL:
                continue
            self._under_way.add(member)
            found.append(member)
        return found

    def wake(self) -> float | None:
        """The time at which a member is due; None: not before an attempt ends."""
        return min((at for member, at in self._waiting.items() if member not in self._under_way), default=None)

    def took(self, member: str) -> None:
        """Note that the member knows the version, and fetches it."""
        self._under_way.discard(member)
        self._waiting.pop(member, None)
        self.doubtful.discard(member)
        self.reasons.pop(member, None)

    def failed(self, member: str, reason: str, now: float) -> None:
        """Note that the member did not answer properly."""
        self._under_way.discard(member)
        if member in self._waiting:
            self._waiting[member] = now + AGAIN_SECONDS
            self.doubtful.add(member)
            self.reasons[member] = reason
