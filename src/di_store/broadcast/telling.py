"""The publisher's part: its agent tells each member of each version until the member confirms."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from di_store.base.errors import OldEpoch, StoreClosed, StoreError
from di_store.broadcast.announcement import AGAIN_SECONDS, Announcement
from di_store.broadcast.chain import Chain, LocalState, now
from di_store.broadcast.note import Note, near
from di_store.broadcast.record import Known
from di_store.runtime.waits import logger

IDLE_SECONDS = 60.0
"""A thread that has had nobody to tell for this time ends."""


class Telling:
    """Tells the members of one name. Thread-safe.

    One thread decides, and starts a short-lived thread for each attempt, so that a member that hangs delays no other.
    The state changes under `_changed`.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._changed = threading.Condition()
        self._members: list[str] = []
        self._own = ""
        self._fresh = False  # there is a version that the thread has not begun to tell of
        self._told = False
        self._runs = False  # whether the thread lives
        self._announcement = Announcement(())
        self.stale = False  # a later publisher is known; written by the threads that tell

    @property
    def missing(self) -> list[str]:
        """Members that have not taken the newest version."""
        with self._changed:
            return list(self._members) if self._fresh else self._announcement.missing

    def tell(self, members: Sequence[str], own: str, *, first: bool = False) -> None:
        """Tell these members of the newest version, after a version was published here. No members: stop telling.

        Args:
            members: their addresses, in the order of the chain.
            own: address of this node.
            first: whether the members come from the previous agent's record. Then do nothing if this agent was told of
                others.
        """
        with self._changed:
            if first and self._told:
                return
            self._told = True
            self._members, self._own, self._fresh, self.stale = list(members), own, True, False
            self._changed.notify_all()
            if not self._runs:
                threading.Thread(target=self._run, name="di-store tell", daemon=True).start()
                self._runs = True  # the thread waits for `_changed`, so it sees this

    def add(self, member: str) -> None:
        """Tell one more node of the version that `tell` announces, or of the next one.

        The node then asks for the newest version (`Chain.newest`): that of the last announcement, or a later one.
        """
        with self._changed:
            if member not in self._members:
                self._members.append(member)

    def wake(self) -> None:
        """Look again, for example because the agent ends."""
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            try:
                if not self._next_version():
                    return
            except StoreClosed:
                return  # the agent ends
            except Exception as error:  # whatever it is, such as a lock that a stopped process holds: again, soon
                logger.warning("members could not be told about weights %r: %s", self._chain.name, error)
                with self._changed:
                    self._fresh = True
                    self._changed.wait(AGAIN_SECONDS)

    def _next_version(self) -> bool:
        """Tell of the newest version until a newer one comes; False: no version came for a while, or the agent ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._fresh or self._local.stopped.is_set(), IDLE_SECONDS)
            if not self._fresh or self._local.stopped.is_set():
                self._runs = False  # here, not later: `tell` then starts another thread
                return False
        self._chain.await_offer()
        with self._changed:
            self._fresh = False
            announcement = Announcement(self._members, self._announcement)
            self._announcement = announcement
            chain = [self._own, *announcement.missing]
        if not announcement.missing:
            self._chain.end_offer()
            return True
        offered = self._chain.make_offer()
        if offered is None:
            return True
        while True:
            with self._changed:
                if self._local.stopped.is_set() or self._announcement is not announcement:
                    return True
                due = announcement.due(now())
                # Only then a newer one: it may come each time before anybody has been told of this one.
                if not due and (self._fresh or not announcement.missing):
                    return True
                if not due:
                    wake = announcement.wake()
                    self._changed.wait(None if wake is None else max(0.0, wake - now()))
                    continue
            with self._chain.changed:
                self._chain.offer.tell(now())
            for member in due:
                self._start(announcement, member, offered.seen(*near(chain, chain.index(member))))

    def _start(self, announcement: Announcement, member: str, note: Note) -> None:
        try:
            threading.Thread(target=self._tell, args=(announcement, member, note), daemon=True).start()
        except (RuntimeError, MemoryError) as error:  # no more threads
            with self._changed:
                announcement.failed(member, str(error), now())

    @property
    def _local(self) -> LocalState:
        return self._chain.local

    def _tell(self, announcement: Announcement, member: str, note: Note) -> None:
        """One attempt, in a thread of its own."""
        failed = ""
        try:
            self._local.agents.ask(member, "note", {"note": note.packed()})
        except OldEpoch as error:
            self._replaced(announcement, note, error)
        except (StoreError, TypeError, ValueError) as error:
            failed = str(error) or type(error).__name__
        with self._changed:
            first = member not in announcement.doubtful
            announcement.failed(member, failed, now()) if failed else announcement.took(member)
            self._changed.notify_all()
        if failed and first and not self._local.stopped.is_set():
            logger.warning(
                "%s was not told about version %d of weights %r: %s", member, note.version, note.name, failed
            )

    def _replaced(self, announcement: Announcement, note: Note, error: OldEpoch) -> None:
        """A member knows a later publisher: end this publisher, also for the agent's successor."""
        with self._changed:
            if self._announcement is not announcement or self.stale:
                return
            self.stale, self._members, self._announcement = True, [], Announcement((), announcement)
        self._chain.end_offer()
        logger.warning("weights %r are not sent any more: %s", note.name, error)

        def change(known: Known) -> Known:
            return known if known.epoch > note.epoch else known.replaced()

        try:
            self._local.record.update(note.name, change)
        except StoreError:
            pass  # the successor is refused again
