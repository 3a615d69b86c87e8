"""Items that a writer on another machine has made, or will make."""

from __future__ import annotations

from typing import Any

import numpy as np

from di_store.base.dtypes import Array
from di_store.client.pipe import WriterPipe
from di_store.client.writer_calls import Sent
from di_store.replay.batch import Items


class RemoteItems(Items):
    """Items that are known once the agent has acknowledged the call. Reading an attribute waits for that."""

    __slots__ = ("_call", "_pipe", "_place")

    def __init__(self, pipe: WriterPipe, call: Sent, place: int, episodes: Any) -> None:
        self._pipe = pipe
        self._call = call
        self._place = place
        self._episodes = episodes

    def _part(self, number: int) -> Array:
        made = self._pipe.result(self._call)
        if self._place < len(made):
            return made[self._place][number]
        return np.empty(0, (np.uint64, np.int32, np.int64)[number])

    @property
    def keys(self) -> Array:  # type: ignore[override]
        return self._part(0)

    @property
    def lanes(self) -> Array:  # type: ignore[override]
        return self._part(1)

    @property
    def starts(self) -> Array:  # type: ignore[override]
        return self._part(2)

    def __reduce__(self) -> Any:
        return _items, (self.keys, self.lanes, self.starts, self.episodes)


def _items(keys: Array, lanes: Array, starts: Array, episodes: Array) -> Items:
    made = Items(keys, lanes, starts)
    made._episodes = episodes
    return made
