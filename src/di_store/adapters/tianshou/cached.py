"""Refuses Tianshou's `CachedReplayBuffer` and `ReplayBufferManager` around a buffer of ours, with an explanation."""

from __future__ import annotations

from typing import Any


class NoOptions:
    """Replaces a buffer's `options`, which only those two classes read, to make more buffers like it.

    These classes lay their buffers over the arrays of one batch, and a table is no such array. Tianshou's own
    constructors write the attribute; it is deleted afterwards.
    """

    def __get__(self, buffer: Any, kind: type) -> Any:
        if buffer is None:
            return self
        raise TypeError(
            "CachedReplayBuffer and ReplayBufferManager lay their buffers over Tianshou's arrays: give them Tianshou's "
            "own ReplayBuffer, as main_buffer too, or use di_store's VectorReplayBuffer, which needs neither"
        )
