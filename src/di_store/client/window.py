"""The calls of a remote writer in flight: which may be sent, which are done, which are sent again.

This code has no sockets, threads or clock: the pipe calls it under its lock, and a simulation can too. A signal handler
may raise in the middle of `push`, `next_frame` or `note`; `resume` and `begin_anew` then repair the state.
"""

from __future__ import annotations

from collections import deque

from di_store.base.dtypes import Array
from di_store.base.errors import NodeUnavailable, StoreError
from di_store.client.frames import meta_of, runs_of
from di_store.client.lanes import OpenLanes, Row, Sent
from di_store.protocol.frame import MAX_META_BYTES
from di_store.protocol.rows import Acknowledgement

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
        behind: number of calls dropped because of the failure.
    """

    def __init__(self, lanes: OpenLanes, most_calls: int) -> None:
        self.lanes = lanes
        self.most_calls = most_calls
        self.acknowledged = 0
        self.epoch = 0
        self.failure: BaseException | None = None
        self.behind = 0
        self._number = 0  # the last that was given out; a call that was interrupted leaves a gap
        self._sent: deque[Sent] = deque()  # not acknowledged yet, in order
        self._unsent: deque[Sent] = deque()  # of these, what has not been sent on this connection
        self._bytes = 0
        self._unsent_bytes = 0
        self._enough = max(1, most_calls // 2)  # calls for a frame beside others
        self._frames = 0  # sent and not acknowledged
        self._refused: int | None = None  # the first call when the connection broke
        self._refusals = 0

    def __len__(self) -> int:
        return len(self._sent)

    def is_refused(self, lasted_seconds: float) -> bool:
        """Note that the connection broke. Returns whether it broke each time that the same call was sent."""
        again = self._sent and self.first == self._refused and lasted_seconds < 1.0
        self._refusals = self._refusals + 1 if again else 0
        self._refused = self.first
        return self._refusals >= MOST_REFUSALS

    @property
    def first(self) -> int | None:
        """Number of the first call that is not acknowledged."""
        return self._sent[0].record.seq if self._sent else None

    @property
    def rows(self) -> int:
        """Number of rows that are not acknowledged."""
        return sum(each.rows for each in self._sent)

    def has_room(self) -> bool:
        """Whether one more call may be in flight."""
        return len(self._sent) < self.most_calls and self._bytes < WINDOW_BYTES

    def next_number(self) -> int:
        """The number of the next call."""
        self._number += 1
        return self._number

    def push(self, call: Sent) -> None:
        """Add a call to send."""
        self._number = call.record.seq = self._number + 1
        self._bytes += call.bytes
        self._unsent_bytes += call.bytes
        self._sent.append(call)
        self._unsent.append(call)

    def may_send(self) -> bool:
        """Whether there is a frame to send: at once if no frame is in flight, otherwise once there are enough calls."""
        return self.has_frame() and self._frames < _FRAMES

    def has_frame(self) -> bool:
        """Whether there are enough calls for a frame, even if others must be acknowledged first."""
        if not self._unsent or not self._frames:
            return bool(self._unsent)
        return len(self._unsent) >= self._enough or self._unsent_bytes >= FRAME_BYTES

    def is_under_way(self) -> bool:
        """Whether a frame was sent and is not acknowledged."""
        return self._frames > 0

    def next_frame(self) -> tuple[bytes, list[list[Sent]]] | None:
        """Meta of the next frame, and its calls, grouped by shared records; None: nothing to send."""
        found: list[Sent] = []
        size = 0
        while self._unsent and (not found or size + self._unsent[0].bytes <= FRAME_BYTES):
            found.append(self._unsent.popleft())
            size += found[-1].bytes
        if not found:
            return None
        runs = runs_of(found)
        meta = meta_of(self.epoch, self.acknowledged, runs)
        while len(meta) > MAX_META_BYTES and len(found) > 1:  # priorities and lanes lie in it
            for _ in range(len(found) // 2):
                size -= found[-1].bytes
                self._unsent.appendleft(found.pop())
            runs = runs_of(found)
            meta = meta_of(self.epoch, self.acknowledged, runs)
        self._unsent_bytes -= size
        self._frames += 1
        return meta, runs

    def note(self, done: Acknowledgement, body: Array, failure: BaseException | None) -> None:
        """Note that calls are done; `failure`: the error of the last one."""
        made = done.made(body)
        calls: list[Sent] = []
        for call in self._sent:
            if call.record.seq > done.last:
                break
            calls.append(call)
        self._frames = max(0, self._frames - 1)
        if failure is not None and calls and calls[-1].record.seq == done.last:
            calls.pop().error = failure
        self._acknowledge(calls)
        # What was made is of the last calls: this side may know of those before them already.
        for place, call in enumerate(calls, len(done.counts) - len(calls)):
            call.made = made if place >= 0 else []
            call.place = place
            if type(call) is Row:
                call.form = call.block = None  # whoever keeps the items does not keep the rows
        while self._sent and self._sent[0].record.seq <= done.last:
            self._bytes -= self._sent.popleft().bytes
        if failure is not None:
            self._drop_behind(failure)
        self.epoch = max(self.epoch, done.epoch)
        self.acknowledged = max(self.acknowledged, done.last)

    def take_failure(self) -> BaseException | None:
        """The error of a call that nobody waited for. It counts as reported now."""
        failure, self.failure = self.failure, None
        return failure

    def _acknowledge(self, calls: list[Sent]) -> None:
        """Note which lanes are open after these calls."""
        every, some = self.lanes.every, []
        for call in reversed(calls):
            some.append(call)
            if call.which is every:  # whatever came before is of no interest
                break
        for call in reversed(some):
            self.lanes.acknowledge(call)

    def _drop_behind(self, failure: BaseException) -> None:
        """Note a failed call: the agent does not make the calls that were sent after it."""
        for call in self._sent:
            call.error = StoreError(f"an earlier call of this writer has failed, so this one was not made: {failure}")
        self.behind = len(self._sent)
        self._sent.clear()
        self._unsent.clear()
        self._bytes, self._unsent_bytes, self._frames = 0, 0, 0
        self.failure = failure

    def resume(self, done: int, epoch: int) -> None:
        """Continue with the same agent on another connection; the agent has processed the calls up to `done`."""
        self._frames = 0
        self.epoch = max(self.epoch, epoch)
        self._forget_known()
        self._unsent = deque(each for each in self._sent if each.record.seq > done)
        self._count_bytes()

    def _forget_known(self) -> None:
        """Drop calls whose acknowledgement was being noted when a signal handler raised."""
        self._sent = deque(each for each in self._sent if each.made is None)

    def _count_bytes(self) -> None:
        self._bytes = sum(each.bytes for each in self._sent)
        self._unsent_bytes = sum(each.bytes for each in self._unsent)

    def begin_anew(self, marks: Marks, asked: list[Sent], node: str) -> int:
        """Continue with another agent. The dead agent's writer and its open episodes are lost.

        Args:
            marks: the marks that the dead agent left in shared memory.
            asked: calls outside the window, for which threads wait; they are judged like the others.
            node: the agent's host and port, for errors.

        Returns:
            How many rows were dropped. A call that need not be sent again has `made` or `error`.
        """
        self.epoch, self._frames = 0, 0
        self._forget_known()
        last = max((seq for seq, _, _ in marks.values()), default=0)
        # A call that made no item in a table has left its mark alone; so has one that was killed between two tables.
        whole = all(seq == last and complete for seq, _, complete in marks.values())
        kept: list[Sent] = []
        for call in (*self._sent, *asked):
            seq = call.record.seq
            if seq < last or (seq == last and whole):
                call.made = []
            elif seq == last:
                call.error = NodeUnavailable(
                    f"the agent at {node} was killed during this call: some of its items may have been written",
                    remedy="table.keys() lists them; the call is not sent again",
                )
                call.error.may_be_done = True
            else:
                kept.append(call)
                continue
            self.lanes.acknowledge(call)
            self.acknowledged = max(self.acknowledged, seq)
        self.lanes.cut_open()
        before, every = self.lanes.dropped, []
        for call in kept:
            lanes = len(call.which)
            every += [call, *self.lanes.without_cut(call)]
            if call in asked and call.made is None and len(call.which) < lanes:  # its frame holds all of them
                call.error = NodeUnavailable(
                    f"the agent at {node} was killed before this call, and some of its lanes are cut off: "
                    "it was not made",
                    remedy="repeat the call: it leaves out the lanes that are cut off",
                )
        self._sent = deque(call for call in every if call.made is None and call not in asked)
        for call in self._sent:  # what is left of a call may be more than one
            call.record.seq = self.next_number()
        self._unsent = deque(self._sent)
        self._count_bytes()
        return self.lanes.dropped - before
