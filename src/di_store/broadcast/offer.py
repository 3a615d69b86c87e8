"""The version last offered to members, kept until a member takes it. No threads, no clock.

Without this, a publisher that is faster than the network to its members would starve them: it would always have
replaced the version that they ask for.
"""

from __future__ import annotations

from di_store.base.dtypes import Array
from di_store.broadcast.note import Note

OFFER_SECONDS = 1.0
"""How long a version waits for members that were told of it, before a newer one is offered."""


class Offer:
    """At most one version; the store keeps it while it is offered. For use under a lock."""

    def __init__(self) -> None:
        self._made: tuple[Note, Array | None] | None = None
        self._taken = True
        self._told_at: float | None = None

    def make(self, note: Note, payload: Array | None) -> None:
        """Offer this version instead of the previous one."""
        self._made, self._taken, self._told_at = (note, payload), payload is None, None

    def tell(self, now: float) -> None:
        """Note that a member is told of it."""
        self._told_at = now

    def end(self) -> None:
        """End the offer."""
        self._made = None

    def waits(self, now: float) -> float:
        """Seconds for which the version is still kept; 0.0: a newer version may be offered."""
        if self._made is None or self._taken or self._told_at is None:
            return 0.0
        return max(0.0, self._told_at + OFFER_SECONDS - now)

    def note(self, now: float) -> Note | None:
        """The version, while it is offered."""
        return self._made[0] if self._made is not None and self.waits(now) else None

    def take(self, version: int, size: int, check: int) -> Array | None:
        """The version's bytes, for a node that asks for exactly this version; None: another one is offered."""
        if self._made is None:
            return None
        note, payload = self._made
        if (note.version, note.size, note.check) != (version, size, check):
            return None
        self._taken = True
        return payload
