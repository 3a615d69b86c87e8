"""The connection of a remote writer, used by its threads in turn.

A thread that sends also sends all other calls that are due; a thread that waits for an answer reads. Handing a message
to another thread would cost two thread switches. The pipe's own thread reads while nobody waits.

A signal handler may raise anywhere in the main thread (Ctrl-C). So a turn is an attribute that `finally` clears, and no
lock is held around a wait. A message or bookkeeping that was interrupted in the middle is *torn*: the connection ends,
and all calls that are not acknowledged are sent again on the next one.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple, Protocol

from di_store.base.errors import CorruptData, StoreError
from di_store.client.channel import Channel
from di_store.protocol.connection import TICK_SECONDS, Connection, Disconnected, Message
from di_store.protocol.frame import Buffer, Kind
from di_store.runtime.background import Wakeup

NAP_SECONDS = 0.01
"""How long the pipe's own thread leaves the reading to a thread that waits for answers."""


class Outgoing(NamedTuple):
    """A message that is to be sent."""

    kind: Kind
    request: int
    meta: bytes
    body: list[Buffer]


class Traffic(Protocol):
    """The messages to send, and the receiver of messages. Called under the connection's lock, except for `take`."""

    def is_due(self) -> bool:
        """Whether there may be a message to send."""

    def next_message(self) -> Outgoing | None:
        """The next message to send; None: there is none."""

    def take(self, message: Message) -> None:
        """Take a received message."""

    def lost(self, error: StoreError | Disconnected) -> None:
        """Note that the connection has ended."""


class WriterConnection:
    """One connection at a time. Thread-safe.

    Attributes:
        lock: lock of the state that its threads share; never held during a wait.
        connection: None: no connection now; the pipe's own thread reconnects.
        torn: whether a call was interrupted, so that nothing more is sent on this connection.
        waited_for: whether another thread has read in place of the pipe's own thread.
        closed: whether it has ended for good.
        nap: wakes the pipe's own thread.
    """

    def __init__(self, channel: Channel, traffic: Traffic) -> None:
        self.lock = threading.RLock()
        self.connection: Connection | None = None
        self.torn = False
        self.waited_for = False
        self.closed = False
        self.nap = Wakeup()
        self._channel = channel
        self._traffic = traffic
        self._sender = 0  # the thread that sends; 0: none
        self._until: float | None = None  # until when who sends waits for an agent that takes nothing
        self._reading = 0  # the thread that reads, or waits for something to read
        self._patience: float | None = None  # until when who reads waits for the rest of a message
        self._wakeups: dict[Wakeup, None] = {}

    def install(self, connection: Connection) -> None:
        """Use another connection, from its first message on. Call this under the lock."""
        self.torn = False
        self.connection = connection

    def hang_up(self) -> None:
        """End the connection. The reading thread notices this."""
        if (connection := self.connection) is not None:
            connection.end()
        self.nap.wake()

    def close(self) -> None:
        """End the connection for good."""
        self.closed = True
        connection = self.connection
        self.wake()
        self.nap.wake()
        if connection is not None:
            self._channel.release(connection)

    def forget(self) -> None:
        """Drop the parent's connection in a forked child."""
        self.closed = True
        if self.connection is not None:
            self.connection.forget()

    # -- waiting ------------------------------------------------------------------------------------------------

    def enter(self) -> Wakeup:
        """Make a wakeup that fires at every change, until `leave`."""
        wakeup = Wakeup()
        self._wakeups[wakeup] = None
        return wakeup

    def leave(self, wakeup: Wakeup) -> None:
        """Drop the wakeup."""
        self._wakeups.pop(wakeup, None)

    def wake(self) -> None:
        """Something has changed: wake all waiting threads."""
        for wakeup in list(self._wakeups):
            wakeup.wake()

    # -- sending ------------------------------------------------------------------------------------------------

    def pump(self, until: float | None = None) -> None:
        """Send the messages that may be sent now. One thread at a time sends; others leave their calls to it.

        `until`: time to give up if the agent accepts no data; None: only after a long time without progress. A message
        that was sent in part is sent again on the next connection.
        """
        failed: Connection | None = None
        while True:
            mine, me = 0, threading.get_ident()
            try:
                with self.lock:
                    connection = self.connection
                    if self._sender or self.torn or connection is None or connection is failed:
                        return
                    if not self._traffic.is_due():
                        return
                    mine = self._sender = me
                    self._until = until
                    found = self._traffic.next_message()
                if found is not None:
                    connection.send(found.kind, request=found.request, meta=found.meta, body=found.body)
            except Disconnected:
                failed = connection
                self.hang_up()
            except BaseException:  # also Ctrl-C: half a message may be on its way
                self.torn = True
                self.hang_up()
                raise
            finally:
                if mine:
                    self._sender = 0

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, seconds: float, patience: float | None) -> bool:
        """Wait for a message, and take it. False: another thread has the turn, or there is no connection.

        Args:
            seconds: longest wait.
            patience: time by which the rest of a message must arrive; None: no limit.
        """
        mine, me = 0, threading.get_ident()
        connection: Connection | None = None
        midway = False
        try:
            with self.lock:
                connection = self.connection
                if self._reading or connection is None:
                    return False
                mine = self._reading = me
                self._patience = patience
            if self.torn:
                raise Disconnected("a call was interrupted")
            if connection.is_ready(seconds):
                midway = True
                self._traffic.take(connection.receive())
        except (Disconnected, CorruptData) as error:
            self._lose(connection, error)
        except BaseException:
            if midway:  # a wait that is interrupted harms nothing
                self.torn = True
                self.hang_up()
            raise
        finally:
            if mine:
                self._reading = 0
                self.wake()
        self.pump(patience)
        return True

    def _lose(self, connection: Connection | None, error: StoreError | Disconnected) -> None:
        with self.lock:
            self.connection, self.torn = None, False
            self._traffic.lost(error)
        if connection is not None:
            self._channel.release(connection)
        self.nap.wake()

    def tick(self) -> None:
        """Called while a read or a write waits.

        A waiting writer keeps reading: otherwise both sides could wait for each other.
        """
        if self.closed:
            raise Disconnected("the writer is closed")
        if self.torn and self.connection is not None:
            raise Disconnected("a call was interrupted")
        me = threading.get_ident()
        if self._reading == me:
            if self._patience is not None and time.monotonic() > self._patience:
                raise Disconnected("the rest of a message did not arrive")
        elif self._sender == me:
            now, connection = time.monotonic(), self.connection
            quiet = connection is None or now - connection.moved > TICK_SECONDS
            if self._until is not None and now > self._until and quiet:
                raise Disconnected("the agent accepts no data")
            self.read(0, self._until)
