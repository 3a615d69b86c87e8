"""The lanes of a writer whose rows lie elsewhere, and the rows to drop when that place is lost.

The open episodes there are lost with an agent or a shard. Further rows of such an episode would make windows over a
hole. So rows of the lane are dropped until its next episode begins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from di_store._core import Autoreset
from di_store.base.dtypes import Array
from di_store.base.warned import warn
from di_store.columns.column import FLAGS
from di_store.replay.stream import check_lane


class WriterLanes:
    """The lanes of one writer.

    Attributes:
        every: all lanes, int64[lanes].
        any_cut: whether rows of a lane are dropped now.
        dropped: number of rows that were dropped.
        ends: whether this writer marks the ends of episodes. If not, everything is one episode, and a cut begins
            another one.
        skips: whether the row after the end of an episode is no step: see `Autoreset.NEXT_STEP`.
    """

    def __init__(self, lanes: int, autoreset: Autoreset, *, spans: bool) -> None:
        """Begin; `spans`: whether an example can span several rows. If not, a cut does no harm, and drops no step."""
        self.every: Array = np.arange(lanes)
        self.any_cut = False
        self.dropped = 0
        self.ends = False
        self.skips = autoreset == Autoreset.NEXT_STEP
        self._spans = spans
        self._open: Array = np.zeros(lanes, np.bool_)  # in the middle of an episode
        self._cut: Array = np.zeros(lanes, np.bool_)
        self._skip: Array = np.zeros(lanes, np.bool_)  # the next row is no step
        self._told = False

    # -- arguments of calls -------------------------------------------------------------------------------------

    def named(self, lane: Any) -> Array:
        """The lanes that `lane` names, int64[k]. Raises as `check_lane`."""
        if lane is None:
            return self.every
        check_lane(lane, len(self.every))
        named: Array = np.atleast_1d(np.asarray(lane))
        found: Array = np.flatnonzero(named) if named.dtype == np.bool_ else named.astype(np.int64)
        return found

    def ends_in(self, steps: Any, lanes: int, total: int | None) -> Array:
        """Whether each lane's episode has ended after each row, bool[rows, lanes]. `total`: rows of an `extend`."""
        found: Array = np.zeros((1 if total is None else total, lanes), np.bool_)
        for name in FLAGS if isinstance(steps, dict) else ():
            if (value := steps.get(name)) is not None:
                self.ends = True
                given = np.asarray(value).astype(np.bool_)
                if given.size in (1, found.size):
                    found |= given.reshape(found.shape if given.size == found.size else ())
        return found

    # -- what is written ----------------------------------------------------------------------------------------

    def wrote(self, which: Array, ends: Array) -> None:
        """Note that these lanes wrote rows; `ends` as `ends_in` returns it."""
        if not self.skips:
            self._open[which] = ~ends[-1]
            return
        before = ends[-2] if len(ends) > 1 else self._skip[which]
        self._open[which] = ~ends[-1] & ~before
        self._skip[which] = ends[-1]

    def begin(self, which: Array) -> None:
        """Note that the episodes of these lanes are over: cut lanes write again."""
        self._open[which] = False
        self._cut[which] = False
        self.any_cut = bool(self._cut.any())

    # -- what is lost -------------------------------------------------------------------------------------------

    def is_cut(self, which: Array) -> Array:
        """Whether each of these lanes now drops its rows, bool[k]."""
        cut: Array = self._cut[which]
        return cut

    def cut(self, mine: Array, why: str) -> Array:
        """Cut the lanes among these (bool[lanes]) whose next row begins no episode. Returns them, bool[lanes].

        The first time that an open episode is lost, a warning begins with `why`.
        """
        cut = mine & (self._open | self._skip) if self._spans and self.ends else mine & self._skip
        self._cut |= cut
        self._open[mine] = False
        self.any_cut = bool(self._cut.any())
        if (cut & ~self._skip).any() and not self._told:
            self._told = True
            warn(
                f"{why}; the open episodes of lanes {np.flatnonzero(cut).tolist()} are cut off, and rows are dropped "
                "until each of these lanes begins a new episode"
            )
        return cut

    def drop(self, which: Array, cut: Array, ends: Array, *, divides: bool = True) -> list[tuple[int, int]]:
        """Drop a call's rows of lanes that are cut.

        Args:
            which: the lanes of the call, int64[k].
            cut: bool[k]: those to look at.
            ends: as `ends_in` returns it.
            divides: whether the rows of episodes that begin in this call are kept.

        Returns:
            The places where such episodes begin: position in `which`, and row.
        """
        found: list[tuple[int, int]] = []
        for position in np.flatnonzero(cut).tolist():
            mine, first = which[position : position + 1], 0
            while first < len(ends) and (self._cut[mine[0]] or not divides):
                self._cut[mine] = True
                self._drop_row(mine, ends[first, position : position + 1])
                first += 1
            if first < len(ends):
                found.append((position, first))
        self.any_cut = bool(self._cut.any())
        return found

    def _drop_row(self, which: Array, ends: Array) -> None:
        self.dropped += len(which)
        whole = which[self._skip[which] & ~ends] if self.skips else which[ends]
        self._skip[which] = ends & self.skips
        if len(whole):
            self.begin(whole)


def priority_behind(priority: Any, first: int, place: int) -> Any:
    """Priorities of the lane at a place, from row `first` on: they are of each row, or of each row and lane."""
    if isinstance(priority, dict):
        return {name: priority_behind(each, first, place) for name, each in priority.items()}
    if priority is None or np.ndim(priority) == 0:
        return priority
    rows = np.asarray(priority)[first:]
    return (rows if rows.ndim == 1 else rows[:, place if rows.shape[1] > 1 else 0]).tolist()
