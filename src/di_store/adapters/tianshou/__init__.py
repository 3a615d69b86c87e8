"""Tianshou's replay buffers with their observations and actions in a Di-store table.

They draw the same steps as Tianshou's own buffers: with the same seed, a training run is the same. Each observation is
stored once, even if it is also the next observation of the previous step.
"""

from di_store.adapters.framework import require

require("tianshou", "tianshou", ">=2,<3")

from di_store.adapters.tianshou.buffers import (
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)

__all__ = ["PrioritizedReplayBuffer", "PrioritizedVectorReplayBuffer", "ReplayBuffer", "VectorReplayBuffer"]
