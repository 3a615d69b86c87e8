"""One name of weights at this node: the wanted version, the version being received, and the versions to give to others.

Threads: at most one per name pulls (`pulling.py`); each child has one that serves it (`serving.py`); one tells the
members (`telling.py`). They share the state of `Chain`, which changes only under its condition `changed`. No thread
waits for a socket or for the store while it holds that condition. A kill at any line leaves the record (`record.py`),
whole versions, and a draft that the store frees; the successor then asks the chain again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import OldEpoch
from di_store.broadcast.children import Children
from di_store.broadcast.note import Note, parts_of
from di_store.broadcast.offer import Offer
from di_store.broadcast.other_agents import OtherAgents
from di_store.broadcast.record import BroadcastRecord, Known
from di_store.broadcast.requested import Requested
from di_store.objects.weights import Weights
from di_store.session import Session


@dataclass(frozen=True)
class LocalState:
    """The state that all names of one agent share.

    Attributes:
        own: address of this node, unless the publisher gives another.
        stopped: whether the agent ends.
    """

    session: Session
    record: BroadcastRecord
    agents: OtherAgents
    own: str
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass
class Incoming:
    """A version on its way here. The thread that pulls it changes this, under `Chain.changed`.

    Attributes:
        payload: payload in shared memory; bytes below `have` are checked and never change again. None: the store has no
            room yet.
        have: bytes that are here.
        fallen: bytes by which this node has fallen behind its source.
        ended: whether the version was published or abandoned.
    """

    note: Note
    payload: Array | None = None
    have: int = 0
    fallen: int = 0
    published: bool = False
    ended: bool = False
    source: str | None = None


@dataclass(frozen=True)
class Complete:
    """A version that is in the store."""

    payload: Array


class Superseded(Exception):
    """The requested version was replaced by a newer one."""


class Chain:
    """The state of one name."""

    def __init__(self, local: LocalState, name: str) -> None:
        self.local = local
        self.name = name
        self.changed = threading.Condition()
        # All below: under `changed`.
        self.requested = Requested()  # notes set what is wanted; the pulling thread takes it
        self.incoming: Incoming | None = None  # the pulling thread sets it
        self.asks = False  # whether the newest version of the chain is not known yet
        self.children = Children()
        self.offer = Offer()  # of the publisher's agent
        self.sent = 0  # bytes to children
        self.received = 0  # bytes from sources
        self._described: Note | None = None  # of a whole version: its checksum takes a while
        self._pulls = False  # whether the pulling thread lives

    # -- what is requested --------------------------------------------------------------------------------------

    def accept(self, note: Note) -> str:
        """Take a note from the publisher. Returns "have", or "taken" if the version is now pulled.

        Raises:
            OldEpoch: a later publisher is known.
        """

        def change(known: Known) -> Known:
            if note.epoch < known.epoch:
                raise OldEpoch(
                    f"received weights {note.name!r} of epoch {note.epoch}, but epoch {known.epoch} is already known"
                )
            after = known if note.epoch == known.epoch else known.replaced()
            return msgspec.structs.replace(after, epoch=note.epoch, keep=note.keep, chain=note.chain, place=note.place)

        # Before the answer: this agent may die, and its successor then asks the chain.
        self.local.record.update(self.name, change)
        self.raise_epoch(note.epoch)
        return "taken" if self.want(note) else "have"

    def raise_epoch(self, epoch: int) -> None:
        """Note that a publisher of this epoch is known: data of an older publisher are abandoned."""
        with self.changed:
            self.requested.epoch = max(self.requested.epoch, epoch)
            self.changed.notify_all()

    def want(self, note: Note) -> bool:
        """Pull this version, unless it or a newer one is here. Returns whether it is pulled."""
        if self.local.session.arena.newest(self.name) >= note.version:
            return False
        with self.changed:
            if self.requested.request(note):
                self.changed.notify_all()
        return True

    def ask(self) -> None:
        """Find out the newest version of the chain."""
        with self.changed:
            self.asks = True
            self.changed.notify_all()

    def begin(self, pull: Callable[[Chain], None]) -> None:
        """Start the thread that pulls, unless it runs or has nothing to do."""
        with self.changed:
            if self._pulls or not (self.requested.pending or self.asks):
                return
            self._pulls = True
        try:
            threading.Thread(target=pull, args=(self,), name="di-store pull", daemon=True).start()
        except BaseException:  # no more threads: the publisher's agent tells it again
            with self.changed:
                self._pulls = False
            raise

    def next_task(self) -> Note | bool:
        """The next task of the pulling thread: a version to pull; True: ask the chain; False: end."""
        with self.changed:
            if (note := self.requested.next()) is not None:
                return note
            if not self.asks or self.local.stopped.is_set():
                self._pulls = False
                return False
            return True

    def replaced(self, note: Note, idle: float) -> bool:
        """Whether to give up a version that is being fetched; `idle`: seconds since bytes came."""
        with self.changed:
            return self.requested.replaced(note, idle)

    def pause(self, seconds: float, note: Note) -> None:
        """Wait for an event that would end the transfer of `note`, or until the time is over."""
        with self.changed:
            if not self.replaced(note, 0.0) and not self.local.stopped.is_set():
                self.changed.wait(seconds)

    def rest(self, seconds: float) -> None:
        """Wait after a failure; a newer note ends the wait."""
        with self.changed:
            before = self.requested.pending
            self.changed.wait_for(lambda: self.requested.pending is not before or self.local.stopped.is_set(), seconds)

    # -- what it can give ---------------------------------------------------------------------------------------

    def holding(self, version: int, size: int, check: int) -> Incoming | Complete | None:
        """A version for a child; None: the version may still arrive.

        Raises:
            Superseded: the version will never arrive.
        """
        with self.changed:
            if (offered := self.offer.take(version, size, check)) is not None:
                self.changed.notify_all()
                return Complete(offered)
            incoming, newest = self.incoming, self.requested.newest
        if incoming is not None and not incoming.ended:
            note = incoming.note
            if (note.version, note.size, note.check) == (version, size, check):
                return incoming
        if self.local.session.arena.newest(self.name) < version:
            if newest is not None and newest.version > version:
                raise Superseded
            return None
        found = self.described(version)
        if found is None or (found[0].size, found[0].check) != (size, check) or found[1] is None:
            raise Superseded
        return Complete(found[1])

    def described(self, version: int | None = None) -> tuple[Note, Array | None] | None:
        """A whole version (the newest if None) and its payload; None: the version is not here.

        The note names no chain.
        """
        found = Weights(self.local.session).raw_latest(self.name, None, version, 0)
        if found is None:
            return None
        number, block = found
        known = self.local.record.known(self.name)
        if block is None:
            return Note(self.name, known.epoch, number, known.keep, -1, 0, [], 0, b""), None
        header, payload = parts_of(block)
        with self.changed:
            kept = self._described
        if kept is None or kept.version != number:
            check = _core.crc32c(payload, _core.crc32c(header))
            kept = Note(self.name, known.epoch, number, known.keep, len(payload), check, [], 0, header)
            with self.changed:
                self._described = kept
        if (kept.epoch, kept.keep) != (known.epoch, known.keep):
            return Note(self.name, known.epoch, number, known.keep, kept.size, kept.check, [], 0, header), payload
        return kept, payload

    def await_offer(self) -> None:
        """Wait until a member has taken the offered version, or it has been offered for long enough."""
        with self.changed:
            while (seconds := self.offer.waits(now())) and not self.local.stopped.is_set():
                self.changed.wait(seconds)

    def make_offer(self) -> Note | None:
        """Offer the newest version here; None: there is none."""
        found = self.described()
        with self.changed:
            self.offer.end() if found is None else self.offer.make(*found)
        return None if found is None else found[0]

    def end_offer(self) -> None:
        """End the offer: nobody is to be told of a version."""
        with self.changed:
            self.offer.end()
            self.changed.notify_all()

    def newest(self) -> Note | None:
        """The version to report to other nodes: one still being received, else the offered one, else the newest."""
        with self.changed:
            note, offered = self.requested.newest, self.offer.note(now())
        if note is not None and note.version > self.local.session.arena.newest(self.name):
            return note.seen([], 0)
        if offered is not None:
            return offered
        found = self.described()
        return None if found is None else found[0]

    def status(self) -> dict[str, object]:
        """The state, for people and tests."""
        with self.changed:
            incoming = self.incoming
            return {
                "sent": self.sent,
                "received": self.received,
                "version": 0 if incoming is None or incoming.ended else incoming.note.version,
                "have": 0 if incoming is None or incoming.ended else incoming.have,
                "source": "" if incoming is None or incoming.ended else incoming.source or "",
                "wanted": 0 if self.requested.pending is None else self.requested.pending.version,
                "asks": self.asks,
            }


def now() -> float:
    """The clock of all transfers."""
    return time.monotonic()
