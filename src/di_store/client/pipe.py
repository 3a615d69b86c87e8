"""The calls of a remote writer in flight: sent ahead, acknowledged later, and sent again if the agent is replaced.

Every call has a number. The agent makes each numbered call once, in order. Calls without an acknowledgement stay here.
After a broken connection they are sent again, to the same agent. After a kill they are sent to its successor, which
reads the dead agent's progress from shared memory.

`writer_connection.py` sends and reads the messages, and chooses the thread for that.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from di_store.base.dtypes import Array
from di_store.base.errors import CorruptData, NodeUnavailable, StoreError, Timeout
from di_store.client.agent_client import CONNECT_SECONDS
from di_store.client.channel import Channel, Seconds
from di_store.client.frames import body_of
from di_store.client.lanes import OpenLanes, Sent
from di_store.client.leaving import leaving
from di_store.client.waiting import Silent
from di_store.client.window import SendWindow
from di_store.client.writer_connection import NAP_SECONDS, Outgoing, WriterConnection
from di_store.columns.schema import Schema
from di_store.protocol.connection import Connection, Disconnected, Message
from di_store.protocol.frame import Kind, view
from di_store.protocol.handshake import decoded
from di_store.protocol.rows import Acknowledgement, Made
from di_store.protocol.values import Waiting, call_of, error_of, failed, value_of, warn
from di_store.runtime.deadline import LOST_SECONDS, Deadline
from di_store.runtime.waits import LOG_SECONDS, logger

_SLICE_SECONDS = 0.5


class WriterPipe:
    """The calls of one writer. Thread-safe: one thread appends, one reads the answers.

    Attributes:
        session: 16 bytes by which agents know the writer.
        window: the calls in flight.
        schema: the columns of its rows, once they are declared.
        lanes: which lanes are in the middle of an episode.
        reported: the versions of weights that this process has, as reported to the agent.
        interrupted: whether a signal handler raised in the last call (Ctrl-C), so that the program probably ends.
    """

    def __init__(self, channel: Channel, arguments: dict[str, Any], lanes: OpenLanes, window: int) -> None:
        self.session = secrets.token_bytes(16)
        self.window = SendWindow(lanes, window)
        self.schema: Schema | None = None
        self.lanes = lanes
        self.reported: dict[str, int] = {}
        self.interrupted = False
        self._channel = channel
        self._arguments = {**arguments, "session": self.session}
        self._what = "writer of " + ", ".join(map(repr, arguments["tables"]))
        self._answers: dict[int, Message] = {}
        self._asked: dict[int, _Asked] = {}  # by request: calls that somebody waits for
        self._requests = itertools.count(1)
        self._due: deque[int] = deque()  # of these, what has not been sent on this connection
        self._connection = WriterConnection(channel, self)
        self.broken: BaseException | None = None  # no agent will ever serve this writer again
        self._leaves: BaseException | None = None  # the writer was dropped, and some calls are still on their way
        self._last = 0  # request of the call that closes the writer
        self._reason = ""
        self._warnings: list[str] = []  # of calls, to be raised where the program calls next
        self._heard = time.monotonic()

    # -- its life -----------------------------------------------------------------------------------------------

    def start(self, timeout: Seconds) -> None:
        """Open the writer at the agent; raises the error of that call."""
        deadline = Deadline.of(CONNECT_SECONDS if timeout is None else timeout)
        while True:
            try:
                self._connection.install(self._open(begins=True, deadline=deadline, ends=timeout is not None)[0])
                break
            except Disconnected as error:
                if deadline.is_hopeless(deadline.passed):
                    raise NodeUnavailable(f"{self._what}: node {self._channel.node} does not answer: {error}") from None
                time.sleep(0.05)
        reference = weakref.ref(self)
        threading.Thread(target=_read_on, args=(reference,), name="di-store writer", daemon=True).start()

    def _open(self, *, begins: bool, deadline: Deadline, ends: bool = False) -> tuple[Connection, dict[str, Any]]:
        """A connection, and the agent's description of the writer.

        `ends`: a silent agent is given up at the deadline, without grace.
        """
        connection = self._channel.connect("writer", deadline)

        def tick() -> None:
            self._connection.tick()
            if ends and deadline.over():
                raise Silent("it accepts connections and does not answer")

        try:
            self._channel.adopt(connection)
            arguments = {**self._arguments, "begins": begins, "acknowledged": self.window.acknowledged}
            meta, body = call_of("open_writer", "", arguments, once=False)
            connection.ticking = tick
            if ends:
                connection.look_at = deadline.end
            connection.send(Kind.CALL, request=0, meta=meta, body=body)
            while (message := connection.receive()).kind == Kind.WAITING:
                pass
            if message.kind == Kind.ERROR:
                raise error_of(message.meta, self._channel.node)
            connection.ticking, connection.look_at = self._connection.tick, float("inf")
            found = value_of(message)
            if found["schema"] is not None:
                self.schema = Schema.from_plain(found["schema"])
            return connection, found
        except BaseException:  # also Ctrl-C: no pipe is made that would end it
            self._channel.release(connection)
            raise

    def close(self, why: BaseException) -> None:
        """End it here. Close: waiting calls raise `why`, and rows without an acknowledgement are given up."""
        with self._connection.lock:
            rows = 0 if self._connection.closed else self.window.rows
        self.broken = self.broken or why
        self._connection.close()
        if rows:
            logger.warning(
                "%s gives up %d rows that node %s has not acknowledged", self._what, rows, self._channel.node
            )

    def leave(self, why: BaseException) -> None:
        """Called when the writer is dropped: end it once all sent calls are acknowledged."""
        with self._connection.lock:
            if len(self.window) and self.broken is None:
                self._leaves = why
                leaving[self] = self._channel
                return
        self.close(why)

    def _left(self) -> bool:
        """Whether a pipe whose writer was dropped has ended, with all calls acknowledged or given up."""
        why = self._leaves
        if why is None or (len(self.window) and time.monotonic() - self._heard < LOST_SECONDS):
            return False
        leaving.pop(self, None)
        self.close(why)
        return True

    def forget(self) -> None:
        """Drop the parent's pipe in a forked child."""
        self._connection.forget()

    # -- appending ----------------------------------------------------------------------------------------------

    def push(self, call: Sent, timeout: Seconds) -> Sent:
        """Send a call without waiting for its answer. Waits while the window is full.

        Raises:
            The error of an earlier call that nobody waited for. Timeout, NodeUnavailable: no room in time.
        """
        window, lanes = self.window, self.lanes
        if self._warnings or window.failure is not None or self.broken is not None:
            self._raise_failure()
        if not window.has_room():
            self._wait(window.has_room, Deadline.of(timeout), "append")
        self.interrupted = False
        try:
            with self._connection.lock:
                if not lanes.any_cut:
                    window.push(call)
                else:
                    for each in (call, *lanes.without_cut(call)):
                        if each.made is None:
                            window.push(each)
        except BaseException:  # also Ctrl-C: half a call may be in the window
            self._connection.torn = True
            self._connection.hang_up()
            raise
        try:
            if window.has_frame():
                until = None if timeout is None else Deadline.of(timeout).end
                if window.is_under_way():  # calls come fast: answers too
                    self._connection.waited_for = True
                    self._connection.read(0, until)
                else:
                    self._connection.pump(until)
        except BaseException as error:  # what is no Exception is Ctrl-C
            self.interrupted = not isinstance(error, Exception)
            raise
        return call

    def flush(self, timeout: Seconds, what: str = "flush") -> None:
        """Wait until everything is acknowledged."""
        if len(self.window):
            self._wait(lambda: not len(self.window), Deadline.of(timeout), what)
        self.interrupted = False
        self._raise_failure()

    def catch_up(self, deadline: Deadline, what: str = "a later call") -> None:
        """Wait until everything is acknowledged, or has failed. The writer's next call raises the error."""
        if len(self.window) and self.broken is None:
            self._wait(lambda: not len(self.window) or self.broken is not None, deadline, what)

    def result(self, call: Sent, timeout: Seconds, *, by_writer: bool = False) -> list[tuple[Array, Array, Array]]:
        """The items of a call, once acknowledged. `by_writer`: the writer gets an error here, not at its next call."""
        if call.made is None and call.error is None:
            self._wait(lambda: _is_judged(call), Deadline.of(timeout), "keys of items")
        self._warn()
        if call.error is not None:
            if by_writer:
                self._clear_failure(call.error)
            raise call.error
        made = call.made
        assert made is not None
        return made.of(call.place) if isinstance(made, Made) else made

    def ask(self, method: str, arguments: dict[str, Any], timeout: Seconds, call: Sent | None) -> Any:
        """Make a call and wait for its answer, after all calls that were sent before.

        Args:
            method: name of the call.
            arguments: arguments of the call.
            timeout: seconds, or the deadline of a longer call; None: no limit.
            call: the call's lanes; it then runs exactly once, whatever happens to the connection. None: the call may be
                repeated.
        """
        deadline = Deadline.of(timeout)
        self.flush(deadline, method)
        self._raise_failure()
        request = next(self._requests)
        try:
            with self._connection.lock:
                if call is not None and method != "close":
                    lanes = len(call.which)
                    self.lanes.without_cut(call)
                    if call.made is not None or len(call.which) < lanes:  # it is sent with all of its lanes, or not
                        return {"items": []}
                if call is not None:
                    call.record.seq = self.window.next_number()
                    arguments = {**arguments, "seq": call.record.seq}
                meta, body = call_of(method, "", arguments, once=False)
                if method == "close":
                    self._last = request
                self._asked[request] = _Asked(meta, [bytes(view(each)) for each in body], call)
                self._due.append(request)
            self._reason = ""
            self._connection.pump(deadline.end)
            self._wait(lambda: request in self._answers or _is_judged(call), deadline, method)
            message = self._answers.pop(request, None)
        except BaseException:  # given up: an agent that has not begun sees that the connection is gone, and leaves it
            self._connection.torn = True
            self._connection.hang_up()
            raise
        finally:
            self._asked.pop(request, None)
        if message is None:  # the agent was killed, and shared memory tells what has become of the call
            assert call is not None
            if call.error is not None:
                raise call.error
            return {"items": []}
        if message.kind == Kind.ERROR:
            raise error_of(message.meta, self._channel.node)
        found = value_of(message)
        if isinstance(found, dict) and found.get("schema") is not None and self.schema is None:
            self.schema = Schema.from_plain(found["schema"])
        if call is not None:
            self.window.acknowledged = max(self.window.acknowledged, call.record.seq)
        return found

    def _warn(self) -> None:
        if self._warnings:
            texts, self._warnings = self._warnings, []
            warn(texts)

    def _clear_failure(self, error: BaseException) -> None:
        """Report an error to the writer now: its next call need not raise it, unless later calls were dropped."""
        with self._connection.lock:
            if self.window.failure is error and not self.window.behind:
                self.window.failure = None

    def _raise_failure(self) -> None:
        if self._warnings:
            self._warn()
        if (failure := self.window.take_failure()) is not None:
            raise failure
        if self.broken is not None:
            raise self.broken

    def _wait(self, done: Callable[[], bool], deadline: Deadline, what: str) -> None:
        """Wait until `done()`, and read messages meanwhile.

        Raises: Timeout, NodeUnavailable: not in time. The error that broke the writer.
        """
        if done():
            return
        log_at = deadline.began + LOG_SECONDS
        shared, wakeup = self._connection, self._connection.enter()
        try:
            while not done():
                if self.broken is not None:
                    raise self.broken
                now = time.monotonic()
                silent = now - max(self._heard, deadline.began)
                lost = self._connection.connection is None
                if deadline.over() or (lost and deadline.is_hopeless(silent)):
                    raise self._late(what, deadline, silent, lost)
                if now >= log_at:
                    log_at += LOG_SECONDS
                    passed, node = deadline.passed, self._channel.node
                    logger.warning(
                        "%s of %s has waited %.0f s for node %s: %s", what, self._what, passed, node, self._reason
                    )
                left = deadline.left
                seconds = _SLICE_SECONDS if left is None else min(_SLICE_SECONDS, left + 0.05)
                shared.waited_for = True
                patience = now + LOST_SECONDS if left is None else deadline.end
                if not shared.read(seconds, patience) and not done():
                    wakeup.wait(seconds)
        except BaseException as error:  # what is no Exception is Ctrl-C
            self.interrupted = not isinstance(error, Exception)
            raise
        finally:
            shared.leave(wakeup)

    def _late(self, what: str, deadline: Deadline, silent: float, lost: bool) -> StoreError:
        """The error of a wait that is over."""
        node = f"node {self._channel.node}"
        calls = len(self.window) + len(self._asked)
        reason = self._reason or ("a call is not acknowledged" if calls == 1 else f"{calls} calls are not acknowledged")
        if lost:
            return NodeUnavailable(f"{what} of {self._what}: {node} does not answer: {reason}")
        culprit = f"{node}, silent for {silent:.0f} s" if silent > 1.5 else node
        text = f"{what} of {self._what} timed out after {deadline.timeout:g} s"
        return Timeout(text, reason, culprit)

    # -- what is sent and read ----------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether there may be a message to send."""
        return bool(self._due) or self.window.may_send()

    def next_message(self) -> Outgoing | None:
        """The next message to send; None: there is none."""
        if self._due:
            request = self._due.popleft()
            asked = self._asked.get(request)
            if asked is None or _is_judged(asked.call):
                return None
            return Outgoing(Kind.CALL, request, asked.meta, list(asked.body))
        frame = self.window.next_frame()
        if frame is None:
            return None
        meta, runs = frame
        return Outgoing(Kind.APPEND, 0, meta, body_of(runs))

    def read(self) -> bool:
        """For the pipe's own thread: read a message, or reconnect. False: the writer has ended."""
        shared = self._connection
        if shared.closed or self._left():
            return False
        if shared.connection is None:
            return self._again()
        if shared.waited_for and not shared.torn:
            shared.waited_for = False
            shared.nap.wait(NAP_SECONDS)
        elif not shared.read(_SLICE_SECONDS, None):
            shared.nap.wait(NAP_SECONDS)
        return True

    def lost(self, error: StoreError | Disconnected) -> None:
        """Note that the connection has ended; the pipe's own thread reconnects."""
        self._reason = str(error)
        if self.window.is_refused(time.monotonic() - self._heard):
            self.broken = NodeUnavailable(
                f"{self._what}: the agent at {self._channel.node} closes the connection whenever it gets call "
                f"{self.window.first}",
                remedy="the agent's log says why; check that agent and client have the same version",
            )
            self._connection.closed = True

    def take(self, message: Message) -> None:
        """Take a received message."""
        self._heard = time.monotonic()
        if message.kind == Kind.ACKNOWLEDGE:
            self._note(decoded(Acknowledgement, message.meta), message.body)
        elif message.kind == Kind.WAITING:
            self._reason = decoded(Waiting, message.meta).reason
        elif message.kind in (Kind.ANSWER, Kind.ERROR):
            with self._connection.lock:
                self._answers[message.request] = message
                self._connection.closed = self._connection.closed or message.request == self._last
        else:
            raise CorruptData(f"a writer received a message of kind {message.kind}", remedy="")

    def _note(self, done: Acknowledgement, body: Array) -> None:
        """Calls are done."""
        failure, told = failed(done.failure, self._channel.node) if done.failure else (None, [])
        with self._connection.lock:
            self.window.note(done, body, failure)
            self._warnings += done.warnings + told
            self._reason = ""

    # -- connecting again ---------------------------------------------------------------------------------------

    def _again(self) -> bool:
        """Reconnect, and send all calls without an acknowledgement again."""
        try:
            connection, found = self._open(begins=False, deadline=Deadline(CONNECT_SECONDS))
        except (Disconnected, NodeUnavailable) as error:
            self._reason = str(error)
            self._connection.nap.wait(0.1)
            return not self._connection.closed
        except (StoreError, ValueError, TypeError) as error:
            self.broken = error
            self._connection.wake()
            return False
        with self._connection.lock:
            if found["fresh"]:
                self._begin_anew(found["marks"])
            else:
                self.window.resume(found["done"], found["epoch"])
            self._due = deque(self._asked)
            self._connection.install(connection)
            self._heard = time.monotonic()
        self._connection.wake()
        self._connection.pump()
        return True

    def _begin_anew(self, marks: dict[str, Any]) -> None:
        """Continue with another agent: the dead agent's writer and its open episodes are lost."""
        self.reported = {}
        asked = [each.call for each in self._asked.values() if each.call is not None]
        if self.window.begin_anew(marks, asked, self._channel.node) or self.lanes.any_cut:
            self.lanes.tell(self._what, self._channel.node)


class _Asked(NamedTuple):
    """A call that a thread waits for: its frame and its lanes."""

    meta: bytes
    body: list[bytes]
    call: Sent | None


def _is_judged(call: Sent | None) -> bool:
    """Whether a call's outcome is known without an answer."""
    return call is not None and (call.made is not None or call.error is not None)


def _read_on(reference: weakref.ref[WriterPipe]) -> None:
    """The reader's thread; it does not keep the pipe alive."""
    while True:
        pipe = reference()
        if pipe is None:
            return
        try:
            if not pipe.read():
                return
        except Exception as error:  # nobody would read any more: whoever waits hears of it
            pipe.close(error)
            return
        del pipe
