"""The receiving side: the thread that pulls versions of one name into the store, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from di_store import _core
from di_store.base.dtypes import Array
from di_store.base.errors import CapacityError, StoreClosed, StoreError, StoreFull, Timeout
from di_store.broadcast.chain import Chain, Incoming, now
from di_store.broadcast.note import Note, SourceProgress, note_of
from di_store.broadcast.transfer import SILENT_SECONDS, Left, Transfer
from di_store.protocol.connection import Connection, Disconnected
from di_store.protocol.frame import Kind
from di_store.protocol.handshake import decoded
from di_store.protocol.values import call_of, error_of, value_of
from di_store.runtime.waits import logger

T = TypeVar("T")
FULL_SECONDS = 0.25
"""Pause between attempts to find room in the store."""
MOST_ASKED = 16
"""The most answers that are collected from nodes that may know the newest version."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 5.0


class Replaced(Exception):
    """A newer version is wanted."""


def pull(chain: Chain) -> None:
    """The pulling thread: it ends when there is nothing to do."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        task = chain.next_task()
        if task is False:
            return
        try:
            if isinstance(task, Note):
                VersionPull(chain, task).run()
                continue
            if ask_chain(chain):
                pause = _FIRST_PAUSE_SECONDS
                continue
        except StoreClosed:
            return  # the agent ends
        except Exception as error:  # whatever it is, the weights are still wanted
            logger.warning("weights %r could not be fetched: %s: %s", chain.name, type(error).__name__, error)
            with suppress(StoreError):
                chain.want(task) if isinstance(task, Note) else chain.ask()
        chain.rest(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def ask_chain(chain: Chain) -> bool:
    """Ask the nodes of the chain for their newest version, and request the newest of these.

    Returns whether this node need not ask again: the publisher or all other nodes have answered, or one of them has a
    newer version than this node.
    """
    known = chain.local.record.known(chain.name)
    best: Note | None = None
    silent, answers, first = 0, 0, False
    for number, address in enumerate(known.chain):
        if number == known.place or answers == MOST_ASKED:
            continue
        try:
            found = chain.local.agents.ask(address, "newest", {"name": chain.name})
        except (StoreError, TypeError, ValueError):
            silent += 1
            continue
        answers += 1
        first = first or number == 0
        if found is None:
            continue
        note = note_of(found)
        if note.name == chain.name and note.epoch >= known.epoch and (best is None or note.order > best.order):
            best = note.seen(known.chain, known.place)
    wanted = best is not None and chain.want(best)
    settled = wanted or first or not silent
    if settled:
        with chain.changed:
            chain.asks = False
    return settled


class VersionPull:
    """The transfer of one version into the store. For the pulling thread."""

    def __init__(self, chain: Chain, note: Note) -> None:
        self._chain = chain
        self._note = note
        self._incoming = Incoming(note)
        self._transfer = Transfer(note.chain, note.place, max(note.size, 0), now())
        self._check = _core.crc32c(note.header)
        self._told_full = False

    def run(self) -> None:
        """Fetch it, unless it is abandoned for a newer one."""
        chain, note = self._chain, self._note
        with chain.changed:
            chain.incoming = self._incoming
        try:
            self._get()
            with chain.changed:
                self._incoming.published = True
        except Replaced:
            pass
        finally:
            with chain.changed:
                self._incoming.ended = True
                chain.incoming = None
                chain.requested.ended(self._incoming.published)
                chain.changed.notify_all()
            logger.debug("weights %r, version %d: %d bytes", note.name, note.version, self._transfer.have)

    def _get(self) -> None:
        note = self._note
        if note.size < 0:
            self._patiently(lambda arena: arena.publish(note.name, None, note.keep, at=note.version))
            return
        foreign = not self._chain.local.agents.credentials.allow_pickle
        draft = self._patiently(partial(_reserved, note, foreign))
        payload = draft.payload()
        with self._chain.changed:
            self._incoming.payload = payload
        while not self._fetched(payload):
            pass
        with self._chain.changed:
            if self._chain.requested.outdated(note):
                raise Replaced
        # Only now others can see it. 0: a newer version has come by another way.
        self._patiently(lambda _: draft.publish(note.name, note.keep, at=note.version))

    def _patiently(self, write: Callable[[_core.Arena], T]) -> T:
        """Write to the store; while the store is full, retry as long as no newer version is wanted.

        Raises:
            Replaced: a newer version is wanted.
        """
        while True:
            try:
                return write(self._chain.local.session.arena)
            except (StoreFull, CapacityError, Timeout) as error:
                if not self._told_full and not isinstance(error, Timeout):
                    self._told_full = True
                    logger.warning("weights %r, version %d: %s", self._note.name, self._note.version, error)
            self._chain.pause(FULL_SECONDS, self._note)
            self._go_on(float("inf"))

    def _go_on(self, idle: float) -> None:
        if self._chain.local.stopped.is_set() or self._chain.replaced(self._note, idle):
            raise Replaced

    # -- bytes --------------------------------------------------------------------------------------------------

    def _fetched(self, payload: Array) -> bool:
        """Pull from one source. Returns whether all bytes are here and checked.

        Raises:
            Replaced: a newer version is wanted.
        """
        transfer = self._transfer
        if not transfer.done:
            self._go_on(transfer.still(now()))
            source = transfer.next_source(now())
            if source is None:
                wake = transfer.wake()
                self._chain.pause(1.0 if wake is None else max(0.0, wake - now()), self._note)
                return False
            why = self._pull_from(source, payload)
            if not transfer.done:
                transfer.left(why, now())
                return False
        if self._check == self._note.check:
            return True
        logger.warning("weights %r, version %d arrived with a wrong checksum", self._note.name, self._note.version)
        transfer.left(Left.WRONG, now())
        self._check = _core.crc32c(self._note.header)
        with self._chain.changed:
            # Children that have got these bytes find the same, and begin again too.
            self._incoming.have = 0
        return False

    def _pull_from(self, source: str, payload: Array) -> Left:
        """Pull from a source until all bytes are here or the source is given up; returns the reason."""
        with self._chain.changed:
            self._incoming.source = source
        try:
            connection = self._chain.local.agents.connect(source)
        except (Disconnected, StoreError):
            return Left.LOST
        try:
            return self._receive(connection, source, payload)
        except (Disconnected, StoreError, TypeError, ValueError):  # an agent that says what no agent says is none
            why = self._transfer.tired(now())
            return Left.LOST if why is None else why
        finally:
            connection.close()

    def _receive(self, connection: Connection, source: str, payload: Array) -> Left:
        transfer, note = self._transfer, self._note

        def tick() -> None:
            self._go_on(transfer.still(now()))
            if transfer.tired(now() + SILENT_SECONDS / 10) is not None:  # a tick may be a little early
                raise Disconnected("it sends nothing new")

        transfer.reached(now())
        connection.until, connection.ticking = None, tick
        asked = {"name": note.name, "version": note.version, "size": note.size, "check": note.check}
        meta, body = call_of("pull", "", {**asked, "at": transfer.have}, once=False)
        connection.send(Kind.CALL, meta=meta, body=body)
        while True:
            message = connection.receive()
            if message.kind == Kind.ERROR:
                logger.warning("weights %r: %s", note.name, error_of(message.meta, source))
                return Left.LOST
            if message.kind == Kind.ANSWER:
                return self._ended(source, value_of(message))
            part = decoded(SourceProgress, message.meta)
            if (why := transfer.heard(part.have, part.fallen, now())) is not None:
                return why
            if part.size:
                self._take_piece(connection, payload, part)
                if transfer.done:
                    return Left.STUCK
            self._go_on(transfer.still(now()))

    def _take_piece(self, connection: Connection, payload: Array, part: SourceProgress) -> None:
        at = self._transfer.have
        count = connection.receive_piece(payload[at : at + part.size])
        self._check = _core.crc32c(payload[at : at + count], self._check)
        self._transfer.got(count, now())
        with self._chain.changed:
            self._incoming.have = self._transfer.have
            self._incoming.fallen = self._transfer.fallen
            self._chain.received += count
            self._chain.changed.notify_all()

    def _ended(self, source: str, word: object) -> Left:
        """The source has no more bytes.

        Raises:
            Replaced: it knows a newer version, which is pulled now.
        """
        if word == "refused":
            return Left.REFUSED
        if word != "gone":
            return Left.STUCK
        try:
            found = self._chain.local.agents.ask(source, "newest", {"name": self._note.name})
        except (StoreError, TypeError, ValueError):
            return Left.LOST
        if found is not None:
            note = note_of(found)
            if note.name == self._note.name and note.order > self._note.order:
                self._chain.want(note.seen(self._note.chain, self._note.place))
                raise Replaced
        return Left.STUCK


def _reserved(note: Note, foreign: bool, arena: _core.Arena) -> _core.Reserved:
    return arena.reserve(note.header, note.size, None, 0.0, foreign=foreign, named=False)
