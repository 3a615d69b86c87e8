"""The calls of a remote writer, and the messages in which they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np

from di_store.base.dtypes import Array
from di_store.client.forms import Block, CallForm
from di_store.client.lanes import WriterLanes, priority_behind
from di_store.protocol.connection import Message
from di_store.protocol.frame import Buffer, Kind
from di_store.protocol.rows import ALIGNMENT, Made, Record, Records
from di_store.protocol.values import padded


class Outgoing(NamedTuple):
    """A message that is to be sent."""

    kind: Kind
    request: int
    meta: bytes
    body: list[Buffer]


@dataclass(eq=False)
class Sent:
    """One call of a writer.

    Attributes:
        record: record of the call, as it is sent.
        arrays: arrays in the order of `record.groups`; each has the leading axes `record.lead`.
        which: the lanes of the call, int64[k].
        ends: bool[T, k]: whether each lane's episode has ended after each row.
        bytes: bytes of the arrays.
        made: keys, lanes and starts of its items by table; or the results of several calls, among which this call is
            number `place`. None: not acknowledged yet.
        error: error of the call.
        message: the message of a call of any form, for whose answer a thread waits; None once there is one.
        answer: this answer.
    """

    record: Record
    arrays: list[Array]
    which: Array
    ends: Array
    bytes: int = 0
    made: list[tuple[Array, Array, Array]] | Made | None = None
    place: int = 0
    error: BaseException | None = field(default=None, repr=False)
    message: Outgoing | None = None
    answer: Message | None = None

    def __post_init__(self) -> None:
        self.bytes = sum(each.nbytes for each in self.arrays)

    @property
    def is_done(self) -> bool:
        """Whether the call's outcome is known."""
        return self.made is not None or self.error is not None or self.answer is not None

    @property
    def has_rows(self) -> bool:
        """Whether the call adds rows."""
        return self.record.method in ("append", "extend")

    @property
    def rows(self) -> int:
        """Number of steps that the call adds, over all lanes."""
        return self.ends.size if self.has_rows else 0

    def note(self, lanes: WriterLanes) -> None:
        """Note which lanes are open after the call."""
        if self.has_rows:
            lanes.wrote(self.which, self.ends)
        else:
            lanes.begin(self.which)

    def without_cut(self, lanes: WriterLanes) -> list[Sent]:
        """Remove the rows of cut lanes. Lanes whose episode ends in the call are no longer cut.

        If nothing is left, the call is done: `made` is empty. Returns further calls, with the rows after such ends.
        """
        cut = lanes.is_cut(self.which)
        if not cut.any():
            return []
        rest: list[Sent] = []
        if self.has_rows:
            found = lanes.drop(self.which, cut, self.ends, divides=bool(self.arrays))  # else a thread has the rows
            rest = [self._behind(*each) for each in found]
        else:
            lanes.begin(self.which)
        if cut.all():
            self.made = []
        else:
            self._keep(~cut)
        return rest

    def _keep(self, kept: Array) -> None:
        """Remove the rows of other lanes than these, bool[k]."""
        record, axis = self.record, int(self.record.method == "extend")
        self.arrays = [np.compress(kept, each, axis=axis) for each in self.arrays]
        self.which, self.ends = self.which[kept], self.ends[:, kept]
        record.lane = self.which.tolist()
        if len(record.lead) > axis:
            record.lead = [*record.lead[:axis], len(self.which), *record.lead[axis + 1 :]]
        record.priority = _kept(record.priority, kept, axis)
        self.bytes = sum(each.nbytes for each in self.arrays)

    def _behind(self, place: int, first: int) -> Sent:
        """The rows of one of its lanes from row `first` on."""
        several = len(self.record.lead) == 2
        arrays = [np.ascontiguousarray(each[first:, place] if several else each[first:]) for each in self.arrays]
        priority = priority_behind(self.record.priority, first, place)
        lane = int(self.which[place]) if several else None
        record = Record(0, "extend", [len(self.ends) - first], self.record.groups, lane, priority)
        return Sent(record, arrays, self.which[place : place + 1], self.ends[first:, place : place + 1])


class Row(Sent):
    """One call whose values lie in a block.

    Attributes:
        form: form of the call; None once it has arrays of its own, or is acknowledged.
        block: block with its values.
        at: its place there.
    """

    def __init__(self, record: Record, form: CallForm, block: Block, at: int, which: Array, ends: Array) -> None:
        self.record = record
        self.form: CallForm | None = form
        self.block: Block | None = block
        self.at = at
        self.which = which
        self.ends = ends
        self.bytes = form.stride

    @property
    def arrays(self) -> list[Array]:
        """Its own arrays, or those in its block."""
        own: list[Array] | None = self.__dict__.get("_own")
        if own is not None:
            return own
        return [] if self.block is None else self.block.arrays(self.at)

    @arrays.setter
    def arrays(self, arrays: list[Array]) -> None:
        self.form = self.block = None
        self._own = arrays

    def follows(self, other: Row) -> bool:
        """Whether the call can share a record with the previous one."""
        if self.block is not other.block or self.at != other.at + 1:  # a block is of one form
            return False
        mine, its = self.record, other.record
        return mine.seq == its.seq + 1 and mine.lane == its.lane and mine.priority == its.priority


def _kept(priority: Any, kept: Array, axis: int) -> Any:
    """Priorities of the lanes that are left."""
    if isinstance(priority, dict):
        return {name: _kept(each, kept, axis) for name, each in priority.items()}
    given: Array = np.asarray(priority)
    if priority is None or given.ndim <= axis or given.shape[axis] != len(kept):
        return priority
    return np.compress(kept, given, axis=axis).tolist()


def runs_of(calls: Sequence[Sent]) -> list[list[Sent]]:
    """The calls, in order, grouped into runs that share a record."""
    runs: list[list[Sent]] = []
    last: Row | None = None
    for call in calls:
        row = call if type(call) is Row and call.form is not None else None
        if row is not None and last is not None and row.follows(last):
            runs[-1].append(row)
        else:
            runs.append([call])
        last = row
    return runs


def meta_of(epoch: int, acknowledged: int, runs: list[list[Sent]]) -> bytes:
    """Meta of the frame."""
    records = []
    for run in runs:
        record = run[0].record
        if len(run) > 1:
            record = Record(
                record.seq, record.method, record.lead, record.groups, record.lane, record.priority, count=len(run)
            )
        records.append(record)
    return msgspec.msgpack.encode(Records(epoch, acknowledged, records))


def body_of(runs: list[list[Sent]]) -> list[Buffer]:
    """Body of the frame: calls in blocks are sent from where they lie."""
    body: list[Buffer] = []
    for run in runs:
        first = run[0]
        if type(first) is Row and first.block is not None:
            body.append(first.block.bytes(first.at, len(run)))
        else:
            body += padded(first.arrays, ALIGNMENT)
    return body
