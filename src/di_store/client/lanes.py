"""Lanes of a remote writer that are in the middle of an episode, and the rows to drop when its agent dies.

The agent's writer dies with the agent, and so do the open episodes. Further rows of such an episode would make windows
over a hole. So rows of the lane are dropped until its next episode begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from di_store.base.dtypes import Array
from di_store.base.warned import warn
from di_store.client.forms import Block, CallForm
from di_store.protocol.connection import Message
from di_store.protocol.frame import Buffer
from di_store.protocol.rows import Made, Record

Meta: TypeAlias = bytes  # `Sent.bytes` hides the name


@dataclass(eq=False)
class Sent:
    """One call of a writer.

    Attributes:
        record: record of the call, as it is sent.
        arrays: arrays in the order of `record.groups`; each has the leading axes `record.lead`.
        which: the lanes of the call, int64[k].
        ends: bool[k]: whether the lane's episode has ended after it.
        bytes: bytes of the arrays.
        made: keys, lanes and starts of its items by table; or the results of several calls, among which this call is
            number `place`. None: not acknowledged yet.
        error: error of the call.
        message: meta and body of a call of any form, for whose answer a thread waits; None once there is one.
        answer: this answer.
        row_ends: bool[T, k] of an `extend`: whether the lane's episode has ended after each row.
    """

    record: Record
    arrays: list[Array]
    which: Array
    ends: Array
    bytes: int = 0
    made: list[tuple[Array, Array, Array]] | Made | None = None
    place: int = 0
    error: BaseException | None = field(default=None, repr=False)
    row_ends: Array | None = None
    answer: Message | None = None
    message: tuple[Meta, list[Buffer]] | None = None

    def __post_init__(self) -> None:
        self.bytes = sum(each.nbytes for each in self.arrays)

    @property
    def is_done(self) -> bool:
        """Whether the call's outcome is known."""
        return self.made is not None or self.error is not None or self.answer is not None

    @property
    def rows(self) -> int:
        """Number of steps that the call adds, over all lanes."""
        if self.record.method not in ("append", "extend"):
            return 0
        return len(self.which) * (self.record.lead[0] if self.record.method == "extend" else 1)

    def behind_end(self, place: int) -> Sent | None:
        """The rows of one of its lanes after the lane's first end of an episode; None: no such rows."""
        if self.row_ends is None or not self.row_ends[:, place].any():
            return None
        first = int(self.row_ends[:, place].argmax()) + 1
        total = self.record.lead[0] - first
        if not total:
            return None
        several = len(self.record.lead) == 2
        arrays = [np.ascontiguousarray(each[first:, place] if several else each[first:]) for each in self.arrays]
        priority = priority_behind(self.record.priority, first, place)
        lane = int(self.which[place]) if several else None
        record = Record(0, "extend", [total], self.record.groups, lane, priority)
        ends = self.row_ends[first:, place : place + 1]
        return Sent(record, arrays, self.which[place : place + 1], ends[-1], row_ends=ends)


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


class OpenLanes:
    """The lanes of one writer.

    Attributes:
        spans: whether an example can span several rows. If not, a cut does no harm, and no row is dropped.
        any_cut: whether rows of a lane are dropped now.
        dropped: number of rows that were dropped.
        ends: whether this writer marks the ends of episodes. If not, everything is one episode, and a cut begins
            another one.
    """

    def __init__(self, lanes: int, *, spans: bool) -> None:
        self.spans = spans
        self.ends = False
        self.every: Array = np.arange(lanes)
        self._open: Array = np.zeros(lanes, np.bool_)  # after the last call that was acknowledged
        self._cut: Array = np.zeros(lanes, np.bool_)
        self.any_cut = False
        self.dropped = 0
        self._told = False

    def acknowledge(self, call: Sent) -> None:
        """Note that a call is done."""
        if self.spans:
            self._open[call.which] = ~call.ends

    def cut_open(self) -> None:
        """Cut the lanes with open episodes, because their writer at the agent is gone."""
        if self.spans and self.ends:
            self._cut |= self._open
            self.any_cut = bool(self._cut.any())
        self._open[:] = False

    def whole(self, call: Sent) -> Array:
        """bool[k]: whether the rows of each lane of a call are kept."""
        return ~self._cut[call.which]

    def without_cut(self, call: Sent) -> list[Sent]:
        """Remove the rows of cut lanes from a call. Lanes whose episode ends in the call are no longer cut.

        If nothing is left, the call is done: `made` is empty. Returns further calls, with the rows after such ends.
        """
        cut: Array = self._cut[call.which]
        extends = call.record.method == "extend"
        if not cut.any():
            return []
        rest = [made for place in np.flatnonzero(cut) if (made := call.behind_end(int(place))) is not None]
        whole = call.ends if call.row_ends is None else call.row_ends.any(axis=0)
        self._cut[call.which[whole]] = False
        self.any_cut = bool(self._cut.any())
        rows = int(cut.sum()) * (call.record.lead[0] if extends else 1) - sum(each.record.lead[0] for each in rest)
        self.dropped += rows if call.record.method != "end_episode" else 0
        if cut.all():
            call.made = []
            return rest
        axis = 1 if extends else 0
        call.arrays = [np.compress(~cut, each, axis=axis) for each in call.arrays]
        call.which, call.ends = call.which[~cut], call.ends[~cut]
        call.row_ends = None if call.row_ends is None else call.row_ends[:, ~cut]
        call.record.lane = call.which.tolist()
        if len(call.record.lead) > axis:
            call.record.lead = [*call.record.lead[:axis], len(call.which), *call.record.lead[axis + 1 :]]
        call.record.priority = _without(call.record.priority, cut, axis)
        call.bytes = sum(each.nbytes for each in call.arrays)
        return rest

    def tell(self, what: str, node: str) -> None:
        """Warn, once, that rows are dropped."""
        if self._told:
            return
        self._told = True
        warn(
            f"{what}: the agent at {node} was restarted; open episodes are cut off, and rows are dropped "
            "until each lane begins a new episode"
        )


def _without(priority: Any, cut: Array, axis: int) -> Any:
    """Priorities of the lanes that are left."""
    if isinstance(priority, dict):
        return {name: _without(each, cut, axis) for name, each in priority.items()}
    given: Array = np.asarray(priority)
    if priority is None or given.ndim <= axis or given.shape[axis] != len(cut):
        return priority
    return np.compress(~cut, given, axis=axis).tolist()


def priority_behind(priority: Any, first: int, place: int) -> Any:
    """Priorities of the lane at a place, from row `first` on: they are of each row, or of each row and lane."""
    if isinstance(priority, dict):
        return {name: priority_behind(each, first, place) for name, each in priority.items()}
    if priority is None or np.ndim(priority) == 0:
        return priority
    rows = np.asarray(priority)[first:]
    return (rows if rows.ndim == 1 else rows[:, place if rows.shape[1] > 1 else 0]).tolist()
