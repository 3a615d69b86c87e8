"""The calls of a remote writer: sent ahead, acknowledged later, and sent again if the agent is replaced.

`window.py` knows the calls in flight, and `writer_connection.py` sends and reads the messages, and chooses the thread
for that. Here are the waits, and how calls end.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import secrets
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, NodeUnavailable, StoreError, WriterClosed
from di_store.base.warned import noted, taken
from di_store.client.agent_client import CONNECT_SECONDS
from di_store.client.channel import Channel, Seconds
from di_store.client.lane_values import LaneValues
from di_store.client.lanes import WriterLanes
from di_store.client.waiting import CallWait
from di_store.client.window import SendWindow
from di_store.client.writer_calls import Outgoing, Sent
from di_store.client.writer_connection import INTERRUPTED, SLICE_SECONDS, WriterConnection
from di_store.columns.schema import Schema
from di_store.protocol.connection import Connection, Disconnected, Message
from di_store.protocol.frame import Kind
from di_store.protocol.handshake import decoded
from di_store.protocol.rows import Acknowledgement, Made
from di_store.protocol.values import Waiting, answered, call_of, error_of, failed, value_of, warn
from di_store.replay.writer_stream import BUSY, LATER
from di_store.runtime.deadline import LOST_SECONDS, Deadline
from di_store.runtime.waits import logger

END_SECONDS = 5.0
"""How long the end of the interpreter, or of a store's handle, waits for dropped writers; for interrupted ones, a
second."""

_open: set[WriterPipe] = set()
"""Of writers that have not ended. Dropped ones end once all calls are acknowledged."""


class WriterPipe:
    """The calls of one writer. Thread-safe: one thread appends, one reads the answers.

    Attributes:
        window: the calls in flight.
        schema: the columns of its rows, once they are declared.
        lanes: which lanes are in the middle of an episode.
        reported: the versions of weights that this process has, as reported to the agent.
        interrupted: whether a signal handler raised in the last call (Ctrl-C), so that the program probably ends.
    """

    def __init__(self, channel: Channel, arguments: dict[str, Any], lanes: WriterLanes, most_calls: int) -> None:
        self.window = SendWindow(lanes, most_calls)
        self.schema: Schema | None = None
        self.lanes = lanes
        self.reported: dict[str, int] = {}
        self.interrupted = False
        self._channel = channel
        self._arguments = {**arguments, "session": secrets.token_bytes(16)}
        self._what = "writer of " + ", ".join(map(repr, arguments["tables"]))
        self._connection = WriterConnection(channel, self)
        self._begins = True  # no agent has opened it yet
        self._lost = True  # no agent is reached
        self._leaves: BaseException | None = None  # the writer was dropped, and some calls are still on their way
        self._reason = ""
        self._warnings: list[str] = []  # of calls, to be raised where the program calls next
        self._heard = time.monotonic()

    # -- its life -----------------------------------------------------------------------------------------------

    def start(self, timeout: Seconds) -> None:
        """Open the writer at the agent; raises the error of that call."""
        limit = Deadline.of(CONNECT_SECONDS if timeout is None else timeout)
        try:
            _thread.start_new_thread(self._run, ())
            self._wait(lambda: not self._lost, limit, "opening")
            self._wait(self._connection.is_open, Deadline.of(timeout), "opening")
            self._warn()
        except BaseException:  # also Ctrl-C: no writer is made that would end it
            self.close(WriterClosed("this writer was not opened"))
            self._warn()
            raise

    def close(self, why: BaseException) -> None:
        """End it: waiting calls raise `why`, and rows without an acknowledgement are given up."""
        with self._connection.lock:
            rows = self.window.rows if self._connection.ended is None else 0
            self._connection.close(why)
        if rows:
            logger.warning(
                "%s gives up %d rows that node %s has not acknowledged", self._what, rows, self._channel.node
            )

    def leave(self, why: BaseException) -> None:
        """Called when the writer is dropped: end it once all sent calls are acknowledged."""
        with self._connection.lock:
            if len(self.window) and self._connection.ended is None:
                self._leaves = why
                return
        self.close(why)

    def _run(self) -> None:
        """The work of the pipe's own thread: read messages, and connect again, until the writer has ended."""
        _open.add(self)
        going = True
        while going:
            try:
                why = self._leaves
                if why is not None and (not len(self.window) or time.monotonic() - self._heard > LOST_SECONDS):
                    self.close(why)
                going = self._connection.step()
            except Exception as error:  # nobody would read any more: whoever waits hears of it
                self.close(error)
        _open.discard(self)

    def forget(self, why: BaseException) -> None:
        """Drop the parent's pipe in a forked child."""
        self._connection.forget(why)

    # -- the calls ----------------------------------------------------------------------------------------------

    def push(self, call: Sent) -> None:
        """Send a call without waiting for its answer. Waits while the window is full.

        Raises:
            The error of an earlier call that nobody waited for. NodeUnavailable: no agent is reached.
        """
        window, shared = self.window, self._connection
        if self._warnings or shared.ended is not None:
            self._raise_failure()
        if not window.has_room():
            self._wait(window.has_room, Deadline(None), "append")
        self.interrupted = False
        try:
            with shared.lock:
                failed = window.failure is not None
                if not failed:
                    window.push_whole(call) if self.lanes.any_cut else window.push(call)
        except BaseException:  # also Ctrl-C: half a call may be in the window
            shared.tear()
            raise
        if failed:
            self._raise_failure()
        try:
            if window.has_frame():
                if window.is_under_way():  # calls come fast: answers too
                    shared.waited_for = True
                    shared.read(0, None)
                else:
                    shared.pump()
        except BaseException as error:  # what is no Exception is Ctrl-C
            self.interrupted = not isinstance(error, Exception)
            raise

    def flush(self, timeout: Seconds, what: str = "flush") -> None:
        """Wait until everything is acknowledged."""
        if len(self.window):
            self._wait(lambda: not len(self.window), Deadline.of(timeout), what)
        self.interrupted = False
        self._raise_failure()

    def catch_up(self, deadline: Deadline, what: str = "a later call") -> None:
        """Wait until everything is acknowledged, or has failed. The writer's next call raises the error."""
        shared = self._connection
        if len(self.window) and not shared.is_inside():
            self._wait(lambda: not len(self.window) or shared.ended is not None, deadline, what)

    def make(self, call: Sent, arguments: dict[str, Any], timeout: Seconds) -> None:
        """Make a call of any form after all calls that were sent before, and wait for it.

        It runs exactly once, whatever happens to the connection. An agent that has not begun a call that is given up
        leaves it.

        Args:
            call: the call.
            arguments: its arguments by name.
            timeout: seconds, or the deadline of a longer call; None: no limit.
        """
        deadline, what = Deadline.of(timeout), call.record.method
        self.flush(deadline, what)
        try:
            while not call.is_done:
                with self._connection.lock:
                    arguments = self._ask(call, arguments, deadline.left)
                self._reason = ""
                self._connection.pump(deadline.end)
                self._wait(lambda: call.message is None, deadline, what)
        except BaseException:  # an agent that has not begun sees that the connection is gone
            with self._connection.lock:
                self.window.give_up()
            self._connection.tear()
            raise
        if (answer := call.answer) is not None:
            if answer.kind == Kind.ERROR:
                raise error_of(answer.meta, self._channel.node)
            found, call.answer, call.made = value_of(answer), None, []
            if isinstance(found, dict):
                call.made = found["items"]
                if found["schema"] is not None:
                    self.schema = self.schema or Schema.from_plain(found["schema"])
        if call.error is not None:
            raise call.error

    def _ask(self, call: Sent, arguments: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        """Send a call of any form. Returns its arguments, without the rows of cut lanes."""
        which, ends = call.which, call.ends
        if self.lanes.any_cut and call.record.method != "close":
            kept: Array = np.flatnonzero(~self.lanes.is_cut(which))
            if 0 < len(kept) < len(which):
                values = LaneValues(which, len(self.lanes.every), len(ends) if call.record.method == "extend" else None)
                arguments = values.of(arguments, kept, ends.max(axis=0))
            call.without_cut(self.lanes)
        if call.made is None:
            self.window.ask(call, arguments, timeout)
        return arguments

    def result(self, call: Sent) -> list[tuple[Array, Array, Array]]:
        """The items of a call, once acknowledged."""
        if not call.is_done:
            self._wait(lambda: call.is_done, Deadline(None), "keys of items")
        self._warn()
        if call.error is not None:
            raise call.error
        made = call.made
        assert made is not None
        return made.of(call.place) if isinstance(made, Made) else made

    def _warn(self) -> None:
        if self._warnings:
            texts, self._warnings = self._warnings, []
            warn(texts)

    def _raise_failure(self) -> None:
        self._warn()
        if (failure := self.window.take_failure()) is not None:
            raise failure
        if (why := self._connection.ended) is not None:
            raise why

    # -- the wait -----------------------------------------------------------------------------------------------

    def _wait(self, done: Callable[[], bool], deadline: Deadline, what: str) -> None:
        """Wait until `done()`, and read messages meanwhile.

        Raises: Timeout, NodeUnavailable: not in time. The error that ended the writer.
        """
        if done():
            return
        shared = self._connection
        if shared.is_inside():  # the outer call could not go on
            raise StoreError(BUSY, remedy=LATER)

        def check() -> None:
            if (why := shared.ended) is not None and not done():  # in this order: the answer to `close` ends the writer
                raise why

        waiting = CallWait(self._channel.node, check, deadline, f"{what} of {self._what}", None)
        wakeup = shared.enter()
        try:
            while not done():
                calls = len(self.window)
                said = "a call is not acknowledged" if calls == 1 else f"{calls} calls are not acknowledged"
                waiting.reason, deadline.heard = self._reason or said, max(self._heard, deadline.began)
                if self._lost and deadline.is_hopeless(time.monotonic() - deadline.heard):
                    waiting.give_up(Disconnected(waiting.reason))
                waiting.tick()
                left = deadline.left
                seconds = SLICE_SECONDS if left is None else min(SLICE_SECONDS, left + 0.05)
                shared.waited_for = True
                until = time.monotonic() + LOST_SECONDS if left is None else deadline.end
                if not shared.read(seconds, until) and not done():
                    wakeup.wait(seconds)
        except BaseException as error:  # what is no Exception is Ctrl-C
            self.interrupted = not isinstance(error, Exception)
            raise
        finally:
            shared.leave(wakeup)

    # -- its traffic --------------------------------------------------------------------------------------------

    def open(self, tick: Callable[[], None]) -> Connection | None:
        """A connection on which all calls without an acknowledgement are sent again; None: no agent answers."""
        connection: Connection | None = None
        try:
            connection = made = self._channel.connect("writer", Deadline(CONNECT_SECONDS))
            self._channel.adopt(made)
            self._lost = False
            self._connection.wake()
            made.ticking = tick
            arguments = {**self._arguments, "begins": self._begins, "acknowledged": self.window.acknowledged}
            arguments["versions"] = self.reported.copy()
            meta, body = call_of("open_writer", "", arguments, once=False)
            made.send(Kind.CALL, request=0, meta=meta, body=body)
            while (message := made.receive()).kind == Kind.WAITING:
                pass
            if message.kind == Kind.ERROR:
                error, told = failed(message.meta, self._channel.node)
                self._warnings += told
                raise error
            found, told = answered(message)
            self._warnings += told
            self._opened(found)
            connection = None
            return made
        except (Disconnected, NodeUnavailable) as error:
            if self._begins and isinstance(error, NodeUnavailable):
                raise
            self._lost, self._reason = True, str(error)
            return None
        finally:
            if connection is not None:
                self._channel.release(connection)

    def _opened(self, found: dict[str, Any]) -> None:
        """Continue as the agent says."""
        with self._connection.lock:
            if not found["fresh"]:
                self.window.resume(found["done"])
            else:  # the dead agent's writer and its open episodes are lost
                with noted():  # the program's thread warns
                    self.window.begin_anew(found["marks"], self._what, self._channel.node)
                    self._warnings += taken()
            if found["schema"] is not None:
                self.schema = Schema.from_plain(found["schema"])
            self._begins = False
            self._heard = time.monotonic()

    def next_message(self) -> Outgoing | None:
        """The next message to send; None: there is none."""
        return self.window.next_message()

    def take(self, message: Message) -> None:
        """Take a received message."""
        self._heard = time.monotonic()
        if message.kind == Kind.ACKNOWLEDGE:
            done = decoded(Acknowledgement, message.meta)
            failure, told = failed(done.failure, self._channel.node) if done.failure else (None, [])
            with self._connection.lock:
                self.window.note(done, message.body, failure)
                self._warnings += done.warnings + told
                self._reason = ""
        elif message.kind == Kind.WAITING:
            self._reason = decoded(Waiting, message.meta).reason
        elif message.kind in (Kind.ANSWER, Kind.ERROR):
            with self._connection.lock:
                call = self.window.answer(message)
                if call is not None and call.record.method == "close":
                    self._connection.close(WriterClosed("this writer was closed"))
        else:
            raise CorruptData(f"a writer received a message of kind {message.kind}", remedy="")

    def lost(self, error: StoreError | Disconnected) -> None:
        """Note that the connection has ended."""
        self._lost, self._reason = True, str(error)
        if error is not INTERRUPTED and self.window.is_refused(time.monotonic() - self._heard):
            why = f"closes the connection whenever it gets call {self.window.first}"
            remedy = "the agent's log says why; check that agent and client have the same version"
            self.close(NodeUnavailable(f"{self._what}: the agent at {self._channel.node} {why}", remedy=remedy))


def settle(channel: Channel | None, seconds: float = END_SECONDS) -> None:
    """Wait for dropped writers of a channel that is being closed; None: for all writers, at the interpreter's end.

    These end as if they were dropped: `weakref.finalize` may have its turn at the end only after this module's.
    """
    for each in list(_open) if channel is None else ():
        each.leave(WriterClosed("the interpreter ends"))
    those = [each for each in list(_open) if each._leaves is not None and channel in (None, each._channel)]
    for each, step in Deadline(seconds).steps(those):
        with contextlib.suppress(Exception):  # nobody is left to hear of it
            each.flush(step.sooner(0.0) if each.interrupted else step)
        each.close(WriterClosed("this writer was dropped"))


atexit.register(settle, None)
os.register_at_fork(after_in_child=_open.clear)
