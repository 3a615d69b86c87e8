"""Tianshou's `CachedReplayBuffer` around a buffer of ours: refused with a sentence."""

from __future__ import annotations

import functools
from typing import Any

from tianshou.data import CachedReplayBuffer

from di_store.adapters.tianshou.stored import Stored


def refuse_ours() -> None:
    """Let it say why it cannot hold a buffer of ours, where Tianshou has a bare assert.

    It lays its buffers over the arrays of one batch, and a table is no such array.
    """
    init = CachedReplayBuffer.__init__

    @functools.wraps(init)
    def checked(self: Any, main_buffer: Any, *args: Any, **options: Any) -> None:
        if isinstance(main_buffer, Stored):
            raise TypeError(
                "CachedReplayBuffer lays its buffers over Tianshou's arrays: give it Tianshou's own ReplayBuffer as "
                "main_buffer, or use di_store's VectorReplayBuffer, which needs no cache"
            )
        init(self, main_buffer, *args, **options)

    CachedReplayBuffer.__init__ = checked
