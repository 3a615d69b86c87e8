"""The calls of a remote writer in flight: which may be sent, which are done, which are sent again.

Every call has a number. The agent makes each numbered call once, in order. Calls without an acknowledgement stay here.
After a broken connection they are sent again, to the same agent. After a kill they are sent to its successor, which
reads the dead agent's progress from shared memory.

This code has no sockets, threads or clock: the pipe calls it under its lock, and a simulation can too. A signal handler
may raise in the middle of `push`, `next_message` or `note`; `resume` and `begin_anew` then repair the state.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from di_store.base.dtypes import Array
from di_store.base.errors import NodeUnavailable, StoreError
from di_store.client.lanes import WriterLanes
from di_store.client.writer_calls import Outgoing, Row, Sent, body_of, meta_of, runs_of
from di_store.protocol.connection import Message
from di_store.protocol.frame import MAX_META_BYTES, Kind
from di_store.protocol.rows import Acknowledgement
from di_store.protocol.values import call_of

WINDOW_BYTES = 8 << 20
"""The most bytes on their way to the agent: further appends wait."""
FRAME_BYTES = 512 << 10
"""Calls are sent together in frames of up to so many bytes."""
MOST_REFUSALS = 20
"""How often in a row a connection may break at the same call."""
_FRAMES = 4  # on their way at most; while one is, calls gather for the next, up to their share of the window

Marks = dict[str, tuple[int, int, bool]]
"""By table, the last call whose items are there, how many of them, and whether all."""


class SendWindow:
    """The calls of one writer, in order.

    Attributes:
        lanes: which lanes are in the middle of an episode.
        most_calls: number of calls that may be in flight.
        acknowledged: number of the last call that is known to be done.
        epoch: number of failed calls. After a failure the agent skips calls until the client has acknowledged the
            failure.
        failure: error of a call for which nobody waited; the writer's next call raises it.
    """

    def __init__(self, lanes: WriterLanes, most_calls: int) -> None:
        self.lanes = lanes
        self.most_calls = most_calls
        self.acknowledged = 0
        self.epoch = 0
        self.failure: BaseException | None = None
        self._number = 0  # the last that was given out; a call that was interrupted leaves a gap
        self._calls: list[Sent] = []  # not acknowledged yet, in order
        self._sent = 0  # how many of these were sent on this connection
        self._bytes = 0  # of all calls
        self._unsent_bytes = 0
        self._enough = max(1, most_calls // 2)  # calls for a frame beside others
        self._frames = 0  # sent and not acknowledged
        self._refused: int | None = None  # the first call when the connection broke
        self._refusals = 0

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def first(self) -> int | None:
        """Number of the first call that is not acknowledged."""
        return self._calls[0].record.seq if self._calls else None

    @property
    def rows(self) -> int:
        """Number of rows that are not acknowledged."""
        return sum(each.rows for each in self._calls)

    def has_room(self) -> bool:
        """Whether one more call may be in flight."""
        return len(self._calls) < self.most_calls and self._bytes < WINDOW_BYTES

    def is_under_way(self) -> bool:
        """Whether a frame was sent and is not acknowledged."""
        return self._frames > 0

    # -- what is sent -------------------------------------------------------------------------------------------

    def push(self, call: Sent) -> None:
        """Add a call to send."""
        self._number = call.record.seq = self._number + 1
        self._bytes += call.bytes
        self._unsent_bytes += call.bytes
        self._calls.append(call)

    def push_whole(self, call: Sent) -> None:
        """Add a call to send, without its rows of cut lanes."""
        for each in (call, *call.without_cut(self.lanes)):
            if each.made is None:
                self.push(each)

    def ask(self, call: Sent, arguments: dict[str, Any], timeout: float | None) -> None:
        """Add a call of any form, whose thread waits until it has no `message` any more. No other call is in flight.

        If it is not done then, the connection broke before it was made, and the thread asks again.
        """
        seq = call.record.seq = call.record.seq or self._number + 1
        self._number = max(self._number, seq)
        counted = {} if call.record.method == "note_version" else {"seq": seq, "timeout": timeout}
        meta, body = call_of(call.record.method, "", {**arguments, **counted}, once=False)
        call.message = Outgoing(Kind.CALL, seq, meta, body)
        self._calls.append(call)

    def give_up(self) -> None:
        """Drop all calls: who waited for one has given it up. The connection must end too, before another call."""
        self._calls = []
        self._count()

    def has_frame(self) -> bool:
        """Whether there are enough calls for a frame, even if others must be acknowledged first."""
        unsent = len(self._calls) - self._sent
        return unsent >= self._enough or self._unsent_bytes >= FRAME_BYTES or (unsent > 0 and not self._frames)

    def next_message(self) -> Outgoing | None:
        """The next message; None: none may be sent now.

        At once if no frame is in flight, otherwise once there are enough calls.
        """
        if self._frames >= _FRAMES or not self.has_frame():
            return None
        unsent = self._calls[self._sent :]
        if unsent[0].message is not None:
            self._count_sent(unsent)
            return unsent[0].message
        size = most = 0
        for call in unsent:
            size += call.bytes
            if size > FRAME_BYTES and most:
                break
            most += 1
        runs = runs_of(unsent[:most])
        meta = meta_of(self.epoch, self.acknowledged, runs)
        while len(meta) > MAX_META_BYTES and most > 1:  # priorities and lanes lie in it
            most -= most // 2
            runs = runs_of(unsent[:most])
            meta = meta_of(self.epoch, self.acknowledged, runs)
        self._count_sent(unsent[:most])
        return Outgoing(Kind.APPEND, 0, meta, body_of(runs))

    def _count_sent(self, calls: list[Sent]) -> None:
        self._sent += len(calls)
        self._unsent_bytes -= sum(each.bytes for each in calls)
        self._frames += 1

    # -- what is done -------------------------------------------------------------------------------------------

    def note(self, done: Acknowledgement, body: Array, failure: BaseException | None) -> None:
        """Note that calls are done; `failure`: the error of the last one."""
        made, calls = done.made(body), list[Sent]()
        for call in self._calls:
            if call.record.seq > done.last:
                break
            calls.append(call)
        count = len(calls)
        if failure is not None and calls and calls[-1].record.seq == done.last:
            calls.pop().error = failure
        self._acknowledge(calls)
        # What was made is of the last calls: this side may know of those before them already.
        for place, call in enumerate(calls, len(done.counts) - len(calls)):
            call.made = made if place >= 0 else []
            call.place = place
            if type(call) is Row:
                call.form = call.block = None  # whoever keeps the items does not keep the rows
            else:
                call.message = None
        self._drop(count)
        if failure is not None:
            self._drop_behind(failure)
        self.epoch = max(self.epoch, done.epoch)
        self.acknowledged = max(self.acknowledged, done.last)

    def answer(self, message: Message) -> Sent | None:
        """Note the answer to a call that a thread waits for. Returns the call; None: it was given up, or is done."""
        call = self._calls[0] if self._calls else None
        if call is None or call.message is None or call.record.seq != message.request:
            return None
        if message.kind == Kind.ANSWER:
            call.note(self.lanes)
            self.acknowledged = max(self.acknowledged, call.record.seq)
        call.answer, call.message = message, None
        self._drop(1)
        return call

    def _drop(self, count: int) -> None:
        """Drop the first calls, which are done."""
        self._sent = max(0, self._sent - count)  # first: between these steps, another thread may send what follows
        self._frames = max(0, self._frames - 1)
        self._bytes -= sum(each.bytes for each in self._calls[:count])
        del self._calls[:count]

    def take_failure(self) -> BaseException | None:
        """The error of a call that nobody waited for. It counts as reported now."""
        failure, self.failure = self.failure, None
        return failure

    def _acknowledge(self, calls: list[Sent]) -> None:
        """Note which lanes are open after these calls."""
        whole, first = 0, len(calls)
        while first and whole <= self.lanes.skips:  # whatever came before is of no interest
            first -= 1
            whole += calls[first].which is self.lanes.every and calls[first].has_rows
        for call in calls[first:]:
            call.note(self.lanes)

    def _drop_behind(self, failure: BaseException) -> None:
        """Note a failed call: the agent does not make the calls that were sent after it."""
        for call in self._calls:
            call.error = StoreError(f"an earlier call of this writer has failed, so this one was not made: {failure}")
        self.give_up()
        self.failure = failure

    # -- another connection -------------------------------------------------------------------------------------

    def is_refused(self, lasted_seconds: float) -> bool:
        """Note that the connection broke. Returns whether it broke each time that the same call was sent."""
        again = self._calls and self.first == self._refused and lasted_seconds < 1.0
        self._refusals = self._refusals + 1 if again else 0
        self._refused = self.first
        return self._refusals >= MOST_REFUSALS

    def resume(self, done: int) -> None:
        """Continue with the same agent on another connection; the agent has processed the calls up to `done`.

        It sends their acknowledgements again. It skips calls after a failed one until the next `epoch`, which begins
        when that acknowledgement is noted.
        """
        if self._calls and self._calls[0].message is not None and self._calls[0].record.seq > done:
            self._calls.pop(0).message = None  # its thread asks again, for the time that is left
        self._count(done)

    def _count(self, done: int = 0) -> None:
        """Count anew what is in flight.

        Calls whose acknowledgement was being noted when a signal handler raised are done.
        """
        self._calls = [each for each in self._calls if not each.is_done]
        self._sent = sum(each.record.seq <= done for each in self._calls)
        self._bytes = sum(each.bytes for each in self._calls)
        self._unsent_bytes = sum(each.bytes for each in self._calls[self._sent :])
        self._frames = 0

    def begin_anew(self, marks: Marks, what: str, node: str) -> None:
        """Continue with another agent. The dead agent's writer and its open episodes are lost.

        A call that need not be sent again has `made` or `error`.

        Args:
            marks: the marks that the dead agent left in shared memory.
            what: the writer, for warnings.
            node: the agent's host and port, for errors.
        """
        self.epoch = 0
        self._count()
        last = max((seq for seq, _, _ in marks.values()), default=0)
        # A call that made no item in a table has left its mark alone; so has one that was killed between two tables.
        whole = all(seq == last and complete for seq, _, complete in marks.values())
        kept: list[Sent] = []
        for call in self._calls:
            seq = call.record.seq
            if seq < last or (seq == last and whole):
                call.made = []
            elif seq == last:
                call.error = NodeUnavailable(
                    f"the agent at {node} was killed during this call: some of its items may have been written",
                    remedy="table.keys() lists them; the call is not sent again",
                )
                call.error.may_be_done = True
                if call.message is None:  # nobody waits for it
                    self.failure = call.error
            else:
                kept.append(call)
                continue
            call.message = None
            call.note(self.lanes)
            self.acknowledged = max(self.acknowledged, seq)
        self.lanes.cut(np.ones(len(self.lanes.every), np.bool_), f"{what}: the agent at {node} was restarted")
        self.give_up()
        for call in kept:
            if call.message is None:
                self.push_whole(call)
            call.message = None
