"""Decides which version of a name a node fetches, and when it drops a version for a newer one.

It has no threads or clock.
"""

from __future__ import annotations

from di_store.broadcast.note import Note
from di_store.broadcast.transfer import STUCK_SECONDS


class Requested:
    """The requested versions of one name. For use under a lock.

    Attributes:
        epoch: the highest known epoch.
        pending: the newest version that is requested and not being fetched.
        fetched: the version that is being fetched.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.pending: Note | None = None
        self.fetched: Note | None = None
        self._must_finish = False  # the last one was given up, so the next one goes on beside newer ones

    def request(self, note: Note) -> bool:
        """Fetch this version. Returns whether the request is new."""
        newest = self.newest
        if note.epoch < self.epoch or (newest is not None and newest.order >= note.order):
            return False
        self.pending = note
        return True

    @property
    def newest(self) -> Note | None:
        """The newest version that is requested or being fetched."""
        return self.pending or self.fetched

    def next(self) -> Note | None:
        """The version to fetch now, until `ended`; None: none is requested."""
        note, self.pending = self.pending, None
        self.fetched = None if note is None or self.outdated(note) else note
        return self.fetched

    def ended(self, done: bool) -> None:
        """Note that the version has arrived or was given up."""
        self.fetched = None
        self._must_finish = not done

    def outdated(self, note: Note) -> bool:
        """Whether a later publisher than that of a note is known: the note's version must not appear any more."""
        return note.epoch < self.epoch

    def replaced(self, note: Note, idle: float) -> bool:
        """Whether to give up a version that is being fetched.

        While bytes arrive, a node never gives up two versions in a row: otherwise a publisher faster than the network
        would starve its members.

        Args:
            note: note of the version.
            idle: seconds since bytes last came.
        """
        if self.outdated(note):
            return True
        if self.pending is None or self.pending.order <= note.order:
            return False
        return not self._must_finish or idle > STUCK_SECONDS
