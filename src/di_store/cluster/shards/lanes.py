"""The lanes of a writer over shards: which shard each lane writes to, and which rows are dropped.

A lane keeps its shard for the rest of an episode. If the shard is lost, the episode's rows in it are lost too. The
remaining rows of the episode are dropped, and the lane's next episode goes to another shard.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from di_store._core import Autoreset
from di_store.base.dtypes import Array
from di_store.base.warned import warn
from di_store.cluster.shards.parts import Parts
from di_store.cluster.shards.routing import chosen, lane_key
from di_store.columns.column import FLAGS
from di_store.policy.views import Opaque, Step


class Lanes:
    """The lanes of one writer. For one thread.

    Attributes:
        every: all lanes, int64[lanes].
        at: by lane, the number of its shard.
        dropped: number of rows that were dropped.
    """

    def __init__(self, parts: Parts, lanes: int, autoreset: Autoreset) -> None:
        self._parts = parts
        self._key = secrets.token_bytes(8)
        self._spans = not isinstance(parts.settings.view, (Step, Opaque))
        self._skips = autoreset == Autoreset.NEXT_STEP
        self._ends = False  # whether this writer says where episodes end; if not, a cut begins another one
        self._lost: set[int] = set()  # shards that this writer never goes back to
        self.every: Array = np.arange(lanes)
        self.at: Array = np.zeros(lanes, np.int64)
        self._open: Array = np.zeros(lanes, np.bool_)  # in the middle of an episode
        self._cut: Array = np.zeros(lanes, np.bool_)
        self._skip: Array = np.zeros(lanes, np.bool_)  # the next row is no step: see `Autoreset.NEXT_STEP`
        self.dropped = 0
        self._told = False
        self._whole: list[tuple[int, Array]] | None = None  # `groups` of all lanes
        self._place(self.every)

    def _place(self, which: Array) -> None:
        live = {shard.uuid: shard.number for shard in self._parts.live() if shard.number not in self._lost}
        if not live:
            live = {shard.uuid: shard.number for shard in self._parts.shards}
        for lane in which.tolist():
            self.at[lane] = live[chosen(lane_key(self._key, lane), live)]
        self._whole = None

    def groups(self, which: Array) -> list[tuple[int, Array]]:
        """By shard, the positions in `which` of the lanes that write there now. Cut lanes are left out."""
        if which is not self.every:
            return self._grouped(which)
        if self._whole is None:
            self._whole = self._grouped(which)
        return self._whole

    def _grouped(self, which: Array) -> list[tuple[int, Array]]:
        at, whole = self.at[which], ~self._cut[which]
        return [(number, np.flatnonzero(whole & (at == number))) for number in sorted(set(at[whole].tolist()))]

    def is_cut(self, which: Array) -> Array:
        """Whether each of these lanes now drops its rows, bool[k]."""
        cut: Array = self._cut[which]
        return cut

    def lose(self, number: int) -> None:
        """Note that a shard is lost: its lanes are cut, or change their shard at once if no item spans several rows."""
        self._lost.add(number)
        self._whole = None
        mine = self.at == number
        cut = mine & (self._open | self._skip) if self._spans and self._ends else np.zeros_like(mine)
        self._cut |= cut
        self._open[mine] = False
        self._place(np.flatnonzero(mine & ~cut))
        if (cut & ~self._skip).any() and not self._told:
            self._told = True
            warn(
                f"writer of table {self._parts.name!r}: the shard of lanes {np.flatnonzero(cut).tolist()} "
                "is lost; its open episodes are cut off, and rows are dropped until each of these lanes "
                "begins a new episode"
            )

    def all_lost(self) -> bool:
        """Whether no shard is left."""
        return len(self._lost) == len(self._parts.shards)

    def wrote(self, which: Array, every: Array) -> None:
        """Note that these lanes wrote rows; `every`: bool[rows, k], the rows after which a lane's episode ended."""
        ends = every[-1]
        if not self._skips:
            self._open[which] = ~ends
            return
        before = every[-2] if len(every) > 1 else self._skip[which]
        self._open[which] = ~ends & ~before
        self._skip[which] = ends

    def drop(self, which: Array, ends: Array) -> None:
        """Count a row of each of these lanes as dropped, because the lanes are cut."""
        self.dropped += len(which)
        whole = which[self._skip[which] & ~ends] if self._skips else which[ends]
        self._skip[which] = ends & self._skips
        self.begin(whole)

    def begin(self, which: Array) -> None:
        """Note that the episodes of these lanes are over: cut lanes write again."""
        self._open[which] = False
        if len(cut := which[self._cut[which]]):
            self._cut[cut] = False
            self._place(cut)

    def ends(self, step: Any, lanes: int, total: int | None) -> Array:
        """Whether each lane's episode has ended after each row, bool[rows, lanes]."""
        rows = 1 if total is None else total
        found: Array = np.zeros((rows, lanes), np.bool_)
        if isinstance(step, dict):
            for name in FLAGS:
                if (value := step.get(name)) is not None:
                    self._ends = True
                    given = np.asarray(value).astype(np.bool_)
                    if given.size in (1, found.size):
                        found |= given.reshape(found.shape) if given.size == found.size else given.reshape(())
        return found

    def says_ends(self) -> None:
        """Note that the program calls `end_episode`."""
        self._ends = True
