"""The connection of a remote writer, used by its threads in turn.

A thread that sends also sends all other calls that are due; a thread that waits for an answer reads. Handing a message
to another thread would cost two thread switches. The connection's own thread reads while nobody waits, and connects
again.

A signal handler may raise anywhere in the main thread (Ctrl-C). So a turn is an attribute that `finally` clears, and no
lock is held around a wait. A message or bookkeeping that was interrupted in the middle *tears* the connection, as do
all other errors: it ends, and all calls that are not acknowledged are sent again on the next one. Only the own thread
closes it, once no thread uses it, because its descriptor may be another socket's afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from di_store.base.errors import CorruptData, StoreError
from di_store.client.channel import Channel
from di_store.client.writer_calls import Outgoing
from di_store.protocol.connection import TICK_SECONDS, Connection, Disconnected, Message
from di_store.runtime.background import Wakeup

SLICE_SECONDS = 0.5
_NAP_SECONDS = 0.01  # the own thread leaves the reading to a thread that waits for answers
_AGAIN_SECONDS = 0.1  # between two attempts to connect
INTERRUPTED = Disconnected("a call was interrupted")


class Traffic(Protocol):
    """The messages to send, and the receiver of messages."""

    def open(self, tick: Callable[[], None]) -> Connection | None:
        """A new connection, from its first message on; None: try again. `tick`: called while it waits."""

    def next_message(self) -> Outgoing | None:
        """The next message to send; None: there is none. Called under the connection's lock."""

    def take(self, message: Message) -> None:
        """Take a received message."""

    def lost(self, error: StoreError | Disconnected) -> None:
        """Note why the connection has ended."""


class WriterConnection:
    """One connection at a time. Thread-safe.

    Attributes:
        waited_for: whether another thread has read in place of the own thread.
        ended: why it has ended for good.
        lock: lock of the state that its threads share; never held during a wait.
    """

    def __init__(self, channel: Channel, traffic: Traffic) -> None:
        self.waited_for = False
        self.ended: BaseException | None = None
        self._channel = channel
        self._traffic = traffic
        self._connection: Connection | None = None
        self._begin()

    def _begin(self) -> None:
        self.lock = threading.RLock()
        self._torn: StoreError | Disconnected | None = None  # why nothing more is sent or read on this connection
        self._sender = 0  # the thread that sends; 0: none
        self._until: float | None = None  # until when who sends waits for an agent that takes nothing
        self._reader = 0  # the thread that reads, or waits for something to read
        self._patience: float | None = None  # until when who reads waits for the rest of a message
        self._wakeups: dict[Wakeup, None] = {}

    def is_open(self) -> bool:
        """Whether messages can be sent."""
        return self._connection is not None and self._torn is None

    def is_inside(self) -> bool:
        """Whether the calling thread sends or reads, so that this call comes from a signal handler."""
        return threading.get_ident() in (self._sender, self._reader)

    def tear(self, why: StoreError | Disconnected = INTERRUPTED) -> None:
        """End this connection; the own thread connects again."""
        self._torn = self._torn or why
        if (connection := self._connection) is not None:
            connection.end()

    def close(self, why: BaseException) -> None:
        """End it for good."""
        self.ended = self.ended or why
        if (connection := self._connection) is not None:
            connection.end()
        self.wake()

    def forget(self, why: BaseException) -> None:
        """Drop the parent's connection in a forked child."""
        self.ended = why
        connection, self._connection = self._connection, None
        self._begin()
        if connection is not None:
            connection.forget()

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
        while True:
            mine, me = 0, threading.get_ident()
            try:
                with self.lock:
                    connection = self._connection
                    if self._sender or connection is None or self._torn is not None:
                        return
                    mine = self._sender = me  # first: a signal handler may come here before the message is sent
                    self._until = until
                    found = self._traffic.next_message()
                    if found is None:
                        mine = self._sender = 0  # under the lock: whoever adds a call now sends it
                        return
                connection.send(found.kind, request=found.request, meta=found.meta, body=found.body)
            except Disconnected as error:
                self.tear(error)
            except BaseException:  # also Ctrl-C: half a message may be on its way
                self.tear()
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
        midway = False
        try:
            with self.lock:
                connection = self._connection
                if self._reader or connection is None or self._torn is not None:
                    return False
                mine = self._reader = me
                self._patience = patience
            if connection.is_ready(seconds):
                midway = True
                self._traffic.take(connection.receive())
        except (Disconnected, CorruptData) as error:
            self.tear(error)
        except BaseException:
            if midway:  # a wait that is interrupted harms nothing
                self.tear()
            raise
        finally:
            if mine:
                self._reader = 0
                self.wake()
        self.pump(patience)
        return True

    def tick(self) -> None:
        """Called while a read or a write waits.

        A waiting writer keeps reading: otherwise both sides could wait for each other.
        """
        if self.ended is not None or self._torn is not None:
            raise Disconnected("the connection was given up")
        me = threading.get_ident()
        if self._reader == me:
            if self._patience is not None and time.monotonic() > self._patience:
                raise Disconnected("the rest of a message did not arrive")
        elif self._sender == me:
            now, connection = time.monotonic(), self._connection
            quiet = connection is None or now - connection.moved > TICK_SECONDS
            if self._until is not None and now > self._until and quiet:
                raise Disconnected("the agent accepts no data")
            self.read(0, self._until)

    # -- the own thread -----------------------------------------------------------------------------------------

    def step(self) -> bool:
        """For the own thread: read a message, or connect again. False: the connection has ended for good."""
        if self.ended is not None or not self.is_open():
            return self._again()
        if self.waited_for:
            self.waited_for = False
            time.sleep(_NAP_SECONDS)
        elif not self.read(SLICE_SECONDS, None):
            time.sleep(_NAP_SECONDS)
        return True

    def _again(self) -> bool:
        """Close this connection once no thread uses it, and make another one."""
        with self.lock:
            if self._sender or self._reader:  # it sees that the connection has ended
                connection, used = None, True
            else:
                connection, used = self._connection, False
                self._connection = None
        if used:
            time.sleep(_NAP_SECONDS)
            return True
        if connection is not None:
            self._channel.release(connection)
            if (why := self._torn) is not None:
                self._traffic.lost(why)
        if self.ended is not None:
            return False
        self._torn = None
        made = self._traffic.open(self.tick)
        if made is None:
            time.sleep(_AGAIN_SECONDS)
            return True
        self._connection = made
        self.wake()
        self.pump()
        return True
