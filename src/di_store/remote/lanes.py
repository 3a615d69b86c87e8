"""Which lanes of a remote writer are in the middle of an episode, and what is dropped when its agent dies.

The agent's writer dies with it, and with that the open episodes: whatever follows in the middle of one would make
windows over a hole. So the rows of such a lane are dropped until its next episode begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from di_store.base.dtypes import Array
from di_store.base.warned import warn
from di_store.wire.rows import Record


@dataclass(eq=False)
class Sent:
    """One call of a writer.

    Attributes:
        record: as it travels.
        arrays: in the order of `record.groups`; each has the leading axes `record.lead`.
        which: the lanes that it concerns, int64[k].
        ends: bool[k]: whether the lane's episode has ended after it.
        bytes: of the arrays.
        made: by table, keys, lanes and starts; None: not acknowledged yet.
        error: what it has raised.
    """

    record: Record
    arrays: list[Array]
    which: Array
    ends: Array
    bytes: int = 0
    made: list[tuple[Array, Array, Array]] | None = None
    error: BaseException | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.bytes = sum(each.nbytes for each in self.arrays)


class OpenLanes:
    """The lanes of one writer.

    Attributes:
        spans: whether an example can span several rows: else a cut harms nothing, and no row is dropped.
        ends: whether this writer says where episodes end. If not, all is one episode, and a cut begins another one.
    """

    def __init__(self, lanes: int, *, spans: bool) -> None:
        self.spans = spans
        self.ends = False
        self.every: Array = np.arange(lanes)
        self._open: Array = np.zeros(lanes, np.bool_)  # after the last call that was acknowledged
        self._cut: Array = np.zeros(lanes, np.bool_)
        self.dropped = 0
        self._told = False

    def acknowledge(self, call: Sent) -> None:
        """A call is done."""
        self._open[call.which] = ~call.ends

    def any_cut(self) -> bool:
        """Whether rows of a lane are dropped now."""
        return bool(self._cut.any())

    def cut_open(self) -> None:
        """The writer that these lanes had is gone."""
        if self.spans and self.ends:
            self._cut |= self._open
        self._open[:] = False

    def without_cut(self, call: Sent) -> int:
        """Take the rows of cut lanes out of a call; lanes whose episode ends with it are whole again.

        Returns how many rows were dropped. A call of which nothing is left is done: `made` is empty.
        """
        # mutant: a-cut-lane-goes-on-in-mid-episode
        cut: Array = self._cut[call.which]
        self._cut[call.which[call.ends]] = False
        if not cut.any():
            return 0
        rows = int(cut.sum()) * (call.record.lead[0] if call.record.method == "extend" else 1)
        self.dropped += rows if call.record.method != "end_episode" else 0
        if cut.all():
            call.made = []
            return rows
        axis = 1 if call.record.method == "extend" else 0
        call.arrays = [np.compress(~cut, each, axis=axis) for each in call.arrays]
        call.which, call.ends = call.which[~cut], call.ends[~cut]
        call.record.lane = call.which.tolist()
        if len(call.record.lead) > axis:
            call.record.lead[axis] = len(call.which)
        if isinstance(call.record.priority, list):
            call.record.priority = _without(call.record.priority, cut, axis)
        call.bytes = sum(each.nbytes for each in call.arrays)
        return rows

    def tell(self, what: str, node: str) -> None:
        """Warn, once, that rows are dropped."""
        if self._told:
            return
        self._told = True
        warn(
            f"{what}: the agent at {node} was started anew, and the episodes that were open there are cut: their rows "
            "are dropped until the next episode of each lane begins"
        )


def _without(priority: list[Any], cut: Array, axis: int) -> list[Any]:
    given = np.asarray(priority, np.float64)
    return np.compress(~cut, given, axis=axis).tolist() if given.ndim > axis else priority
