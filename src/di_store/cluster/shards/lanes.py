"""The lanes of a writer over shards: which shard each lane writes to, and which rows are dropped.

A lane keeps its shard for the rest of an episode. If the shard is lost, the episode's rows in it are lost too. The
remaining rows of the episode are dropped, and the lane's next episode goes to another shard.
"""

from __future__ import annotations

import secrets

import numpy as np

from di_store._core import Autoreset
from di_store.base.dtypes import Array
from di_store.client.lanes import WriterLanes
from di_store.cluster.shards.parts import Parts
from di_store.cluster.shards.routing import chosen, lane_key
from di_store.policy.views import Opaque, Step


class Lanes(WriterLanes):
    """The lanes of one writer. For one thread.

    Attributes:
        at: by lane, the number of its shard.
    """

    def __init__(self, parts: Parts, lanes: int, autoreset: Autoreset) -> None:
        super().__init__(lanes, autoreset, spans=not isinstance(parts.settings.view, (Step, Opaque)))
        self._parts = parts
        self._key = secrets.token_bytes(8)
        self._lost: set[int] = set()  # shards that this writer never goes back to
        self.at: Array = np.zeros(lanes, np.int64)
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

    def lose(self, number: int) -> None:
        """Note that a shard is lost: its lanes are cut, or change their shard at once if no item spans several rows."""
        self._lost.add(number)
        self._whole = None
        mine = self.at == number
        cut = self.cut(mine, f"writer of table {self._parts.name!r}: a shard is lost")
        self._place(np.flatnonzero(mine & ~cut))

    def all_lost(self) -> bool:
        """Whether no shard is left."""
        return len(self._lost) == len(self._parts.shards)

    def begin(self, which: Array) -> None:
        """As `WriterLanes.begin`: cut lanes write again, to another shard."""
        cut = which[self._cut[which]]
        super().begin(which)
        if len(cut):
            self._place(cut)
