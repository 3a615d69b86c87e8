"""Dopamine's replay buffer with its data in a Di-store table.

`ReplayBuffer` replaces `dopamine.jax.replay_memory.replay_buffer.ReplayBuffer`. The accumulator and the sampling
distribution are Dopamine's own: with the same seed, a training run is the same.
"""

from di_store.adapters.framework import require

require("dopamine", "dopamine.jax.replay_memory.replay_buffer", ">=4.1,<4.2", package="dopamine-rl")

from di_store.adapters.dopamine.buffer import ReplayBuffer

__all__ = ["ReplayBuffer"]
