"""DI-engine's replay buffer with its data in a Di-store table.

`Buffer` replaces `ding.data.DequeBuffer`, with the same middleware. It draws the same data as DI-engine's buffer: with
the same seed, a training run is the same.
"""

from di_store.adapters.framework import require

require("ding", "ding.data.buffer", ">=0.5,<0.6", package="DI-engine")

from di_store.adapters.ding.buffer import Buffer

__all__ = ["Buffer"]
